"""Names of values are uncertain where the layers that make them have parameters that are called otherwise.

Two programs may call different layers alike: `down` is a block in one and the convolution behind it in the other, or a
scope of the user's own has the name of a layer inside of a module. Such names are left to the passes that find equal
values, and count behind them, unless the sizes of the values differ, of which none repeats the other, or the parameters
show that they are those of other layers: both programs use them in layers, and in none of this name.

So is the name of the model itself, where a layer inside of the other model has it: a class `Encoder` is more than the
`encoder` of another class.

So are the numbers of what a layer returns where it returns another number of values: as that of a layer inside of a
gradient, which keeps what the backward pass needs. And so is the name of a parameter with another number of elements,
which may be a part of one that is packed.

So are the names of operations in a scope of other operations (`operation_names`). They count behind values where the
shapes are equal.

Where the parameters have the same names in both programs, a layer may use those of another one by mistake. Its name is
refuted only where a layer that is called as the parameters are uses them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple

from gradscope.comparison.pairing.inference.other_sizes.repeated_values import repeat_in
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, Pass, returned_counts
from gradscope.comparison.pairing.normal_forms import Tokens, spelt, tokens_of
from gradscope.comparison.pairing.structure.operation_names import OperationNames
from gradscope.comparison.pairing.structure.placing.learnt_names import LearntNames
from gradscope.comparison.pairing.structure.placing.named_parts import NamedParts
from gradscope.comparison.pairing.structure.placing.steps_of_layers import StepsOfLayers
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import layers_around
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, PARAM, PARAM_GRAD, key_of, split_key

#: The families of parameters and their gradients.
_OF_PARAMETERS: Final = (PARAM, PARAM_GRAD)


class _Maker(NamedTuple):
    """A `_Maker` is the layer that makes a value, or the innermost one around it that has parameters.

    Attributes:
        path: Its path.
        params: The names of its parameters.
        is_itself: Whether the layer that makes the value has them.
    """

    path: str = ""
    params: frozenset[str] = frozenset()
    is_itself: bool = False

    def forms(self) -> frozenset[str]:
        """Returns the normal forms of the names of its parameters inside it, without numbers, as of iterations."""
        layer = _words(self.path)
        names = map(_words, self.params)
        return frozenset(spelt(name[len(layer) :] if name[: len(layer)] == layer else name) for name in names)


def certain(find: Pass) -> Pass:
    """Returns a pass by names without the matches of values whose names are uncertain.

    Args:
        find: The pass.
    """

    def found(dumps: Dumps, unmatched: Pairing) -> Iterable[Match]:
        matches = find(dumps, unmatched)
        is_uncertain = _uncertainty(dumps, unmatched)
        return matches if is_uncertain is None else [each for each in matches if not is_uncertain(each)]

    return found


def uncertain(find: Pass) -> Pass:
    """Returns a pass by names without the matches of values that parameters show to be those of other layers.

    So do the names of values that are known to be pairs, as of layers that one program counts from one.

    Args:
        find: The pass.
    """

    def found(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
        is_uncertain = _uncertainty(dumps, unmatched)
        if is_uncertain is None:
            return
        operations, parts, steps = OperationNames(dumps), NamedParts(dumps), StepsOfLayers(dumps)
        refutes, names = _Parameters(dumps, unmatched).refute, LearntNames(unmatched.matched)
        known = {split_key(key)[1] for each in _of_parameters(unmatched) for key in (each.ref, *each.recipe.keys)}
        for match in (each for each in find(dumps, unmatched) if is_uncertain(each)):
            (family, one), (_, other) = split_key(match.ref), split_key(match.cand)
            if family in _OF_PARAMETERS:
                refuted = not known.isdisjoint((one, other))
            else:
                refuted = parts.mislead(one, other) or steps.mislead(one, other) or not _may_agree(dumps, match)
                refuted = refuted or refutes(match) or names.refute(one, other)
                refuted = refuted or (operations.mislead(one) and _differ_in_shape(dumps, match))
            if not refuted:
                yield match

    return found


def _uncertainty(dumps: Dumps, pairing: Pairing) -> Callable[[Match], bool] | None:
    """Returns whether a match by name is uncertain; None where none is."""
    layers = dumps.ref.manifest.layers, dumps.cand.manifest.layers
    if not all(layers) or layers[0] == layers[1]:
        return None
    ref, cand = _Named(dumps.ref), _Named(dumps.cand)
    returned = [returned_counts(each) for each in layers]
    operations, parts, steps = OperationNames(dumps), NamedParts(dumps), StepsOfLayers(dumps)
    stated = {split_key(each.ref)[1]: each.recipe.keys for each in _of_parameters(pairing) if each.matched_by == "map"}

    def is_of_others(match: Match) -> bool:
        (_, one), (_, other) = split_key(match.ref), split_key(match.cand)
        if returned[0].get(one) != returned[1].get(other) or operations.mislead(one) or operations.mislead(other):
            return True
        if ref.is_root(one) is not cand.is_root(other) or parts.mislead(one, other) or steps.are_apart(one, other):
            return True
        own, others = ref(one), cand(other)
        if not (own.is_itself or others.is_itself or (own.params and others.params)):
            return False  # captures of PyTorch do not have the parameters of parts in layers around them
        if own == others or any(
            split_key(key)[1] in others.params for name in own.params for key in stated.get(name, ())
        ):
            return False
        return own.params != others.params and own.forms().isdisjoint(others.forms())

    def is_uncertain(match: Match) -> bool:
        family, _ = split_key(match.ref)
        if not match.recipe.plain or family in _OF_PARAMETERS:
            return match.recipe.plain and _differ_in_size(dumps, match)
        return family in (ACTIVATION, ACTIVATION_GRAD) and is_of_others(match)

    return is_uncertain


def _may_agree(dumps: Dumps, match: Match) -> bool:
    """Returns whether two tensors are as large as each other, or one repeats what the other has, or is its gradient."""
    if not _differ_in_size(dumps, match):
        return True
    value = match if split_key(match.ref)[0] == ACTIVATION else _of_values(match)
    if value is None or value.ref not in {*dumps.ref.keys()} or value.cand not in {*dumps.cand.keys()}:
        return False
    return repeat_in(dumps, value) is not None


def _differ_in_size(dumps: Dumps, match: Match) -> bool:
    one, other = dumps.ref.entry(dumps.ref.resolve(match.ref)), dumps.cand.entry(dumps.cand.resolve(match.cand))
    return math.prod(one.shape) != math.prod(other.shape)


def _differ_in_shape(dumps: Dumps, match: Match) -> bool:
    return dumps.ref.entry(match.ref).shape != dumps.cand.entry(match.cand).shape


def _of_values(match: Match) -> Match | None:
    """Returns the pair of the values that two gradients are of; None where they are of none."""
    (family, name), other = split_key(match.ref), split_key(match.cand)[1]
    if family != ACTIVATION_GRAD or not match.recipe.plain:
        return None
    return Match.of(key_of(ACTIVATION, name), key_of(ACTIVATION, other), match.matched_by)


class _Named:
    """_Named finds what makes the value of a name, by the path of a composite where that is its name.

    What its last part returns has the name of a composite, too, which is no maker of its own; where it returns several
    values of its parts, each has a number. Of the parameters of a composite those of its last part count: another
    program may call a layer so that uses some of the others.

    Args:
        source: The dump of a program.
    """

    def __init__(self, source: DumpSource) -> None:
        self._source, self._known = source, frozenset(source.keys())
        self._makers = _makers(source.manifest.layers)
        self._layers = {layer.path: layer for layer in source.manifest.layers}
        outermost = [path for path, layer in self._layers.items() if layer.parent is None]
        self._root = outermost[0] if len(outermost) == 1 < len(self._layers) else None

    def is_root(self, name: str) -> bool:
        """Returns whether a value has the name of the one layer around all others.

        Args:
            name: The name of the value.
        """
        return self._root is not None and name.partition(".")[0] == self._root

    def __call__(self, name: str) -> _Maker:
        owner = self._owner(name)
        composite = self._layers.get(name if name in self._layers or owner == name else name.rpartition(".")[0])
        if composite is None or (name in self._makers and owner == name):
            return self._makers.get(name, _Maker())
        layer, returned = composite, composite.outputs if name == composite.path else (owner,)
        last = [self._makers.get(self._owner(output), _Maker()) for output in returned]
        own, own_of_last = frozenset(layer.params), frozenset(chain.from_iterable(each.params for each in last))
        if not own:  # captures of PyTorch do not have the parameters of parts in layers around them
            return _Maker(name, own_of_last, any(each.is_itself for each in last))
        return _Maker(name, own & own_of_last or own)

    def _owner(self, name: str) -> str:
        """Returns the name that a value has of the layer that makes it."""
        key = key_of(ACTIVATION, name)
        return split_key(self._source.resolve(key))[1] if key in self._known else name


def _makers(layers: Iterable[Layer]) -> Mapping[str, _Maker]:
    """Returns the layers that make values, by the names of those."""
    by_path = {layer.path: layer for layer in layers}
    found: dict[str, _Maker] = {}
    for layer in by_path.values():
        holder = next((each for each in (layer, *layers_around(layer, by_path)) if each.params), layer)
        # A part comes after its composite, and is more exact.
        maker = _Maker(holder.path, frozenset(holder.params), bool(layer.params))
        found.update(dict.fromkeys(layer.outputs, maker))
    return found


def _words(name: str) -> Tokens:
    return tuple(token for token in tokens_of(name) if not token.isdecimal())


class _Parameters:
    """_Parameters finds whether parameters show that two values of one name are those of different layers.

    Args:
        dumps: The dumps.
        pairing: Their pairing so far; parameters are paired already.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing) -> None:
        self._ref, self._cand = _Named(dumps.ref), _Named(dumps.cand)
        self._used_in_ref, self._used_in_cand = _used_by(dumps.ref), _used_by(dumps.cand)
        self._of_ref: defaultdict[str, set[str]] = defaultdict(set)
        self._of_cand: defaultdict[str, set[str]] = defaultdict(set)
        self._renamed: set[str] = set()
        for match in _of_parameters(pairing):
            name, others = split_key(match.ref)[1], [split_key(key)[1] for key in match.recipe.keys]
            self._of_ref[name].update(others)
            for other in others:
                self._of_cand[other].add(name)
            if match.matched_by not in ("name", "path"):
                self._renamed.update((name, *others))

    def refute(self, match: Match) -> bool:
        """Returns whether other layers than those that make the values of a match use the same parameters.

        Args:
            match: A match of two values by their names.
        """
        own, others = self._ref(split_key(match.ref)[1]).params, self._cand(split_key(match.cand)[1]).params
        in_cand, in_ref = _counterparts(own, self._of_ref), _counterparts(others, self._of_cand)
        if in_cand & others or not (in_cand or in_ref):
            return False
        elsewhere = self._are_used(in_cand, self._used_in_cand), self._are_used(in_ref, self._used_in_ref)
        return all(found for found, params in zip(elsewhere, (own, others), strict=True) if params)

    def _are_used(self, params: Collection[str], used_by: Mapping[str, Collection[str]]) -> bool:
        """Returns whether layers use parameters, which have other names in the other program or are called as these."""
        return any(
            name in self._renamed or any(_is_called_after(path, name) for path in used_by.get(name, ()))
            for name in params
            if name in used_by
        )


def _of_parameters(pairing: Pairing) -> Iterator[Match]:
    yield from (each for each in pairing.matched if split_key(each.ref)[0] == PARAM)


def _counterparts(params: Iterable[str], known: Mapping[str, Collection[str]]) -> set[str]:
    return {other for name in params for other in known.get(name, ())}


def _used_by(source: DumpSource) -> Mapping[str, Collection[str]]:
    """Returns the paths of the layers that use a parameter and have no part that does, by its name."""
    by_parts: defaultdict[str, set[str]] = defaultdict(set)
    for layer in source.manifest.layers:
        if layer.parent is not None:
            by_parts[layer.parent].update(layer.params)
    found: defaultdict[str, set[str]] = defaultdict(set)
    for layer in source.manifest.layers:
        for name in {*layer.params} - by_parts.get(layer.path, set()):
            found[name].add(layer.path)
    return found


def _is_called_after(path: str, param: str) -> bool:
    """Returns whether the name of a layer is that of the scope of a parameter, with or without scopes around it."""
    scope, layer = tokens_of(param)[:-1], tokens_of(path)
    return bool(scope) and layer[-len(scope) :] == scope
