"""The keys of JSON output about comparisons, by the kinds of objects that have them. See `json_keys`."""

from __future__ import annotations

from typing import Final

COMPARISON: Final = {
    "verdict": "`same`, `different` or `nothing compared`",
    "sentence": "The verdict in words",
    "first_divergence": "Where the dumps first differ, `forward` and `backward`: a name, or absent",
    "suspects": "Names on one side only, or that agree in an order which nothing else has, that may have made the "
    "first divergence, the likeliest first; absent where there are none",
    "losses": "`ref` and `cand`: the losses, where they differ beyond tolerance",
    "parts": "How many times the candidate counts each part of the batch, where not all alike",
    "factor": "Where all gradients are that multiple of the reference's; of `check`, of the right derivative",
    "rows": "One object for each name of either dump; of two runs, for each tensor at the first step that differs",
    "provenance_differences": "What the dumps or runs do not have in common, each with `field`, `ref` and `cand`",
    "field": "The name of a fact about a run, such as `versions.jax`",
    "extent_differences": "What only one of the captures looked at or found, in sentences",
    "examples": "Of gradients of each example: `count`, `spread`, `random`, `bias`, `standard_errors`, `systematic`",
    "standard_errors": "The bias of the gradients of the examples, in its standard errors",
    "systematic": "Whether that is more than chance",
    "comparisons": "Of several candidates, or of two folders of steps: one comparison each, with its `name`",
    "first_different": "The first of them that is different",
    "missing": "The names of the steps that only the reference has",
    "extra": "The names of the steps that only the candidate has",
}
COMPARED_ROW: Final = {
    "status": "`same`, `different`, `missing` (in the reference only) or `extra` (in the candidate only)",
    "index": "The place of the tensor in the order of execution",
    "matched_by": "How the pair was found, by which `gradscope explain` says more: `name`, `path`, `order`, `map` and "
    "others",
    "counterpart": "What the other dump calls the tensor, where that differs",
    "made_by": "What was done to the counterpart before it was compared, such as `transpose [1, 0]`: the layout of one "
    "program made of that of the other",
    "tolerance": "What the row was judged by: the largest `rel_l2` with which it counts as the same, or the rule of "
    "`--tol`",
    "needed": "The smallest tolerance on `rel_l2` that would pass",
    "why": "Why it is not the same, or has no counterpart",
    "likely": "In what simple way it belongs nevertheless, which is not proved",
    "made_here": "That the error arises in this layer, or in a step right before it that has no entry: what these "
    "read is the same but for rounding",
}
COMPARED_RUNS: Final = {
    "first_step": "The first recorded step that differs",
    "first": "The row of the first tensor in it, in the order of the step",
    "stage": "The part of the step: batch, parameters, activations, loss, gradients, slots, updates",
    "rel_l2_at_least": "The least `rel_l2` that the statistics of two tensors allow",
    "ref": "The norm or number of the reference",
    "cand": "The norm or number of the candidate",
    "statistic": "The statistic that shows `rel_l2_at_least`",
    "ref_statistic": "Its value in the reference",
    "cand_statistic": "Its value in the candidate",
    "rounding": "The parameter whose gradient is zero but for rounding, from which the difference of the row comes",
    "counterpart": "What the candidate calls the tensor, where that differs",
    "rounded": "All parameters of which that is so, up to this step",
    "exchanged": "Two layers of both runs, one of which has other values: the first one comes first in the reference, "
    "and behind the other one in the candidate",
    "packed": "The parameters of one run that hold several of the other one, by their statistics at the first step",
    "whole": "The name of the parameter that holds the others",
    "parts": "The names of those",
    "in_ref": "Whether the reference has the whole, and the candidate the parts",
    "compared_steps": "How many steps both runs recorded",
    "ref_only_steps": "How many only the reference recorded",
    "cand_only_steps": "How many only the candidate recorded",
    "largest": "Of each step that both recorded, its `step` and the largest `rel_l2_at_least` in it",
}
ISOLATION: Final = {
    "isolation": "With `--isolate`, what layers do that run one by one on the reference's values: `verdict`, "
    "`sentence`, `rows`, `left_out`, `arguments`",
    "forward": "The smallest tolerance on `rel_l2` with which the layer's outputs would pass",
    "forward_tensor": "The key of the output with the largest error",
    "forward_tolerance": "What the outputs of the layer were judged by, the largest `rel_l2` or the rule of `--tol`",
    "forward_why": "Why an output is not the same",
    "vjp": "The smallest tolerance on `rel_l2` with which the gradients would pass that the layer's backward pass (its "
    "vector-Jacobian product, run on the reference's gradients) returns",
    "vjp_tensor": "The key of the gradient with the largest error, of what the layer reads",
    "vjp_tolerance": "What these gradients were judged by, the largest `rel_l2` or the rule of `--tol`",
    "vjp_why": "Why a gradient is not the same",
    "shared_with": "The layers that read the same value: the gradient of it is the sum over them, so that its error "
    "may be theirs instead",
    "reads": "Of code before a layer (`before PATH`), the layers and inputs that it reads",
    "inside": "Of such code, the layer that has it",
    "lines": "All lines of the code that makes an error, where there are several",
    "left_out": "The values that were not judged, each with `name` and `why`",
    "arguments": "Where the arguments of the layers came from: keys by `reference`, `candidate` or `model`",
}
MESH: Final = {
    "runs": "One object for each number of devices, the reference first",
    "comparisons": "One comparison for each run but the first",
}
MESH_RUN: Final = {
    "devices": "The number of devices; of a comparison, that of the run which is compared with the first",
    "axes": "The axes of the meshes of the program, each with its number of devices",
    "dump": "The path of its dump",
    "loss": "The loss",
}
MESH_COMPARISON: Final = {
    "fault": "What differs on the mesh, and by which relation; absent where nothing does",
}
MESH_FAULT: Final = {
    "kind": "The relation of what the devices have to what there is on fewer: `factor`, `terms`, `statistics` and "
    "others, by which `gradscope explain` says more",
    "name": "The first tensor that differs, or `the loss`",
    "axis": "The axis of the mesh, or several joined by commas",
    "factor": "How many times what it is on fewer devices it is",
    "collective": "The function of JAX that the value passes last over that axis on its way there",
    "source": "`file:line` of that collective, or else of the tensor",
    "why": "What differs, in words",
    "likely": "What is likely then, or mends it",
}
