"""Makes large files and very many tensors, and looks whether the commands that read them see every byte.

Each file is verified, shown and compared. Then its copy is cut short, what is whole in it is recovered, and a bit of
the last byte of its largest tensor is turned, which `verify` has to see. A command has a bound on its resident memory,
whatever the size of the file.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from gradscope.dump.manifest.manifest import RunFacts
from gradscope.dump.record import Record, SiteFacts
from gradscope.dump.writer import DumpWriter
from gradscope.stats import tensor_stats
from torture_attacks.commands import GRADSCOPE

#: MiB that a command may have in memory.
_MOST_MIB: Final = 512
_SECONDS: Final = 1800

_ROWS: Final = 30_000
_FOUR_GIB: Final = 1 << 32
_LARGE: Final = 20 << 30

_MODEL: Final = """
import jax, jax.numpy as jnp

def init(key):
    return {"params": {"w": jnp.float32(0.5)}}

def batch(key, size):
    return jax.random.normal(key, (1 << 26,))

def loss(variables, batch):
    x = batch
    for n in range(20):
        with jax.named_scope(f"layer{n}"):
            x = jnp.tanh(x * variables["params"]["w"])
    return (x**2).mean()
"""


def rows(folder: Path) -> Counter[str]:
    """Returns how often commands read a dump of 30,000 tensors as they should, and otherwise."""
    _write(folder / "a.npz", [np.full(3, number, np.float32) for number in range(_ROWS)])
    return _read(folder, "a.npz")


def member(folder: Path) -> Counter[str]:
    """Returns the same of a tensor of more than 4 GiB in a dump, and in a file of NumPy's."""
    array = np.zeros(_FOUR_GIB // 4 + 8, np.float32)
    array[::4096] = 1.0
    _write(folder / "a.npz", [array[:3], array])
    found = _read(folder, "a.npz")
    np.savez(folder / "b.npz", w=array)
    del array
    return found + _read(folder, "b.npz", recovered=False)  # nothing else is in it


def dump(folder: Path) -> Counter[str]:
    """Returns the same of a dump of 20 GiB that a command writes part by part, with `--max-memory`."""
    (folder / "model.py").write_text(_MODEL, encoding="utf-8")
    command = ("dump", "model.py", "-o", "a.npz", "--ops", "--max-memory", "2GiB", "--quiet")
    found = _judged(command, folder, 0, most_mib=None)
    if found["lost"]:
        return found
    size = (folder / "a.npz").stat().st_size
    print(f"  {size:,} bytes", flush=True)
    if size < _LARGE:
        raise SystemExit("the dump is not large")
    return found + _read(folder, "a.npz", copied=False)


ATTACKS: Final[dict[str, Callable[[Path], Counter[str]]]] = {"rows": rows, "member": member, "dump": dump}


def _write(path: Path, arrays: Sequence[np.ndarray]) -> None:
    with DumpWriter(path) as writer:
        for number, array in enumerate(arrays):
            stats = tensor_stats(array).to_json()
            site = SiteFacts(index=number, source="model.py:4")
            writer.add(
                Record(
                    family="activation", name=f"layer{number}", shape=array.shape, dtype="float32", array=array,
                    stats=stats, site=site,
                )
            )  # fmt: skip
        writer.commit(RunFacts(loss=1.0))


def _read(folder: Path, name: str, *, copied: bool = True, recovered: bool = True) -> Counter[str]:
    """Returns how often the commands that read a file do as they should, and how often not."""
    path = folder / name
    found = _judged(("verify", name), folder, 0) + _judged(("show", name), folder, 0)
    if copied:
        subprocess.run(["cp", name, "copy.npz"], cwd=folder, check=True)
    found += _judged(("compare", name, "copy.npz" if copied else name), folder, 0)
    if copied:
        os.truncate(folder / "copy.npz", path.stat().st_size * 2 // 3)
        found += _judged(("verify", "copy.npz"), folder, 3)
        found += _judged(("recover", "copy.npz", "-o", "saved.npz"), folder, 0 if recovered else 3)
        (folder / "copy.npz").unlink()
        (folder / "saved.npz").unlink(missing_ok=True)
    with path.open("r+b") as file:  # a byte of the last tensor, before the directory and the manifest
        at = _last_byte(path)
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    found += _judged(("verify", name), folder, 3)
    path.unlink()
    return found


def _last_byte(path: Path) -> int:
    """Returns the offset of the last byte of the largest member of an archive, the last of several."""
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda each: (each.file_size, each.header_offset))
    with path.open("rb") as file:
        file.seek(largest.header_offset + 26)
        lengths = file.read(4)
    header = 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    return largest.header_offset + header + largest.file_size - 1


def _judged(command: Sequence[str], folder: Path, status: int, *, most_mib: int | None = _MOST_MIB) -> Counter[str]:
    """Runs a command, and returns whether it ends with a status, and has no more in memory than it may."""
    timed = ["/usr/bin/time", "-f", "%M", "-o", "memory", "-q", *GRADSCOPE, *command]
    done = subprocess.run(timed, cwd=folder, capture_output=True, text=True, check=False, timeout=_SECONDS)
    mib = int((folder / "memory").read_text(encoding="utf-8").split()[-1]) >> 10
    wrong = done.returncode != status or (most_mib is not None and mib > most_mib)
    if wrong:
        found = f"status {done.returncode}, expected {status}; {mib} MiB; {done.stderr.strip():.300}"
        print(f"  {' '.join(command)}: {found}", flush=True)
    return Counter({"lost" if wrong else "right": 1})


def attack(names: Sequence[str]) -> bool:
    """Makes large files, in folders that are removed; returns whether any was read otherwise than it should."""
    lost = False
    for name, work in ATTACKS.items():
        if not names or name in names:
            with tempfile.TemporaryDirectory() as folder:
                found = work(Path(folder))
            print(f"{name}: {', '.join(f'{count} {what}' for what, count in sorted(found.items()))}", flush=True)
            lost |= bool(found["lost"])
    return lost
