r"""Map files have rules in TOML that map tensors of the candidate to names of the reference.

    [[rule]]
    candidate = 'h\.(\d+)\.attn\.c_attn\.weight'                  # matches the full name, or the full key
    reference = ['block[{1}]/q/kernel', 'block[{1}]/k/kernel', 'block[{1}]/v/kernel']
    steps = [{ split = 1, into = 3 }, { reshape = [768, 12, 64] }]

- `reference` is a template, or a list with one template for each tensor that the steps make; `""` leaves a tensor out.
  `{1}` and `{name}` are groups of the regular expression, `{i}` is the number of the tensor among those that the steps
  make, `{{` and `}}` are braces. A filled template is a key of the reference, or a name in the family of the
  candidate's tensor.
- `steps` are applied in order: `transpose = AXES`, `reshape = SHAPE`, `flip = AXES`, `split = AXIS` with
  `into = NUMBER` or `into = SIZES`, `unstack = AXIS`, `reorder = INDICES`, `concatenate = AXIS`, `stack = AXIS`,
  `sum = AXIS` or `mean = AXIS`, which keeps the axis with one element.
- Tensors for which the templates of one rule are filled equally go into one recipe, in the order of the numbers in
  their names: `concatenate` and `stack` need several tensors.
- The first rule that matches a tensor applies.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from gradscope.comparison.layout.recipe_steps import (
    Concatenate,
    Flip,
    Mean,
    RecipeStep,
    Reorder,
    Reshape,
    ReshapeEach,
    Split,
    Stack,
    Sum,
    Transpose,
    Unstack,
)
from gradscope.comparison.pairing.by_rules import MapRule, written_rules
from gradscope.comparison.pairing.matching import Match
from gradscope.dump.record import Json
from gradscope.dump.storage.bounded_text import bounded_text
from gradscope.dump.storage.writing.atomic_file import write_atomically
from gradscope.dump.storage.writing.target_path import checked_file
from gradscope.errors import DumpError, UsageError
from gradscope.naming.selecting.bounded_regex import MatchingTime
from gradscope.naming.selecting.patterns import Pattern

_LARGEST_FILE_BYTES: Final = 16 << 20
_KEYS: Final = frozenset({"candidate", "reference", "steps"})
_HINT: Final = "a rule has candidate = 'REGEX', reference = 'TEMPLATE' and perhaps steps = [{ transpose = [1, 0] }]"

_STEP_HINT: Final = (
    "a step is { transpose = [AXIS, ...] }, { reshape = [SIZE, ...] or [[SIZE, ...], ...] }, { flip = [AXIS, ...] }, "
    "{ split = AXIS, into = NUMBER or [SIZE, ...] }, { unstack = AXIS }, { reorder = [INDEX, ...] }, "
    "{ concatenate = AXIS }, { stack = AXIS }, { sum = AXIS } or { mean = AXIS, weights = [NUMBER, ...] }"
)


def read_map(path: Path) -> tuple[MapRule, ...]:
    """Returns the rules of a map file.

    Raises:
        DumpError: The file cannot be read.
        UsageError: The file is not TOML, or has an invalid rule; the message has its number.
    """
    try:
        content: dict[str, Any] = tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    rules = content.pop("rule", [])
    if content or not isinstance(rules, list):
        raise UsageError(f"{path} contains something other than [[rule]] tables", hint=_HINT)
    together = MatchingTime()
    return tuple(_rule(rule, f"{path}, rule {number}", together) for number, rule in enumerate(rules, start=1))


def write_map(path: Path, matches: Iterable[Match]) -> None:
    """Writes matches as the rules of a map file, crash-safely.

    Args:
        path: The file.
        matches: The matches; plain matches of equal names need no rule, nor do loop outputs of paired iterations.

    Raises:
        UsageError: The file exists, or the path cannot be used.
        MachineError: The file cannot be written.
    """
    text = "# Which tensors of the candidate are which of the reference: gradscope compare REF CAND --map FILE\n"
    for rule in written_rules(matches):
        text += "\n[[rule]]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in rule.items())
    write_atomically(checked_file(path, force=None), text.encode(), replace=False)


def _text(path: Path) -> str:
    try:
        return bounded_text(path, _LARGEST_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DumpError(f"cannot read the map file {path}: {reason}") from error


def _rule(rule: object, where: str, matching_time: MatchingTime) -> MapRule:
    if not isinstance(rule, dict) or not {"candidate", "reference"} <= rule.keys() <= _KEYS:
        raise UsageError(f"{where} is not a rule", hint=_HINT)
    reference, steps = rule["reference"], rule.get("steps", [])
    templates = [reference] if isinstance(reference, str) else reference
    if not isinstance(rule["candidate"], str) or not _are_strings(templates) or not isinstance(steps, list):
        raise UsageError(f"{where} has values of the wrong types", hint=_HINT)
    return MapRule(
        candidate=Pattern.parse(f"re:{rule['candidate']}", matching_time),
        reference=tuple(templates),
        counted=isinstance(reference, str) and re.search(r"(?<!\{)\{i\}", reference) is not None,
        steps=tuple(_step(step, len(templates), where) for step in steps),
    )


def _are_strings(values: object) -> bool:
    return isinstance(values, list) and bool(values) and all(isinstance(value, str) for value in values)


def _step(step: object, outcomes: int, where: str) -> RecipeStep:
    problem = UsageError(
        f"{where} has an invalid step: {step}",
        hint=_STEP_HINT,
    )
    if not isinstance(step, dict) or not step:
        raise problem
    (name, value), *rest = step.items()
    if name == "split":
        into = dict(rest).get("into", outcomes)
        if len(rest) > 1 or (rest and rest[0][0] != "into") or not (_is_integer(value) and _is_parts(into)):
            raise problem
        return Split(value, into if isinstance(into, int) else tuple(into))
    if name == "mean" and [key for key, _ in rest] == ["weights"]:
        ((_, weights),) = rest
        if not _is_integer(value) or not (_are_integers(weights) and _is_parts(weights)):
            raise problem
        return Mean(value, tuple(weights))
    if rest or name not in _STEPS:
        raise problem
    expects, make = _STEPS[name]
    if not expects(value):
        raise problem
    return make(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_integers(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_integer, value))


def _are_shapes(value: object) -> bool:
    """Returns whether a value is a shape, or a list of shapes."""
    return _are_integers(value) or (isinstance(value, list) and all(map(_are_integers, value)))


def _reshape(value: list[Any]) -> RecipeStep:
    if value and isinstance(value[0], list):
        return ReshapeEach(tuple(map(tuple, value)))
    return Reshape(tuple(value))


def _is_parts(value: Any) -> bool:
    return (_are_integers(value) and min(value, default=0) > 0) or (_is_integer(value) and value > 0)


_STEPS: Final[dict[str, tuple[Callable[[object], bool], Callable[[Any], RecipeStep]]]] = {
    "transpose": (_are_integers, lambda axes: Transpose(tuple(axes))),
    "reshape": (_are_shapes, _reshape),
    "flip": (_are_integers, lambda axes: Flip(tuple(axes))),
    "reorder": (_are_integers, lambda order: Reorder(tuple(order))),
    "unstack": (_is_integer, Unstack),
    "concatenate": (_is_integer, Concatenate),
    "stack": (_is_integer, Stack),
    "sum": (_is_integer, Sum),
    "mean": (_is_integer, Mean),
}


def _toml(value: Json) -> str:
    """Returns a value as TOML; strings are written as in JSON, which TOML reads the same way."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
