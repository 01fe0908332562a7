"""`replaced_among` finds the step in whose place the other program computes something else, as what follows shows.

Tried are other formulas of the kind of the step (another axis of a softmax, no mask, another scale), other values in
the place of one that it reads, and the parameters of another step. A replacement explains the difference where all that
follows from it, and that the other program is known to have, is reproduced, and some of that differs. Where no single
one does, the same mistake may be made in all steps of a name, as in every attention.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.suspects.replaying.formulas import Formula, Reads
from gradscope.comparison.diagnosis.suspects.replaying.stretch import Computed, Stretch
from gradscope.comparison.diagnosis.suspects.steps import Found, Step, with_words
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import PARAM, printable, split_key

#: The most steps of one program alone that are computed again: those of a loop that is unrolled have one cause.
_MOST_STEPS: Final = 128

#: The most values that are tried in the place of one that a step reads.
_MOST_READ: Final = 16


class _Replaced(NamedTuple):
    """_Replaced has the key of a step, what it computes, and what the other program computes in its place."""

    key: str
    own: Formula
    other: Formula


def replaced_among(
    dumps: Dumps, pairing: Pairing, steps: Sequence[Step], outputs: Mapping[bool, tuple[str, Layer | None]]
) -> Found | None:
    """Returns the step in whose place the other program computes something else, or the layer; None for neither.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        steps: The steps that may be wrong.
        outputs: The key of the divergence and its layer, in the reference (True) and in the candidate.
    """
    for of_ref, (output, layer) in outputs.items():
        own = {step.key: step for step in steps if step.of_ref is of_ref}
        if layer is None or not 0 < len(own) <= _MOST_STEPS:
            continue
        other, _ = outputs[not of_ref]
        found = _replaced_step(Stretch(dumps, pairing, own, (output, other), layer, of_ref=of_ref))
        if found is not None and found.key not in own:
            return Found([], [])
        if found is not None:
            side = "candidate" if of_ref else "reference"
            return Found(
                [with_words(own[found.key], found.own.words, found.other.words, side)], steps, made_before=True
            )
    return None


def _replaced_step(stretch: Stretch) -> _Replaced | None:
    """Returns the step of a stretch that is replaced; None where nothing shows one."""
    known = ((key, stretch.computed(key)) for key in stretch.keys)
    every = {key: step for key, step in known if step is not None and step.formula is not None}
    steps = {key: step for key, step in every.items() if key in stretch.steps}
    for key, step in steps.items():
        replaced = _best(stretch, _replacements(key, step, every))
        if replaced is not None:
            reader = _multiplied_by(key, every) if replaced[key].arranges else None
            return reader or _Replaced(key, _formula(step), replaced[key])
    for (first, step), alike in _of_one_name(steps):
        replaced = _best(stretch, _alike(alike))
        if replaced is not None:
            return _Replaced(first, _formula(step), replaced[first])
    return None


def _best(stretch: Stretch, possible: Iterable[dict[str, Formula]]) -> dict[str, Formula] | None:
    """Returns the formulas that explain best what the other program has; None where none do."""
    errors = [(stretch.unexplained(each), each) for each in possible]
    least, found = min(errors, key=lambda each: each[0], default=(math.inf, None))
    return found if least < math.inf else None


def _multiplied_by(key: str, steps: Mapping[str, Computed]) -> _Replaced | None:
    """Returns the step that multiplies a value with a kernel, as one that reads it in another order; None for none.

    The order of features is a matter of the kernel that they are read by, as of the heads that a projection joins.

    Args:
        key: The key of the value.
        steps: All steps of the stretch, in execution order.
    """
    for name, step in steps.items():
        factors = [step.sources[at] for at in _formula(step).uses[:2]]
        if key in factors and any(map(_is_param, factors)):
            words = f"{_formula(step).words} of the same features in another order"
            return _Replaced(name, _formula(step), replace(_formula(step), words=words))
    return None


def _replacements(key: str, step: Computed, steps: Mapping[str, Computed]) -> Iterator[dict[str, Formula]]:
    """Yields what may be in the place of a step, and of one that it takes the parameters of.

    Args:
        key: The key of the step.
        step: How it is computed.
        steps: All steps of the stretch, in execution order.
    """
    formula = _formula(step)
    for other in formula.others:
        yield {key: other}
    for at in (at for at in formula.uses if not _is_param(step.sources[at])):
        for name, value in itertools.islice(_in_its_place(key, step, at, steps), _MOST_READ):
            words = f"{formula.words} with {_quoted(name)} in place of {_quoted(step.sources[at])}"
            yield {key: _with_reads(formula, {at: value}, words)}
    for name, other in steps.items():
        own, its = _params(step), _params(other)
        if name != key and own and [*map(_shape(step), own)] == [*map(_shape(other), its)]:
            words = "{} with the parameters of {}"
            yield {
                key: _with_reads(
                    formula,
                    {at: other.reads[place] for at, place in zip(own, its, strict=True)},
                    words.format(formula.words, _quoted(name)),
                ),
                name: _with_reads(
                    _formula(other),
                    {at: step.reads[place] for at, place in zip(its, own, strict=True)},
                    words.format(_formula(other).words, _quoted(key)),
                ),
            }


def _in_its_place(key: str, step: Computed, at: int, steps: Mapping[str, Computed]) -> Iterator[tuple[str, Array]]:
    """Yields the keys and values that a step may read in the place of another."""
    seen = {key, step.sources[at]}
    for name, other in steps.items():
        if name == key:
            return  # what follows is computed from the step
        for each, value in ((name, other.value), *zip(other.sources, other.reads, strict=True)):
            if each not in seen and not _is_param(each) and value.shape == step.reads[at].shape:
                seen.add(each)
                yield each, value


def _of_one_name(steps: Mapping[str, Computed]) -> Iterator[tuple[tuple[str, Computed], dict[str, Computed]]]:
    """Yields the first of several steps that have one name in different layers, with all of them."""
    names = {key: split_key(key)[1].rpartition("/")[2] for key in steps}
    for name in dict.fromkeys(names.values()):
        alike = {key: step for key, step in steps.items() if names[key] == name}
        if len(alike) > 1:
            yield next(iter(alike.items())), alike


def _alike(steps: Mapping[str, Computed]) -> Iterator[dict[str, Formula]]:
    """Yields the formulas of the same words that may be in the place of several steps."""
    others = {key: {each.words: each for each in _formula(step).others} for key, step in steps.items()}
    for words in [each for each in next(iter(others.values())) if all(each in own for own in others.values())]:
        yield {key: each[words] for key, each in others.items()}


def _formula(step: Computed) -> Formula:
    if step.formula is None:
        raise ValueError("the formula of the step is not known")
    return step.formula


def _with_reads(formula: Formula, values: Mapping[int, Array], words: str) -> Formula:
    """Returns a formula that gets other values in the place of some that are read."""

    def apply(reads: Reads) -> Array:
        return formula.apply([values.get(at, read) for at, read in enumerate(reads)])

    return Formula(words=words, apply=apply, uses=formula.uses)


def _params(step: Computed) -> list[int]:
    """Returns the positions of the parameters that a step uses, the largest first."""
    own = [at for at in _formula(step).uses if _is_param(step.sources[at])]
    return sorted(own, key=lambda at: -step.reads[at].size)


def _shape(step: Computed) -> Callable[[int], tuple[int, ...]]:
    return lambda at: step.reads[at].shape


def _is_param(key: str) -> bool:
    return split_key(key)[0] == PARAM


def _quoted(key: str) -> str:
    return f"`{printable(split_key(key)[1])}`"
