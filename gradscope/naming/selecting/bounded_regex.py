"""A `BoundedRegex` is a regular expression of a user or a file, whose matches end in time.

Python's engine for regular expressions backtracks: `(p+)+x` takes twice as long for each further `p` of a name without
an `x`, and a file of tolerances or of names may come from anybody. A `BoundedRegex` ends with a message instead. What
takes a second for each of 30,000 names, or for each of a thousand expressions of a file, takes too long as well: they
have a `MatchingTime` together.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn, TypeVar

from gradscope.errors import UsageError
from gradscope.naming.printable import without_middle

Found = TypeVar("Found")

#: Seconds that the matches of regular expressions may take beyond those that are usual for so many matches.
_SECONDS: Final = 5.0
_USUAL_SECONDS: Final = 50e-6

#: The longest text for which an expression takes no long time that has one choice at most: the square of its length.
_SHORT: Final = 1000

#: Where the engine has a choice; an escaped character is none, nor is what opens a group.
_CHOICE: Final = re.compile(r"\\.|\(\?|([*+?{|])", re.DOTALL)

#: The longest name that a replacement makes, in characters; a longer one grows no more.
_LONGEST: Final = 4096

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


class MatchingTime:
    """MatchingTime is what the matches of one or of several regular expressions may take together.

    Attributes:
        seconds: What is left of it.
    """

    def __init__(self) -> None:
        self.seconds = _SECONDS

    def taken_by(self, match: Callable[[], Found]) -> Found:
        """Returns a match, and takes its seconds, beyond those that are usual, from what is left."""
        begin = time.thread_time()
        try:
            return match()
        finally:
            self.seconds = min(_SECONDS, self.seconds + _USUAL_SECONDS - (time.thread_time() - begin))


class BoundedRegex:
    """A `BoundedRegex` is a compiled regular expression whose matches are bounded in time.

    The engine looks for signals while it matches, so that a timer can end it. Threads other than the main one receive
    none, and cannot be ended from outside, as the engine holds the interpreter's lock. There, a process tries a match
    first, which takes a twentieth of a millisecond. A stricter syntax would refuse expressions that are fine.

    Args:
        pattern: The regular expression.
        matching_time: What its matches may take together with those of others, as of the same file; by default alone.

    Attributes:
        pattern: The same.

    Raises:
        re.error: It is none.
    """

    def __init__(self, pattern: str, matching_time: MatchingTime | None = None) -> None:
        self.pattern = pattern
        self._matching_time = matching_time or MatchingTime()
        try:
            self._regex = re.compile(pattern)
        except (OverflowError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise re.error(reason) from error
        # With one choice at most, matching takes no longer than the square of the name's length.
        self._may_explode = sum(found[1] is not None for found in _CHOICE.finditer(pattern)) > 1

    def fullmatch(self, text: str) -> re.Match[str] | None:
        """Returns the match of a full text; None where it does not match.

        Raises:
            UsageError: Matching takes too long.
        """
        return self._in_time("fullmatch", lambda: self._regex.fullmatch(text), text)

    def sub(self, replacement: str, text: str) -> str:
        """Returns a text with every match replaced.

        An empty match at the end of another is none: `.*` is the whole text, and not its end besides.

        Raises:
            UsageError: Matching takes too long, or the text becomes longer than 4,096 characters, and than it was.
            re.error: The replacement is none.
        """
        references = replacement.count("\\")
        self._regex.sub(replacement, "")  # an error in it is one where nothing matches, too
        most, size, end = max(_LONGEST, len(text)), len(text), -1

        def expanded(match: re.Match[str]) -> str:
            nonlocal size, end
            if match.start() == match.end() == end:
                return ""
            end = match.end()
            longest = max(map(len, (match[0], *match.groups(""))))
            # A thousand times a name of a megabyte is a gigabyte: it is refused before it is made.
            made = match.expand(replacement) if references * longest <= _LONGEST**2 else None
            size += 0 if made is None else len(made) - len(match[0])
            if made is None or size > most:
                raise UsageError(
                    f"the regular expression {without_middle(self.pattern, 80)!r} makes more than {most:,} characters "
                    f"of {without_middle(text, 80)!r}",
                    hint="write a replacement that is a name",
                )
            return made

        return self._in_time("sub", lambda: self._regex.sub(expanded, text), text)

    def _in_time(self, method: str, match: Callable[[], Found], text: str) -> Found:
        if not (self._may_explode or len(text) > _SHORT) or not hasattr(signal, "setitimer"):
            return match()

        def give_up(*_: object) -> NoReturn:
            self._matching_time.seconds = 0.0
            raise UsageError(
                f"the regular expression {without_middle(self.pattern, 80)!r} takes more than {_SECONDS:g} s, at "
                f"{without_middle(text, 80)!r}",
                hint="write it without a repetition of repetitions",
            )

        left = self._matching_time.seconds
        if left <= 0:
            give_up()
        if not _has_timer():
            if not _ends(method, self.pattern, text, left):
                give_up()
            return self._matching_time.taken_by(match)
        before = signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, left)
        try:
            return self._matching_time.taken_by(match)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _has_timer() -> bool:
    """Returns whether this thread has a timer that nothing else uses."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0) and signal.getsignal(signal.SIGALRM) is not None


def _ends(method: str, pattern: str, text: str, seconds: float) -> bool:
    """Returns whether a match ends in time, as a process finds that waits for the next one; true if there is none."""
    import subprocess  # noqa: PLC0415 - it takes 5 ms, and is for threads only

    command, pipe = [sys.executable, "-I", "-S", "-c", _TRIAL], subprocess.PIPE
    lock, processes = _TRIALS.setdefault(os.getpid(), (threading.Lock(), []))
    with lock, suppress(OSError):
        process: Any = processes.pop() if processes else None
        process = process or subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0)  # noqa: S603 - our own program
        process.stdin.write(json.dumps([method, pattern, text, seconds]).encode() + b"\n")
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
