"""Fuzzes the readers of files and of expressions, guided by the coverage of gradscope's own code.

Each reader has a process of its own, with a bound on memory, in which libFuzzer (by atheris) changes good inputs. A
reader may answer with a `GradscopeError`; any other exception, ten seconds for an input of at most 64 KiB, or a
gigabyte of memory is a failure. The input that caused it is kept.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

LONGEST_BYTES = 1 << 16
MEMORY_MIB = 1024
SECONDS = 10

#: Where tensors of an opened file are read, this many of them.
MOST_READ = 20


def fuzz(names: Iterable[str], seconds: int) -> bool:
    """Fuzzes readers, each for so many seconds, and prints how many inputs each had; returns whether any failed."""
    failed = False
    for name in list(names) or list(READERS):
        with tempfile.TemporaryDirectory() as folder:
            corpus = Path(folder, "corpus")
            corpus.mkdir()
            for number, text in enumerate(READERS[name][1](Path(folder))):
                Path(corpus, str(number)).write_bytes(text)
            command = [sys.executable, "-P", __file__, name, str(corpus), f"-max_total_time={seconds}"]
            done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, errors="replace")
            inputs = re.findall(r"number_of_executed_units: (\d+)", done.stderr)
            covered = re.findall(r"cov: (\d+)", done.stderr)
            outcome = "no failure" if done.returncode == 0 else f"FAILED with status {done.returncode}"
            executed = f"{int(inputs[-1]):,}" if inputs else "?"
            print(f"{name}: {executed} inputs, coverage {covered[-1] if covered else '?'}, {outcome}", flush=True)
            if done.returncode:
                failed = True
                print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr)  # atheris prints exceptions to both
                for kept in Path(folder).glob("*-*"):
                    print(f"  {kept.name}: {kept.read_bytes()!r:.3000}", file=sys.stderr)
    return failed


def _read_file(suffix: str) -> Callable[[bytes], None]:
    from gradscope.dump.reader import open_dump
    from gradscope.presentation.tables.dump_rows import rows_of

    path = Path(tempfile.mkdtemp(), f"input{suffix}")

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with open_dump(path) as dump:
            rows_of(dump.manifest)
            for key in dump.keys()[:MOST_READ]:
                if dump.has_tensor(key):
                    dump.array(key)

    return read


def _read_manifest() -> Callable[[bytes], None]:
    from gradscope.dump.manifest.codec import manifest_from_json, manifest_from_text, manifest_to_text
    from gradscope.dump.manifest.entries import list_parts, manifest_text
    from gradscope.dump.manifest.json_text import loads
    from gradscope.errors import DumpError
    from gradscope.presentation.tables.dump_rows import rows_of
    from gradscope.stats import find

    # As a long one is read: in parts, here of two or three entries.
    manifest_text._LONG, list_parts._WINDOW = 0, 4096  # pyright: ignore[reportPrivateUsage]

    def read(data: bytes) -> None:
        try:
            manifest = manifest_from_text(data)
        except DumpError as error:
            if "or has more than" not in error.message:
                with suppress(DumpError):
                    manifest_from_json(loads(data))
                    raise AssertionError(f"it is refused in parts alone: {error.message}") from error
            raise
        assert manifest == manifest_from_json(loads(data))
        again = manifest_from_text(manifest_to_text(manifest).encode())
        assert manifest_to_text(again) == manifest_to_text(manifest)
        rows_of(manifest)
        find(manifest)

    return read


def _read_msgpack() -> Callable[[bytes], None]:
    from gradscope.tracing.data.files.checkpoint_files import open_checkpoint

    path = Path(tempfile.mkdtemp(), "input.msgpack")

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with open_checkpoint(path) as tensors:
            for tensor in list(tensors.values())[:MOST_READ]:
                tensor.read()

    return read


def _read_expression() -> Callable[[bytes], None]:
    from gradscope.comparison.judging.expression_parser import parse_expression

    def read(data: bytes) -> None:
        expression = parse_expression(data.decode(errors="surrogateescape"))
        for value in (0.5, None, "NaN", 3):
            expression.holds({"rel_l2": value, "max_abs": value, "cosine": value})

    return read


def _read_map() -> Callable[[bytes], None]:
    from gradscope.comparison.pairing.map_file import read_map

    path = Path(tempfile.mkdtemp(), "input.toml")

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_map(path)

    return read


def _read_history() -> Callable[[bytes], None]:
    from gradscope.history.folder.run_files import HISTORY
    from gradscope.history.history_reader import History

    folder = Path(tempfile.mkdtemp())

    def read(data: bytes) -> None:
        (folder / HISTORY).write_bytes(data)
        with History(folder) as history:
            history.steps()
            history.losses()
            for number in list(history.tensors)[:MOST_READ]:
                history.stats_of(number)

    return read


def _read_rules() -> Callable[[bytes], None]:
    """Returns what reads a file of tolerances, and a key map of the same bytes, and looks for names by them."""
    from gradscope.comparison import CompareOptions, read_rules
    from gradscope.errors import GradscopeError
    from gradscope.naming.selecting import bounded_regex
    from gradscope.tracing.data.renaming.key_map import read_key_map

    # libFuzzer has the timer, so that each match is tried in a process.
    bounded_regex._SECONDS = 1.0  # pyright: ignore[reportPrivateUsage]
    path = Path(tempfile.mkdtemp(), "input.txt")
    names = ("block[0]/attention/kernel", "a" * 30 + "b", "")

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(GradscopeError):
            options = CompareOptions(rules=read_rules(path))
            for name in names:
                options.tolerance(name, f"param/{name}", 1.0)
        renames = read_key_map(path)
        for name in names:
            renames.renamed(name)

    return read


def _dumps(folder: Path) -> list[bytes]:
    from gradscope.dump.manifest.manifest import RunFacts
    from gradscope.dump.record import Record, SiteFacts
    from gradscope.dump.writer import DumpWriter
    from gradscope.stats import tensor_stats

    with DumpWriter(folder / "good.npz") as writer:
        for number, family in enumerate(("activation", "param", "param_grad", "input")):
            array = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
            stats = tensor_stats(array).to_json()
            site = SiteFacts(index=number, source="model.py:4", primitive="tanh", layer="block[0]")
            writer.add(
                Record(
                    family=family, name=f"block[0]/w{number}", shape=(2, 3), dtype="float32", array=array, stats=stats,
                    site=site,
                )
            )  # fmt: skip
        writer.commit(RunFacts(loss=1.0))
    return [(folder / "good.npz").read_bytes()]


def _manifests(folder: Path) -> list[bytes]:
    from gradscope.dump.manifest.codec import manifest_to_text
    from gradscope.dump.reader import open_dump

    _dumps(folder)
    with open_dump(folder / "good.npz") as dump:
        return [manifest_to_text(dump.manifest).encode(), b'{"schema":2,"entries":[]}']


def _archives(folder: Path) -> list[bytes]:
    np.savez(folder / "a.npz", w=np.ones((2, 3), np.float32), b=np.zeros(3))
    np.savez_compressed(folder / "b.npz", w=np.ones((2, 3), np.float16))
    np.save(folder / "c.npy", np.ones(3))
    return [(folder / name).read_bytes() for name in ("a.npz", "b.npz", "c.npy")]


def _safetensors(_: Path) -> list[bytes]:
    header = json.dumps(
        {"__metadata__": {"a": "b"}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
         "v": {"dtype": "BF16", "shape": [1], "data_offsets": [8, 10]}}
    ).encode()  # fmt: skip
    return [struct.pack("<Q", len(header)) + header + bytes(10)]


def _msgpacks(_: Path) -> list[bytes]:
    from flax import serialization

    return [serialization.msgpack_serialize({"params": {"w": np.ones((2, 3), np.float32), "n": np.float64(1), "k": 3}})]


def _expressions(_: Path) -> list[bytes]:
    return [b"rel_l2 <= 1e-5", b"not (max_abs < 1 or cosine > 0.99) and rel_l2 < inf", b"((((rel_l2==0))))"]


def _maps(_: Path) -> list[bytes]:
    return [
        b'[[rule]]\nref = "a.{n}.w"\ncand = "b[{n}]/w"\nsteps = [{ transpose = [1, 0] }]\n',
        b'[[rule]]\nref = "re:x(.*)"\ncand = ["y\\\\1", "z"]\nsteps = [{ concatenate = 0 }, { reshape = [2, -1] }]\n',
    ]


def _histories(folder: Path) -> list[bytes]:
    from gradscope.history.folder.run_files import HISTORY
    from gradscope.history.history_rows import StepRecord, TensorRow
    from gradscope.history.history_writer import HistoryWriter

    (folder / "run").mkdir()
    with HistoryWriter(folder / "run", from_step=0, facts={"a": "b"}) as writer:
        writer.describe({}, [TensorRow(family="param", name=name, shape=(2, 3)) for name in ("w", "b")])
        for step in range(4):
            stats = {f"param/{name}": {"l2": 1.0, "rms": 0.5, "zeros": 0, "nan": 0, "inf": 0} for name in ("w", "b")}
            record = StepRecord(numbers={"step": step, "loss": 1.0}, stats=stats)
            writer.write(lambda record=record: record)
    return [(folder / "run" / HISTORY).read_bytes()]


def _rules(_: Path) -> list[bytes]:
    return [
        b"# of all\n.*kernel=rel_l2 <= 1e-5\n(a|aa)+=1e-3\nparam/.*=not max_abs < 1\n1e-6\n",
        b"^block\\[(\\d+)\\]/ -> layer\\1.\n(a?)+b$ -> \\g<1>\nx* ->\n",
    ]


#: By name: what makes a reader, and what makes good inputs in a folder.
READERS: dict[str, tuple[Callable[[], Callable[[bytes], None]], Callable[[Path], list[bytes]]]] = {
    "dump": (lambda: _read_file(".npz"), _dumps),
    "manifest": (_read_manifest, _manifests),
    "npz": (lambda: _read_file(".npz"), _archives),
    "safetensors": (lambda: _read_file(".safetensors"), _safetensors),
    "msgpack": (_read_msgpack, _msgpacks),
    "expression": (_read_expression, _expressions),
    "map": (_read_map, _maps),
    "rules": (_read_rules, _rules),
    "history": (_read_history, _histories),
}


def _run(name: str, arguments: list[str]) -> None:
    """Runs one reader in this process, until libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["gradscope", "tomllib"]):
        read = READERS[name][0]()
    from gradscope.errors import GradscopeError

    def test_one(data: bytes) -> None:
        with suppress(GradscopeError):
            read(data)

    limits = [f"-max_len={LONGEST_BYTES}", f"-rss_limit_mb={MEMORY_MIB}", f"-timeout={SECONDS}", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *arguments, *limits], test_one)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    _run(sys.argv[1], sys.argv[2:])
