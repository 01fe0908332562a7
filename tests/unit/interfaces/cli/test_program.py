"""The program as typer sees it."""

from __future__ import annotations

from typing import Any, cast

import pytest
import typer.main

from gradscope.cli import program
from gradscope.errors import UsageError


def test_no_path_is_judged_before_it_is_opened() -> None:
    """Typer would call a file without permission a wrong command line, where the environment is what failed."""
    commands = vars(typer.main.get_command(program._program(program.COMMANDS)))["commands"]
    paths = [each.type for command in commands.values() for each in command.params if hasattr(each.type, "readable")]
    assert len(paths) > len(commands)
    assert not any(path.readable for path in paths)


def test_the_first_letters_of_an_option_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gradscope", "train", "model.py", "--lr", "0.1"])
    with pytest.raises(UsageError, match="no such option: --lr") as caught:
        program.run(cast("Any", None))  # nothing runs that could be interrupted
    assert caught.value.hint == "did you mean --learning-rate? 'gradscope train --help' lists all options"


def test_every_command_shows_tracebacks_on_request() -> None:
    commands = vars(typer.main.get_command(program._program(program.COMMANDS)))["commands"]
    options = {
        name: [spelling for each in command.params for spelling in each.opts] for name, command in commands.items()
    }
    assert [name for name in program.COMMANDS if options[name].count("--traceback") != 1] == []


def test_the_help_shows_a_number_as_users_read_it_and_not_as_its_range() -> None:
    commands = vars(typer.main.get_command(program._program(program.COMMANDS)))["commands"]
    ranged = [
        (name, each) for name, command in commands.items() for each in command.params if hasattr(each.type, "min")
    ]
    assert len(ranged) > len(commands)
    assert [(name, each.name) for name, each in ranged if each.metavar is None] == []
