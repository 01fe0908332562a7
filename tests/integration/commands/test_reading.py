"""`show`, `compare`, `verify` and `recover` of files that are damaged, foreign, or no dumps at all."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from tests.integration.command import gradscope
from tests.support.hostile import OURS, Canary, relaid

COMMANDS = ("show {}", "verify {}", "compare {} good.npz", "compare good.npz {}", "recover {} -o saved.npz")

#: Files that no command opens, and what is wrong with them.
REFUSED = {
    "missing": "No such file or directory",
    "empty": "it is empty",
    "text": "it is not a dump",
    "pickle": "it is a pickle, which is never read",
    "objects": "Python objects, never unpickled",
    "folder": "it holds no tensors",
    "fifo": "it is not a regular file",
    "truncated": "it is cut short",
    "structure": "its zip directory",
    "newer": "the dump follows schema 3, and this gradscope reads 1 and 2",
}
#: Those of them in which `recover` finds whole tensors all the same.
RECOVERABLE = {"truncated", "structure", "newer"}


@pytest.fixture(scope="module")
def files(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files above, `flipped.npz` with a bit of a tensor flipped, and `good.npz`."""
    folder = tmp_path_factory.mktemp("files")
    good = (dumps / "a.npz").read_bytes()
    (folder / "good.npz").write_bytes(good)
    (folder / "empty.npz").write_bytes(b"")
    (folder / "text.npz").write_text("hello\n" * 9)
    (folder / "pickle.npz").write_bytes(pickle.dumps(Canary()))
    np.savez(folder / "objects.npz", a=np.array([Canary()], object))
    (folder / "folder.npz").mkdir()
    os.mkfifo(folder / "fifo.npz")
    (folder / "truncated.npz").write_bytes(good[: len(good) // 2])
    (folder / "structure.npz").write_bytes(good[:-10] + bytes([good[-10] ^ 1]) + good[-9:])
    with np.load(folder / "good.npz") as arrays:
        place = good.index(arrays["activation/relu"].tobytes())
    (folder / "flipped.npz").write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
    relaid(folder, OURS["newer schema"][0]).rename(folder / "newer.npz")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_dump_is_refused_in_a_line_by_every_command(files: Path, tmp_path: Path, name: str) -> None:
    for command in COMMANDS:
        line = command.format(f"{name}.npz").replace("saved.npz", str(tmp_path / "saved.npz"))
        done = gradscope(*line.split(), folder=files)
        if name in RECOVERABLE and "recover" in command:
            assert done.status == 0, done.errors
            continue
        assert (done.status, done.output) == (3, ""), line
        says = REFUSED[name] if "recover" not in command else f"{name}.npz: "
        assert says in done.lines[0]
        assert done.lines[0].startswith(f"gradscope: error: {name}.npz: ")
        assert [line for line in done.lines[1:] if not line.startswith("hint: ")] == []
    assert list(tmp_path.iterdir()) == ([tmp_path / "saved.npz"] if name in RECOVERABLE else [])
    assert not (files / "canary").exists()


def test_a_flipped_bit_is_found_by_every_reader_of_the_tensor(files: Path) -> None:
    for line in ("verify flipped.npz", "compare flipped.npz good.npz", "compare good.npz flipped.npz"):
        done = gradscope(*line.split(), folder=files)
        assert (done.status, done.output) == (3, "")
        assert re.fullmatch(
            r"gradscope: error: flipped.npz: activation/relu: its data is damaged: its CRC-32 is .*", done.lines[0]
        )


def test_a_complete_dump_is_verified_in_a_sentence(files: Path) -> None:
    done = gradscope("verify", "good.npz", folder=files)
    assert (done.status, done.errors) == (0, "")
    assert re.fullmatch(r"good\.npz: whole: 12 tensors \([\d,]+ bytes\) read and checked\n", done.output)


def test_a_recovered_dump_is_marked_as_such(files: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved.npz"
    done = gradscope("recover", "truncated.npz", "-o", saved, folder=files)
    assert (done.status, done.errors) == (0, "")
    assert re.fullmatch(r"\S+/saved\.npz: \d+ tensors \([\d,]+ bytes\) saved; .* bytes after them .*\n", done.output)
    shown = gradscope("show", saved, folder=files)
    assert shown.status == 0
    assert "the run that wrote this dump did not finish" in shown.output
    assert "recovered from truncated.npz" in gradscope("verify", saved, folder=files).output
    again = gradscope("recover", "truncated.npz", "-o", saved, folder=files)
    assert (again.status, again.lines[0]) == (2, f"gradscope: error: {saved} exists")


def test_a_file_of_another_tool_is_measured_and_shown(tmp_path: Path) -> None:
    np.savez(tmp_path / "foreign.npz", weight=np.array([[3.0, -4.0]]), broken=np.array([np.nan, 1.0], np.float32))
    np.save(tmp_path / "foreign.npy", np.arange(3.0))
    done = gradscope("show", "foreign.npz", "--json", folder=tmp_path)
    weight, broken = done.json["rows"]
    assert (weight["name"], weight["family"], weight["l1"], weight["min"]) == ("weight", "tensor", 7.0, -4.0)
    assert (broken["nan"], broken["mean"]) == (1, 1.0)
    assert [finding["rule"] for finding in done.json["findings"]] == ["nonfinite"]
    assert done.json["note"] == "not written by gradscope"
    assert gradscope("show", "foreign.npz", "--check", "nonfinite", folder=tmp_path).status == 1
    assert "Elements by magnitude" in gradscope("show", "foreign.npy", "--tensor", "foreign", folder=tmp_path).output
    assert gradscope("compare", "foreign.npz", "foreign.npz", folder=tmp_path).status == 0


@pytest.mark.parametrize("name", ["arrays.npz", "param_grads.npz"])
def test_no_more_is_said_of_bare_tensors_than_is_judged(tmp_path: Path, name: str) -> None:
    family = "param_grad/" if name.startswith("param_grad") else ""
    np.savez(tmp_path / name, **{f"{family}w": np.ones((3, 2)), f"{family}b": np.arange(1, 3)})
    shown = gradscope("show", name, folder=tmp_path)
    judged = "no finding in the values alone; nothing else is judged, as the file has no manifest"
    assert (shown.status, f"verdict  {judged}\n" in shown.output) == (0, True)
    assert f"{name}: {judged}\n" in gradscope("show", name, "--format", "github", folder=tmp_path).output
    assert gradscope("report", name, "-o", "page.html", folder=tmp_path).status == 0
    page = (tmp_path / "page.html").read_text()
    assert (judged in page, "nothing looks wrong" in page) == (True, False)


def test_a_value_that_is_not_finite_is_found_in_bare_tensors(tmp_path: Path) -> None:
    np.savez(tmp_path / "bare.npz", x=np.array([1.0, np.nan]), y=np.ones(3))
    shown = gradscope("show", "bare.npz", folder=tmp_path).output
    said = "tensor/x has 1 NaN and 0 Inf of 2 elements: the file does not say what made it"
    assert f"verdict  nonfinite: {said}\n" in shown


def test_dumps_with_nothing_in_common_are_compared_in_a_few_lines(files: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", weight=np.ones(3))
    done = gradscope("compare", "good.npz", tmp_path / "other.npz", folder=files)
    assert (done.status, done.errors) == (2, "")
    first, _, *sides = done.output.splitlines()
    assert first.startswith("nothing compared  Nothing compared: the dumps have no name in common")
    assert [side.split()[0] for side in sides] == ["reference", "candidate"]
    report = gradscope("compare", "good.npz", tmp_path / "other.npz", "--json", folder=files).json
    assert report["verdict"] == "nothing compared"
    assert {row["status"] for row in report["rows"]} == {"missing", "extra"}


@pytest.mark.slow
def test_comparing_is_as_strict_as_requested(dumps: Path) -> None:
    def status(*options: object) -> int:
        return gradscope("compare", "a.npz", "b.npz", *options, folder=dumps).status

    assert status() == 1
    assert status("--tol", 1e9) == 0
    assert status("--tol", 1e9, "--bitwise") == 2
    assert status("--tol", "rel_l2 < 1e9 and nonfinite_mismatch == 0") == 0
    assert status("--tol", "param/last/w=1e9", "--tol", ".*=0") == 1
    assert status("--rtol", 0, "--atol", 1e9) == 0
    assert status("--select", "param/last/w", "--bitwise") == 0
    assert status("--select", "nothing") == 2
    assert gradscope("compare", "a.npz", "a.npz", "--bitwise", folder=dumps).status == 0


def test_tolerances_in_a_file_come_after_those_on_the_command_line(dumps: Path, tmp_path: Path) -> None:
    (tmp_path / "tol.txt").write_text("# everything passes\n.*=1e9\n")
    dumps_and_file = (dumps / "a.npz", dumps / "b.npz", "--tol-file", "tol.txt")
    assert gradscope("compare", *dumps_and_file, folder=tmp_path).status == 0
    assert gradscope("compare", *dumps_and_file, "--tol", "activation/.*=0", folder=tmp_path).status == 1
    (tmp_path / "tol.txt").write_text(".*=os.system('true')\n")
    wrong = gradscope("compare", *dumps_and_file, folder=tmp_path)
    assert (wrong.status, wrong.lines[0].split(": ")[2]) == (2, "tol.txt, line 1")


def test_pairs_that_were_found_can_be_saved_and_repeated(tmp_path: Path) -> None:
    kernel = np.random.default_rng(0).normal(size=(4, 6))
    np.savez(tmp_path / "a.npz", **{"param/Dense_0/kernel": kernel, "param/head": kernel[:3] ** 2})
    np.savez(tmp_path / "b.npz", **{"dense.0.weight": kernel.T, "out": kernel[:3].T ** 2})
    found = gradscope("compare", "a.npz", "b.npz", "--write-map", "map.toml", "--all", folder=tmp_path)
    assert found.status == 0
    assert all(word in found.output for word in ("path", "fingerprint", "tensor/dense.0.weight", "transpose [1, 0]"))
    again = gradscope("compare", "a.npz", "b.npz", "--map", "map.toml", "--json", folder=tmp_path)
    assert (again.status, {row["matched_by"] for row in again.json["rows"]}) == (0, {"map"})
    np.savez(tmp_path / "c.npz", **{"dense.0.weight": kernel, "out": kernel[:3].T ** 2})
    assert gradscope("compare", "a.npz", "c.npz", "--map", "map.toml", folder=tmp_path).status == 1
    unwritable = gradscope("compare", "a.npz", "b.npz", "--write-map", "absent/map.toml", folder=tmp_path)
    assert (unwritable.status, unwritable.lines[0].split(": ")[2]) == (2, "cannot write to absent/map.toml")
    taken = gradscope("compare", "a.npz", "b.npz", "--write-map", "map.toml", folder=tmp_path)
    assert (taken.status, taken.lines[0]) == (2, "gradscope: error: map.toml exists")


def test_several_candidates_are_judged_by_one_reference(dumps: Path) -> None:
    done = gradscope("compare", "a.npz", "a.npz", "b.npz", folder=dumps)
    assert done.status == 1
    begin = "The runs start from different inputs (`x`) and parameters (`first/w`). Forward first differs at `first`"
    assert done.output.startswith(f"different  1 of 2 candidates not the same: `b.npz`. {begin}")
    found = gradscope("compare", "a.npz", "a.npz", "b.npz", "--json", folder=dumps).json
    assert [(each["name"], each["verdict"]) for each in found["comparisons"]] == [
        ("a.npz", "same"),
        ("b.npz", "different"),
    ]
    assert found["first_different"] == "b.npz"
    assert gradscope("compare", "a.npz", "a.npz", "a.npz", folder=dumps).status == 0
    in_csv = gradscope("compare", "a.npz", "a.npz", "b.npz", "--format", "csv", folder=dumps).output
    assert in_csv.splitlines()[0].startswith("name,family,comparison,status,")


@pytest.mark.slow
def test_steps_in_folders_are_compared_in_the_order_of_their_numbers(dumps: Path, tmp_path: Path) -> None:
    for run, names in (("one", ("9", "10", "11")), ("other", ("9", "10", "12"))):
        (tmp_path / run).mkdir()
        for name in names:
            source = dumps / ("b.npz" if (run, name) == ("other", "10") else "a.npz")
            (tmp_path / run / f"step_{name}.npz").write_bytes(source.read_bytes())
    done = gradscope("compare", "one", "other", folder=tmp_path)
    assert done.status == 1
    begin = "The runs start from different inputs (`x`) and parameters (`first/w`). Forward first differs at `first`"
    assert done.output.startswith(f"different  1 step the same, then `step_10` differs. {begin}")
    assert "Only in the reference: `step_11`. Only in the candidate: `step_12`." in done.output.splitlines()[0]
    assert gradscope("compare", "one", "one", folder=tmp_path).output.startswith("same  3 steps the same.\n")
    (tmp_path / "other" / "step_10.npz").write_bytes((dumps / "a.npz").read_bytes())
    assert gradscope("compare", "one", "other", folder=tmp_path).status == 1
    assert gradscope("compare", "one", "other", "--allow-missing", "step_1.", folder=tmp_path).status == 0


def test_one_tensor_of_two_dumps_is_shown_element_by_element(dumps: Path) -> None:
    done = gradscope("show", "a.npz", "--tensor", "param/first/w", "--diff", "b.npz", folder=dumps)
    assert (done.status, done.errors) == (0, "")
    assert done.output.startswith("param/first/w\ndifferent ")
    found = gradscope("show", "a.npz", "--tensor", "param/first/w", "--diff", "b.npz", "--json", folder=dumps).json
    with np.load(dumps / "a.npz") as ref, np.load(dumps / "b.npz") as cand:
        one, other = (each["param/first/w"].astype(float) for each in (ref, cand))
    worst = found["worst"][0]
    assert worst["difference"] == np.abs(other - one).max()
    assert (worst["ref"], worst["cand"]) == (one[*worst["index"]], other[*worst["index"]])
    wrong = gradscope("show", "a.npz", "--tensor", "param/frist/w", "--diff", "b.npz", folder=dumps)
    assert (wrong.status, "did you mean param/first/w" in wrong.lines[1]) == (2, True)


def test_names_on_one_side_count_unless_they_are_allowed_to(dumps: Path, tmp_path: Path) -> None:
    with np.load(dumps / "a.npz") as arrays:
        np.savez(tmp_path / "part.npz", **{"activation/first": arrays["activation/first"]})
    done = gradscope("compare", dumps / "a.npz", "part.npz", folder=tmp_path)
    assert done.status == 1
    assert "--allow-missing REGEX lets pass what" in done.output
    assert gradscope("compare", dumps / "a.npz", "part.npz", "--allow-missing", ".*", folder=tmp_path).status == 0


def test_a_tensor_is_shown_in_detail_by_its_key_or_its_only_name(dumps: Path) -> None:
    done = gradscope("show", "a.npz", "--tensor", "activation/relu", folder=dumps)
    assert done.status == 0
    assert done.output.startswith("activation/relu\n")
    assert "Elements by magnitude" in done.output
    several = gradscope("show", "a.npz", "--tensor", "relu", folder=dumps)
    assert (several.status, several.lines[1]) == (2, "hint: give one of activation/relu, activation_grad/relu")
    missing = gradscope("show", "a.npz", "--tensor", "activation/rely", folder=dumps)
    assert missing.status == 2
    assert missing.lines[1].startswith("hint: did you mean activation/relu, ")


def test_rows_are_chosen_by_name_family_and_depth(dumps: Path) -> None:
    def shown(*options: str) -> set[str]:
        rows = gradscope("show", "a.npz", "--json", *options, folder=dumps).json["rows"]
        return {f"{row['family']}/{row['name']}" for row in rows}

    assert shown("--families", "param") == {"param/first/w", "param/last/w"}
    assert shown("--select", "*/first") == {"activation/first", "activation_grad/first"}
    assert shown("--select", "first", "--exclude", "*_grad/*") == {"activation/first"}
    assert "activation/first" in shown("--depth", "1")


def test_checks_turn_findings_into_an_exit_status(dumps: Path) -> None:
    found = {row["rule"] for row in gradscope("show", "a.npz", "--json", folder=dumps).json["findings"]}
    for rule in ("nonfinite", "dead", "init", "exploding"):
        assert gradscope("show", "a.npz", "--check", rule, folder=dumps).status == int(rule in found)
    assert gradscope("show", "a.npz", "--check", "all", folder=dumps).status == int(bool(found))
