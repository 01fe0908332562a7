"""Normal forms of names, under which the same tensor of two programs has one name.

What is equal: upper and lower case, separators (`layers.3`, `layers_3`, `layers[3]`, `layers3`), wrappers around the
model (`module.`, `_orig_mod.`, `params/`), and what frameworks call the same parameter (`kernel`, `weight`).

A normal form is a guess about names; whether it is right, the values say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, pairwise, takewhile
from typing import Final, TypeAlias

#: The words and numbers of a name, in order.
Tokens: TypeAlias = tuple[str, ...]

_WORD: Final = re.compile(r"\d+|[^\W\d_]+")

#: Scopes that stand around a model and not in it.
_WRAPPERS: Final[frozenset[Tokens]] = frozenset(
    {("module",), ("model",), ("params",), ("param",), ("orig", "mod"), ("state", "dict"), ("net",), ("network",),
     ("batch", "stats"), ("variables",)}
)  # fmt: skip

#: What parameters are called at the ends of their names.
_SYNONYMS: Final[dict[Tokens, str]] = {
    **dict.fromkeys([("kernel",), ("w",), ("scale",), ("gamma",), ("embedding",)], "weight"),
    **dict.fromkeys([("b",), ("beta",)], "bias"),
    **dict.fromkeys([("running", "mean"), ("moving", "mean")], "mean"),
    **dict.fromkeys([("running", "var"), ("moving", "var"), ("moving", "variance"), ("variance",)], "var"),
}

_GRADIENT_WORDS: Final = frozenset({"grad", "grads", "gradient", "gradients"})


def tokens_of(name: str) -> Tokens:
    """The words and numbers of a name, wrappers taken off and its end called as everywhere."""
    return _unified(_unwrapped(tuple(_WORD.findall(name.casefold()))))


def without_gradient_word(tokens: Tokens) -> Tokens | None:
    """The tokens without the word that calls a foreign tensor a gradient; None where there is no such word."""
    if tokens and tokens[-1] in _GRADIENT_WORDS:
        return _unified(tokens[:-1])
    return tokens[1:] if tokens and tokens[0] in _GRADIENT_WORDS else None


def spelt(tokens: Tokens) -> str:
    """Tokens as one word in which numbers stand apart: `self_attention/3` and `selfAttention.3` are one."""
    gaps = ("" if before.isalpha() and behind.isalpha() else "." for before, behind in pairwise(tokens))
    return "".join(chain(tokens[:1], chain.from_iterable(zip(gaps, tokens[1:], strict=True))))


def common_start(names: Iterable[Tokens]) -> Tokens:
    """The tokens that all names begin with; a name of one token, which lies in no scope, aside."""
    every = [tokens for tokens in names if len(tokens) > 1]
    if len(every) < 2:
        return ()
    return tuple(alike[0] for alike in takewhile(lambda alike: len(set(alike)) == 1, zip(*every, strict=False)))


def end_of(name: str) -> str:
    """The last word of a name as it stands there: `kernel` of `conv1/kernel`."""
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
