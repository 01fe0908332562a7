r"""Patterns select names: `encoder/*`, `param_grad/*`, `re:block\[[0-3]\]/.*`.

In a glob, `*` matches any characters, including `/`, and `?` matches one character. Brackets are literal, because layer
names contain them. After `re:`, the pattern is a regular expression that has to match in full. Both kinds are matched
against the name and against the key with its family.

Python's engine for regular expressions backtracks: `(p+)+x` takes twice as long for each further `p` of a name without
an `x`, and a file of tolerances or of names may come from anybody. A `BoundedRegex` ends with a message instead.
"""

from __future__ import annotations

import atexit
import difflib
import heapq
import itertools
import json
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

from gradscope.errors import UsageError
from gradscope.naming.one_or_many import as_tuple
from gradscope.naming.printable import printable

Found = TypeVar("Found")

#: The largest number of names that a hint lists where none is similar.
_FEW: Final = 12

#: A hint has at most so many names that are near, or that have a requested part of at least so many characters.
_NEAR: Final = 3
_PART: Final = 3

#: A hint takes at most 0.1 s: characters of a name that are compared, names that are looked at, and the product of the
#: number of names and the length of the requested one from which only likely names are compared.
_COMPARED: Final = 200
_MOST_NAMES: Final = 50_000
_MOST_WORK: Final = 2_000


#: Seconds that a regular expression may take for one name.
_SECONDS: Final = 5.0

#: A whole number in a pattern, of no more digits than an iteration has.
_NUMBER: Final = re.compile(r"(?<!\d)\d{1,9}(?!\d)")


#: Tries a regular expression on a text, and says when that is done; the timer ends the process.
_TRIAL: Final = """
import json, re, signal, sys
signal.signal(signal.SIGALRM, signal.SIG_DFL); signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
for line in sys.stdin:
    method, pattern, text, seconds = json.loads(line)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    getattr(re.compile(pattern), method)(*[""] * (method == "sub"), text)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(flush=True)
"""
#: The lock under which one is tried, and the process, by the one that waits: the lock may be held where it is forked.
_TRIALS: Final[dict[int, tuple[threading.Lock, list[Any]]]] = {}


class BoundedRegex:
    """A `BoundedRegex` is a compiled regular expression whose matches are bounded in time.

    The engine looks for signals while it matches, so that a timer can end it. Threads other than the main one receive
    none, and cannot be ended from outside, as the engine holds the interpreter's lock. There, a process tries a match
    first, which takes a twentieth of a millisecond. A stricter syntax would refuse expressions that are fine.

    Args:
        pattern: The regular expression.

    Attributes:
        pattern: The same.

    Raises:
        re.error: It is none.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        try:
            self._regex = re.compile(pattern)
        except (OverflowError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise re.error(reason) from error
        # With one repetition at most, matching takes no longer than the square of the name's length.
        self._may_explode = sum(map(pattern.count, "*+{")) > 1

    def fullmatch(self, text: str) -> re.Match[str] | None:
        """Returns the match of a full text; None where it does not match.

        Raises:
            UsageError: Matching takes too long.
        """
        return self._in_time("fullmatch", lambda: self._regex.fullmatch(text), text)

    def sub(self, replacement: str, text: str) -> str:
        """Returns a text with every match replaced.

        Raises:
            UsageError: Matching takes too long.
        """
        return self._in_time("sub", lambda: self._regex.sub(replacement, text), text)

    def _in_time(self, method: str, match: Callable[[], Found], text: str) -> Found:
        if not self._may_explode or not hasattr(signal, "setitimer"):
            return match()

        def give_up(*_: object) -> NoReturn:
            raise UsageError(
                f"the regular expression {self.pattern!r} takes more than {_SECONDS:g} s for {text[:80]!r}",
                hint="write it without a repetition of repetitions",
            )

        if not _has_timer():
            if not _ends(method, self.pattern, text):
                give_up()
            return match()
        before = signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
        try:
            return match()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _has_timer() -> bool:
    """Returns whether this thread has a timer that nothing else uses."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0) and signal.getsignal(signal.SIGALRM) is not None


def _ends(method: str, pattern: str, text: str) -> bool:
    """Returns whether a match ends in time, as a process finds that waits for the next one; true if there is none."""
    import subprocess  # noqa: PLC0415 - it takes 5 ms, and is for threads only

    command, pipe = [sys.executable, "-I", "-S", "-c", _TRIAL], subprocess.PIPE
    lock, processes = _TRIALS.setdefault(os.getpid(), (threading.Lock(), []))
    with lock, suppress(OSError):
        process: Any = processes.pop() if processes else None
        process = process or subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0)  # noqa: S603 - our own program
        process.stdin.write(json.dumps([method, pattern, text, _SECONDS]).encode() + b"\n")
        if not process.stdout.readline():
            process.communicate()
            return process.returncode != -signal.SIGALRM
        processes.append(process)
    return True


@atexit.register
def _end_trials() -> None:
    for process in _TRIALS.pop(os.getpid(), (None, []))[1]:
        process.kill()  # one that was forked may hold its input open
        process.communicate()


@dataclass(frozen=True, slots=True)
class Pattern:
    """Pattern stores a pattern as the user wrote it, and as a compiled regular expression."""

    spelling: str
    regex: re.Pattern[str] | BoundedRegex

    @classmethod
    def parse(cls, spelling: str) -> Pattern:
        """Returns the pattern of a spelling.

        Raises:
            UsageError: The text after `re:` is not a regular expression.
        """
        if not spelling.startswith("re:"):
            return cls(spelling, re.compile(_glob_to_regex(spelling), re.DOTALL))
        try:
            return cls(spelling, BoundedRegex(spelling[3:]))
        except re.error as error:
            raise UsageError(f"{spelling!r} is not a regular expression: {error}") from error

    @property
    def is_name(self) -> bool:
        """Whether it is a name, which matches nothing but itself."""
        return not self.spelling.startswith("re:") and not {"*", "?"}.intersection(self.spelling)

    def matches(self, *spellings: str) -> bool:
        """Returns whether any of `spellings` matches in full."""
        return any(self.regex.fullmatch(each) for each in spellings)


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection selects the names that match any of `select` (all names if it is empty) and none of `exclude`."""

    select: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()

    @classmethod
    def parse(cls, select: str | Iterable[str] | None = (), exclude: str | Iterable[str] | None = ()) -> Selection:
        """Returns the selection of patterns as users write them; a string is a list of one pattern.

        Raises:
            UsageError: A `re:` pattern is not a regular expression.
        """
        return cls(tuple(map(Pattern.parse, as_tuple(select))), tuple(map(Pattern.parse, as_tuple(exclude))))

    def selects(self, *spellings: str) -> bool:
        """Returns whether a tensor is selected, by any of its `spellings` (its name and its key)."""
        chosen = not self.select or any(pattern.matches(*spellings) for pattern in self.select)
        return chosen and not self.excludes(*spellings)

    def excludes(self, *spellings: str) -> bool:
        """Returns whether a tensor is excluded, by any of its `spellings`."""
        return any(pattern.matches(*spellings) for pattern in self.exclude)

    @property
    def numbers(self) -> frozenset[int]:
        """The whole numbers in the `select` patterns, among them the iterations that they name."""
        found = (number for pattern in self.select for number in _NUMBER.findall(pattern.spelling))
        return frozenset(map(int, found))

    def require_matches(self, names: Iterable[str]) -> None:
        """Raises an error for a `select` pattern that matches none of `names`.

        Raises:
            UsageError: A pattern selects nothing; the hint has the nearest names.
        """
        known = list(names) if self.select else []
        for pattern in self.select:
            if not any(pattern.matches(name) for name in known):
                raise UsageError(
                    f"pattern {pattern.spelling!r} selects nothing", hint=nearest_hint(pattern.spelling, known)
                )


def nearest_hint(requested: str, known: Iterable[str]) -> str:
    """Returns a hint with the names of `known` that are most similar to `requested`, or have it within them."""
    names = list(dict.fromkeys(known))
    near = nearest(requested, names)
    if near:
        return did_you_mean(near)
    if len(names) == 1:
        return f"there is only {printable(names[0])}"
    if len(names) <= _FEW:
        return "there are " + ", ".join(map(printable, names)) if names else "there are no names to select from"
    return f"there are {len(names):,} names, such as {', '.join(map(printable, names[:3]))}"


def did_you_mean(names: Iterable[str]) -> str:
    """Returns a hint that asks whether one of some names was meant."""
    return "did you mean " + ", ".join(map(printable, names)) + "?"


def nearest(requested: str, names: Sequence[str], *, similar: float = 0.4) -> list[str]:
    """Returns the few of some names that are most similar to `requested`, or have it within them; often none.

    Args:
        requested: The name that was requested.
        names: The names that there are.
        similar: The least share of letters that two similar names have in common, in order.
    """
    # Comparing takes the product of both lengths: 0.3 s for two names of 1,000 characters.
    folded = requested[:_COMPARED].casefold()
    by_folded: dict[str, str] = {}
    for name in names:
        by_folded.setdefault(name[:_COMPARED].casefold(), name)
    candidates = list(by_folded)
    if len(candidates) * len(folded) > _MOST_WORK:
        # Of too many names, those with the most common letters, which takes no product.
        letters = Counter(folded)
        most = max(_MOST_WORK // len(folded), _FEW)
        candidates = heapq.nlargest(most, candidates[:_MOST_NAMES], key=lambda each: _common(letters, each))
    near = difflib.get_close_matches(folded, candidates, n=_NEAR, cutoff=similar)
    if not near and len(folded) >= _PART:
        near = list(itertools.islice((each for each in by_folded if folded in each), _NEAR))
    return [by_folded[each] for each in near]


def _common(letters: Counter[str], name: str) -> float:
    """Returns the share of the letters of two names that they have in common."""
    # Counting each letter in the name takes a fifth of the time of counting all letters of the name.
    common = sum([min(name.count(letter), most) for letter, most in letters.items()])
    return 2 * common / (letters.total() + len(name) or 1)


def _glob_to_regex(glob: str) -> str:
    first, *others = ("".join("." if char == "?" else re.escape(char) for char in part) for part in glob.split("*"))
    if not others:
        return first
    # A part may stay where it is found first. Were it looked for again behind that, a long name and a few stars would
    # take for ever.
    return "".join((first, *(f"(?>.*?{part})" for part in others[:-1] if part), ".*", others[-1]))
