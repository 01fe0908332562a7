"""The shell completes names of the zoo, of the tensors of a dump or a run, of findings, families and columns.

A name that a shell could take for something else than a word is not offered: a dump may come from anyone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import typer

#: A name that no shell interprets.
_WORD: Final = re.compile(r"[\w./\[\]#@+=~-]+", re.ASCII)


def zoo_models(incomplete: str) -> list[str]:
    """Returns the models of the zoo; of files a shell knows the names itself."""
    from gradscope.tracing.loading.zoo import zoo_names

    return _beginning(zoo_names(), incomplete)


def tensor_keys(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the keys of the dump or of the run that the command line names."""
    from gradscope.dump.reader import open_dump
    from gradscope.errors import GradscopeError
    from gradscope.history.folder.run_files import is_run
    from gradscope.history.history_reader import History

    # An option that lacks its value ends the parsing, and what came before is left over.
    named = context.params.get("dump") or next(iter(context.args), None)
    if named is None:
        return []
    try:
        if is_run(named):
            with History(Path(named)) as history:
                return _beginning((tensor.key for tensor in history.tensors.values()), incomplete)
        with open_dump(Path(named)) as source:
            return _beginning(source.keys(), incomplete)
    except GradscopeError:
        return []


def finding_names(incomplete: str) -> list[str]:
    """Returns the names of findings, of which an option takes a list."""
    from gradscope.cli.options.checked_findings import ALL
    from gradscope.presentation import MAY_BE_MEANT
    from gradscope.stats import RULES

    return _in_list([*(rule.name for rule in RULES), *MAY_BE_MEANT, ALL], incomplete)


def family_names(incomplete: str) -> list[str]:
    """Returns the families, of which an option takes a list."""
    from gradscope.naming import FAMILIES

    return _in_list(FAMILIES, incomplete)


def column_names(incomplete: str) -> list[str]:
    """Returns the columns; with a sign, a shell's completion takes them for options."""
    from gradscope.stats import COLUMNS

    return _beginning((column.name for column in COLUMNS if "@" not in column.name), incomplete)


def explained_names(incomplete: str) -> list[str]:
    """Returns what `explain` knows."""
    from gradscope.presentation.reports.explaining.explanation import explained_names

    return _beginning(explained_names(), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete) and _WORD.fullmatch(name)]


def _in_list(names: Iterable[str], incomplete: str) -> list[str]:
    """Returns the last name of a list completed, with the names before it."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(names, last)]
