"""`gradscope export`: CSV as Python reads it, and event files as TensorBoard's own reader has them."""

from __future__ import annotations

import csv
import io
import math
import os
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import typer

import gradscope as gs
from gradscope.cli.options.completion import tensor_keys
from gradscope.history.history_rows import StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.value_histograms import ValueHistogram, counted
from tests.integration.command import gradscope, in_shell
from tests.integration.training.histories import STEPS, write
from tests.support.sampled import sampled

VALUES = np.array([0.0, 0.0, 1e-45, 0.5, -2.5, 3.0, 3.5], np.float32)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run")


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    """A run with a histogram, an option, and names that a spreadsheet or Markdown would obey."""
    folder = tmp_path / "drawn"
    folder.mkdir()
    keys = ("param/w", "param/=1+1", "param/-cmd`|x")
    with HistoryWriter(folder, from_step=0, facts={"model": "a|b", "option --clip": "norm(1)"}) as history:
        history.describe({}, [TensorRow(family="param", name=key.removeprefix("param/")) for key in keys])
        stats = {key: {"l2": 5.0, "mean": 5.5 / 7, "zeros": 2, "nan": 0} for key in keys}
        histograms = {"param/w": ValueHistogram.of(counted(VALUES))}
        numbers = {"step": 3, "time": 12.5, "loss": 2.0}
        history.write(lambda: StepRecord(numbers=numbers, stats=stats, histograms=histograms))
    return folder


def in_csv(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_csv_has_every_number_with_all_of_its_digits(run: Path) -> None:
    heading, *found = in_csv(gradscope("export", run, "--to", "csv", folder=run).output)
    assert heading == ["step", "family", "name", "statistic", "value"]
    connection = sqlite3.connect(run / "history.sqlite")
    expected = set()
    for column in ("l2", "rms", "zeros", "nan", "inf"):
        query = f"SELECT step, family, name, {column} FROM stats JOIN tensors ON id = tensor"
        expected |= {(step, family, name, column, value) for step, family, name, value in connection.execute(query)}
    for column in ("time", "loss", "examples"):
        query = f"SELECT step, {column} FROM steps WHERE {column} IS NOT NULL"
        expected |= {(step, "step", "", column, value) for step, value in connection.execute(query)}
    connection.close()
    assert {(int(step), *names, float(value)) for step, *names, value in found} == expected
    assert len(found) == len(expected)


def test_csv_goes_to_a_file_and_has_what_is_selected(run: Path) -> None:
    line = ("export", run, "--to", "csv", "--families", "slot", "--select", "w", "-o", "out.csv")
    done = gradscope(*line, folder=run)
    assert (done.status, done.output) == (0, "")
    found = in_csv((run / "out.csv").read_text(encoding="utf-8"))[1:]
    assert {row[1] for row in found} == {"slot/mu"}
    by_name = gradscope("export", run, "--to", "csv", "--select", "w", folder=run)
    assert {"step", "slot/mu", "update"} <= {row[1] for row in in_csv(by_name.output)[1:]}
    again = gradscope(*line, folder=run)
    assert (again.status, "out.csv exists" in again.errors) == (2, True)
    assert "wrote out.csv" in done.errors
    quiet = gradscope(*line, "--force", "-q", folder=run)
    assert (quiet.status, quiet.output, quiet.errors) == (0, "", "")


@pytest.mark.slow
@sampled(
    "line",
    [
        "-o -", "-o /dev/stdout", "-o /dev/stdout | cat", "-o /dev/stdout > x; cat x", "-o /dev/fd/3 3> >(cat)",
        "-o >(cat) | cat", "-o fifo & cat fifo; wait",
    ],
)  # fmt: skip
def test_csv_goes_to_what_is_no_regular_file(run: Path, line: str) -> None:
    os.mkfifo(run / "fifo")
    found = in_shell(f"$gradscope export . --to csv --quiet {line}", run)
    assert (found.status, found.errors) == (0, "")
    assert found.output == gradscope("export", ".", "--to", "csv", "--quiet", folder=run).output


def test_a_device_that_is_full_is_the_environments_failure(run: Path) -> None:
    assert gradscope("export", ".", "--to", "csv", "--quiet", "-o", "/dev/full", folder=run).status == 5


def test_the_shell_completes_the_keys_of_a_run(run: Path) -> None:
    line = SimpleNamespace(params={"dump": str(run)}, args=[])
    assert tensor_keys(cast("typer.Context", line), "param/") == ["param/w"]


def test_names_are_no_formulas(drawn: Path) -> None:
    names = {row[2] for row in in_csv(gradscope("export", drawn, "--to", "csv", folder=drawn).output)[1:]}
    assert names == {"", "w", "'=1+1", "'-cmd`|x"}
    shown = in_csv(gradscope("show", drawn, "--format", "csv", folder=drawn).output)
    assert {row[0] for row in shown[1:]} == {"w", "'=1+1", "'-cmd`|x"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--to", "csv", "--select", "v*"), "pattern 'v*' selects nothing"),
        (("--to", "csv", "--depth", 1), "--depth is of dumps"),
        (("--to", "parquet"), "'parquet' is not one of"),
        ((), "option '--to'"),
    ],
)
def test_what_cannot_be_exported_is_one_message(run: Path, options: tuple[Any, ...], message: str) -> None:
    done = gradscope("export", run, *options, folder=run)
    assert (done.status, message in done.errors) == (2, True), done.errors


def test_a_folder_without_a_history_is_no_run(tmp_path: Path) -> None:
    done = gradscope("export", tmp_path, "--to", "csv", folder=tmp_path)
    assert (done.status, "is no run: it has no history" in done.errors) == (3, True), done.errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("history.sqlite", "it is one of the files that are read"),
        ("no/x.html", "there is no folder"),
        (".", "a folder"),
    ],
)
@pytest.mark.parametrize("command", [("export", "--to", "csv"), ("report",)])
def test_no_command_writes_over_the_run_that_it_reads(run: Path, command: tuple[str, ...], path: str, why: str) -> None:
    before = (run / "history.sqlite").read_bytes()
    name, *options = command
    done = gradscope(name, run, *options, "--force", "-o", path, folder=run)
    assert (done.status, done.errors.count("error:"), why in done.errors) == (2, 1, True), done.errors
    assert (run / "history.sqlite").read_bytes() == before


def test_without_tensorboardx_it_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "gradscope.history.exporting.event_files", raising=False)
    done = gradscope("export", run, "--to", "tensorboard", folder=run)
    assert (done.status, "pip install 'gradscope-jax[tensorboard]'" in done.errors) == (2, True), done.errors


class TestTensorBoard:
    """What TensorBoard reads."""

    @pytest.fixture(autouse=True)
    def _packages(self) -> None:
        pytest.importorskip("tensorboardX", reason="needs tensorboardX: pip install 'gradscope-jax[tensorboard]'")
        pytest.importorskip("tensorboard", reason="needs tensorboard, which reads event files back")

    @staticmethod
    def read(folder: Path) -> Any:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        kinds = ("scalars", "histograms", "tensors", "compressedHistograms")
        found = EventAccumulator(str(folder), size_guidance=dict.fromkeys(kinds, 0))
        found.Reload()
        return found

    def test_scalars_are_those_of_the_history(self, run: Path) -> None:
        assert gradscope("export", run, "--to", "tensorboard", folder=run).status == 0
        found = self.read(run)
        with gs.Run(run) as history:
            for key in history.keys():  # noqa: SIM118 - a run is no mapping
                values = [(event.step, event.value) for event in found.Scalars(f"{key}/l2")]
                assert values == list(zip(STEPS, np.float32(history.series(key, "l2")), strict=True))
        assert [(event.step, event.value) for event in found.Scalars("loss")] == [
            (0, 4.0), (10, 3.0), (29, np.float32(1.1))
        ]  # fmt: skip
        assert [event.value for event in found.Scalars("param/w/zeros")] == [3.0] * 4
        assert "param/w/nan" not in found.Tags()["scalars"]
        (alarm,) = found.Tensors("alarms/text_summary")
        assert (alarm.step, alarm.tensor_proto.string_val[0]) == (20, b"`nonfinite: param_grad/w has 2 NaN`")

    def test_an_export_that_fails_leaves_the_one_before(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from gradscope.errors import MachineError
        from gradscope.history.exporting.event_files import EventFile

        def fail(*_: object) -> None:
            raise MachineError("the disk is full")

        assert gradscope("export", run, "--to", "tensorboard", "-o", "tb", folder=run).status == 0
        before = {path: path.read_bytes() for path in (run / "tb").iterdir()}
        monkeypatch.setattr(EventFile, "step", fail)
        done = gradscope("export", run, "--to", "tensorboard", "-o", "tb", "--force", folder=run)
        assert (done.status, "the disk is full" in done.errors) == (5, True), done.errors
        assert {path: path.read_bytes() for path in (run / "tb").iterdir()} == before

    def test_histograms_texts_and_hyperparameters(self, drawn: Path) -> None:
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        assert gradscope("export", drawn, "--to", "tensorboard", "-o", "tb", folder=drawn).status == 0
        found = self.read(drawn / "tb")
        (event,) = found.Histograms("param/w")
        made = event.histogram_value
        assert (event.step, event.wall_time, made.num) == (3, 12.5, 7)
        assert (made.sum, made.sum_squares) == (pytest.approx(5.5), 25)
        edges = [made.min, *made.bucket_limit]
        assert (np.diff(edges) > 0).all()
        expected, _ = np.histogram(VALUES[VALUES != 0], edges)
        expected[np.searchsorted(edges, 0)] += 2  # zeros are with the smallest positive numbers
        assert list(made.bucket) == expected.tolist()
        text = found.Tensors("run/text_summary")[0].tensor_proto.string_val[0].decode()
        assert "| `model` | `a\\|b` |" in text
        started = found.PluginTagToContent("hparams")["_hparams_/session_start_info"]
        options = HParamsPluginData.FromString(started).session_start_info.hparams
        assert {name: value.string_value for name, value in options.items()} == {"--clip": "norm(1)"}

    def test_a_norm_whose_square_float64_does_not_hold_is_exported(self, tmp_path: Path) -> None:
        from gradscope.history.exporting.event_files import EventFile

        histograms = {"param/w": ValueHistogram.of(counted(VALUES))}
        with EventFile(tmp_path) as file:
            file.step(StepRecord(numbers={"step": 0}, stats={"param/w": {"l2": 1e200}}, histograms=histograms))
        (event,) = self.read(tmp_path).Histograms("param/w")
        assert event.histogram_value.sum_squares == math.inf

    def test_earlier_event_files_stay_unless_forced(self, run: Path) -> None:
        line = ("export", run, "--to", "tensorboard", "-o", "tb")
        assert gradscope(*line, folder=run).status == 0
        again = gradscope(*line, folder=run)
        assert (again.status, "has event files already" in again.errors) == (2, True)
        assert gradscope(*line, "--force", folder=run).status == 0
        assert len(list((run / "tb").iterdir())) == 1

    def test_those_that_another_process_writes_meanwhile_stay(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from gradscope.history.exporting import event_files

        export = event_files.export_events

        def exported(*arguments: Any) -> int:
            (run / "tb" / "events.out.tfevents.1").write_bytes(b"theirs")
            return export(*arguments)

        monkeypatch.setattr(event_files, "export_events", exported)
        done = gradscope("export", run, "--to", "tensorboard", "-o", "tb", folder=run)
        assert (done.status, "has event files already" in done.errors) == (2, True), done.errors
        assert [each.read_bytes() for each in (run / "tb").iterdir()] == [b"theirs"]

    def test_a_run_that_writes_them_itself_has_the_same_also_when_resumed(self, tmp_path: Path) -> None:
        pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")
        train = ("train", "linear_regression", "--optimizer", "sgd(0.1)", "--every", 2,
                 "--histograms-every", 4, "--tensorboard", "-q", "-o", "live")  # fmt: skip
        assert gradscope(*train, "--steps", 5, folder=tmp_path).status == 0
        done = gradscope(*train, "--steps", 8, "--resume", folder=tmp_path)
        assert done.status == 0, done.errors
        assert gradscope("export", "live", "--to", "tensorboard", "-o", "later", folder=tmp_path).status == 0
        live, later = self.read(tmp_path / "live"), self.read(tmp_path / "later")
        for kind in ("scalars", "histograms"):
            assert set(live.Tags()[kind]) == set(later.Tags()[kind])
        for tag in ("loss", "update/weight/ratio"):
            one, other = ([(event.step, event.value) for event in each.Scalars(tag)] for each in (live, later))
            assert one == other
        assert [event.step for event in live.Histograms("param/weight")] == [0, 4, 7]

    def test_files_of_one_second_are_distinguished_and_read_in_their_order(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from gradscope.history.exporting.event_files import EventFile

        monkeypatch.setattr("tensorboardX.event_file_writer.time.time", lambda: 1_000_000_000.5)
        for loss in range(12):
            with EventFile(tmp_path) as file:
                file.step(StepRecord(numbers={"step": loss, "loss": float(loss)}, stats={}))
        assert [event.value for event in self.read(tmp_path).Scalars("loss")] == list(range(12))
