"""Normal forms of names: the same tensor of two programs usually has one normal form.

A normal form ignores upper and lower case, separators (`layers.3`, `layers_3`, `layers[3]`, `layers3`), wrappers around
the model (`module.`, `_orig_mod.`, `params/`), and the names that frameworks have for one parameter (`kernel`,
`weight`). Equal normal forms suggest a match; the comparison of the values then shows whether it is correct.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, takewhile
from typing import Final, TypeAlias

from gradscope.naming.numbering import number_of

#: The words and numbers of a name, in order.
Tokens: TypeAlias = tuple[str, ...]

_WORD: Final = re.compile(r"\d+|[^\W\d_]+")

#: Scopes around a model that are not part of it.
_WRAPPERS: Final[frozenset[Tokens]] = frozenset(
    {("module",), ("model",), ("params",), ("param",), ("orig", "mod"), ("state", "dict"), ("net",), ("network",),
     ("batch", "stats"), ("variables",)}
)  # fmt: skip

#: The last words of parameter names, each with its normal form.
_SYNONYMS: Final[dict[Tokens, str]] = {
    **dict.fromkeys([("kernel",), ("w",), ("scale",), ("gamma",), ("embedding",)], "weight"),
    **dict.fromkeys([("b",), ("beta",)], "bias"),
    **dict.fromkeys([("running", "mean"), ("moving", "mean")], "mean"),
    **dict.fromkeys([("running", "var"), ("moving", "var"), ("moving", "variance"), ("variance",)], "var"),
}

#: A scope with the number of an occurrence or of an iteration, and that of one of its outputs.
_SCOPE: Final = re.compile(
    r"(?P<path>.*?)(?:#(?P<occurrence>\d+)|\[(?P<iteration>\d+)\])?(?P<output>\.\d+)?", re.DOTALL
)

#: A dot that sets off no number. It starts with the dot, which is looked for in half of the time of a letter.
_GAP_IN_WORDS: Final = re.compile(r"\.(?<=[A-Za-z]\.)(?=[A-Za-z])")

_GRADIENT_WORDS: Final = frozenset({"grad", "grads", "gradient", "gradients"})


def tokens_of(name: str) -> Tokens:
    """Returns the words and numbers of a name, without wrappers and with the last word in its normal form."""
    return _unified(_unwrapped(tuple(_WORD.findall(name.casefold()))))


def without_gradient_word(tokens: Tokens) -> Tokens | None:
    """Returns the tokens without a word such as `grad` at either end; None where there is no such word."""
    if tokens and tokens[-1] in _GRADIENT_WORDS:
        return _unified(tokens[:-1])
    return tokens[1:] if tokens and tokens[0] in _GRADIENT_WORDS else None


def spelt(tokens: Tokens) -> str:
    """Returns the tokens as one string, numbers set off by dots: `selfattention.3` for `self_attention/3`."""
    if (joined := ".".join(tokens)).isascii():
        return _GAP_IN_WORDS.sub("", joined)
    gaps = ("" if before.isalpha() and behind.isalpha() else "." for before, behind in pairwise(tokens))
    return "".join(chain(tokens[:1], chain.from_iterable(zip(gaps, tokens[1:], strict=True))))


def common_start(names: Iterable[Tokens]) -> Tokens:
    """Returns the tokens that all names begin with; names of one token are ignored, because they have no scope."""
    every = [tokens for tokens in names if len(tokens) > 1]
    if len(every) < 2:
        return ()
    columns = zip(*every, strict=False)
    return tuple(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns))


class NamesWithin:
    """`NamesWithin` finds names that are another one within a collection, `batch_stats/norm/mean` for `norm/mean`.

    Args:
        names: The names, each once.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._order = {name: position for position, name in enumerate(names)}
        self._lengths = {*map(len, self._order)}
        # What ends with a name begins with it backwards, and has its place next to it.
        self._backwards = sorted(f"/{name}"[::-1] for name in self._order)

    def of(self, name: str) -> list[str]:
        """Returns the names of which one is a given name within a collection, or the other way round, in order."""
        starts = (at for at in range(len(name) + 1) if not at or name[at - 1] == "/")
        found = {name[at:] for at in starts if len(name) - at in self._lengths} & self._order.keys()
        backwards = f"/{name}"[::-1]
        for at in range(bisect_left(self._backwards, backwards), len(self._backwards)):
            if not (each := self._backwards[at]).startswith(backwards):
                break
            found.add(each[-2::-1])
        return sorted(found, key=self._order.__getitem__)


def iterations_of_occurrences(names: Sequence[str], others: Iterable[str]) -> dict[str, str]:
    """Returns names with the occurrences of a scope, `block` and `block#2`, as iterations, `block[0]` and `block[1]`.

    A program that writes a loop out enters one scope several times, and the loop has iterations of that scope.

    Args:
        names: Names of one program.
        others: Names of the other program.

    Returns:
        New names by old names, of the scopes that have iterations in the other program.
    """
    repeated = {path for name in names if "#" in name for path in _paths(name, "occurrence")}
    if repeated:
        repeated &= {path for name in others for path in _paths(name, "iteration")}
    renamed: dict[str, str] = {}
    if not repeated:
        return renamed
    known = {*names}
    for name in names:
        parts: list[str] = []
        for path, scope, rest in _scopes(name):
            occurrence, output = scope["occurrence"], scope["output"] or ""
            # The first one has no number, and neither has a name in any that a scope inside tells apart: `block/3/w`.
            is_one = path in repeated and (occurrence is not None or f"{path}#2{output}{rest}" in known)
            index = (number_of(occurrence or "1") or 1) - 1
            parts.append(f"{scope['path']}[{index}]{output}" if is_one else scope[0])
        if "/".join(parts) != name:
            renamed[name] = "/".join(parts)
    return renamed


def of_other_calls(names: Sequence[str], others: Sequence[str]) -> frozenset[str]:
    """Returns the scopes that one program calls again, `norm` and `norm#2`, and the other in a loop, as `norm[0]`.

    Without a number, such a scope is the first call in one of them, and in the other what is called once behind the
    loop, or the loop itself.

    Args:
        names: Names of one program.
        others: Names of the other program.
    """
    sides = [names, others]
    again = [{path for name in side if "#" in name for path in _paths(name, "occurrence")} for side in sides]
    if not any(again):  # most programs call no layer again
        return frozenset()
    looped = [{path for name in side if "[" in name for path in _paths(name, "iteration")} for side in sides]
    return frozenset(
        path for here, there in ((0, 1), (1, 0)) for path in (again[here] & looped[there]) - again[there] - looped[here]
    )


def without_numbers(name: str) -> str | None:
    """Returns the path of a scope, or of its output, without a number of a call or an iteration; None of any other."""
    *_, (path, scope, _) = _scopes(name)
    return path if scope["occurrence"] is None and scope["iteration"] is None else None


def _paths(name: str, number: str) -> list[str]:
    """Returns the paths of the scopes in a name that have one kind of number, without their own numbers."""
    return [path for path, scope, _ in _scopes(name) if scope[number] is not None]


def _scopes(name: str) -> Iterator[tuple[str, re.Match[str], str]]:
    """Yields the scopes in a name, each with its path without its own numbers before it, and what is behind it."""
    start, rest = "", f"{name}/"
    while rest:
        part, _, rest = rest.partition("/")
        scope = _SCOPE.fullmatch(part)
        assert scope is not None, "what is no number is the path"
        yield f"{start}{scope['path']}", scope, f"/{rest}".removesuffix("/")
        start += f"{part}/"


def end_of(name: str) -> str:
    """Returns the last word of a name, not in its normal form: `kernel` for `conv1/kernel`."""
    return (_WORD.findall(name.casefold()) or [""])[-1]


def _unwrapped(tokens: Tokens) -> Tokens:
    for length in (1, 2):
        if len(tokens) > length and tokens[:length] in _WRAPPERS:
            return _unwrapped(tokens[length:])
    return tokens


def _unified(tokens: Tokens) -> Tokens:
    for length in (2, 1):
        if len(tokens) > length and tokens[-length:] in _SYNONYMS:
            return (*tokens[:-length], _SYNONYMS[tokens[-length:]])
    return tokens
