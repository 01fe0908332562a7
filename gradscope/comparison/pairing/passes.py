"""`counterparts` runs all passes in order, infers layouts, and applies the selection of names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from gradscope.comparison.pairing.by_rules import MapRule, by_rules
from gradscope.comparison.pairing.inference.by_use.merged_order import with_positions_in_order
from gradscope.comparison.pairing.inference.example_order import order_of_batch, with_example_order
from gradscope.comparison.pairing.inference.layout_inference import Mapper, with_layouts
from gradscope.comparison.pairing.inference.other_sizes.read_slices import with_read_slices
from gradscope.comparison.pairing.inference.other_sizes.repeated_values import with_repeats
from gradscope.comparison.pairing.loops.by_shards import by_shards, with_shards
from gradscope.comparison.pairing.loops.calls_in_turn import calls_in_turn
from gradscope.comparison.pairing.loops.micro_batches import by_micro_batches, by_renamed_micro_batches
from gradscope.comparison.pairing.loops.split_batches import by_split_batches, is_cut_otherwise, without_calls
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, Pass, by_name, pair, without_other_gradients
from gradscope.comparison.pairing.normal_forms import of_other_calls, without_numbers
from gradscope.comparison.pairing.structure.reversed_loops import in_turn
from gradscope.comparison.pairing.structure.uncertain_names import certain, uncertain
from gradscope.comparison.pairing.values.debiased_averages import averages_beside_sums
from gradscope.comparison.pairing.values.misnamed import (
    are_refuted,
    without_exchanged_calls,
    without_exchanged_outputs,
    without_losses,
    without_slices,
)
from gradscope.comparison.pairing.values.parametrized_values import in_another_form
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, INPUT_GRAD, Selection, gradient_key, split_key


def counterparts(dumps: Dumps, rules: Sequence[MapRule], selection: Selection, mapper: Mapper) -> Pairing:
    """Returns the pairing of all selected tensors, with inferred layouts.

    Args:
        dumps: The dumps.
        rules: The rules of a map file.
        selection: Which names take part; a pair takes part if any of its names, in either dump, is selected and none is
            excluded.
        mapper: Applies a function to many pairs.
    """
    pairing = _with_measured_parts(
        dumps,
        _with_loop_outputs(
            dumps, pair(dumps, chain([by_rules(rules)], map(without_other_gradients, _in_one_form(dumps, _passes()))))
        ),
    )
    selected = {each.ref for each in pairing.matched if _is_selected(selection, each)}
    # The order of the examples is that of the inputs, whether those are selected or not.
    read = [each for each in pairing.matched if each.ref in selected or split_key(each.ref)[0] == INPUT]
    order = order_of_batch(dumps, read)
    laid_out = with_positions_in_order(dumps, with_layouts(dumps, read, mapper, order))
    laid_out = with_example_order(dumps, laid_out, order)
    matched, repeated = with_repeats(dumps, laid_out)
    matched, sliced = with_read_slices(dumps, matched, order)
    return Pairing(
        matched=tuple(each for each in matched if each.ref in selected),
        inverse=tuple(each for each in (*pairing.inverse, *repeated, *sliced) if _is_selected(selection, each)),
        only_ref=tuple(key for key in pairing.only_ref if selection.selects(*_both(key))),
        only_cand=tuple(key for key in pairing.only_cand if selection.selects(*_both(key))),
    )


def names_in(dumps: Dumps) -> Iterator[str]:
    """Yields the keys and names of all tensors in either dump."""
    return chain.from_iterable(map(_both, chain(dumps.ref.keys(), dumps.cand.keys())))


def _in_one_form(dumps: Dumps, passes: Iterable[Pass]) -> Iterator[Pass]:
    """Yields passes that see, of what a program has in two forms, the one alone that the other program has."""
    turned = Dumps(ref=dumps.cand, cand=dumps.ref)
    of_ref, of_cand = (in_another_form(each) | averages_beside_sums(each) for each in (dumps, turned))
    yield from (_without(of_ref, of_cand, find) for find in passes) if of_ref or of_cand else passes


def _without(of_ref: frozenset[str], of_cand: frozenset[str], find: Pass) -> Pass:
    def found(dumps: Dumps, unmatched: Pairing) -> Iterable[Match]:
        only_ref = tuple(key for key in unmatched.only_ref if key not in of_ref)
        only_cand = tuple(key for key in unmatched.only_cand if key not in of_cand)
        return find(dumps, replace(unmatched, only_ref=only_ref, only_cand=only_cand))

    return found


def _passes() -> Iterator[Pass]:
    yield by_shards
    yield by_split_batches
    yield by_micro_batches
    yield certain(without_losses(without_slices(in_turn(_by_right_name))))
    # Imported on use: most comparisons have nothing left for these passes, and importing them takes 50 ms.
    from gradscope.comparison.pairing.by_path import by_path  # noqa: PLC0415
    from gradscope.comparison.pairing.matching import by_order  # noqa: PLC0415
    from gradscope.comparison.pairing.structure.by_structure import by_structure  # noqa: PLC0415
    from gradscope.comparison.pairing.structure.left_out_roots import by_root  # noqa: PLC0415
    from gradscope.comparison.pairing.structure.owner_names import by_owner_name  # noqa: PLC0415
    from gradscope.comparison.pairing.structure.packed.joined_values import by_joined_values  # noqa: PLC0415
    from gradscope.comparison.pairing.structure.packed.packed_layers import by_packed_layers  # noqa: PLC0415
    from gradscope.comparison.pairing.structure.packed.shuffled_layers import by_shuffled_layers  # noqa: PLC0415
    from gradscope.comparison.pairing.structure.packed.stacked_parts import by_stacked_parts  # noqa: PLC0415
    from gradscope.comparison.pairing.structure.second_names import by_second_name  # noqa: PLC0415
    from gradscope.comparison.pairing.structure.updated_state import by_updated_state  # noqa: PLC0415
    from gradscope.comparison.pairing.values.by_values import (  # noqa: PLC0415
        by_disconnected,
        by_fingerprint,
        by_gradient,
        by_number,
        by_sibling,
    )
    from gradscope.comparison.pairing.values.debiased_averages import by_debiased_average  # noqa: PLC0415
    from gradscope.comparison.pairing.values.parts.by_parts import by_parts  # noqa: PLC0415

    yield from (
        by_root,
        certain(without_losses(without_slices(in_turn(by_path)))),
        by_order,
        by_fingerprint,
        by_number,
        by_parts,
        by_stacked_parts,
        by_renamed_micro_batches,
        uncertain(in_turn(_by_right_name)),
        uncertain(in_turn(by_path)),
        by_packed_layers,
        by_shuffled_layers,
        by_joined_values,
        by_structure,
        by_sibling,
        by_gradient,
        by_owner_name,
        by_disconnected,
        by_debiased_average,
        by_updated_state,
        by_second_name,
    )


def _by_right_name(dumps: Dumps, unmatched: Pairing) -> list[Match]:
    """Returns matches of equal keys, of inputs alone where the values of parameters refute the names."""
    matches = _without_other_calls(dumps, by_name(dumps, unmatched))
    if any(map(is_cut_otherwise, unmatched.matched)):
        matches = without_calls(matches)
    if not are_refuted(dumps, unmatched, matches):
        return without_exchanged_calls(dumps, without_exchanged_outputs(dumps, matches))
    return [match for match in matches if split_key(match.ref)[0] in (INPUT, INPUT_GRAD)]


def _without_other_calls(dumps: Dumps, matches: list[Match]) -> list[Match]:
    """Returns the matches without those of a layer's call with another call of it, or with a loop of its name."""
    names, others = ([split_key(key)[1] for key in keys] for keys in (dumps.ref.keys(), dumps.cand.keys()))
    if names == others:
        return matches
    apart, (of_ref, of_cand) = of_other_calls(names, others), calls_in_turn(dumps)

    def is_one_call(match: Match) -> bool:
        family, name = split_key(match.ref)
        if family not in (ACTIVATION, ACTIVATION_GRAD):
            return True
        if name in of_ref or name in of_cand:
            return of_ref.get(name) == of_cand.get(name)
        return without_numbers(name) not in apart

    return [match for match in matches if is_one_call(match)] if apart or of_ref else matches


def _with_loop_outputs(dumps: Dumps, pairing: Pairing) -> Pairing:
    """Returns the pairing with the loop outputs of either dump."""
    parts = any(match.matched_by == "iterations" for match in pairing.matched)
    if not pairing.only_ref and not pairing.only_cand and not parts:
        return pairing
    from gradscope.comparison.pairing.loops.scanned_with_unrolled import pair_loop_outputs  # noqa: PLC0415 - as for the passes

    return pair_loop_outputs(dumps, with_shards(dumps, pairing))


def _with_measured_parts(dumps: Dumps, pairing: Pairing) -> Pairing:
    """Returns the pairing with packed tensors of which only statistics are known."""
    if not pairing.only_ref and not pairing.only_cand and all(match.recipe.plain for match in pairing.matched):
        return pairing
    from gradscope.comparison.pairing.values.parts.measured_parts import with_measured_parts  # noqa: PLC0415 - as for the passes
    from gradscope.comparison.pairing.values.sums import rows_of_zeros  # noqa: PLC0415 - as for the passes

    # Nothing but their gradients shows the order of zeros, and some of their sums may be one parameter.
    known = rows_of_zeros(dumps, pairing)
    known |= {gradient_key(each) for each in known}
    sides = pairing.only_ref, pairing.only_cand
    free = [tuple(key for key in keys if key not in known) for keys in sides]
    found = with_measured_parts(dumps, replace(pairing, only_ref=free[0], only_cand=free[1]))
    kept = [{*known, *keys} for keys in (found.only_ref, found.only_cand)]
    only_ref, only_cand = (tuple(key for key in keys if key in left) for keys, left in zip(sides, kept, strict=True))
    return replace(found, only_ref=only_ref, only_cand=only_cand)


def _is_selected(selection: Selection, match: Match) -> bool:
    if not selection.select and not selection.exclude:
        return True
    return selection.selects(*chain.from_iterable(map(_both, (match.ref, *match.recipe.keys))))


def _both(key: str) -> tuple[str, str]:
    return key, split_key(key)[1]
