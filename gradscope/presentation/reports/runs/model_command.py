"""Writes the command that dumps the model of a training run as the run left it."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from typing import Final, cast

from gradscope.history.database.schema import RUN_OPTION
from gradscope.history.folder.run_files import states_in
from gradscope.history.history_reader import History
from gradscope.naming import printable

#: The options of a run that `dump` has, too, and that take one value.
_OPTIONS: Final = ("--data", "--loss", "--batch-size", "--dtype", "--matmul-precision", "--seed")
#: The longest text of several values that is read: a history may be anybody's.
_LONGEST: Final = 10_000


def dump_command(history: History, path: str) -> str:
    """Returns the command that dumps the model with the last state of a run; "" where the run has none, as a probe's.

    Args:
        history: The run's history.
        path: The run's folder, as the user named it.
    """
    options = {
        name.removeprefix(RUN_OPTION): value for name, value in history.facts.items() if name.startswith(RUN_OPTION)
    }
    target = options.get("TARGET")
    if target is None or not states_in(history.folder):
        return ""
    words = ["gradscope", "dump", target]
    for each in _several(options.get("--input", "[]")):
        words += ["--input", each]
    for name in _OPTIONS:
        if name in options and (name, options[name]) != ("--seed", "0"):
            words += [name, options[name]]
    words += ["--eval"] if options.get("--train") == "False" else []
    words += ["--x64"] if "--x64" in options else []
    return printable(shlex.join([*words, "--checkpoint", path]))


def _several(text: str) -> Iterator[str]:
    """Yields the values of an option that may be given several times; none where its fact states something else."""
    try:
        found = cast("object", ast.literal_eval(text[:_LONGEST]))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return
    if isinstance(found, list):
        yield from (each for each in cast("list[object]", found) if isinstance(each, str))
