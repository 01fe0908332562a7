"""`unmatched` lists the tensors without a counterpart, and why some need none.

A tensor needs no counterpart where its values are compared under another name, where neither dump has values, or where
it is a step in between: everything that is computed from it is compared, and agrees. Two programs can have different
modules, and a layer of one that is no layer of the other makes no difference then. That holds for ports, which have
other names or layouts, and between precisions, where casts are layers of one side; otherwise a missing layer was lost.
Against a capture from PyTorch neither does what such a capture never holds, or what PyTorch keeps beside the program:
outputs beside the loss, inputs of the loss alone, and counts of the batches seen. State of a port that is no statistic,
such as the key of a random stream, needs none where the losses agree, nor do the buffers of a module of PyTorch that
was run in evaluation and whose outputs agree, nor a second name of a parameter. A file without a manifest, such as
one that `numpy.savez` wrote, needs the first two no more than that: it has no loss, so the gradients speak for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce

from gradscope.comparison.default_tolerances import default_tolerance
from gradscope.comparison.judging.judge import Unmatched
from gradscope.comparison.judging.loss_comparison import is_loss, losses_agree
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, is_of_jax
from gradscope.comparison.pairing.values.sums import sums
from gradscope.comparison.precision import coarser, dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import sources_of
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
    ref, cand = _paired_dumps(dumps, pairing, rows)
    summed = {**sums(dumps, pairing), **stages}
    missing = [
        Unmatched(ref.source.entry(key), "missing", summed.get(key) or _why_redundant(key, ref, cand))
        for key in pairing.only_ref
    ]
    extra = [
        Unmatched(cand.source.entry(key), "extra", summed.get(key) or _why_redundant(key, cand, ref))
        for key in pairing.only_cand
    ]
    return missing, extra


def _paired_dumps(dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]) -> tuple[_PairedDump, _PairedDump]:
    """Returns both dumps with what their pairing says of them."""
    in_ref: dict[str, bool] = {}
    in_cand: dict[str, bool] = {}
    for match in pairing.matched:
        same = rows[match.ref].status == "same"
        for found, source, keys in ((in_ref, dumps.ref, (match.ref,)), (in_cand, dumps.cand, match.recipe.keys)):
            for key in map(source.resolve, keys):
                found[key] = found.get(key, True) and same
    loop_outputs = {match.ref: match for match in pairing.matched if match.matched_by == "iterations"}
    dtypes = [_coarsest(source) for source in (dumps.ref, dumps.cand)]
    facts = _Facts(
        ported=any(map(_is_ported, pairing.matched)) or dtypes[0] != dtypes[1],
        losses_agree=_losses_agree(dumps),
        gradients_agree=_gradients_agree(rows.values()),
    )
    return (
        _PairedDump(dumps.ref, in_ref, loop_outputs, facts),
        _PairedDump(dumps.cand, in_cand, {match.ref: match for match in pairing.inverse}, facts),
    )


def _is_ported(match: Match) -> bool:
    """Returns whether a pair has another name or layout in the candidate, which the user did not state."""
    return match.matched_by in ("path", "order", "fingerprint") or (
        match.matched_by == "name" and not match.recipe.as_stored
    )


def _coarsest(source: DumpSource) -> str:
    """Returns the coarsest floating-point dtype of a dump's activations."""
    dtypes = dict.fromkeys(entry.dtype for entry in source.manifest.entries if entry.family == ACTIVATION)
    return reduce(coarser, (dtype for dtype in dtypes if dtype_class(dtype) == "float"), "float64")


def _losses_agree(dumps: Dumps) -> bool:
    one, other = dumps.ref.manifest.loss, dumps.cand.manifest.loss
    return one is not None and other is not None and losses_agree(one, other, loss_tolerance(dumps))


def loss_tolerance(dumps: Dumps) -> float:
    """Returns the default tolerance on the relative error of the loss, by the coarsest dtype of activations."""
    dtype = reduce(coarser, (_coarsest(source) for source in (dumps.ref, dumps.cand)))
    return default_tolerance(ACTIVATION, dtype, dtype, reduced=False)


def _gradients_agree(rows: Iterable[ComparisonRow]) -> bool:
    """Returns whether gradients are compared, and all of them agree."""
    gradients = [row.status for row in rows if is_gradient(row.family)]
    return bool(gradients) and all(status == "same" for status in gradients)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """_Facts stores whether one program is a port or a cast of the other, and whether losses and gradients agree."""

    ported: bool
    losses_agree: bool
    gradients_agree: bool


@dataclass(frozen=True)
class _PairedDump:
    """_PairedDump stores a dump, whether each of its owners that are compared agrees, and its loop outputs' matches."""

    source: DumpSource
    compared: Mapping[str, bool]
    loop_outputs: Mapping[str, Match]
    facts: _Facts

    @cached_property
    def computed_from(self) -> Mapping[str, Iterable[str]]:
        """The keys that are computed from each key."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for key, sources in sources_of(self.source.manifest.layers).items():
            for source in sources:
                found[source].append(key)
        return found

    @cached_property
    def known(self) -> frozenset[str]:
        """All keys of the dump, and those of the program that it lacks."""
        manifest = self.source.manifest
        return frozenset((
            *self.source.keys(), *(key_of(line.family, line.name) for line in manifest.ledger.missing),
            *(key_of(ACTIVATION, name) for layer in manifest.layers for name in layer.outputs),
        ))  # fmt: skip

    def lies_between(self, owner: str) -> bool:
        """Returns whether what is computed from a tensor in its direction is compared, and all of it agrees.

        The last values are compared by the loss that is computed from them.
        """
        backward = is_gradient(split_key(owner)[0])
        reached: list[bool] = []
        seen, pending = {owner}, [owner]
        while pending:
            for key in self.computed_from.get(pending.pop(), ()):
                if key in seen or is_gradient(split_key(key)[0]) is not backward:
                    continue
                seen.add(key)
                if key in self.compared:
                    reached.append(self.compared[key])
                else:
                    pending.append(key)
        return all(reached) if reached else backward or self.facts.losses_agree


def _why_redundant(key: str, own: _PairedDump, other: _PairedDump) -> str:
    """Returns why a tensor needs no counterpart; "" where it does."""
    owner = own.source.resolve(key)
    if reason := own.source.entry(owner).absent:
        return f"only listed, without a tensor ({reason})"
    if reason := _why_of_one_framework(owner, own, other) or _why_of_bare_file(owner, own, other):
        return reason
    if reason := _why_of_state(owner, own) or _why_of_second_name(key, owner, own, other):
        return reason
    # A file without layers has one name for a tensor, not one for every layer that returns it unchanged.
    if owner != key and owner in own.compared and not other.source.manifest.layers:
        return f"the same tensor as {owner}, which is compared"
    # A loop output that is also used inside the loop, such as a stacked carry, receives a part of the gradient only.
    totals = _total_gradients(key, own)
    known = frozenset(other.source.keys()) if totals else frozenset[str]()
    if totals and all(each in known and other.source.resolve(each) in other.compared for each in totals):
        return f"a part of what arrives at {', '.join(totals)}, which is compared"
    return _why_between(key, owner, own, other)


def _why_of_one_framework(owner: str, own: _PairedDump, other: _PairedDump) -> str:
    """Returns why a capture of the other framework has no such tensor; "" where it has, or is none."""
    entry = own.source.entry(owner)
    if not other.source.manifest.layers or is_of_jax(own.source) is is_of_jax(other.source):
        return ""
    if not is_of_jax(own.source):
        integer = dtype_class(entry.dtype) == "integer"
        # The other program may slice tokens and labels out of one array.
        if entry.family == INPUT and integer and own.facts.losses_agree and own.lies_between(owner):
            return "integers of another shape in the other program's batch, and what is computed from them agrees"
        return "a count that only PyTorch keeps" if entry.family == STATE and not entry.shape and integer else ""
    if entry.family == AUX:
        return "captures of PyTorch hold no outputs beside the loss"
    start = key_of(subject_family(entry.family) or entry.family, entry.name)
    if entry.family in (INPUT, INPUT_GRAD) and own.facts.losses_agree and own.lies_between(start):
        return "captures of PyTorch hold no inputs of the loss alone, and the losses agree"
    return ""


def _why_of_bare_file(owner: str, own: _PairedDump, other: _PairedDump) -> str:
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


def _why_of_state(owner: str, own: _PairedDump) -> str:
    """Returns why state that is no statistic needs no counterpart in a port; "" where it does.

    A library may keep keys and counts of random streams, positions and masks as state, and another make them anew. In
    evaluation a module of PyTorch reads its buffers, which the other program may have as constants.
    """
    entry = own.source.entry(owner)
    kind = dtype_class(entry.dtype)
    if entry.family != STATE or not (own.facts.ported and own.facts.losses_agree):
        return ""
    if kind in ("float", "complex"):
        return "its layer, which reads it in evaluation, agrees" if _is_read_and_agrees(entry.name, own) else ""
    what = {"integer": "integers", "boolean": "a mask"}.get(kind, "a random key")
    return f"{what} that only one of the programs keeps, and the losses agree"


def _is_read_and_agrees(name: str, own: _PairedDump) -> bool:
    """Returns whether the layer whose state something is was run in evaluation, and all of its outputs agree."""
    manifest, path = own.source.manifest, name.rpartition("/")[0]
    if is_of_jax(own.source) or manifest.provenance.get("training") is not False:
        return False
    outputs = [key_of(ACTIVATION, each) for layer in manifest.layers if layer.path == path for each in layer.outputs]
    known = frozenset(own.source.keys())
    return bool(outputs) and all(each in known and own.compared.get(own.source.resolve(each)) for each in outputs)


def _why_of_second_name(key: str, owner: str, own: _PairedDump, other: _PairedDump) -> str:
    """Returns why the second name of a parameter needs no counterpart in a port; "" where it does, or is none.

    A module of PyTorch that shares a parameter has a name of its own for it, and the other program may have one.
    """
    shared = owner != key and split_key(key)[0] in (PARAM, PARAM_GRAD) and owner in own.compared
    if not shared or not own.facts.ported or key in other.known:
        return ""
    return f"the same tensor as {owner}, which is compared"


def _why_between(key: str, owner: str, own: _PairedDump, other: _PairedDump) -> str:
    """Returns why a step that only one program has needs no counterpart; "" where it does.

    A name that the other program has, too, is missing from its dump for another reason, and counts.
    """
    family, name = split_key(key)
    if family not in (ACTIVATION, ACTIVATION_GRAD) or not (own.source.manifest.layers and other.source.manifest.layers):
        return ""
    if not own.facts.ported or key in other.known or key_of(ACTIVATION, name) in other.known:
        return ""
    if owner in own.compared:
        return f"the same tensor as {owner}, which is compared" if own.compared[owner] else ""
    start = key_of(ACTIVATION, split_key(owner)[1]) if is_gradient(family) else owner
    if is_gradient(family) and other.source.manifest.loss is not None and is_loss(own.source, start):
        return "the gradient of the loss is one on either side"
    # A gradient is a step in between where its value is, and what is computed from the gradient agrees.
    return "a step between tensors that agree" if own.lies_between(start) and own.lies_between(owner) else ""


def _total_gradients(key: str, own: _PairedDump) -> list[str]:
    """Returns the other dump's keys of the total gradients of which the gradient `key` of a loop output is a part."""
    family, name = split_key(key)
    value = own.loop_outputs.get(key_of(ACTIVATION, name)) if family == ACTIVATION_GRAD else None
    iterations = [] if value is None else map(split_key, value.recipe.keys)
    return [key_of(gradient, name) for family, name in iterations if (gradient := gradient_family(family)) is not None]
