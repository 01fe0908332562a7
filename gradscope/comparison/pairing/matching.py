"""`pair` matches the tensors of two dumps in passes; the passes by name and by execution order are defined here.

`Match` stores one pair, `Pairing` all pairs of two dumps and the tensors without a counterpart. A pass is a function
that returns matches among the unmatched tensors of a pairing.

Why the rules of a map file come first (2026-11): a rule is an explicit request of the user, and a name that happens to
be equal must not overrule it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from gradscope.comparison.default_tolerances import coarsest_matmul_dtype, default_tolerance
from gradscope.comparison.layout.recipes import Recipe
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry, Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, split_key

#: The pass that found a pair.
MatchedBy: TypeAlias = Literal["map", "name", "path", "order", "fingerprint", "iterations", "shards"]

#: How each pass finds the counterpart of a tensor.
PASSES: Final[Mapping[MatchedBy, str]] = MappingProxyType(
    {
        "map": "a rule of the file given by `--map`",
        "name": "the exact key",
        "path": "the same normal form of the name: `layers.3.weight` and `layers[3]/kernel`; one `[L, ...]` with L "
        "numbered tensors",
        "order": "the same position in execution order among the tensors of one operation, shape and dtype",
        "fingerprint": "the same values, in whatever layout",
        "iterations": "the output of a loop with the values that its iterations made; a batch with its parts",
        "shards": "a value of one device with those of the shards of a mesh",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Match stores a key of the reference, the recipe of its counterpart, and the pass that matched them.

    Attributes:
        ref: The key of the reference.
        recipe: What makes its counterpart.
        matched_by: The pass.
        unproven: Whether its own values alone show the layout of an input: no parameter has it, and nothing that is
            computed from the input agrees.
    """

    ref: str
    recipe: Recipe
    matched_by: MatchedBy
    unproven: bool = False

    @classmethod
    def of(cls, ref: str, cand: str, matched_by: MatchedBy) -> Match:
        """Returns a match of two tensors without recipe steps."""
        return cls(ref=ref, recipe=Recipe(keys=(cand,)), matched_by=matched_by)

    @property
    def cand(self) -> str:
        """The candidate's key; the first where the recipe has several."""
        return self.recipe.keys[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Pairing stores the matches of two dumps, and the keys of either dump without a counterpart.

    Attributes:
        matched: The matches.
        inverse: Matches of a key of the candidate with a recipe over keys of the reference.
        only_ref: Keys without a counterpart in the candidate, in the reference's order.
        only_cand: Keys without a counterpart in the reference, in the candidate's order.
    """

    matched: tuple[Match, ...] = ()
    inverse: tuple[Match, ...] = ()
    only_ref: tuple[str, ...]
    only_cand: tuple[str, ...]

    @classmethod
    def of(cls, dumps: Dumps, matched: Sequence[Match], inverse: Sequence[Match] = ()) -> Pairing:
        """Returns the pairing of two dumps with some matches; what none of them has is without a counterpart."""
        refs = {each.ref for each in matched}.union(*(each.recipe.keys for each in inverse))
        cands = {each.ref for each in inverse}.union(*(each.recipe.keys for each in matched))
        return cls(
            matched=tuple(matched),
            inverse=tuple(inverse),
            only_ref=tuple(key for key in dumps.ref.keys() if key not in refs),  # noqa: SIM118 - no mapping
            only_cand=tuple(key for key in dumps.cand.keys() if key not in cands),  # noqa: SIM118 - no mapping
        )

    def with_matches(self, found: Iterable[Match]) -> Pairing:
        """Returns the pairing with more matches; of several for one tensor of either dump the first is used."""
        fresh: dict[str, Match] = {}
        used: dict[str, list[Recipe]] = {}  # a set for each takes three times as much
        for match in found:
            if match.ref not in fresh and all(_is_free(match.recipe, used.get(key, ())) for key in match.recipe.keys):
                fresh[match.ref] = match
                for key in match.recipe.keys:
                    used.setdefault(key, []).append(match.recipe)
        return replace(
            self,
            matched=(*self.matched, *fresh.values()),
            only_ref=tuple(key for key in self.only_ref if key not in fresh),
            only_cand=tuple(key for key in self.only_cand if key not in used),
        )


def _is_free(recipe: Recipe, others: Iterable[Recipe]) -> bool:
    """Returns whether no other recipe of a tensor conflicts: all have the same steps and use another of the results."""
    return all(
        (other.keys, other.steps) == (recipe.keys, recipe.steps) and other.part != recipe.part for other in others
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dumps:
    """Dumps stores the two dumps whose tensors are paired."""

    ref: DumpSource
    cand: DumpSource

    @property
    def products(self) -> str:
        """The coarser of the dtypes in which both multiplied float32 matrices, see `matmul_dtype`."""
        return coarsest_matmul_dtype(self.ref.manifest.provenance, self.cand.manifest.provenance)

    def tolerance(self, family: str, ref_dtype: str, cand_dtype: str) -> float:
        """Returns the default tolerance on `rel_l2` of two tensors of the dumps, by their family and dtypes."""
        return default_tolerance(family, ref_dtype, cand_dtype, products=self.products)


def is_of_jax(source: DumpSource) -> bool:
    """Returns whether a dump was captured from JAX, and not from PyTorch or written by hand."""
    versions = source.manifest.provenance.get("versions")
    return isinstance(versions, dict) and "jax" in versions


#: A function from the dumps and a pairing to matches among the unmatched tensors.
Pass: TypeAlias = Callable[[Dumps, Pairing], Iterable[Match]]


def pair(dumps: Dumps, passes: Iterable[Pass]) -> Pairing:
    """Returns the pairing of two dumps, its matches in the reference's order.

    Args:
        dumps: The dumps.
        passes: The passes in order; iteration stops once either dump has no unmatched tensor.
    """
    pairing = Pairing(only_ref=dumps.ref.keys(), only_cand=dumps.cand.keys())
    for find in passes:
        pairing = pairing.with_matches(find(dumps, pairing))
        if not pairing.only_ref or not pairing.only_cand:
            break
    order = {key: position for position, key in enumerate(dumps.ref.keys())}
    return replace(pairing, matched=tuple(sorted(pairing.matched, key=lambda match: order[match.ref])))


def by_name(dumps: Dumps, unmatched: Pairing) -> list[Match]:  # noqa: ARG001 - only keys are compared
    """Returns matches of equal keys."""
    known = frozenset(unmatched.only_cand)
    return [Match.of(key, key, "name") for key in unmatched.only_ref if key in known]


#: The families with an execution order: parameters and inputs are not executed, and foreign files have no operations.
_EXECUTED: Final = (ACTIVATION, ACTIVATION_GRAD)

#: Family, operation, shape and dtype.
_Kind: TypeAlias = tuple[str, str, tuple[int, ...], str]


def by_order(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of the same position in execution order, among tensors of one operation, shape and dtype.

    Dumps with layers are paired by their structure instead, see `structure`.
    """
    if dumps.ref.manifest.layers and dumps.cand.manifest.layers:
        return
    ref, cand = _by_kind(dumps.ref, unmatched.only_ref), _by_kind(dumps.cand, unmatched.only_cand)
    for kind, keys in ref.items():
        others = cand.get(kind, [])
        if len(keys) == len(others):
            yield from (Match.of(one, other, "order") for one, other in zip(keys, others, strict=True))


def _by_kind(source: DumpSource, keys: Iterable[str]) -> dict[_Kind, list[str]]:
    found: defaultdict[_Kind, list[tuple[int, str]]] = defaultdict(list)
    for key in keys:
        if (kind := _kind(source.entry(key))) is not None:
            found[kind].append((source.entry(key).site.index, key))
    return {kind: [key for _, key in sorted(each, key=lambda indexed: indexed[0])] for kind, each in found.items()}


def _kind(entry: Entry) -> _Kind | None:
    operation = entry.site.primitive
    if entry.family not in _EXECUTED or operation is None or entry.alias_of or entry.absent:
        return None
    return entry.family, operation, entry.shape, entry.dtype


def siblings(layers: Sequence[Layer]) -> frozenset[str]:
    """Returns the names of the outputs of layers that have several.

    Args:
        layers: The layers.
    """
    return frozenset(name for layer in layers if len(layer.outputs) > 1 for name in layer.outputs)


def returned_counts(layers: Iterable[Layer]) -> Mapping[str, int]:
    """Returns how many values a layer returns that has each of some values under a number: `attention.1`.

    So has a layer the values that its parts return, whose outputs have the names of these.
    """
    found: dict[str, int] = {}
    for layer in layers:
        count = len(layer.outputs)
        numbered = [f"{layer.path}.{number}" for number in range(count if count > 1 else 0)]
        own = [name for name in layer.outputs if name.startswith(f"{layer.path}.")]
        found |= dict.fromkeys((*numbered, *own), count)
    return found


def without_other_gradients(find: Pass) -> Pass:
    """Returns a pass without matches of gradients at an output of a layer that a part returns in one program alone.

    All of the gradient arrives at what the part returns. The layer around it may make a value of its own of that in the
    other program, as a half of it, at which a part of the gradient arrives, or none.

    Args:
        find: The pass.
    """

    def is_other(dumps: Dumps, key: str) -> bool:
        family, name = split_key(key)
        if family != ACTIVATION_GRAD or not name.rpartition(".")[2].isdecimal():
            return False
        return (dumps.ref.resolve(key) == key) is not (dumps.cand.resolve(key) == key)

    def found(dumps: Dumps, unmatched: Pairing) -> Iterable[Match]:
        matches = find(dumps, unmatched)
        return [each for each in matches if not (each.recipe.keys == (each.ref,) and is_other(dumps, each.ref))]

    return found


def names_of_operations(source: DumpSource) -> frozenset[str]:
    """Returns the names that a program's operations give to values, of layers' outputs, too."""
    paths = {layer.path for layer in source.manifest.layers if layer.operation}
    names = (entry.name for entry in source.manifest.entries if entry.family == ACTIVATION)
    return frozenset(name for name in names if name in paths or name.rpartition(".")[0] in paths)
