"""`by_rules` matches tensors by the rules of a map file; `written_rules` turns matches into rules."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Final, TypeAlias

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.recipe_steps import RecipeStep
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, Pass
from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.naming import PARAM, key_of, split_key
from gradscope.naming.numbering import NUMBER, number_of
from gradscope.naming.selecting.first_pattern import FirstPattern
from gradscope.naming.selecting.patterns import Pattern

_BRACES: Final = re.compile(r"\{\{|\}\}|\{(\w+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRule:
    """MapRule stores one rule of a map file; `map_file` documents its templates and steps.

    Attributes:
        candidate: The tensors of the candidate that the rule applies to.
        reference: Templates of the reference's names, one for each tensor that the steps make.
        counted: Whether one template with `{i}` names all tensors that the steps make.
        steps: The steps of the recipe.
    """

    candidate: Pattern
    reference: tuple[str, ...]
    counted: bool = False
    steps: tuple[RecipeStep, ...] = ()


#: A rule, a family, and the filled templates: tensors with the same group go into one recipe.
_Group: TypeAlias = tuple[MapRule, str, tuple[str, ...]]


def by_rules(rules: Sequence[MapRule]) -> Pass:
    """Returns the pass of the rules of a map file."""

    def find(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:  # noqa: ARG001 - only names are compared
        known = frozenset(unmatched.only_ref)
        for (rule, family, names), keys in _groups(rules, unmatched.only_cand).items():
            for part, ref in _targets(rule, family, names, known):
                recipe = Recipe(keys=tuple(sorted(keys, key=_by_numbers)), steps=rule.steps, part=part)
                yield Match(ref=ref, recipe=recipe, matched_by="map")

    return find


def arrays_by_rules(
    rules: Sequence[MapRule], read: Mapping[str, Callable[[], Array]]
) -> Iterator[tuple[tuple[str, ...], dict[str, Array]]]:
    """Yields what the rules of a map file make of a file's tensors.

    Args:
        rules: The rules. They see a name as it is, with slashes for dots, and as the key of a parameter.
        read: For each tensor of the file a function that reads it.

    Yields:
        The names of the tensors that a rule takes together, and the arrays that it makes of them, by name.

    Raises:
        UsageError: A step does not fit a tensor, or a template its regular expression.
    """
    groups: defaultdict[tuple[MapRule, tuple[str, ...]], list[str]] = defaultdict(list)
    for name, number, found in _matched(rules, read):
        rule = rules[number]
        groups[rule, tuple(_filled(template, found) for template in rule.reference)].append(name)
    for (rule, templates), unordered in groups.items():
        names = tuple(sorted(unordered, key=_by_numbers))
        results = Recipe(keys=names, steps=rule.steps).results([read[name]() for name in names])
        numbered = [templates[0].replace("{i}", str(part)) for part in range(len(results))]
        targets = numbered if rule.counted else templates
        yield names, {target: each for target, each in zip(targets, results, strict=False) if target}


def unused_rules(rules: Sequence[MapRule], names: Iterable[str]) -> list[str]:
    """Returns the regular expressions of the rules that apply to none of a file's tensors.

    Args:
        rules: The rules. The first that matches a tensor applies.
        names: The names of the tensors.

    Raises:
        UsageError: Matching takes too long.
    """
    used = {number for _, number, _ in _matched(rules, names)}
    return [rule.candidate.spelling.removeprefix("re:") for number, rule in enumerate(rules) if number not in used]


def _matched(rules: Sequence[MapRule], names: Iterable[str]) -> Iterator[tuple[str, int, re.Match[str]]]:
    """Yields the tensors of a file to which rules apply, with the number of the rule and the match."""
    first = FirstPattern([rule.candidate for rule in rules])
    for name in names:
        slashes = name.replace(".", "/")
        if matched := first.match(name, slashes, key_of(PARAM, slashes)):
            yield name, *matched


def written_rules(matches: Iterable[Match]) -> Iterator[dict[str, Json]]:
    """Yields matches as rules of a map file; plain matches of equal names need no rule, nor do loop outputs.

    Args:
        matches: The matches.

    Yields:
        `candidate`, `reference` and, for recipes with steps, `steps`; names are written in full.
    """
    parts_of: defaultdict[Recipe, dict[int, str]] = defaultdict(dict)
    for match in matches:
        if match.matched_by != "iterations" and (match.matched_by != "name" or not match.recipe.as_stored):
            parts_of[Recipe(keys=match.recipe.keys, steps=match.recipe.steps)][match.recipe.part] = match.ref
    for recipe, parts in parts_of.items():
        names: list[Json] = [_literal(parts.get(part, "")) for part in range(max(parts) + 1)]
        rule: dict[str, Json] = {
            "candidate": "|".join(map(re.escape, recipe.keys)),
            "reference": names[0] if len(names) == 1 else names,
        }
        if recipe.steps:
            rule["steps"] = [step.spelling() for step in recipe.steps]
        yield rule


def _groups(rules: Sequence[MapRule], keys: Iterable[str]) -> dict[_Group, list[str]]:
    groups: defaultdict[_Group, list[str]] = defaultdict(list)
    first = FirstPattern([rule.candidate for rule in rules])
    for key in keys:
        family, name = split_key(key)
        if matched := first.match(name, key):
            rule, found = rules[matched[0]], matched[1]
            groups[rule, family, tuple(_filled(template, found) for template in rule.reference)].append(key)
    return groups


def _targets(rule: MapRule, family: str, names: Sequence[str], known: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yields the parts that the reference has, each with its key."""
    if rule.counted:
        numbered = (_key(names[0].replace("{i}", str(part)), family, known) for part in count())
        yield from enumerate(key for key in takewhile(lambda key: key is not None, numbered) if key is not None)
        return
    for part, name in enumerate(names):
        if (key := _key(name, family, known)) is not None:
            yield part, key


def _key(name: str, family: str, known: frozenset[str]) -> str | None:
    return next((key for key in (name, key_of(family, name)) if key in known), None)


def _filled(template: str, found: re.Match[str]) -> str:
    """Returns a template with the groups of a match filled in; `{i}` is left as it is."""

    def replaced(brace: re.Match[str]) -> str:
        name = brace[1]
        if name is None or name == "i":
            return brace[0] if name else brace[0][0]
        try:
            return found[int(name) if name.isdecimal() else name] or ""
        except IndexError as error:
            raise UsageError(
                f"the template {template!r} has a group {{{name}}} that {found.re.pattern!r} lacks",
                hint="name a group of the regular expression, or write {{ and }} for braces",
            ) from error

    return _BRACES.sub(replaced, template)


def _literal(name: str) -> str:
    return name.replace("{", "{{").replace("}", "}}")


def _by_numbers(key: str) -> list[tuple[bool, int, str]]:
    """Returns a sort key that orders names by their numbers: `h.9` before `h.10`."""
    parts = [(number_of(part), part) for part in re.split(rf"({NUMBER})", key)]
    return [(number is not None, number or 0, part) for number, part in parts]
