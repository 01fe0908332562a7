"""`WORDS` are the words that reports print beside the names of the program's own tables, with what each says.

They label notes, head columns, or stand in the sentence of a comparison; a test reads the reports for labels and
headings that are not here. A word in capitals stands for a name, as of a layer.
"""

from __future__ import annotations

from typing import Final

_LABELS: Final = {
    "verdict": "The first line of a report on a terminal, and one of the last elsewhere: the finding that comes first, "
    "or whether two dumps are the same",
    "repair": "What is likely to mend the first finding, or the operation at which a NaN or an infinity began",
    "origin": "The operation that made the first NaN or infinity, with its line and its operands",
    "tensors": "How many tensors were captured, and how many were not, by reason",
    "captured": "How many tensors the dump has, in the ledger; the other numbers there are those of tensors that it "
    "lacks, by reason",
    "gradients": "What gradients are of where that is not the loss, and which values count as constant",
    "fed": "The values that were given in place of those that the model computes (--feed)",
    "frozen": "The parameters of a JAX model that the loss keeps constant on purpose: by a stop_gradient of their own, "
    "or because what is made of them counts as data, as a target does. Without that stop_gradient they are trained. A "
    "dump knows nothing of what is kept constant outside of the loss, by optax.set_to_zero or a mask of the optimizer "
    "(a training run lists it as 'unchanged'), or by eqx.partition, nnx.split or jax.grad's argnums",
    "idle": "Of a program that `mesh` runs, how many devices it is run on where that is not all of them",
    "no effect": "The parameters whose addition a log of a softmax takes out: where it is the bias of the classes, the "
    "softmax is over another axis than theirs, such as the examples",
    "order": "Of two training runs that differ, two layers that are called in another order, as a norm and what it is "
    "before or behind",
    "packed": "A parameter of one training run that holds several of the other one, as a matrix of queries, keys and "
    "values does: runs have statistics, so that it is paired with nothing. Compare dumps of a step, which do pair it",
    "at zero": "The parameters whose gradient is multiplied by another parameter that is zero, as at the start of a "
    "branch: they learn once that one has moved",
    "clip": "That every recorded step of a run clips its gradients, and leaves at most a thousandth of their norm, as "
    "a clip at 1e-6 does: it sets the size of every step. Compare grad_norm with grad_norm_clipped (gradscope export)",
    "clipped": "The clips by two numbers of which more than a tenth is at a limit, where no gradient passes",
    "dropped": "The random masks inside the model, as of a dropout, that make more than 0.8 of the elements zero, by "
    "more than chance: a rate that is too high, or the share to keep taken for the share to drop",
    "rectified": "The rectifiers, as a ReLU or a softplus behind the last layer, whose results the loss takes for "
    "logits: none is below zero, so that no class is less likely than one whose logit is 0",
    "squashed": "The sigmoids and tanhs, as behind the last layer, whose results the loss takes for logits: their "
    "limits keep the probability of every class away from 0 and 1. Give the loss what goes into them",
    "softmax": "The softmaxes whose shares weight a sum along another axis than the one along which they sum to 1: "
    "over the queries or the examples in attention, that is a mistake; in capsules and bags of clusters it is meant. "
    "Of attention also where no position reads those before it, or itself, as with a causal mask that is the wrong way "
    "round. Also the softmaxes of a loss, or of a training run's, that are over the examples, and not over the classes",
    "unscaled": "The inputs with an rms above 30 that a layer reads as they are, such as pixels of 0 to 255, where a "
    "normalisation further on keeps the signal from being large throughout, which would be the finding exploding",
    "evaluation": "The norms of a training run whose mean and variance are arguments of the loss, as those of a batch "
    "norm in evaluation mode, and not those of the batch. Frozen norms are meant so; else turn training on, as by "
    "train=True, use_running_average=False or eqx.nn.inference_mode(model, False)",
    "repeated": "The random masks of a training run, as those of a dropout, and the noise that meets each example, as "
    "that of a variational autoencoder, whose key is made of a number and of no argument of the loss, as "
    "jax.random.key(0) inside of it, or is given to the loss and is the same at all recorded steps of a probe: they "
    "are the same at each step, so that they regularise less, and what is sampled can be learned by heart. "
    "Hand the loss a key, and split it, or fold the number of the step into it, before each step",
    "unjudged": "The gradients that an isolated layer computes and that the dump has nothing to judge by: the "
    "parameter or value is used elsewhere too, and the dump has the sum of all uses. A dump with --terms has each",
    "stale": "The running averages that the loss of a training run returns beside its value, as the means and the "
    "variances of batch norms, which are given to it as they were at all recorded steps of a probe: the step drops the "
    "new ones, so that evaluation has those of the start. Let the step return them, and hand them to the loss "
    "at the next step, as state.replace(batch_stats=updates['batch_stats']) does in Flax. "
    "Also what a probed step is given as it was at all recorded steps, though it returns another one of the same "
    "structure: the state of an optimizer, a mean of the parameters, a key; and an optimizer's state that the step "
    "itself returns as it is given, though it records one like it. Write params, opt_state = "
    "step(params, opt_state, ...)",
    "misapplied": "What a probed step returns as its parameters is not what they were plus the updates that it "
    "records, at all of 3 recorded steps or more: a multiple of these (updates that are added twice, or subtracted, or "
    "recorded before the learning rate), or something else in the parameters that are named, such as a tied weight "
    "that is written over. It is told of parameters that the step returns in a pytree like the one that the loss "
    "gets, or hands to probe.record(params=...). A clip or a projection of the parameters is meant",
    "unchanged": "The parameters with a gradient that no recorded step of a training run changes, as an optimizer "
    "leaves them that was told so",
    "between-updates": "No recorded step of a training run updates its parameters, which move between them: as with "
    "optax.MultiSteps(tx, 4) and every=10, which records steps 0, 10, 20 and so on, while steps 3, 7, 11 and so on "
    "update. The statistics of the updates are all 0 then, and the rules about updates see none. Record at an interval "
    "that has no divisor in common with the number of steps of an update, such as a prime number",
    "rounded": "The parameters of bfloat16 or float16 of a training run whose updates are lost when they are added: at "
    "all recorded steps the largest element of the update is below 2^-10 of the parameter's rms (2^-13 in float16), "
    "which is less than half the distance of values of half the rms, and its largest element never changed, though all "
    "updates together are two such distances of it. Keep the parameters as float32, which the optimizer updates, and "
    "cast them in the loss; or round stochastically",
    "sorted": "An input of whole numbers hardly varies within each recorded batch of a run, of 15 or more, and rises "
    "or falls from one to the next, in several passes as well, as a label does where the examples are sorted by it: "
    "each step then learns one class, and the next one unlearns it. Shuffle the examples; lengths that batches "
    "are ordered by are meant",
    "climbing": "The updates of a training run point along its gradients at every recorded step, and its loss has not "
    "fallen; or those of some parameters alone do, at all of 10 recorded steps or more, of 3 where the loss has hardly "
    "fallen: adding them raises the loss. Where the loss is not maximised on purpose, look for a sign: a chain of "
    "optax that ends in scale_by_schedule needs optax.scale(-1.0), and parameters are made by adding what optax "
    "returns, or by subtracting a rate times the gradients",
    "learning": "The loss of a training run has hardly fallen: from the first quarter of its steps to the last by less "
    "than a quarter, and from that or the second one by less than 4 %, or two standard errors. Look at the updates, of "
    "which some 1e-3 of the parameters are usual, and at the sign of those whose parameters are named; at a dump of a "
    "step, where updates move some parameters ten thousand times as much as others ('vanishing'); at a weight decay, "
    "where parameters shrink away; at 'gradscope "
    "check' of the model, which proves each gradient, names a rule of your own that has another sign or factor, and "
    "says where a stop_gradient keeps a value constant; at 'gradscope dump', which says of inputs that nothing scales, "
    "such as 0 to 255 ('unscaled'), and of a softmax over another axis or a causal mask that is the wrong way round "
    "('softmax'); at labels that do not belong to their inputs, by printing some; at a mean over the examples. "
    "A loss that is near its end from the start, or that is played against another one, need not fall",
    "run": "The versions, the device and the options of the run; of a training run, its folder",
    "command": "The command line that made the dump, with absolute paths reduced to their file names",
    "names": "What the names of layers are made of where the program opens no scopes",
    "statistics": "The tier of the statistics where it is not the full one",
    "dump": "The file that is shown",
    "alarm": "What the training run found wrong at the step of this dump, as beside the steps before it, of which the "
    "dump itself knows nothing",
    "note": "What the program that wrote the dump states about it",
    "incomplete": "The run that wrote the dump did not finish, so that tensors are missing",
    "why zero": "The reason why every element of this gradient is zero, exactly or but for rounding",
    "why absent": "What more is known of why there is no such tensor, such as the place that cuts a gradient off",
    "where it began": "The operation that made the first NaN or infinity, forward or backward, with its operands and "
    "what is likely to mend it",
    "largest at": "The index of the first element of the largest magnitude, from 0 along each axis, and the element",
    "not finite at": "The index of the first NaN or infinity of a tensor, from 0 along each axis, and the element",
    "more": "The options that show the rest, or a part",
    "look": "The commands that show the step of the worst alarm of a training run, and what its rule means; of a loss "
    "that has hardly fallen, the command that dumps the model as the run left it, with findings",
    "explain": "The command that says what a word means",
    "steps": "How many steps a training run has taken and recorded",
    "model": "The model whose layers or operations are listed",
    "parameters": "The number of parameters and their bytes; of a comparison of runs, those before the step",
    "activations": "The elements and bytes of what layers return in one run forward",
    "flops": "The floating-point operations of one run forward and backward, counted in the traced program",
    "inputs": "The leaves of the batch, with their shapes",
    "loops": "The loops of the program, and how many iterations each has",
    "fetch": "Which share of the program is needed for the values that --fetch names",
    "unused": "The parameters that the loss does not read",
    "meant?": "How a rule is excused that may be no derivative on purpose, as that of a straight-through estimator",
    "left out": "What a page leaves out to stay small, and the option that includes it",
}
_OF_COMPARISONS: Final = {
    "reference": "The first of two dumps or runs, which counts as right",
    "candidate": "The second of two dumps or runs, which is judged",
    "likely": "A cause that fits how the tensors of a row differ; it is not proved",
    "not counted": "Rows that differ or lack a counterpart and do not make the verdict, with the reason under --full",
    "layers": "How to run the candidate's layers one by one, so that only those at fault differ",
    "would pass": "The smallest tolerance with which all rows that both dumps have would be the same",
    "statistics": "How many rows are judged by the statistics of a dump that has no elements there",
    "never passes": "Rows that no tolerance makes the same, such as those of two shapes or with a NaN on one side",
    "one side only": "How many tensors only one dump has, and the option that lets them pass",
    "not in both": "The tensors or steps that only one of two runs has recorded",
    "compared": "What was compared of two runs, and at which steps",
    "difference": "By how much two values differ, of two runs, in how many recorded steps",
    "extent": "What one dump recorded and the other left out by its options",
    "hashes": "The fields whose hashes differ, such as that of the batch: what differs in them is not known",
    "others": "The fields in which a dump and a capture of another program, as of PyTorch, differ beside those shown",
    "unknown": "The fields that one of two dumps does not state, so that they may be the same",
    "not judged": "Layers that were not run apart on the reference's values, with the reason",
    "reasons": "Why layers or tensors differ that no number can show, such as two shapes",
    "arguments": "What the layers were run on by themselves: how many arrays of the reference, and which arguments it "
    "lacks, so that the candidate's or the model's own were taken",
    "the runs differ in": "What two dumps do not have in common: versions, device, options, what was captured",
    "the first that differs": "The first of several compared dumps that is different; what follows is its comparison",
    "error along depth": "One character for each layer, or for several, in the order of execution: how large its error "
    "is, in multiples of its tolerance",
    "of the reference": "Layers of the reference that no layer of the candidate was found for",
    "made anew": "The error of a value is far larger than those of all values that it is computed from: a second place "
    "that is wrong, beside the first difference",
    "made in": "The layers that read a value and return the gradient of it at which two dumps first differ backward: "
    "what their backward pass is given is the same, or nearly",
    "made here": "The error arises in this layer: what it reads is the same but for rounding",
    "right before it": "The error arises in this layer or in a step between it and the layers before, whose values are "
    "not in the dumps: all that is before both is the same but for rounding. `dump --ops` has every step",
    "added up": "Two tensors of one dump are the terms of one tensor of the other, by their shapes and names",
    "follow from that": "Rows that differ no more than what they are computed from explains",
    "joined": "Two or more tensors of one dump, side by side along an axis, are one tensor of the other, as a packed "
    "projection of query, key and value",
    "before LAYER": "The code between what a layer reads and the layer, which no layer has: it is run apart",
    "backward only": "The forward passes of two dumps agree and their backward passes do not: the error is in a "
    "derivative, at the layer that is named",
    "absent": "The gradient does not exist: no path leads from the value to the loss, or each is cut off; one that is "
    "zero exists",
}
#: The headings of columns that are not names of statistics or metrics.
HEADINGS: Final = {
    "notes": "The findings at a tensor, and the reasons why something of it is missing",
    "seconds": "The time of each phase of a run, from tracing to what was searched for after it",
    "ledger": "The list of all values that were not captured, with the reason of each",
    "statistic": "Which number of a tensor its trend is of, or shows that two runs differ",
    "over time": "The values of the recorded steps as a small chart; ! stands for one that is not finite",
    "of median": "The size of a gradient over its median in the last 32 recorded steps",
    "magnitude": "A range of absolute values",
    "count": "How many elements have a magnitude in the range",
    "rel_l2 at least": "The least rel_l2 that two tensors can have by their statistics, where no more is known of one, "
    "as in a run or a dump with statistics alone",
    "floor of l2(d)": "The metric floor: the norm of the difference that rounding explains, in the unit of the "
    "elements, as max_abs is, whereas rel_l2 is relative to the norm of the reference",
    "largest rel_l2": "The largest rel_l2 of the rows of one comparison",
    "worst rel_l2": "The largest rel_l2 of a family",
    "forward": "The first value in execution order that differs",
    "backward": "The first gradient on the way back from the loss that differs",
    "differ": "How many tensors of the stage differ, of how many",
    "gradient l2": "The norm of the gradients of all parameters of a block",
    "gradient nan": "How many elements of the gradients of a block's parameters are NaN",
    "gradient inf": "How many elements of the gradients of a block's parameters are infinite",
    "state and aux": "What a loss returns beside its value: updated state, such as running statistics, and other "
    "outputs",
    "gradient": "The gradient of the loss with respect to the tensor of the line",
    "index": "The place of an element, from 0 along each axis",
    "worst index": "The index along the axis at which most of the squared difference is",
    "its share": "The share of the squared difference that is at this index",
    "effective indices": "How many indices of the axis the difference is spread over: 1 where it is at one alone",
}  # fmt: skip

#: Every word, with a text without a full stop.
WORDS: Final = {**_LABELS, **_OF_COMPARISONS, **HEADINGS}
