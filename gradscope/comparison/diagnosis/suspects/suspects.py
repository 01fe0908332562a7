"""`with_suspects` finds the steps in one program only that may have made the first divergence.

Such a step has no counterpart to be compared with, and the next value that is compared differs. What is known decides
between the steps and the layer of that value:

- Where a layer reads other attentions of values that agree, no step is at fault (`attention_reads`).
- A step with which replaced all that follows is what the other program has is at fault (`replaying`).
- A layer that uses a parameter which differs, or which the other program does not use, is at fault.
- A product of a kernel that both programs have is not, and neither is a part of the layer that differs.
- A layer that reads what its counterpart reads is at fault itself. Where it reads other values, a step is; where it
  reads the same in another order, a step that arranges values may be.
- A layer that normalises is at fault where its output differs by a factor for each group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gradscope.comparison.diagnosis.divergence import Blame, first_divergence
from gradscope.comparison.diagnosis.likely.layers.cells.cell_differences import CellDifferences
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.refuting.kernel_products import is_product
from gradscope.comparison.diagnosis.step_kinds import have_same_elements, in_its_place
from gradscope.comparison.diagnosis.suspects.flat_steps import left_out_among
from gradscope.comparison.diagnosis.suspects.gradient_makers import with_gradient_makers
from gradscope.comparison.diagnosis.suspects.gradient_suspects import backward_suspects
from gradscope.comparison.diagnosis.suspects.plain_steps import (
    is_arrangement,
    is_multiple,
    is_normalisation,
    is_recognised,
    is_rescaled,
)
from gradscope.comparison.diagnosis.suspects.reading.attentions.attention_reads import attention_read
from gradscope.comparison.diagnosis.suspects.reading.read_steps import ReadSteps
from gradscope.comparison.diagnosis.suspects.reading.readers import Reader, reader_of
from gradscope.comparison.diagnosis.suspects.reading.replaced_reads import replaced_read
from gradscope.comparison.diagnosis.suspects.reading.unrecorded_reads import functions_read, unrecorded_read
from gradscope.comparison.diagnosis.suspects.replaying.replaced_steps import replaced_among
from gradscope.comparison.diagnosis.suspects.steps import Found, Step, is_inside, makers_of, steps_of, with_words
from gradscope.comparison.diagnosis.suspects.turned_parameters import flipped_kernels, turned_parameters
from gradscope.comparison.diagnosis.suspects.turned_values import turned_value
from gradscope.comparison.diagnosis.suspects.wrong_parameters import wrong_parameters
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, key_of


def with_suspects(dumps: Dumps, pairing: Pairing, rows: Sequence[ComparisonRow], blame: Blame) -> Blame:
    """Returns where a divergence comes from, with the steps that may have made it.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: All rows.
        blame: Where the first divergence comes from, as far as the rows tell.
    """
    divergence = first_divergence(rows)
    if not (dumps.ref.manifest.layers and dumps.cand.manifest.layers):
        return blame
    blame = with_gradient_makers(dumps, pairing, divergence.backward, blame)
    blame = replace(blame, turned=turned_parameters(dumps, pairing.matched))
    turned = None if divergence.forward is None else turned_value(dumps, pairing, rows, divergence.forward)
    if turned is not None and blame.origin is None:
        return replace(blame, suspects=(turned,))
    if blame.origin is not None or (divergence.forward is not None and divergence.forward.explained):
        around = blame.unpaired if blame.origin is None else ()
        return replace(blame, suspects=around, made_before=bool(around))
    if divergence.forward is None:
        found = backward_suspects(dumps, rows, divergence.backward, blame)
        return replace(blame, suspects=tuple(step.row for step in found.suspects), made_before=found.made_before)
    key = key_of(divergence.forward.family, divergence.forward.name)
    with np.errstate(all="ignore"):  # alternatives are tried on values that they are not made for
        words = (attention_read if blame.unpaired else unrecorded_read)(dumps, pairing, key)
        if words or not blame.unpaired:
            return replace(blame, unrecorded=words)
        found = _Forward(dumps, pairing, rows).found(divergence.forward, steps_of(dumps, blame.unpaired))
        found = left_out_among(dumps, pairing, found)
        # What a suspect is instead is told of it; of others the layer behind may say what it reads in both programs.
        told, known = any(step.row.likely for step in found.suspects), found.suspects or found.unknown
        words = "" if told else (functions_read if known else unrecorded_read)(dumps, pairing, key)
        found = Found([], []) if words else found
    cells = _Cells(dumps)
    return replace(
        blame,
        suspects=tuple(map(cells.with_words, found.suspects)),
        unpaired=tuple(map(cells.with_words, found.unknown)),
        made_before=found.made_before,
        unrecorded=words,
    )


class _Cells:
    """_Cells says in what a recurrent layer that only one of the programs has differs from what the other has.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._of_ref, self._of_cand = CellDifferences.of_both(dumps)

    def with_words(self, step: Step) -> ComparisonRow:
        """Returns the row of a step.

        Args:
            step: The step.
        """
        words = "" if step.row.likely else (self._of_ref if step.of_ref else self._of_cand).words(step.key)
        return replace(step.row, likely=words) if words else step.row


class _Forward:
    """_Forward finds the suspects among the values from which a value is computed.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: All rows.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing, rows: Sequence[ComparisonRow]) -> None:
        self._dumps, self._pairing = dumps, pairing
        own = [row for row in rows if row.status != "extra"]
        self._errors = {key_of(row.family, row.name): as_float(row.metrics.get("rel_l2", 0.0)) for row in own}
        self._matches = {match.ref: match for match in pairing.matched}
        self._wrong = wrong_parameters(dumps, pairing, rows)
        self._flipped = flipped_kernels(dumps, pairing.matched)
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
        self._read = {of_ref: ReadSteps(dumps, pairing, of_ref=of_ref) for of_ref in (True, False)}

    def found(self, first: ComparisonRow, steps: list[Step]) -> Found:
        """Returns the suspects.

        Args:
            first: The first value over tolerance.
            steps: The steps of one program only that it is computed from.
        """
        match = self._matches.get(key_of(first.family, first.name))
        layer = makers_of(self._dumps.ref.manifest.layers).get(first.name)
        if match is not None and layer is not None:  # other results of the layer are not before it
            others = {other.path for other in self._counterparts(match, layer)}
            steps = [step for step in steps if step.of_ref or step.layer.path not in others]
        guilty = [step for step in steps if self._wrong.intersection(step.layer.params)]
        if guilty or layer is None:
            return Found(guilty, steps, made_before=True)
        if match is not None:
            behind = self._counterparts(match, layer)
            outputs = {True: (match.ref, layer), False: (match.cand, behind[-1] if behind else None)}
            replayed = replaced_among(self._dumps, self._pairing, steps, outputs)
            if replayed is not None:
                return replayed
        products = [step for step in steps if is_product(self._tensors(step), step.layer, step.key)]
        steps = [step for step in steps if step not in products]
        if match is None:  # a loss, which is compared as a number
            return Found(steps, steps)
        return Found([], []) if self._is_replaced(match, layer) else self._by_layers(match, layer, steps, products)

    def _by_layers(self, match: Match, layer: Layer, steps: list[Step], products: Sequence[Step]) -> Found:
        """Returns the suspects by what the layers of the divergence are around, and what they read.

        Args:
            match: The pair of the divergence.
            layer: The layer that computes it in the reference.
            steps: The steps that may be wrong.
            products: The steps that are products of kernels, which are right.
        """
        others = self._counterparts(match, layer)
        # A function of a product that only the reference has an entry for is a dense layer with that function.
        reads = next((step.layer for step in products if not layer.params and step.row.name in layer.inputs), layer)
        reader = reader_of(
            self._dumps, self._pairing, match, (reads, others[-1] if others else None), self._errors[match.ref]
        )
        exact = reader is not None and (reader.reads(reader.read) or reader.pads_otherwise())
        own = [name for each in (layer, *others) for name in each.params]
        differs = bool((self._wrong | self._flipped).intersection(own))
        shown = None if exact else self._by_what_differs(reader, match, steps)
        if shown is not None:
            return shown
        of_ref = any(step.of_ref for step in steps) or not others
        output, behind = (match.ref, layer) if of_ref else (match.cand, others[-1])
        left, certain = (steps, False) if differs else self._read[of_ref].left(reader, output, behind, steps)
        if certain or not left:
            return Found(self._likeliest(left), left, made_before=certain)
        steps = left
        around = {True: {layer.path}, False: {other.path for other in others}}
        inside = [step for step in steps if is_inside(self._layers(step), step.layer, around[step.of_ref])]
        if any(step.of_ref for step in inside) or len(inside) == len(steps) > 0:
            return Found([], steps)
        if reader is not None and exact:  # what it reads besides may be wrong
            beside = self._likeliest(self._read[reader.of_ref].beside(reader, steps))
            return Found(beside, beside)
        # A layer around several steps is no more exact than those of the other program that it stands for.
        steps = [step for step in steps if step not in inside]
        return Found([], steps) if differs else self._by_reading(reader, match, layer, steps)

    def _by_what_differs(self, reader: Reader | None, match: Match, steps: Sequence[Step]) -> Found | None:
        """Returns the step in whose place the candidate has another, or none where a layer reads another value.

        Args:
            reader: What shows what the layer of the other program reads; None where nothing does.
            match: The pair of the outputs of the layers.
            steps: The steps that may be wrong.

        Returns:
            What is shown; None where nothing is.
        """
        step = self._replaced(steps)
        if step is None and reader is not None:
            step = replaced_read(self._ref if reader.of_ref else self._cand, reader, steps)
        if step is not None:
            return Found([step], steps, made_before=True)
        if reader is None:
            return None
        output = match.ref if reader.of_ref else match.cand
        return Found([], []) if self._read[reader.of_ref].another_is(reader, output) else None

    def _by_reading(self, reader: Reader | None, match: Match, layer: Layer, steps: Sequence[Step]) -> Found:
        """Returns the suspects by what the layer of the divergence reads.

        Args:
            reader: What shows that it reads other values than its counterpart; None where nothing does.
            match: The pair of its outputs.
            layer: The layer in the reference.
            steps: The steps that may be wrong.
        """
        normalises = reader is None and is_normalisation(self._ref, layer)
        if normalises and is_rescaled(self._ref, self._cand, match, layer):
            return Found([], [])
        arranging = [step for step in steps if is_arrangement(self._tensors(step), step.layer, step.key)]
        making = [step for step in steps if step not in arranging]
        if reader is not None and reader.reorders():
            # What makes the features makes their order, too, as where those of several values are joined.
            return Found(arranging[::-1] or self._likeliest(making), steps, made_before=not arranging)
        before = reader is not None or normalises  # then it reads other values
        if not before and layer.params and all(self._is_recognised(step) for step in making):
            return Found([], steps)
        if not making and is_multiple(self._ref, self._cand, match):
            return Found([], steps)
        return Found(self._likeliest(making) or (arranging if before else []), steps, made_before=before)

    def _likeliest(self, steps: Iterable[Step]) -> list[Step]:
        """Returns steps, the likeliest first.

        A port has well-known functions from its library, and a layer that makes one value rightly makes most often all.
        """
        steps = list(steps)
        names = {step.row.name for step in steps}

        def place(step: Step) -> tuple[bool, bool]:
            used = filter(self._read[step.of_ref].is_used, step.layer.outputs)
            return self._is_recognised(step), not names.issuperset(used)

        return sorted(steps, key=place)

    def _is_replaced(self, match: Match, layer: Layer) -> bool:
        """Returns whether another operation of its kind makes the candidate's value of what a layer reads."""
        read, value = list(self._ref.read_by(layer)), self._ref.tensor(match.ref)
        found = [self._cand.tensor(key) for key in match.recipe.keys]
        if len(read) != 1 or value is None or len(found) != 1 or found[0] is None:
            return False
        return in_its_place(read[0], value, [found[0]]) is not None

    def _replaced(self, steps: Sequence[Step]) -> Step | None:
        """Returns the step of the reference in whose place the candidate has another, by the value of that; or None.

        What a step reads is in the candidate, too, and a step that only arranges it says nothing of what follows.
        """
        others = [step.key for step in steps if not step.of_ref]
        for step in (step for step in steps if step.of_ref and others):
            read, value = list(self._ref.read_by(step.layer)), self._ref.tensor(step.key)
            if value is None or len(read) != 1:
                continue
            made = (each for each in self._cand.of_size(others, value.size) if not have_same_elements(each, read[0]))
            found = in_its_place(read[0], value, made)
            if found is not None:
                return with_words(step, found[0].words, found[1].words, "candidate")
        return None

    def _counterparts(self, match: Match, layer: Layer) -> list[Layer]:
        """Returns the layers of the candidate whose output is the counterpart: of a layer with parts all around it."""
        source, parents = self._dumps.cand, {each.parent for each in self._dumps.ref.manifest.layers}
        known, layers, owner = frozenset(source.keys()), source.manifest.layers, source.resolve(match.cand)
        outputs = {each.path: {key_of(ACTIVATION, name) for name in each.outputs} & known for each in layers}
        found = [each for each in layers if owner in map(source.resolve, outputs[each.path])]
        return found if layer.path in parents else found[-1:]

    def _is_recognised(self, step: Step) -> bool:
        return is_recognised(self._tensors(step), step.layer, step.key)

    def _tensors(self, step: Step) -> FloatTensors:
        return self._ref if step.of_ref else self._cand

    def _layers(self, step: Step) -> Sequence[Layer]:
        return (self._dumps.ref if step.of_ref else self._dumps.cand).manifest.layers
