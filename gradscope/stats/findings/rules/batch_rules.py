"""These rules are about the batch: `broadcast`, `out-of-bounds`, and `exploding` where its inputs are large.

- `broadcast` finds a loss of all pairs, `out_of_bounds` indices beyond what they look up.
- `inputs` finds inputs that are large for the layers that read them, where nothing normalises them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.dump.manifest.operation_facts import OutOfBounds
from gradscope.stats.columns import number
from gradscope.stats.findings.rule_evidence import RuleEvidence, Suspect, Thresholds, column, key, suspect
from gradscope.stats.findings.rules.kernels import KernelLayer, kernel_layers
from gradscope.stats.findings.rules.weight_rules import LARGE, read_by_saturated

#: What to do about inputs that are large, by all of their elements or by a few.
_SCALE: Final = "subtract the mean of the training data from this input and divide by its deviation"
_CLEAN: Final = (
    "mend or leave out the examples that these elements are in, which scaling all of them does not cure: 'show DUMP "
    "--tensor {key}' says where the largest is"
)
#: What to do about labels below 0.
_MASK: Final = "mask the loss of labels that stand for none, or leave these examples out of the batch"
#: The fewest layers behind an input whose signals are large as it is, where that of the last layer is not.
_CARRYING: Final = 2


def broadcast(evidence: RuleEvidence, _: Thresholds) -> Iterator[Suspect]:
    """Finds arrays of the batch that a loss combines with the predictions of all examples, not of their own alone."""
    for each in evidence.manifest.broadcasts:
        entry = evidence.entry(naming.INPUT, each.input)
        if entry is not None:
            found = suspect("broadcast", entry, each.why)
            yield replace(found, finding=replace(found.finding, source=each.source))


def out_of_bounds(evidence: RuleEvidence, _: Thresholds) -> Iterator[Suspect]:
    """Finds indices, of the batch or of positions in it, beyond what they look up: a table, values, or classes."""
    for each in evidence.manifest.out_of_bounds:
        family, name = (naming.INPUT, each.input) if each.input else (naming.PARAM, each.table)
        entry = None if name is None else evidence.entry(family, name)
        if entry is not None:
            found = suspect("out-of-bounds", entry, _beyond(each))
            finding = replace(found.finding, source=each.source)
            yield replace(found, finding=replace(finding, repair=_MASK) if each.looked_up == "last values" else finding)


def _beyond(found: OutOfBounds) -> str:
    beyond = f"{found.beyond:,} of {found.indices:,}"
    if found.looked_up == "classes":
        none = f"has numbers from 1 to {found.index:,} and none that is 0, of classes 0 to {found.rows - 1:,}"
        return f"{none}: {beyond} have no class, and one_hot makes zeros of them"
    if found.looked_up == "last values":
        below = f"has {beyond} labels below 0, down to {found.index:,}, that are not masked"
        return f"{below}: JAX counts them from the end, so that -1 picks the last of the {found.rows:,} values"
    table = "a table of parameters" if found.table is None else naming.key_of(naming.PARAM, found.table)
    farthest = f"up to {found.index:,}" if found.index >= 0 else f"down to {found.index - found.rows:,}"
    if found.looked_up == "values":
        what, taken = f"has {beyond} indices beyond the {found.rows:,} values that each is to pick one of", "value"
        what = f"{what}, {farthest}"
    elif found.input:
        what, taken = f"has {beyond} indices beyond the {found.rows:,} rows of {table}, {farthest}", "row"
    else:
        what, taken = f"has {found.rows:,} rows, and {beyond} indices that the program makes are beyond them", "row"
        what = f"{what}, {farthest}"
    return f"{what}: JAX takes the nearest {taken} in their place"


def inputs(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Suspect]:
    """Finds inputs that are large for the layers that read them, where nothing normalises them."""
    kernels = kernel_layers(evidence)
    if not kernels:
        return
    saturated = read_by_saturated(evidence, thresholds)
    for layer, output, large in _reading_large(evidence):
        throughout = column(kernels[-1].output, "rms") > LARGE or output.name in saturated
        carrying = 0 if evidence.is_trained else _carrying(kernels, layer)
        if throughout or carrying >= _CARRYING:
            where = "throughout" if throughout else f"in {carrying} layers behind it"
            why = f"{_size(large)}, which no layer normalises: the signal is large {where}"
            outliers = _outliers(large)
            found = suspect("exploding", large, why + outliers, [each.output for each in kernels])
            yield replace(
                found, finding=replace(found.finding, repair=_CLEAN.format(key=key(large)) if outliers else _SCALE)
            )
            return


def unscaled_inputs(manifest: Manifest) -> tuple[str, ...]:
    """Returns sentences about inputs that are large for the layers that read them as they are, and are no finding.

    They are none where a normalisation scales the signal further on, as in a transformer, which makes it no smaller
    beside what the branches add, nor does it take out a mean.

    Args:
        manifest: The manifest of a dump; tensors are not read.
    """
    evidence = RuleEvidence(manifest)
    if any(inputs(evidence, Thresholds())):
        return ()
    read = {key(large): (large, layer) for layer, _, large in reversed(list(_reading_large(evidence)))}
    return tuple(f"{name} {_size(large)}, and {layer.path} reads it as it is" for name, (large, layer) in read.items())


def _reading_large(evidence: RuleEvidence) -> Iterator[tuple[Layer, Entry, Entry]]:
    """Yields the layers that receive and return a large signal, with their output and the input that they read.

    Where a layer reads what the program makes of inputs alone, as a cast or a sum, the first large one of these counts.
    """
    around = {layer.parent for layer in evidence.manifest.layers}
    for layer in sorted(evidence.manifest.layers, key=lambda layer: layer.index):
        if layer.operation or not (layer.params and layer.outputs) or layer.path in around:
            continue
        output = evidence.entry(naming.ACTIVATION, layer.outputs[0])
        received = layer.rms.get("in", math.inf)  # integers have none
        if output is None or output.absent is not None or min(received, column(output, "rms")) <= LARGE:
            continue
        read = (evidence.entry(naming.INPUT, name) for name in _inputs_of(layer))
        large = next((entry for entry in read if entry is not None and _largest(entry) > LARGE), None)
        if large is not None:
            yield layer, output, large


def _inputs_of(layer: Layer) -> Sequence[str]:
    """Returns the names of the inputs that a layer reads, or that alone, with its parameters, it is computed from."""
    keys = [naming.split_key(each) for each in layer.sources]
    if any(family == naming.ACTIVATION for family, _ in keys):
        return layer.inputs
    return (*layer.inputs, *(name for family, name in keys if family == naming.INPUT))


def _largest(entry: Entry) -> float:
    """Returns the root mean square of an input, or of integers the largest magnitude."""
    limits = (number(entry.stats, "min") or 0.0, number(entry.stats, "max") or 0.0)
    return column(entry, "rms") or max(map(abs, limits))


def _size(entry: Entry) -> str:
    rms = column(entry, "rms")
    return f"has an rms of {rms:.3g} (mean {column(entry, 'mean'):.3g})" if rms else f"is up to {_largest(entry):.6g}"


def _outliers(entry: Entry) -> str:
    """Returns that few elements make an input large, which scaling all of them does not mend; "" where many do."""
    usual = number(entry.stats, "p99")
    if usual is None or usual > LARGE:
        return ""
    most = f"{column(entry, 'amax'):.6g} (99% are within {usual:.3g})"
    return f", by few elements of up to {most}: look at their examples"


def _carrying(kernels: Sequence[KernelLayer], first: Layer) -> int:
    """Returns how many layers behind one receive and return a signal that is large for layers of a usual scale."""
    behind = (each for each in kernels if each.layer.index > first.index)
    return sum(min(each.layer.rms.get("in", 0.0), column(each.output, "rms")) > LARGE for each in behind)
