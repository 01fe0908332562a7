"""The command that dumps the model of a run has its options, whatever its history states."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.history.history_reader import History
from gradscope.history.history_writer import HistoryWriter
from gradscope.presentation.reports.runs.model_command import dump_command


def command(folder: Path, facts: dict[str, str], *, state: bool = True) -> str:
    folder.mkdir(exist_ok=True)
    with HistoryWriter(folder, from_step=0, facts={f"option {name}": value for name, value in facts.items()}):
        pass
    if state:
        (folder / "state-000024.npz").touch()
    with History(folder) as history:
        return dump_command(history, "my run")


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"--seed": "0"}, "net.py"),
        ({"--seed": "7", "--x64": "True", "--clip": "global_norm(1)"}, "net.py --seed 7 --x64"),
        ({"--train": "False"}, "net.py --eval"),
        ({"--train": "True"}, "net.py"),
        (
            {"--input": "['float32[8,4]', 'ids=int32[8]:0..9']"},
            "net.py --input 'float32[8,4]' --input 'ids=int32[8]:0..9'",
        ),
        ({"--input": "[" * 9999, "--loss": "a b"}, "net.py --loss 'a b'"),
        ({"--input": "{1: 2}"}, "net.py"),
        ({"--input": "['a', 3]", "--data": "d.py:\x1b[31mred"}, "net.py --input a --data 'd.py:\\x1b[31mred'"),
    ],
)
def test_options_that_dump_has_too(facts: dict[str, str], told: str, tmp_path: Path) -> None:
    assert command(tmp_path, {"TARGET": "net.py", **facts}) == f"gradscope dump {told} --checkpoint 'my run'"


def test_a_run_without_a_target_or_a_state_has_none(tmp_path: Path) -> None:
    assert command(tmp_path / "probe", {}) == ""
    assert command(tmp_path / "stopped", {"TARGET": "net.py"}, state=False) == ""
