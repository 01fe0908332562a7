"""Defines the table of all rules, and applies them to the manifest of a dump.

A rule is a pure function from evidence and thresholds to suspects. It skips a tensor whose manifest lacks the number
that it needs, as in a dump of the core tier, of some families only, or without layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gradscope.dump.manifest.manifest import Manifest
from gradscope.stats.findings.causes import causes
from gradscope.stats.findings.rule_evidence import Finding, RuleEvidence, Suspect, Thresholds
from gradscope.stats.findings.rules import (
    batch_rules,
    gradient_rules,
    saturation_rules,
    trends,
    unit_rules,
    value_rules,
    weight_rules,
)

_Check = Callable[[RuleEvidence, Thresholds], Iterable[Suspect]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRule:
    """A `FindingRule` is one row of the table of rules.

    Attributes:
        name: The rule's stable name.
        sentence: A description of the rule's findings, for users.
        formula: What is compared with what.
        thresholds: The fields of `Thresholds` that the rule reads.
        remedy: What to do.
        checks: The functions that return the findings.
    """

    name: str
    sentence: str
    formula: str
    thresholds: tuple[str, ...] = ()
    remedy: str
    checks: tuple[_Check, ...] = ()


#: Every rule.
RULES: Final = (
    FindingRule(
        name="nonfinite",
        sentence="A NaN or an infinity reaches the loss or the gradient of a parameter; one finding for each origin.",
        formula="count of NaNs and infinities > 0 in the loss, a parameter, its gradient, or that of an input",
        remedy="Keep the operands of the operation that is named where it and its derivative are finite: clip them, or "
        "rescale what makes them.",
        checks=(value_rules.nonfinite,),
    ),
    FindingRule(
        name="overflow",
        sentence="A number is beyond the largest of its narrow type, or close to it.",
        formula="Inf in a float16 or float8 tensor, or amax > 0.5 of the largest float16",
        remedy="Compute this in float32 or bfloat16, scale the operands, or scale the loss down.",
        checks=(value_rules.overflow,),
    ),
    FindingRule(
        name="broadcast",
        sentence="The loss pairs every example with every other: a column of predictions meets a row of labels, or the "
        "other way round, and broadcasting makes a matrix of them.",
        formula="shapes [n, 1] and [n] in an elementwise operation of the loss, of which one is an array of the batch, "
        "or a target that is made of one and gets no gradient, and the other is made of the batch and of parameters, "
        "where the matrix [n, n] is only reduced; not where the program itself adds the column's axis, as losses of "
        "pairs do",
        remedy="Give both one shape: take the last axis off the predictions, or reshape the labels. "
        "jax.config.update('jax_numpy_rank_promotion', 'raise') makes it an error.",
        checks=(batch_rules.broadcast,),
    ),
    FindingRule(
        name="out-of-bounds",
        sentence="Indices of the batch, or positions, are beyond a table of parameters or the predictions of an "
        "example, and JAX clips them without an error; or labels below 0 pick the last of these; or labels start at "
        "1, and one_hot makes zeros of the last.",
        formula="index >= rows, or < -rows, in `table[ids]` where the table is made of parameters alone, or in "
        "`logits[arange(n), labels]`, unless no gradient comes back to any of those rows, as where padding is masked; "
        "or labels < 0 as they are given, there or in `take_along_axis`, of which some have a gradient; or labels >= 1 "
        "of which some are n, in `one_hot(labels, n)` that predictions are compared with. A run says so of the "
        "largest integer that it recorded, of labels where they go up to n and none of them is 0",
        remedy="Give the table as many rows as the tokenizer or the data has classes, or as the longest sequence has "
        "positions, or look for ids that start at 1; mask the loss of labels that stand for none, such as -1, -100 or "
        "255.",
        checks=(batch_rules.out_of_bounds,),
    ),
    FindingRule(
        name="init",
        sentence="A layer's weights multiply the signal by far more or less than usual ones, are all equal, or stay at "
        "zero.",
        formula="fwd_gain = rms(x W) / rms(x) of a layer with one kernel, beyond the factor up or down, where the "
        "layers behind change with it, or above 2.5 in every layer before the last of at least 3, at the "
        "initialisation, where the answer is 30 times what the first receives; or std(W) = 0; or W, or the gain of a "
        "normalisation, = 0 and its gradient = 0; or W = 0 where x W multiplies another signal",
        thresholds=("init",),
        remedy="Draw the kernel with deviation 1/sqrt(fan in), times sqrt(2) before a ReLU; a normalisation behind it "
        "makes the scale irrelevant.",
        checks=(weight_rules.weights,),
    ),
    FindingRule(
        name="dead",
        sentence="Most units of a rectifier are zero for all examples and positions, which are enough to say so.",
        formula="share of units (last axis) whose maximum is zero; of at least 8 examples and positions, and beyond "
        "chance (probability below 1e-4 where each unit is dead with probability 1/2)",
        thresholds=("dead",),
        remedy="Lower the learning rate or warm it up, look at the biases before the rectifier, or use one that passes "
        "a gradient below zero.",
        checks=(unit_rules.dead,),
    ),
    FindingRule(
        name="saturated",
        sentence="A bounded function (tanh, sigmoid, softmax) inside the model is at its limits, where it passes no "
        "gradient, whether or not a layer returns its result; or a softmax or a sigmoid goes through another one.",
        formula="saturated = share of elements within 0.01 of a limit; of a softmax over K, (K^2 mean(p^2) - 1) / (K - "
        "1): 0 for equal weights, 1 for a single one (0.6 counts at the initialisation, 0.98 later), "
        "and of a tanh behind a kernel, with a mean below 0.3, 0.6 at the initialisation; not where a mask "
        "behind drops them: nearly as many elements get no gradient, and of the others less than half are there; not "
        "where more than a tenth of the variance of what it receives is noise, a term in which no parameter is",
        thresholds=("saturated",),
        remedy="Scale what goes in: divide attention scores by sqrt(width), normalise inputs, lower the learning rate. "
        "Give a loss that takes logits the logits.",
        checks=(saturation_rules.saturated,),
    ),
    FindingRule(
        name="exploding",
        sentence="The gradient grows from layer to layer, or from step to step of a recurrence, on its way back from "
        "the loss; or the signal does, because inputs are not scaled or weights have grown.",
        formula="Theil-Sen slope of log l2(gradient of a layer's output) over the chain of layers with a kernel, times "
        "their number: first layers / last ones; at least 6 layers, ends and middle in order",
        thresholds=("exploding",),
        remedy="Normalise in each block, scale residual branches down by their number, clip the gradient's norm, "
        "normalise inputs to deviation 1, lower the learning rate; in a recurrence, draw its kernel orthogonal.",
        checks=(trends.exploding, batch_rules.inputs),
    ),
    FindingRule(
        name="vanishing",
        sentence="The gradient shrinks from layer to layer, or from step to step of a recurrence, on its way back from "
        "the loss, or is lost between two layers.",
        formula="as for `exploding`: first layers / last ones; or all of l2(gradient of a layer's output) up to one "
        "layer < 1e-10 of the next one's, and l2(gradient) < 6e-16 l2(W) for all kernels up to there",
        thresholds=("vanishing",),
        remedy="Use residual connections, a normalisation in each block, an activation function whose derivative is "
        "not below 1 everywhere (ReLU, GELU), and kernels of its gain; in a recurrence, a gate that keeps the state.",
        checks=(trends.vanishing,),
    ),
    FindingRule(
        name="zero-grad",
        sentence="Gradients of parameters are exactly zero, or cut off; one finding for each place where they are.",
        formula="every element of a parameter's gradient = 0, and the cause is not that the loss is invariant, that a "
        "branch starts at zero or is not taken, that they make a target, or that every margin is kept; or all that the "
        "loss makes of a tensor's elements goes through step functions, and what is left comes through reductions; or "
        "every parameter's gradient is zero but for rounding",
        remedy="Let a gradient pass where the reason says that none does, or take these parameters out of training.",
        checks=(gradient_rules.zero_gradient, gradient_rules.constant_loss, gradient_rules.step_function),
    ),
    FindingRule(
        name="underflow",
        sentence="Most of a float16 or float8 gradient is below the type's smallest normal number.",
        formula="subnormal / (size - zeros) of a gradient",
        thresholds=("underflow",),
        remedy="Multiply the loss by a constant (loss scaling) and divide the parameters' gradients by it, or use "
        "bfloat16.",
        checks=(value_rules.underflow,),
    ),
    FindingRule(
        name="unused-param",
        sentence="The loss does not depend on a parameter; one finding for each part of the model.",
        formula="no path from the parameter to the loss",
        remedy="Call the layer, use its output, or remove it.",
        checks=(gradient_rules.unused_parameter,),
    ),
    FindingRule(
        name="self-check",
        sentence="Observing changed a parameter's gradient by more than rounding.",
        formula="rel_l2 of the instrumented and the plain gradient, against the rounding of the dtype",
        remedy="Report it: this is a fault of gradscope, not of the model.",
        checks=(gradient_rules.self_check,),
    ),
)


def find(manifest: Manifest, thresholds: Thresholds | None = None) -> tuple[Finding, ...]:
    """Returns what is wrong with a run: one finding for each cause, worst first.

    Args:
        manifest: The dump's manifest; tensors are not read.
        thresholds: The thresholds of the rules; the defaults where None.

    Returns:
        Findings, worst first. Their consequences are counted in `Finding.tensors`.

    Raises:
        DumpError: A statistic in the manifest is not a number.
    """
    evidence = RuleEvidence(manifest)
    limits = Thresholds() if thresholds is None else thresholds
    return causes([each for rule in RULES for check in rule.checks for each in check(evidence, limits)])
