"""`JSON_OBJECTS` are the objects of JSON output with their keys, and what each is.

The reference of JSON is made of them, and `explain` knows each key; the columns of statistics, metrics and histories,
which rows have as keys, are in tables of their own. A key that has one meaning in several objects is in the first of
them, and a test reads the program for keys that are in none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gradscope.presentation.reports.explaining.comparison_keys import (
    COMPARED_ROW,
    COMPARED_RUNS,
    COMPARISON,
    ISOLATION,
    MESH,
    MESH_COMPARISON,
    MESH_FAULT,
    MESH_RUN,
)
from gradscope.presentation.reports.explaining.provenance_keys import PROVENANCE


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A `JsonObject` is one kind of object in JSON output.

    Attributes:
        slug: Its name in the reference.
        of: What it is, as the predicate of "a key of ...".
        keys: What each of its keys is, in Markdown, without a full stop.
    """

    slug: str
    of: str
    keys: Mapping[str, str]


_COMMON: Final = {
    "schema": "The version of the object: it grows where a key goes away or changes its meaning",
    "command": "The command that printed it",
}
_DUMP: Final = {
    "dump": "The path of the dump",
    "loss": "The loss",
    "complete": "Whether the run ended well",
    "tier": "Which statistics tensors have: `full`, or `core`, those that a training step computes",
    "note": "One line about the file",
    "ledger": "The number of tensors by reason: `captured`, and the reasons why others are missing",
    "rows": "One object for each tensor",
    "findings": "What the rules found, worst first",
    "origins": "Where a NaN or an infinity began",
    "may_be_meant": "What is no finding, as it may be meant",
    "self_check": "What `--self-check` found",
    "examples": "Of gradients of each example, what `--per-example` found",
    "timings": "Seconds by phase",
    "provenance": "Versions, device, settings and hashes",
}
_DUMP_ROW: Final = {
    "name": "The layer, parameter or value",
    "family": "What kind of tensor it is: an activation, its gradient, a parameter and so on",
    "source": "`file:line` of your source that made it; of a parameter, the first line that reads it",
    "layer": "The layer whose output it is; of a parameter, the layer that uses it",
    "primitive": "The JAX primitive that made it",
    "iteration": "The index in each enclosing loop, outermost first",
    "alias_of": "The key of the tensor that is the same value under another name",
    "of": "Of a term, the key of the value whose gradient it is a term of",
    "absent": "Why there is no tensor, by the reasons of the ledger",
    "octaves": "With `--tensor`, pairs of an exponent `e` and the number of magnitudes in (2^e, 2^(e+1)]; with "
    "`--diff`, of the differences",
    "why_zero": "With `--tensor`, of a gradient that is zero: the reason",
    "largest_at": "With `--tensor`, the index of the element of the largest magnitude",
    "nonfinite_at": "With `--tensor`, the index of the first element that is not finite",
    "reason": "With `--ledger`, why the value was not captured",
    "detail": "With `--ledger`, and with `--tensor` of an absent one, where the reason applies: the operation, its "
    "line, or other names of the value",
}
_FINDING: Final = {
    "rule": "The rule that made it; of a run's `faults` and `alarms`, too",
    "why": "What was found, in words",
    "tensors": "How many tensors it concerns",
}
_ORIGIN: Final = {
    "direction": "`forward` or `backward`",
    "index": "The index of the first element that is not finite",
    "operands": "The values of the operands for that element",
    "repair": "What is likely to mend it",
    "thrown_away": "That what is not finite reaches neither the loss nor a gradient",
}
_MAY_BE_MEANT: Final = {
    "word": "The word that reports have for it, such as `softmax`, `clipped` or `rectified`",
}
_SELF_CHECK: Final = {
    "total": "How many parameter gradients were compared with those of the plain program",
    "bit_equal": "How many of them are the same, bit for bit",
    "max_rel_l2": "The largest of their `rel_l2`",
    "largest": "The parameter that has it",
    "zero_but_rounding": "The parameters whose gradient is zero but for rounding, which have no part in it",
    "loss_bit_equal": "Whether the loss is the same, bit for bit",
    "rel_l2": "The error by parameter",
    "noise": "By parameter, the error that a change in the last bit of the arguments makes",
    "beyond_rounding": "The parameters whose gradients differ by more than rounding explains",
}
_EXAMPLES: Final = {
    "count": "The number of examples",
    "combined_by": "Whether the gradient of the batch is the `mean` or the `sum` of those of its examples",
    "rel_l2": "How far that combination is from the gradient of the batch",
    "coupled": "Whether that is further than rounding explains, as where a batch norm couples the examples",
    "sentence": "What was found, in words",
}
_DIFFERENCE: Final = {
    "worst": "The elements that differ most, with `index`, `ref`, `cand` and `difference`; of an axis, the index with "
    "the largest share",
    "difference": "The absolute difference of two elements",
    "axes": "How the difference is spread over each axis",
    "axis": "The number of the axis, from 0",
    "share": "The share of the squared error that is at the index `worst` of the axis",
    "effective": "How many indices of the axis share the squared error",
}
_RUN: Final = {
    "run": "The path of the run's folder",
    "steps": "The steps up to the last recorded one",
    "recorded": "How many of them are recorded",
    "taken": "The steps taken, by the last checkpoint and the history",
    "step": "The step that the rows are of, absent for trends; of an alarm, the step at which it was raised",
    "loss": "`first` and `last` of the steps whose loss is known, recorded or not",
    "alarms": "What was wrong at which step",
    "resumed_from": "With `--resume`, the steps before this command",
    "level": "Of a loss that has hardly fallen (`learning`), what it was compared by, and where all "
    "steps together hardly move the parameters by how much at most (`moved`) and why (`second_moment`, "
    "`infinite_moment`, `one_norm`, `no_gradient`, `clip` and the share that it leaves, `clip_leaves`; "
    "`may_clip` where a loop's own optimizer may clip)",
    "faults": "What is wrong with the loss's program: `rule`, `why` and `source`; with the trends or the last step",
    "bounds": "Which integers of the recorded batches are beyond what they look up: `name`, `looked_up` (`rows` of a "
    "`table`, `values`, `classes`), how many `rows` of these there are, the `most` that was recorded, and the "
    "`source`; with the trends or the last step",
    "batches": "What is unusual in the recorded batches: that they are all the `same`, and by which inputs the "
    "examples are `sorted` (`name`, the recorded `steps`, the `least` and the `most` of its means); with the trends "
    "or the last step",
    "climbing": "Where the updates point along the gradients and the loss has not fallen: `count` of the recorded "
    "steps, and the median `cosine`; or the `parameters` whose updates alone do; with the trends or the last step",
    "unchanged": "The parameters that no recorded step changes though they have a gradient, as an optimizer "
    "leaves them that was told so; with the trends or the last step",
    "left_out": "Where no recorded step makes an update, as its gradients are not finite and it leaves them out, the "
    "`count` of these steps; with the trends or the last step",
    "between_updates": "Where no recorded step updates the parameters, which move between them, the `count` of these "
    "steps and the distance from one to the next, `every`; with the trends or the last step",
    "rounded": "The parameters of a short dtype whose updates are lost when they are added; with the trends or the "
    "last step",
    "noise": "The noise of gradients, where it was measured: its `step`, and `rows` with the columns of `noise`, of "
    "all parameters first, then with the `name` of each",
}
_ALARM: Final = {
    "value": "The value that raised the alarm",
    "limit": "The limit that it passed",
    "folder": "Where in the run's folder the step is kept",
}
_LEVEL: Final = {
    "start": "The first loss",
    "first": "The mean of the first `count` losses",
    "second": "The mean of the `count` losses after them",
    "last": "The mean of the last `count` losses",
    "count": "How many losses each mean is of",
    "ratio": "The norm of the updates over that of the parameters, the median of the recorded steps that make one",
    "uneven": "Where the updates move some parameters ten thousand times as much as others, that which is moved least "
    "(`least`) and most (`most`), and the median norms of their updates over their own (`least_share`, `most_share`)",
    "shrinking": "Where most parameters shrink away, how many do (`parameters`), of how many (`of`) that did not begin "
    "at zero, and the median share of their norms that is left (`left`)",
    "parameters": "The parameters whose updates alone point along their gradients at every recorded step",
}
_RUN_ROW: Final = {
    "column": "Of trends, the statistic that the row is of",
    "change": "Of trends, powers of ten up or down; of `watch`, how many times its median before",
    "tensor": "With `--tensor`, the key of the tensor that the rows are of, one for each step",
    "histograms": "With `--tensor`, the histograms of steps",
    "bins": "The numbers of the histogram's bins",
    "counts": "How many elements each of the bins has",
    "lower": "The lower edges of the bins",
    "upper": "The upper edges of the bins",
}
_INSPECTION: Final = {
    "target": "The model, as requested",
    "batch_size": "The number of examples",
    "totals": "Numbers of the complete model",
    "fetch": "With `--fetch`, how many operations are `needed` of the `total`, and the `inputs`",
    "rows": "One object for each layer, with `--ops` for each operation, and for each parameter and input",
}
_TOTALS: Final = {
    "layers": "How many layers the model has; with `--ops`, the layers whose output an operation makes",
    "operations": "How many operations of JAX",
    "parameters": "How many elements the parameters have",
    "flops": "The floating-point operations of one run forward",
    "backward_flops": "Those of one run backward",
    "parameter_bytes": "The bytes of the parameters",
    "state_bytes": "The bytes of what is neither a parameter nor of the batch, such as running statistics",
    "input_bytes": "The bytes of the batch",
    "activation_bytes": "The bytes of what layers return",
    "residual_bytes": "The bytes that are kept for the backward pass",
    "unused_parameters": "The parameters that the loss does not read",
    "loops_counted_once": "The loops whose number of iterations is not known, so that their body counts once",
}
_INSPECTED_ROW: Final = {
    "flops_share": "The share of the model's `flops`",
    "needed": "With `--fetch`, how many of the layer's operations are needed",
    "parameter_share": "The share of the model's parameters",
    "bytes": "The bytes of the tensor",
    "iterations": "The number of iterations of a loop",
    "used_by": "The layers that use a parameter",
    "inputs": "With `--ops`, what an operation reads; of `fetch`, the inputs that the fetch needs",
}
_EXPLANATION: Final = {
    "kind": "What the name is of: `column`, `metric`, `finding`, `alarm`, `series`, `trend`, `reason`, `zero`, "
    "`family`, `status`, `pass`, `verdict`, `proof`, `outcome`, `word` or `key`",
    "what": "What it is",
    "formula": "How it is computed",
    "unit": "Its unit",
    "of": "What has it, such as families, dtypes or an object of JSON",
    "tier": "That a compiled step computes it on request only",
    "threshold": "The numbers that it is judged by",
    "do": "What to do",
    "use": "An option or a command that takes it",
}
_PROOF: Final = {
    "verdict": "`correct`, `wrong` or `nothing checked`",
    "notes": "Sentences about how the claims were checked, which are messages of the other formats",
    "stopped": "Where the loss keeps values constant that parameters make: `file:line` of each `stop_gradient`",
    "rows": "One object for each derivative",
    "what": "The claim that is checked: a derivative, a rule, or that two runs agree",
    "error": "How far the derivative is from what it was compared with, such as finite differences in float64",
    "expected": "The error that a right derivative may have by the method and its rounding, that of a solver included",
    "status": "`correct`, `wrong`, `excused`, `not smooth here` or `not checked`",
    "arguments": "Of a wrong rule, the arguments of which its derivative is wrong",
    "allow": "What `--allow` takes to excuse the rule",
    "why": "Of a wrong rule, how it is wrong; of a gradient made through a rule of `--allow`, that rule; of one that "
    "is not checked, the reason",
}

#: Every object, in the order of the reference.
JSON_OBJECTS: Final = (
    JsonObject("json", "every object", _COMMON),
    JsonObject("json-dump", "dump and show", _DUMP),
    JsonObject("json-dump-rows", "a row of dump and show", _DUMP_ROW),
    JsonObject("json-provenance", "the provenance of a dump", PROVENANCE),
    JsonObject("json-findings", "a finding", _FINDING),
    JsonObject("json-origins", "an origin", _ORIGIN),
    JsonObject("json-may-be-meant", "what may be meant", _MAY_BE_MEANT),
    JsonObject("json-self-check", "self_check", _SELF_CHECK),
    JsonObject("json-examples", "the examples of a dump", _EXAMPLES),
    JsonObject("json-difference", "show --tensor KEY --diff CAND", _DIFFERENCE),
    JsonObject("json-run", "train, and show of a run", _RUN),
    JsonObject("json-alarms", "an alarm", _ALARM),
    JsonObject("json-level", "the level of a loss that has hardly fallen", _LEVEL),
    JsonObject("json-run-rows", "a row of train, show of a run, and watch", _RUN_ROW),
    JsonObject("json-compare", "compare", COMPARISON),
    JsonObject("json-compare-rows", "a row of compare", COMPARED_ROW),
    JsonObject("json-compare-runs", "compare of two runs", COMPARED_RUNS),
    JsonObject("json-isolation", "compare --isolate", ISOLATION),
    JsonObject("json-mesh", "mesh", MESH),
    JsonObject("json-mesh-runs", "a run of mesh", MESH_RUN),
    JsonObject("json-mesh-comparisons", "a comparison of mesh, beside those of compare", MESH_COMPARISON),
    JsonObject("json-mesh-faults", "a fault of mesh", MESH_FAULT),
    JsonObject("json-inspect", "inspect", _INSPECTION),
    JsonObject("json-totals", "the totals and rows of inspect", _TOTALS),
    JsonObject("json-inspect-rows", "a row of inspect", _INSPECTED_ROW),
    JsonObject("json-explain", "a row of explain", _EXPLANATION),
    JsonObject("json-check", "check, and a row of it", _PROOF),
)
