"""Foreign files open as dumps: names of arrays become names of tensors, without statistics, with a note."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradscope.dump.reader import open_dump
from gradscope.dump.sources import foreign
from gradscope.dump.verify import verify
from gradscope.errors import DumpError
from tests.support.dumps import npy, record, write

ARRAYS: dict[str, Any] = {
    "a": np.arange(6.0).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
    "big endian": np.arange(4, dtype=">f4"),
    "scalar": np.array(True),
    "empty": np.zeros((0, 2), np.complex64),
    "param/head/kernel": np.ones(3, np.float16),
    "half": np.array([1.5, -0.0], ml_dtypes.bfloat16),
    "w:0": np.ones(1, np.uint8),
}


def assert_holds(path: Path, arrays: dict[str, Any]) -> None:
    verify(path)
    with open_dump(path) as dump:
        keys = {name if name.startswith("param/") else f"tensor/{name}": array for name, array in arrays.items()}
        assert set(dump.keys()) == set(keys)
        assert dump.manifest.note == "not written by gradscope"
        for key, array in keys.items():
            found = dump.array(key)
            assert found.shape == array.shape == dump.entry(key).shape
            assert found.dtype == array.dtype.newbyteorder("="), "native byte order"
            assert np.array_equal(found, array)
            assert dump.entry(key).stats == {}
            chunks = [np.empty(0, found.dtype), *dump.chunks(key, chunk_bytes=8)]
            assert np.array_equal(np.concatenate(chunks), array.reshape(-1))
            assert np.array_equal(dump.stretch(key, array.size // 2, array.size), array.reshape(-1)[array.size // 2 :])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_of_numpys(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "foreign.npz", **ARRAYS)
    assert_holds(tmp_path / "foreign.npz", ARRAYS)


def test_an_npz_written_into_a_pipe(tmp_path: Path) -> None:
    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.written = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.written += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as archive:
        archive.writestr("a.npy", npy(ARRAYS["a"]))
    (tmp_path / "piped.npz").write_bytes(pipe.written)
    assert_holds(tmp_path / "piped.npz", {"a": ARRAYS["a"]})


def test_a_compressed_array_of_many_steps(tmp_path: Path) -> None:
    array = np.zeros(3 << 20, np.uint8)
    array[::1001] = 7
    np.savez_compressed(tmp_path / "foreign.npz", a=array)
    with open_dump(tmp_path / "foreign.npz") as dump:
        assert np.array_equal(dump.array("tensor/a"), array)


def test_numpys_own_spelling_of_float8_e5m2(tmp_path: Path) -> None:
    array = np.array([1.5, -2.0], ml_dtypes.float8_e5m2)
    (tmp_path / "a.npy").write_bytes(npy(array))
    assert_holds(tmp_path / "a.npy", {"a": array})


def test_bytes_behind_a_foreign_npz_are_ignored_with_a_note(tmp_path: Path) -> None:
    np.savez(tmp_path / "foreign.npz", a=ARRAYS["a"])
    with (tmp_path / "foreign.npz").open("ab") as file:
        file.write(b"x" * 100)
    with open_dump(tmp_path / "foreign.npz") as dump:
        assert dump.manifest.note == "not written by gradscope; 100 bytes behind its end are ignored"
        assert np.array_equal(dump.array("tensor/a"), ARRAYS["a"])


def test_an_npy_is_a_dump_of_one_tensor(tmp_path: Path) -> None:
    np.save(tmp_path / "kernel.npy", ARRAYS["fortran"])
    assert_holds(tmp_path / "kernel.npy", {"kernel": ARRAYS["fortran"]})


def safetensors(path: Path, arrays: dict[str, Any]) -> None:
    """Writes a `.safetensors` file by the specification of the format."""
    names = {"float64": "F64", "int16": "I16", "bool": "BOOL", "complex64": "C64", "float16": "F16", "bfloat16": "BF16"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in arrays.items():
        offsets = [len(data), len(data) + array.nbytes]
        dtype = {**names, "uint8": "U8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_safetensors(tmp_path: Path) -> None:
    arrays = {
        name: np.ascontiguousarray(array) for name, array in ARRAYS.items() if name not in ("big endian", "scalar")
    }
    arrays["eight"] = np.array([1.5, np.nan], ml_dtypes.float8_e4m3fn).view(np.uint8)
    safetensors(tmp_path / "model.safetensors", arrays)
    assert_holds(tmp_path / "model.safetensors", arrays)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_of_safetensors(tmp_path: Path, dtype: str) -> None:
    array = np.array([1.5, -0.0], getattr(ml_dtypes, dtype))
    safetensors(tmp_path / "model.safetensors", {"a": array})
    assert_holds(tmp_path / "model.safetensors", {"a": array})


def test_a_safetensors_file_that_is_cut_off_says_so(tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    safetensors(path, {"a": np.ones((4, 4))})
    whole = path.read_bytes()
    path.write_bytes(whole[:-32])
    with pytest.raises(
        DumpError, match=f"a: it ends at byte {len(whole)}, the file at byte {len(whole) - 32}: the rest"
    ):
        open_dump(path)


@pytest.mark.parametrize("members", [("w/data.pkl", "w/data/0", "w/version"), ("config.json", "model.weights.h5")])
def test_an_archive_of_another_library_is_told_to_be_one(members: tuple[str, ...], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "saved.pt", "w") as archive:
        for name in members:
            archive.writestr(name, b"whatever it has")
    with pytest.raises(DumpError, match="an archive without arrays of NumPy, as files of PyTorch and Keras") as refused:
        open_dump(tmp_path / "saved.pt")
    assert refused.value.hint is not None
    assert refused.value.hint.endswith("dump the model with --checkpoint")


def test_a_folder_of_files(tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    np.save(tmp_path / "encoder" / "kernel.npy", ARRAYS["a"])
    np.savez(tmp_path / "rest.npz", b=ARRAYS["a"], c=ARRAYS["a"])
    safetensors(tmp_path / "model.safetensors", {"d": ARRAYS["a"]})
    (tmp_path / "notes.txt").write_text("not a tensor")
    assert_holds(tmp_path, dict.fromkeys(("encoder/kernel", "b", "c", "d"), ARRAYS["a"]))


def test_a_folder_in_which_two_tensors_have_one_name_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ARRAYS["a"])
    np.savez(tmp_path / "rest.npz", a=ARRAYS["a"])
    with pytest.raises(DumpError, match="two tensors called 'a'"):
        open_dump(tmp_path)


def test_a_folder_with_a_dump_in_it_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "dump.npz", [record("a", np.zeros(2))])
    with pytest.raises(DumpError, match="a dump of its own") as refused:
        open_dump(tmp_path)
    assert (refused.value.hint or "").startswith("name the dump instead of its folder: ")


def test_a_damaged_file_in_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.npy").write_bytes(npy(ARRAYS["a"])[:-1])
    with pytest.raises(DumpError, match=r"b\.npy: its shape"):
        open_dump(tmp_path)


def test_a_file_of_very_many_tensors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MOST_TENSORS", 3)
    path = tmp_path / "leaves.eqx"
    path.write_bytes(npy(np.zeros(0)) * 3)
    assert verify(path).tensors == 3
    path.write_bytes(npy(np.zeros(0)) * 4)
    with pytest.raises(DumpError, match="more than 3 tensors"):
        open_dump(path)
