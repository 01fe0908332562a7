"""`unmatched` lists the tensors without a counterpart, and why some need none.

A tensor needs no counterpart where its values are compared under another name, where neither dump has values, or where
it is a step in between: everything that is computed from it is compared, and agrees. Two programs can have different
modules, and a layer of one that is no layer of the other makes no difference then. That holds for ports, which have
other names or layouts, and between precisions, where casts are layers of one side. Otherwise it holds for steps that
the candidate alone has, as all of the reference is compared, and for the iterations of a loop that one of them alone
has inside a layer of both, as where attention was rewritten in blocks, for a layer that returns the loss in one of
them, for operations, and for the lines of a program without scopes. Another layer that is missing was lost.
Nor do inputs of a port where both programs have such in a form of their own, as edges of a graph and a matrix of them,
or one of PyTorch that the port makes by itself, as a causal mask: of equal values, it may be ignored by mistake.
Against a capture from PyTorch neither does what such a capture never holds, or what PyTorch keeps beside the program:
outputs beside the loss, inputs of the loss alone, and counts of the batches seen. Nor does state of a port that the
other program keeps none of (`unmatched_state`), nor a second name of a parameter, nor a parameter that no gradient
reaches. A file without a manifest, such as one that `numpy.savez` wrote, needs the first two no more than that: it has
no loss, so the gradients speak for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from gradscope.comparison.judging.judge import Unmatched
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.judging.unpaired.paired_dumps import PairedDump, paired_dumps
from gradscope.comparison.judging.unpaired.unmatched_originals import why_of_parametrization
from gradscope.comparison.judging.unpaired.unmatched_state import why_of_state
from gradscope.comparison.loss_values import is_loss
from gradscope.comparison.metrics.bounds import value_of
from gradscope.comparison.pairing.inference.zero_terms import zero_terms
from gradscope.comparison.pairing.matching import Dumps, Pairing, is_of_jax
from gradscope.comparison.pairing.values.debiased_averages import updated_alike
from gradscope.comparison.pairing.values.sums import sums
from gradscope.comparison.precision import dtype_class
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Entry
from gradscope.naming import (
    ACTIVATION,
    ACTIVATION_GRAD,
    AUX,
    INPUT,
    INPUT_GRAD,
    PARAM,
    PARAM_GRAD,
    STATE,
    gradient_family,
    is_gradient,
    key_of,
    split_key,
    subject_family,
)
from gradscope.naming.paths import loops_around

#: Why inputs do not count that each of two programs has in a form of its own.
OTHER_FORM: Final = "both programs have inputs in a form of their own, and all that is computed from them agrees"

#: Why parameters do not count that one of two programs has and no gradient reaches.
UNTRAINED: Final = "no gradient arrives at it in the program that has it, and all else agrees"


def unmatched(
    dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow], stages: Mapping[str, str]
) -> tuple[list[Unmatched], list[Unmatched]]:
    """Returns the tensors that only the reference has, and those that only the candidate has.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
        stages: Why tensors of one program that the other computes, too, have no counterpart, by their keys.
    """
    ref, cand = paired_dumps(dumps, pairing, rows)
    summed = {**zero_terms(dumps, pairing), **sums(dumps, pairing), **updated_alike(dumps, pairing), **stages}

    def why(key: str, own: PairedDump, other: PairedDump, *, lost: bool) -> str:
        known = summed.get(key) or summed.get(own.source.resolve(key))
        return known or _why_redundant(key, own, other, lost=lost)

    missing = [Unmatched(ref.source.entry(key), "missing", why(key, ref, cand, lost=True)) for key in pairing.only_ref]
    extra = [Unmatched(cand.source.entry(key), "extra", why(key, cand, ref, lost=False)) for key in pairing.only_cand]
    return missing, extra


def _why_redundant(key: str, own: PairedDump, other: PairedDump, *, lost: bool) -> str:
    """Returns why a tensor needs no counterpart; "" where it does."""
    owner = own.source.resolve(key)
    if reason := own.source.entry(owner).absent:
        return f"only listed, without a tensor ({reason})"
    if reason := _why_of_one_framework(owner, own, other) or _why_of_bare_file(owner, own, other):
        return reason
    if reason := _why_of_own(key, owner, own, other) or _why_of_result(owner, own, lost=lost):
        return reason
    # A file without layers has one name for a tensor, not one for every layer that returns it unchanged.
    if owner != key and owner in own.compared and not other.source.manifest.layers:
        return f"the same tensor as {owner}, which is compared"
    # A loop output that is also used inside the loop, such as a stacked carry, receives a part of the gradient only.
    totals = _total_gradients(key, own)
    known = frozenset(other.source.keys()) if totals else frozenset[str]()
    if totals and all(each in known and other.source.resolve(each) in other.compared for each in totals):
        return f"a part of what arrives at {', '.join(totals)}, which is compared"
    rewritten = own.facts.ported or own.has_no_scopes or other.has_no_scopes  # lines are no names to keep
    rewritten = rewritten or own.has_operation(key) or _is_in_common_layer(owner, own, other)
    rewritten = rewritten or _is_loss_in_one(key, own, other)
    return "" if lost and not rewritten else _why_between(key, owner, own, other)


def _why_of_one_framework(owner: str, own: PairedDump, other: PairedDump) -> str:
    """Returns why a capture of the other framework has no such tensor; "" where it has, or is none."""
    entry = own.source.entry(owner)
    if not other.source.manifest.layers or is_of_jax(own.source) is is_of_jax(other.source):
        return ""
    if not is_of_jax(own.source):
        return _why_of_pytorch(owner, own, other)
    if entry.family == AUX:
        return "captures of PyTorch hold no outputs beside the loss and updated buffers"
    start = key_of(subject_family(entry.family) or entry.family, entry.name)
    if entry.family in (INPUT, INPUT_GRAD) and own.facts.losses_agree and own.lies_between(start):
        return "captures of PyTorch hold no inputs of the loss alone, and the losses agree"
    # Labels, whatever else differs: no such capture could ever have them.
    of_loss = entry.family in (INPUT, INPUT_GRAD) and own.is_read_by_loss_alone(start)
    return "captures of PyTorch hold no inputs of the loss alone" if of_loss else ""


def _why_of_pytorch(owner: str, own: PairedDump, other: PairedDump) -> str:
    """Returns why a program in JAX has no such tensor of a capture from PyTorch; "" where it has."""
    entry = own.source.entry(owner)
    integer = dtype_class(entry.dtype) == "integer"
    # The other program may slice tokens and labels out of one array.
    if entry.family == INPUT and integer and own.facts.losses_agree and own.lies_between(owner):
        return "integers of another shape in the other program's batch, and what is computed from them agrees"
    if entry.family in (INPUT, INPUT_GRAD) and _is_made_by_other(key_of(INPUT, entry.name), own):
        return "the other program makes it by itself, as a mask, since all that is computed from it agrees"
    if entry.family in (STATE, AUX) and not entry.shape and integer:
        return "a count that only PyTorch keeps"
    unread = own.why_absent(key_of(ACTIVATION_GRAD, entry.name)) == "disconnected"
    return "the loss reads it in neither program" if unread and owner in other.eliminated else ""


def _is_made_by_other(value: str, own: PairedDump) -> bool:
    """Returns whether a port has something for an input, as all agrees, and that would differ if it were ignored."""
    facts = own.facts
    if not (facts.ported and facts.all_agree and facts.losses_agree and facts.gradients_agree):
        return False
    entry = own.source.entry(value) if value in own.known and value not in own.compared else None
    return entry is not None and own.lies_between(value) and _has_several_values(entry)


def _has_several_values(entry: Entry) -> bool:
    stats, size = entry.stats, math.prod(entry.shape)
    least, most = (stats.get(name) for name in ("min", "max"))
    several = isinstance(least, int | float) and isinstance(most, int | float) and least < most
    return several or 0 < as_float(stats.get("inf", 0)) < size


def _why_of_bare_file(owner: str, own: PairedDump, other: PairedDump) -> str:
    """Returns why a file without a manifest needs no such tensor; "" where it does, or has one."""
    manifest = other.source.manifest
    if manifest.layers or manifest.loss is not None or not own.source.manifest.layers:
        return ""
    entry = own.source.entry(owner)
    if entry.family == AUX and not any(each.family == AUX for each in manifest.entries):
        return "the other file has no manifest, and no outputs beside the loss"
    start = key_of(subject_family(entry.family) or entry.family, entry.name)
    if entry.family in (INPUT, INPUT_GRAD) and own.facts.gradients_agree and start not in own.computed_from:
        return "only the loss reads it, and the gradients agree"
    return ""


def _why_of_own(key: str, owner: str, own: PairedDump, other: PairedDump) -> str:
    """Returns why what a program is given, or keeps, in its own way needs no counterpart; "" where it does."""
    why = why_of_state(owner, own, other) or _why_of_second_name(key, owner, own, other)
    why = why or why_of_parametrization(owner, own) or _why_of_untrained(owner, own)
    why = why or _why_of_output(key, owner, own, other)
    return why or (OTHER_FORM if _is_input_in_another_form(owner, own, other) else "")


def _why_of_second_name(key: str, owner: str, own: PairedDump, other: PairedDump) -> str:
    """Returns why the second name of a parameter needs no counterpart in a port; "" where it does, or is none.

    A module of PyTorch that shares a parameter has a name of its own for it, and the other program may have one.
    """
    shared = owner != key and split_key(key)[0] in (PARAM, PARAM_GRAD) and owner in own.compared
    if not shared or not own.facts.ported or key in other.known:
        return ""
    return f"the same tensor as {owner}, which is compared"


def _why_of_untrained(owner: str, own: PairedDump) -> str:
    """Returns why a parameter that no gradient reaches needs no counterpart in a port; "" where it does, or is none.

    A library may have a layer that the loss does not read, as the pooler of an encoder, and a port leave it out.
    """
    (family, name), facts = split_key(owner), own.facts
    if family != PARAM or own.why_absent(key_of(PARAM_GRAD, name)) != "disconnected":
        return ""
    return UNTRAINED if facts.ported and facts.all_agree and facts.losses_agree and facts.gradients_agree else ""


def _why_of_output(key: str, owner: str, own: PairedDump, other: PairedDump) -> str:
    """Returns why a gradient at one of several outputs of a layer, a part's in one program, needs no counterpart."""
    family, name = split_key(key)
    value = key_of(ACTIVATION, name)
    if family != ACTIVATION_GRAD or name not in own.returned or not {key, value} <= own.keys & other.keys:
        return ""
    if (owner == key) is (other.source.resolve(key) == key) or not own.compared.get(own.source.resolve(value)):
        return ""
    if owner in own.compared:
        return f"the same tensor as {owner}, which is compared"
    between = own.lies_between(own.source.resolve(value)) and own.lies_between(owner)
    return "a step between tensors that agree" if between else ""


def _why_of_result(owner: str, own: PairedDump, *, lost: bool) -> str:
    """Returns why what a program returns beside its loss needs no counterpart; "" where it does.

    The dump of a module has what that returns, which a loss function need not return: its values are those of the last
    layer, and are compared there. One that the candidate of the same program lacks was lost.
    """
    entry = own.source.entry(owner)
    is_of_module = "loss" in own.source.manifest.provenance  # chosen for a module, which has none of its own
    if entry.family != AUX or (lost and not (own.facts.ported or is_of_module)):
        return ""
    values = own.compared_values.get(value_of(entry), "")
    return f"the values of {values}, which is compared" if values else ""


def _is_input_in_another_form(owner: str, own: PairedDump, other: PairedDump) -> bool:
    """Returns whether both programs of a port have inputs of their own, as edges and a matrix of them, and all agrees.

    Where one of them alone has any, the other lacks what is read.
    """
    family, name = split_key(owner)
    facts, value = own.facts, key_of(INPUT, name)
    if family not in (INPUT, INPUT_GRAD) or not (facts.ported and facts.all_agree and facts.losses_agree):
        return False
    both = facts.gradients_agree and own.has_other_inputs and other.has_other_inputs
    return both and value not in own.compared and own.lies_between(value)


def _is_in_common_layer(owner: str, own: PairedDump, other: PairedDump) -> bool:
    """Returns whether a tensor is of an iteration of a loop in a layer whose value is compared, and agrees.

    A loop that the other program has, too, was not rewritten: a layer that its iterations lack was lost.
    """
    entry = own.source.entry(owner)
    rewritten = (layer for layer in loops_around(entry.name) if layer not in other.loops)
    return bool(entry.site.iteration) and any(own.compared.get(key_of(ACTIVATION, layer)) for layer in rewritten)


def _why_between(key: str, owner: str, own: PairedDump, other: PairedDump) -> str:
    """Returns why a step that only one program has needs no counterpart; "" where it does.

    A name that the other program has, too, is missing from its dump for another reason, and counts, unless it is that
    of another tensor there, as of another part of the batch, a number of a layer that returns more, an operation, the
    loss, or a step of a port that has another size, or the tensor is compared under another name.
    """
    family, name = split_key(key)
    if family not in (ACTIVATION, ACTIVATION_GRAD) or not (own.source.manifest.layers and other.source.manifest.layers):
        return ""
    if owner in own.compared:  # a difference counts there, and has one cause, whatever its names
        return f"the same tensor as {owner}, which is compared"
    otherwise = own.facts.cut_otherwise or own.returned.get(name) != other.returned.get(name)
    otherwise = otherwise or (own.has_operation(key) and other.has_operation(key))
    otherwise = otherwise or (own.facts.ported and own.has_another_size(key_of(ACTIVATION, name), other))
    otherwise = otherwise or _is_loss_in_one(key, own, other)
    if (other.lacks(key) or other.lacks(key_of(ACTIVATION, name))) and not otherwise:
        return ""
    start = key_of(ACTIVATION, split_key(owner)[1]) if is_gradient(family) else owner
    if is_gradient(family) and other.source.manifest.loss is not None and is_loss(own.source, start):
        return "the gradient of the loss is one on either side"
    # A gradient is a step in between where its value is, and what is computed from the gradient agrees.
    return "a step between tensors that agree" if own.lies_between(start) and own.lies_between(owner) else ""


def _is_loss_in_one(key: str, own: PairedDump, other: PairedDump) -> bool:
    """Returns whether the layer of a name returns the loss in one of two programs, and another value in the other."""
    value = key_of(ACTIVATION, split_key(key)[1])
    both = value in own.keys and value in other.keys
    return both and is_loss(own.source, value) is not is_loss(other.source, value)


def _total_gradients(key: str, own: PairedDump) -> list[str]:
    """Returns the other dump's keys of the total gradients of which the gradient `key` of a loop output is a part."""
    family, name = split_key(key)
    value = own.loop_outputs.get(key_of(ACTIVATION, name)) if family == ACTIVATION_GRAD else None
    iterations = [] if value is None else map(split_key, value.recipe.keys)
    return [key_of(gradient, name) for family, name in iterations if (gradient := gradient_family(family)) is not None]
