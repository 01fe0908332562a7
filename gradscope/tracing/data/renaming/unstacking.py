"""Rules are proposed for layers that a checkpoint has in one stack, as a scan has, and a model apart, or otherwise."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from gradscope.frameworks.modules.adapter import Described
from gradscope.naming import printable
from gradscope.tracing.data.renaming.name_likeness import NUMBER, numbers_of, template_of
from gradscope.tracing.data.variable_names import components


def unstacking_rules(lacking: Mapping[str, Described], extra: Mapping[str, Described]) -> str:
    """Returns lines of a map file, of one rule for each stack of layers; "" where there is none.

    Args:
        lacking: The variables that were not found, by path.
        extra: The file's tensors that are no variable, by name.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for path in lacking:
        groups[template_of(path)].append(path)
    rules = {found for paths in groups.values() if (found := _stack_of(paths, lacking, extra)) is not None}
    return "\n".join(
        f"  [[rule]]\n  candidate = '{printable(re.escape(before))}(.*)'\n"
        f"  reference = '{printable(layer)}{{1}}'\n  steps = [{{ unstack = 0 }}]"
        for before, layer in sorted(rules)
    )


def stacking_rules(lacking: Mapping[str, Described], extra: Mapping[str, Described]) -> str:
    """Returns lines of a map file that stack the layers which a file has apart; for the arguments see above."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in extra:
        groups[template_of(name)].append(name)
    rules = {found for names in groups.values() if (found := _stack_of(names, extra, lacking)) is not None}
    return "\n".join(
        f"  [[rule]]\n  candidate = '{_any_layer(layer)}[/.](.*)'\n"
        f"  reference = '{printable(before)}{{1}}'\n  steps = [{{ stack = 0 }}]"
        for before, layer in sorted(rules)
    )


def _any_layer(layer: str) -> str:
    begins, _, rest = layer.removesuffix("/").partition("{i}")
    return printable(rf"{re.escape(begins)}\d+{re.escape(rest)}")


def _stack_of(
    paths: list[str], apart: Mapping[str, Described], stacked: Mapping[str, Described]
) -> tuple[str, str] | None:
    """Returns how a stack's name begins, and how those of its layers do, `layer{i}/`, where one tensor stacks them.

    Args:
        paths: The names of one tensor of each layer.
        apart: The tensors of layers, by name.
        stacked: Those that may be stacks of them, by name.
    """
    varying = [at for at, column in enumerate(zip(*map(numbers_of, paths), strict=True)) if len(set(column)) > 1]
    counted = len(varying) == 1 and {numbers_of(path)[varying[0]] for path in paths} == set(map(str, range(len(paths))))
    if len(paths) < 2 or not counted:
        return None
    texts, numbers = NUMBER.split(paths[0]), list(numbers_of(paths[0]))
    numbers[varying[0]] = "{i}"
    layer = "".join(text + number for text, number in zip(texts, [*numbers, ""], strict=True))
    shape = (len(paths), *apart[paths[0]].shape)
    begins, _, inside = layer.partition("{i}")
    inside = inside.lstrip("/.")
    stacks = [
        name
        for name, each in stacked.items()
        if tuple(each.shape) == shape and inside and components(name)[-len(components(inside)) :] == components(inside)
    ]
    if len(stacks) != 1 or not stacks[0].endswith(inside):
        return None
    return stacks[0].removesuffix(inside), f"{begins}{{i}}/"
