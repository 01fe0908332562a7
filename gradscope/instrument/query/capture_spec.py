"""The capture spec states which tensors of a run the user selects."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gradscope import naming
from gradscope.errors import UsageError
from gradscope.naming import IterationIndex, Selection
from gradscope.tracing.jaxpr.frames import Loop, iterations
from gradscope.tracing.layers.sites import SiteName

EVERYTHING: Final = frozenset(naming.FAMILIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSpec:
    """A `CaptureSpec` states which tensors of a run are selected.

    Attributes:
        selection: By name or key.
        families: By family.
        depth: Layers of at most so many scopes; None for all.
        operations: Every operation in addition to every layer.
        operands: The gradient with respect to each operand of every operation, as a term of the operand's gradient.
        terms: The terms of the gradient of each value that is used several times.
        per_example: The gradient with respect to each parameter of the loss of each single example.
        wrt: Which values' gradients; None for all.
        inner: The names of operations that are shown although operations are not, without iterations.
        keys: Only these keys, whatever the other attributes select; None for no such restriction.

    Raises:
        UsageError: There is no family of one of the names.
    """

    selection: Selection = field(default_factory=Selection)
    families: frozenset[str] = EVERYTHING
    depth: int | None = None
    operations: bool = False
    operands: bool = False
    terms: bool = False
    per_example: bool = False
    wrt: Selection | None = None
    inner: frozenset[str] = frozenset()
    keys: frozenset[str] | None = None

    def __post_init__(self) -> None:
        naming.family_set(self.families)

    @classmethod
    def of(
        cls,
        select: str | Sequence[str] | None,
        exclude: str | Sequence[str] | None,
        families: str | Collection[str] | None,
        depth: int | None,
    ) -> CaptureSpec:
        """Returns the spec of layers and arguments that patterns, families (all where None) and a depth select.

        Raises:
            UsageError: A pattern is not one, there is no such family, or the depth is not positive.
        """
        if depth is not None and depth < 1:
            raise UsageError(f"depth is {depth}, and a layer has at least one scope")
        chosen = EVERYTHING if families is None else naming.family_set(families)
        return cls(selection=Selection.parse(select, exclude), families=chosen, depth=depth)

    @property
    def looks_inside_layers(self) -> bool:
        """Whether the trace has to be made with operations."""
        return self.operations or self.operands or self.terms or self.wrt is not None

    def require_made(self) -> None:
        """Refuses families that are named but made only on request, where nothing requests them.

        Raises:
            UsageError: There is one; the hint says what requests it.
        """
        if self.families == EVERYTHING:
            return
        for family, made, asking in (
            (naming.TERM, self.terms or self.operands, "--terms or --ops=inputs (capture: terms=True, ops='inputs')"),
            (naming.EXAMPLE_GRAD, self.per_example, "--per-example (capture: per_example=True)"),
        ):
            if family in self.families and not made:
                raise UsageError(f"the family {family} is only made when it is requested", hint=f"add {asking}")

    def selects(self, family: str, name: str) -> bool:
        """Returns whether a tensor of this family and name is selected."""
        key = naming.key_of(family, name)
        if self.keys is not None:
            return key in self.keys
        if self.wrt is not None and naming.is_gradient(family):
            of_value = naming.key_of(naming.subject_family(family) or family, name)
            if not self.wrt.selects(name, key, of_value):
                return False
        return family in self.families and self.selection.selects(name, key)

    def selects_layer(self, family: str, name: SiteName, iteration: IterationIndex) -> bool:
        """Returns whether a layer's output is selected at one iteration."""
        return self.shows(name) and self.selects(family, str(name.at(iteration)))

    def selects_recorded(self, family: str, name: SiteName, iteration: IterationIndex, loops: Sequence[Loop]) -> bool:
        """Returns whether a layer's output is selected at the iteration that was recorded.

        Args:
            family: Its family.
            name: Its name.
            iteration: The iteration; of a `while` the last one, whichever of them a pattern names.
            loops: The loops around it.
        """
        if all(loop.length is not None for loop in loops):
            return self.selects_layer(family, name, iteration)
        recorded = str(name.at(iteration))
        if self.keys is None and self.selection.excludes(recorded, naming.key_of(family, recorded)):
            return False
        known = [at if loop.length is not None else None for at, loop in zip(iteration, loops, strict=True)]
        return any(self.selects_layer(family, name, each) for each in (iteration, *self._named(known)))

    def iterations(self, loops: Sequence[Loop]) -> Iterator[IterationIndex]:
        """Yields the iterations of some loops; of a `while`, which may have any number, those that patterns name."""
        if all(loop.length is not None for loop in loops):
            return iterations(loops)
        counted = (range(1 if loop.length is None else loop.length) for loop in loops)
        whiles = [loop.length is None for loop in loops]
        return (
            each
            for known in itertools.product(*counted)
            for each in self._named([None if of_while else at for at, of_while in zip(known, whiles, strict=True)])
        )

    def _named(self, known: Sequence[int | None]) -> Iterator[IterationIndex]:
        """Yields an iteration with each number that patterns name, and 0, in the place of those that are not known."""
        named = sorted({0, *self.selection.numbers})
        return itertools.product(*(named if at is None else (at,) for at in known))

    def selects_term(self, name: str, of: str | None) -> bool:
        """Returns whether a term is selected.

        Args:
            name: Its name.
            of: The key of the value that it is a term of; None for a value without one.
        """
        if self.keys is not None or naming.TERM not in self.families:
            return False
        spellings = (name, naming.key_of(naming.TERM, name), *(() if of is None else (of, naming.split_key(of)[1])))
        return self.selection.selects(*spellings) and (self.wrt is None or self.wrt.selects(*spellings))

    def shows(self, name: SiteName) -> bool:
        """Returns whether a layer or operation of this name is among those shown."""
        if name.template in self.inner:
            return True
        shown = self.operations or self.keys is not None or not name.operation
        return shown and (self.depth is None or len(name.path.components) <= self.depth)
