"""`why_of_state` says why state that only one program keeps needs no counterpart in a port.

A library may keep keys and counts of random streams, positions and masks as state, and another make them anew. A
program that trains may update running statistics that nothing reads before evaluation, and a port leave them out; or a
table be a buffer, or a frozen parameter, of one program and a constant of the other. Where everything else agrees, such
state is no difference in what is computed: it is told beside the verdict.

Why it is told and does not count (2026-11): who ports a network asks whether the port computes the same, and a capture
from PyTorch always has the buffers of its batch norms. State counts where both programs keep some and it is not the
same: statistics of some layers only, statistics that are not updated, tables of other values.
"""

from __future__ import annotations

from math import prod
from typing import Final

from gradscope.comparison.judging.unpaired.paired_dumps import PairedDump
from gradscope.comparison.pairing.matching import is_of_jax
from gradscope.comparison.precision import dtype_class
from gradscope.dump.manifest.manifest import Manifest
from gradscope.naming import ACTIVATION, AUX, PARAM_GRAD, STATE, key_of, split_key

#: Why running statistics do not count that one program keeps and the other does not.
STATISTICS: Final = "running statistics that only one of the programs updates, and all else agrees"

#: Why other state does not count that one program keeps and the other does not.
CONSTANTS: Final = "state that only one of the programs keeps, and all else agrees"

#: Why running statistics do not count that a capture from PyTorch has as they are after the run.
UNRETURNED: Final = "the other program does not return its state"

#: Why an output does not count that is state as it was before the step, as running statistics in evaluation are.
UNCHANGED: Final = "state that is returned as it was before the step, and is compared"

#: The buffer that the modules of PyTorch have beside the running statistics which they update.
_COUNT: Final = "num_batches_tracked"

#: What Haiku's `ExponentialMovingAverage` returns, and the sum beside it from which the next one is made.
_AVERAGE: Final = "average"
_SUM: Final = "hidden"


def why_of_state(owner: str, own: PairedDump, other: PairedDump) -> str:
    """Returns why state, or an output that updates it, needs no counterpart in a port; "" where it does, or is none.

    Args:
        owner: The key of a tensor without a counterpart, which is no alias.
        own: The dump that has it.
        other: The dump that lacks it.
    """
    family, name = split_key(owner)
    unreturned = _why_unreturned(owner, own, other) if family == AUX else ""
    if not (own.facts.ported and own.facts.losses_agree):
        return unreturned
    kind = dtype_class(own.source.entry(owner).dtype)
    if (family == STATE or (family == AUX and _updates_state(name, own))) and kind not in ("float", "complex"):
        what = {"integer": "integers", "boolean": "a mask"}.get(kind, "a random key")
        return f"{what} that only one of the programs keeps, and the losses agree"
    if family in (STATE, AUX) and _is_sum_of_average(owner, own, other):
        return "the sum that Haiku keeps beside an average, which agrees"
    if family == AUX:
        updated = [key_of(each, found) for found in own.state_names.of(name) for each in own.state_families[found]]
        return next(filter(None, (_why_of_values(key, own, other) for key in updated)), unreturned)
    if family == STATE and _is_read_and_agrees(name, own):
        return "its layer, which reads it in evaluation, agrees"
    return _why_of_values(owner, own, other) if owner in own.values_of_state else ""


def _why_unreturned(owner: str, own: PairedDump, other: PairedDump) -> str:
    """Returns why a program need not return state as another one does; "" where it should, or it is none."""
    of_jax = is_of_jax(own.source), is_of_jax(other.source)
    if of_jax == (False, True) and not other.returns_state:
        return UNRETURNED
    # A port may have the names of its original; the same program that returns all else but its state has lost it.
    alone = own.facts.ported or not any(entry.family == AUX for entry in other.source.manifest.entries)
    return UNCHANGED if alone and _is_unchanged(owner, own) else ""


def _is_unchanged(owner: str, own: PairedDump) -> bool:
    """Returns whether an output is the state of its name as it was before the step, which agrees in both programs."""
    entry = own.source.entry(owner)
    for name in own.state_names.of(entry.name):
        for key in (key_of(family, name) for family in own.state_families[name]):
            state, agrees = own.source.entry(key), own.compared.get(own.source.resolve(key))
            known = entry.stats.get("hash")
            if agrees and known is not None and (known, entry.shape) == (state.stats.get("hash"), state.shape):
                return True
    return False


def _why_of_values(key: str, own: PairedDump, other: PairedDump) -> str:
    """Returns why state of numbers that the other program does not keep needs no counterpart; "" where it does."""
    size = prod(own.source.entry(key).shape)
    alone = [each for each in other.values_of_state if each not in other.compared]
    if not own.facts.all_agree or key in own.compared or any(prod(other.source.entry(e).shape) == size for e in alone):
        return ""
    if not _is_updated(key, own):
        return CONSTANTS if _is_constant(key, own) else ""
    kept = (each in own.compared and _is_updated(each, own) for each in own.values_of_state)
    return "" if any(kept) or any(_is_updated(each, other) for each in alone) else STATISTICS


def _is_constant(key: str, own: PairedDump) -> bool:
    """Returns whether a program states that it never trains a tensor: a buffer, or a parameter that is frozen."""
    family, name = split_key(key)
    return family == STATE or own.why_absent(key_of(PARAM_GRAD, name)) == "frozen"


def _is_updated(key: str, own: PairedDump) -> bool:
    """Returns whether a program updates state in the step: an output has its name, or a module of PyTorch does so."""
    family, name = split_key(key)
    manifest = own.source.manifest
    if is_of_jax(own.source):
        return bool(own.output_names.of(name))
    counted = key_of(family, f"{name.rpartition('/')[0]}/{_COUNT}") in own.known
    return counted and _is_training(name, manifest)


def _updates_state(name: str, own: PairedDump) -> bool:
    """Returns whether an output has the name of state, of whatever type: with or without the collection before it."""
    state = (split_key(key)[1] for key in own.known if split_key(key)[0] == STATE)
    return any(each == name or each.endswith(f"/{name}") for each in state)


def _is_sum_of_average(key: str, own: PairedDump, other: PairedDump) -> bool:
    """Returns whether a tensor is Haiku's sum beside an average that agrees, and the other program has no such sums."""
    family, name = split_key(key)
    layer, _, last = name.rpartition("/")
    if last != _SUM or not own.compared.get(key_of(family, f"{layer}/{_AVERAGE}")):
        return False
    return not any(each.rpartition("/")[2] == _SUM for each in other.values_of_state)


def _is_read_and_agrees(name: str, own: PairedDump) -> bool:
    """Returns whether the layer whose state something is was run in evaluation, and all of its outputs agree."""
    manifest, path = own.source.manifest, name.rpartition("/")[0]
    if is_of_jax(own.source) or _is_training(name, manifest):
        return False
    outputs = [key_of(ACTIVATION, each) for layer in manifest.layers if layer.path == path for each in layer.outputs]
    known = frozenset(own.source.keys())
    return bool(outputs) and all(each in known and own.compared.get(own.source.resolve(each)) for each in outputs)


def _is_training(name: str, manifest: Manifest) -> bool:
    """Returns whether a module of PyTorch was in training mode; one that states none may have been.

    Args:
        name: The name of one of its buffers.
        manifest: The manifest of the capture.
    """
    switched, parts = manifest.provenance.get("training_switched"), name.split("/")[:-1]
    around = {"/".join(parts[:end]) for end in range(1, len(parts) + 1)}
    count = len(around.intersection(map(str, switched))) if isinstance(switched, list) else 0
    return (manifest.provenance.get("training") is not False) is (count % 2 == 0)
