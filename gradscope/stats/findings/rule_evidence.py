"""Defines the arguments and the results of rules: `RuleEvidence`, `Thresholds` with their defaults, and `Finding`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.entries.packed_statistics import numbers_of
from gradscope.dump.manifest.layer_graph import layers_around
from gradscope.dump.manifest.manifest import Cause, Entry, Layer, Manifest
from gradscope.dump.manifest.zero_reasons import places_in
from gradscope.errors import UsageError
from gradscope.naming import IterationIndex
from gradscope.naming.summary import Summary
from gradscope.naming.wording import counted, place_behind
from gradscope.stats.columns import is_all_zero, number
from gradscope.typed_arguments import require_typed_fields

#: The most names around a name that are looked at: a file may have one of a million parts.
DEEPEST: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Finding:
    """A `Finding` states one thing that is wrong with a run: a cause, at the tensor where it is worst.

    Attributes:
        rule: Name of the rule that returned the finding.
        name: The tensor's name.
        family: The tensor's family.
        why: The reason with its number, as the predicate of a sentence without a full stop.
        source: `file:line` in the user's code of the tensor, or of what cuts its gradient off; None where unknown.
        iteration: Index per enclosing loop, outermost first.
        tensors: Number of tensors that it concerns: those that have the fault, and those that have it for a
            consequence.
        counted: How many of them `why` counts itself, beside the tensor.
        repair: What to do, where that of the rule does not fit; "" where it does.
        explains: The rules whose findings are consequences of it, and are not listed.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradscope as gs
        >>> dump = gs.capture(lambda w, x: (w["a"] * x).sum(), {"a": jnp.ones(2), "b": jnp.ones(2)}, jnp.ones(2))
        >>> [(finding.rule, finding.name) for finding in dump.findings()]
        [('unused-param', 'b')]
    """

    rule: str
    name: str
    family: str
    why: str
    source: str | None
    iteration: IterationIndex
    tensors: int = 1
    counted: int = 0
    repair: str = ""
    explains: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return self.summary().one_line("Finding")

    def __str__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()

    def failing(self, names: Collection[str]) -> str | None:
        """Returns its rule, or else that of a consequence, that is one of some names; None where none is."""
        return next((rule for rule in (self.rule, *self.explains) if rule in names), None)

    @property
    def statement(self) -> str:
        """The finding as a sentence: the tensor, the reason, the place, and how many more tensors are affected."""
        others = self.tensors - 1 - self.counted
        are = "is" if others == 1 else "are"
        more = f"; {counted(others, 'more tensor')} {are} affected" if others > 0 else ""
        return f"{naming.key_of(self.family, self.name)} {self.why}{place_behind(self.why, self.source)}{more}"

    def summary(self) -> Summary:
        """Returns the finding as a sentence, after its rule."""
        return Summary(line=f"{self.rule}: {self.statement}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """`Thresholds` are those of the rules, with the defaults of the Python interface and of the command line.

    Attributes:
        vanishing: Ratio of the gradient at the first layers to that at the last ones below which it vanishes.
        exploding: Ratio of the gradient at the first layers to that at the last ones above which it explodes.
        dead: Share of dead units above which an activation is dead.
        saturated: Share of elements at a limit of their function above which an activation is saturated.
        init: Factor by which a layer's weights may change the scale of the signal, up or down.
        underflow: Share of a gradient's elements that are subnormal in their type above which it underflows.

    Raises:
        UsageError: One of them is no number of at least 0.

    Example:
        >>> import gradscope as gs
        >>> gs.Thresholds(dead=0.9).vanishing  # the others have their defaults
        0.001
    """

    vanishing: float = 1e-3
    exploding: float = 1e3
    dead: float = 0.8
    saturated: float = 0.9
    init: float = 10.0
    underflow: float = 0.5

    def __post_init__(self) -> None:
        require_typed_fields(self)
        for each in fields(self):
            limit = getattr(self, each.name)
            if not limit >= 0:
                raise UsageError(f"{each.name} is {limit:g}, expected a number of at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A `Suspect` is what a rule returns: a finding, and what is needed to fold consequences into their causes.

    Attributes:
        finding: The finding, of the rule alone.
        keys: Keys of the tensors that it concerns.
        begin: Execution index of the first of them.
        total: Whether nothing passes there, neither a signal nor a gradient.
    """

    finding: Finding
    keys: frozenset[str] = field(default_factory=frozenset[str])
    begin: float = 0.0
    total: bool = False


class RuleEvidence:
    """`RuleEvidence` is a manifest, indexed for rules.

    Attributes:
        manifest: The manifest.
        entries: Its entries without aliases, in execution order; those of one execution index in the order written.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        own = (entry for entry in manifest.entries if entry.alias_of is None)
        self.entries = tuple(sorted(own, key=lambda entry: entry.site.index))
        self._causes = {(cause.family, cause.name): cause for cause in manifest.causes}
        self._reasons: dict[str, tuple[str, ...]] = {}
        self._places: dict[str, frozenset[str]] = {}
        self._details = {(line.family, line.name): line.detail for line in manifest.ledger.missing}
        self._by_key = {key(entry): entry for entry in manifest.entries}

    def of(self, *families: str) -> tuple[Entry, ...]:
        """Returns the entries of some families that have a tensor."""
        if len(families) == 1:
            return self._with_tensor.get(families[0], ())
        return tuple(entry for entry in self.entries if entry.family in families and entry.absent is None)

    @cached_property
    def _with_tensor(self) -> Mapping[str, tuple[Entry, ...]]:
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if entry.absent is None:
                found.setdefault(entry.family, []).append(entry)
        return {family: tuple(entries) for family, entries in found.items()}

    def entry(self, family: str, name: str) -> Entry | None:
        """Returns the entry of a family and name, or that of an alias's tensor; None where there is none."""
        found = self._by_key.get(naming.key_of(family, name))
        return found if found is None or found.alias_of is None else self._by_key.get(found.alias_of)

    def cause(self, entry: Entry) -> Cause | None:
        """Returns the reason why a gradient is zero; None where the manifest has none."""
        return self._causes.get((entry.family, entry.name))

    def reasons(self, start: str) -> tuple[str, ...]:
        """Returns the reasons of zero gradients that begin with some words."""
        if start not in self._reasons:
            why = (cause.why for cause in self.manifest.causes)
            self._reasons[start] = tuple(dict.fromkeys(each for each in why if each.startswith(start)))
        return self._reasons[start]

    def places(self, start: str) -> frozenset[str]:
        """Returns the lines, as `model.py:3`, that the reasons name which begin with some words."""
        if start not in self._places:
            self._places[start] = frozenset(place for why in self.reasons(start) for place in places_in(why))
        return self._places[start]

    def detail(self, entry: Entry) -> str:
        """Returns the ledger's detail on why a tensor is missing; "" where it has none."""
        return self._details.get((entry.family, entry.name), "")

    @cached_property
    def layers(self) -> Mapping[str, Layer]:
        """The layers by path."""
        return {layer.path: layer for layer in self.manifest.layers}

    def with_those_around(self, path: str | None) -> Iterator[Layer]:
        """Yields the layer at a path and those around it, the innermost first."""
        if path is not None and (layer := self.layers.get(path)) is not None:
            yield from (layer, *layers_around(layer, self.layers))

    def layer_of(self, entry: Entry) -> Layer | None:
        """Returns the layer that outputs a value; None where there is none."""
        return None if entry.site.layer is None else self.layers.get(entry.site.layer)

    @cached_property
    def dropped(self) -> AbstractSet[str]:
        """The names of the activations most of whose elements a random mask makes zero, as a dropout does."""
        return {name for mask in self.manifest.random_masks for name in mask.names}

    @cached_property
    def nonfinite(self) -> tuple[Entry, ...]:
        """The entries with a NaN or an infinity, in execution order."""
        counts = zip(self.entries, columns(self.entries, "nan"), columns(self.entries, "inf"), strict=True)
        return tuple(entry for entry, nan, inf in counts if nan + inf)

    @cached_property
    def is_trained(self) -> bool:
        """Whether the parameters look as if they had moved: a bias is not as an initialisation makes it.

        An initialisation makes all elements of a bias equal, or draws them uniformly, as it draws the kernel.
        """
        return any(self._has_moved(entry) for entry in self.of(naming.PARAM) if len(entry.shape) == 1)

    @cached_property
    def _uniform_by_scope(self) -> Mapping[str, Sequence[float]]:
        """The deviations of the kernels of a uniform distribution, in ascending order, by the path around them."""
        found: dict[str, list[float]] = {}
        for entry in self.of(naming.PARAM):
            # Of a uniform distribution around zero, the largest magnitude is sqrt(3) deviations; of normal ones, it is
            # larger.
            if len(entry.shape) > 1 and column(entry, "amax") < 1.8 * column(entry, "std"):
                found.setdefault(_scope(entry), []).append(column(entry, "std"))
        return {scope: sorted(deviations) for scope, deviations in found.items()}

    def _has_moved(self, bias: Entry) -> bool:
        spread, size = column(bias, "std"), column(bias, "size")
        if not spread > 1e-6 * column(bias, "rms") or size < 2:
            return False
        beside = self._uniform_by_scope.get(_scope(bias), ())
        place = bisect_left(beside, spread)
        # The spread of a sample of n differs from the one drawn from by about 1 / sqrt(2 n).
        near = 3 / (2 * size) ** 0.5
        return not any(abs(closest - spread) < near * spread for closest in beside[max(place - 1, 0) : place + 1])


def _scope(entry: Entry) -> str:
    """Returns the path around a tensor; "" for one at the top."""
    return entry.name.rpartition("/")[0]


def key(entry: Entry) -> str:
    """Returns an entry's key."""
    return naming.key_of(entry.family, entry.name)


def column(entry: Entry, name: str) -> float:
    """Returns the number in one of an entry's columns; 0 where the column does not apply."""
    return number(entry.stats, name) or 0.0


def columns(entries: Sequence[Entry], name: str) -> list[float]:
    """Returns the number in one column of each entry, as `column` does."""
    return [each or 0.0 for each in numbers_of([entry.stats for entry in entries], name)]


def is_zero(entry: Entry | None) -> bool:
    """Returns whether an entry has a tensor of zeros."""
    return entry is not None and is_all_zero(entry.stats)


def suspect(rule: str, entry: Entry, why: str, concerned: Iterable[Entry] = (), *, total: bool = False) -> Suspect:
    """Returns the finding of a rule at one entry, which concerns some more."""
    entries = {key(each): each for each in (entry, *concerned)}
    found = Finding(
        rule=rule,
        name=entry.name,
        family=entry.family,
        why=why,
        source=entry.site.source,
        iteration=entry.site.iteration,
        tensors=len(entries),
    )
    begin = min(each.site.index for each in entries.values())
    return Suspect(finding=found, keys=frozenset(entries), begin=begin, total=total)
