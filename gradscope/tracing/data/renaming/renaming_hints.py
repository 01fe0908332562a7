"""Renaming hints show how the names of a checkpoint could become those of a model, with lines to paste."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gradscope.frameworks.modules.adapter import Described
from gradscope.naming import printable
from gradscope.tracing.data.axes import Axes, Stored
from gradscope.tracing.data.files.checkpoint_files import SavedTensor
from gradscope.tracing.data.mismatches import in_ranges, patterns_of
from gradscope.tracing.data.renaming.file_hints import file_hint, quantised_hint
from gradscope.tracing.data.renaming.key_map import KEY_MAP
from gradscope.tracing.data.renaming.name_likeness import NUMBER, numbers_of, template_of
from gradscope.tracing.data.renaming.proposed_names import proposed_names
from gradscope.tracing.data.renaming.rival_homes import copies_hint
from gradscope.tracing.data.renaming.unstacking import stacking_rules, unstacking_rules
from gradscope.tracing.data.variable_names import of_optimizers

#: The number of lines that a hint shows.
_MOST_LINES: Final = 48

#: The number of names that a hint shows, and the most patterns that it proposes.
_MOST: Final = 12
_MOST_PATTERNS: Final = 4

_MAP: Final = "\nWhere one tensor is several variables, or several are one, --map FILE splits, stacks and reshapes them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """`Unmatched` is what of a model and of a checkpoint has no counterpart.

    Attributes:
        lacking: The variables that were not found, by path.
        extra: The file's tensors that are no variable, by name.
        found: The file's names of the other variables, by path.
        prefix: How all of these names begin: `module.`.
        ruled: Whether the user's rules have renamed the tensors.
        keeps: Whether the user keeps variables as `init` makes them, which are no part of either.
        quantised: The paths of variables with fractions of which the file has whole numbers.
        made: The names of those of `extra` that the user's rules have made, which a key map does not rename.
    """

    lacking: Mapping[str, Described]
    extra: Mapping[str, Described]
    found: Mapping[str, str] = field(default_factory=dict[str, str])
    prefix: str = ""
    ruled: bool = False
    keeps: bool = False
    quantised: Sequence[str] = ()
    made: Collection[str] = ()

    @property
    def free(self) -> Mapping[str, Described]:
        """The file's tensors that are no variable and may be renamed."""
        return {name: tensor for name, tensor in self.extra.items() if name not in self.made}


def key_map_hint(unmatched: Unmatched) -> str:
    """Returns what to write into a key map."""
    lacking, prefix = unmatched.lacking, unmatched.prefix
    # Variables under new names are not below the prefix, and those beside them would no longer be found there.
    extra = {name.removeprefix(prefix): tensor for name, tensor in unmatched.free.items()}
    moments = of_optimizers(extra)
    extra = {name: tensor for name, tensor in extra.items() if name not in moments}
    found = {path: name.removeprefix(prefix) for path, name in unmatched.found.items()}
    pairs = proposed_names(lacking, extra, found)
    lines = [f"  {line}" for line in _key_map_lines(pairs, extra)]
    lines = [f"  ^{re.escape(prefix)} ->", *lines] if lines and prefix else lines
    more = [f"  and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    shown = [*map(printable, lines[:_MOST_LINES]), *more]
    where = "Behind those that you have" if unmatched.ruled else "For this file"
    proposal = "\n".join([f". {where}, the lines may be", *shown]) if lines else ""
    if len(pairs) == len(lacking):
        return f"{KEY_MAP}{proposal}"
    taken = {*pairs.values()}
    theirs, ours = (
        _listed(name for name in extra if name not in taken),
        _listed(path for path in lacking if path not in pairs),
    )
    others = "other names" if lines else "names"
    names = f"\nThe file's {others} are {theirs}; the model's are {ours}" if theirs else f"\nIt has nothing for {ours}"
    free = {name: extra[name] for name in extra if name not in taken}
    stacks = unstacking_rules(lacking, free) or stacking_rules(lacking, free)
    rules = f"; for this file, the lines may be\n{stacks}" if stacks and not prefix else ""
    return f"{KEY_MAP}{proposal}{names}{_MAP + rules if theirs else ''}"


def axes_hint(stored: Sequence[Stored], orders: Mapping[str, frozenset[Axes]]) -> str:
    """Returns what to write into a map file.

    Args:
        stored: The variables whose axes may have several orders.
        orders: Their possible orders, by path.
    """
    first = stored[0]
    before = ", which goes before --map-keys and names tensors as the file does" if first.renamed else ""
    possible = orders[first.variable]
    written = [_steps(each, first.flips(each)) for each in sorted(possible - {first.as_it_is})]
    others = [*written[1:], *(["no steps, as it is"] if first.as_it_is in possible else [])]
    lines = [
        f"state it in a file for --map FILE{before}, in one rule for each, or for several by a regular expression:",
        "  [[rule]]",
        f"  candidate = '{printable(re.escape(first.name))}'",
        f"  reference = '{printable(first.variable)}'",
        f"  steps = {written[0]}" + (f"  # or {' or '.join(others)}" if others else ""),
    ]
    if first.is_transposed and first.kernel is not None:
        step = f"{{ flip = {list(first.kernel.spatial)} }}"
        lines.append(f"{step} as the last step reverses it: libraries differ in that for transposed convolutions")
    return "\n".join(lines)


def _steps(order: Axes, flips: Axes) -> str:
    """Returns the steps of a rule that put axes into an order and reverse some of them."""
    return f"[{{ transpose = {list(order)} }}{f', {{ flip = {list(flips)} }}' if flips else ''}]"


def other_hint(
    path: Path,
    saved: Mapping[str, SavedTensor],
    unmatched: Unmatched,
    needed: Collection[str],
    fitting: Collection[str],
) -> str | None:
    """Returns what to do about a file that has some of a model's variables; None where nothing is known.

    Args:
        path: The file.
        saved: Its tensors by name.
        unmatched: What of both has no counterpart.
        needed: The paths of the variables.
        fitting: The paths of those that the file has, in their shapes.
    """
    if (special := file_hint(path, saved)) is not None:
        return special
    hints: list[str] = []
    if unmatched.lacking and unmatched.free:
        hints.append(key_map_hint(unmatched))
    elif unmatched.lacking and not unmatched.made:
        hints.append("name the model that it is of, or add to the file what it lacks")
    hints += _made_hint(unmatched.made)
    if unmatched.quantised:
        return "\n".join([*hints, quantised_hint(unmatched.quantised)])
    known = frozenset(fitting)
    others = [each for each in needed if each not in known]
    patterns = patterns_of(others, fitting)
    if len(others) <= len(fitting) and len(patterns) <= _MOST_PATTERNS:
        options = " ".join(f"--keep-init {shlex.quote(printable(each))}" for each in patterns)
        which, too = ("others", ", too") if unmatched.keeps else ("a new head and the like", "")
        hints.append(f"{which} stay as init makes them with {options}{too}")
    return "\n".join(hints) or None


def foreign_hint(path: Path, saved: Mapping[str, SavedTensor], unmatched: Unmatched) -> str:
    """Returns what to do about a file that has none of a model's variables; for the arguments see `other_hint`."""
    if (special := file_hint(path, saved)) is not None:
        return special
    if (copies := copies_hint(unmatched.lacking, unmatched.extra, ruled=unmatched.ruled)) is not None:
        return copies
    own = "name the model that it is of"
    renamed = key_map_hint(unmatched) if unmatched.lacking and unmatched.free else None
    first = own if renamed is None else f"{own}; where only the names differ, {renamed}"
    return "\n".join([first, *_made_hint(unmatched.made)])


def _made_hint(made: Collection[str]) -> list[str]:
    """Returns what to do about tensors that the user's rules have made and the model does not have."""
    which = f"--map makes {_listed(made)}, which the model does not have"
    return [f"{which}: name variables of the model in its rules; --map-keys renames none of these"] if made else []


def _key_map_lines(pairs: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Returns the lines that rename each tensor of a pair to its variable, one for all that differ by numbers alone."""
    groups: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for path, name in pairs.items():
        groups[template_of(name), template_of(path)].append((name, path))
    by_template: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        by_template[template_of(name)].add(name)
    lines: list[str] = []
    for (template, _), renamed in groups.items():
        line = _common_line(renamed) if by_template[template] == {name for name, _ in renamed} else None
        lines += [line] if line is not None else [f"^{re.escape(name)}$ -> {path}" for name, path in renamed]
    return lines


def _common_line(renamed: Sequence[tuple[str, str]]) -> str | None:
    """Returns a line that renames names of one template to paths of one template; None where there is no such line."""
    name, path = renamed[0]
    in_names = list(zip(*(numbers_of(name) for name, _ in renamed), strict=True))
    in_paths = list(zip(*(numbers_of(path) for _, path in renamed), strict=True))
    groups = [column for column in in_names if len(set(column)) > 1]
    if not groups or any(len(set(column)) > 1 and column not in groups for column in in_paths):
        return None
    regex = [r"(\d+)" if column in groups else column[0] for column in in_names]
    replacement = [f"\\{groups.index(column) + 1}" if column in groups else column[0] for column in in_paths]
    escaped = [re.escape(text) for text in NUMBER.split(name)]
    return f"^{_interleaved(escaped, regex)}$ -> {_interleaved(NUMBER.split(path), replacement)}"


def _interleaved(texts: Sequence[str], numbers: Sequence[str]) -> str:
    return "".join(text + number for text, number in zip(texts, [*numbers, ""], strict=True))


def _listed(names: Iterable[str]) -> str:
    known = list(map(printable, in_ranges(names)))
    return ", ".join([*known[:_MOST], *([f"{len(known) - _MOST} more"] if len(known) > _MOST else [])])
