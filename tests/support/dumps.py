"""Makes and reads small dumps for tests, among them one with every kind of record."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from gradscope.arrays.dtypes import dtype_name
from gradscope.dump.manifest.manifest import Entry, Manifest, RunFacts
from gradscope.dump.reader import open_dump
from gradscope.dump.record import Record, SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.dump.writer import DumpWriter
from gradscope.naming import split_key


def record(name: str, array: Any, *, family: str = "activation", dtype: str | None = None, **facts: Any) -> Record:
    """Returns a record of an array, with the array's shape and dtype unless `facts` contains others."""
    return Record(
        family=family,
        name=name,
        shape=facts.pop("shape", array.shape),
        dtype=dtype or dtype_name(array.dtype),
        array=array,
        stats=facts.pop("stats", {}),
        site=SiteFacts(index=0),
        **facts,
    )


def without_array(name: str, **facts: Any) -> Record:
    """Returns a record without a tensor."""
    known: dict[str, Any] = {"family": "activation", "shape": (3,), "dtype": "float32", "stats": {}}
    return Record(name=name, array=None, site=SiteFacts(index=0), **{**known, **facts})


def some_of_everything() -> list[Record]:
    """Returns one record of each kind: plain, bfloat16, int4, PRNG keys, 0-d, empty, odd name, alias, and absent."""
    return [
        record("conv", np.arange(6, dtype=np.float32).reshape(2, 3), stats={"mean": 2.5}),
        record("blocks[3]/attn#2", np.array([1.5, -0.0, np.nan], ml_dtypes.bfloat16)),
        record("codes", np.array([-8, 7], ml_dtypes.int4)),
        record("keys", np.array([[1, 2], [3, 4]], np.uint32), dtype="key<fry>", shape=(2,), family="input"),
        record("scalar", np.array(3.0)),
        record("none", np.zeros((0, 3), np.float16)),
        record("ünï ../%41.npy", np.array([True, False])),
        without_array("wrapper", alias_of="activation/conv", shape=(2, 3)),
        without_array("unused", family="param_grad", absent="disconnected"),
    ]


def of_params(arrays: Mapping[str, np.ndarray]) -> MemoryDump:
    """Returns a dump of parameters without statistics, by their names."""
    entries = tuple(
        Entry(family="param", name=name, shape=each.shape, dtype=str(each.dtype), stats={}, site=SiteFacts(index=n))
        for n, (name, each) in enumerate(arrays.items())
    )
    return MemoryDump(Manifest(entries=entries), {f"param/{name}": each for name, each in arrays.items()})


def write(path: Path, records: Iterable[Record], *, force: bool = True, **fields: Any) -> Path:
    """Writes records into a dump and returns its path."""
    with DumpWriter(path, force=force) as writer:
        for each in records:
            writer.add(each)
        writer.commit(RunFacts(**fields))
    return path


def dump_of(tensors: Mapping[str, Any]) -> MemoryDump:
    """Returns a dump in memory of tensors by key."""
    families = ((*split_key(key), array) for key, array in tensors.items())
    records = (record(name, array, family=family) for family, name, array in families)
    return MemoryDump(Manifest(entries=tuple(map(Entry.of, records))), tensors)


def read_all(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Returns dtype, shape and bytes of every tensor of a dump, by key."""
    with open_dump(path) as dump:
        found: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
        keys = dump.keys()
        for key in keys:
            if dump.entry(dump.resolve(key)).stored is not None:
                array = dump.array(key)
                found[key] = str(array.dtype), array.shape, array.tobytes()
        return found


def litter(folder: Path) -> list[str]:
    """Returns the names of the temporary files that writers left in a folder."""
    return [path.name for path in folder.iterdir() if path.name.endswith(".partial")]


def npy(array: Any) -> bytes:
    """Returns the bytes of a `.npy` file that NumPy writes for an array."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()
