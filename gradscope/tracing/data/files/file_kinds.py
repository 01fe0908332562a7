"""`kind_of` tells what a checkpoint is, by its suffix or its first bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.storage_errors import located
from gradscope.dump.zip.directory import read_directory
from gradscope.dump.zip.structures import LOCAL_SIGNATURE

#: Files of any Python objects, in which Haiku's parameters are often saved.
_PICKLES: Final = frozenset({".pickle", ".pkl"})
_TORCH: Final = (".pt", ".pth", ".bin", ".ckpt")

#: Suffixes of files that gradscope reads itself.
_OURS: Final = frozenset({".npz", ".npy", ".safetensors", ".eqx"})

#: How PyTorch's files begin that are no zip files, and how the pickle in one that is ends, whatever its file is called.
_TORCH_START: Final = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_TORCH_PICKLE: Final = "/data.pkl"
#: How pickles begin, and maps in msgpack, as Flax writes: the number of names, and behind up to 15 a name.
_PICKLE_STARTS: Final = frozenset(bytes((0x80, protocol)) for protocol in range(2, 6))
_LONG_MAPS: Final = (0xDE, 0xDF)
_SHORT_MAPS: Final = range(0x81, 0x90)
_NAMES: Final = (*range(0xA0, 0xC0), 0xD9, 0xDA)

#: The beginning of the names that `flax.training.checkpoints` gives to its files.
_FLAX_NAME: Final = "checkpoint_"


def kind_of(path: Path) -> str:
    """Returns what a file is by its suffix or its first bytes: "torch", "pickle", "flax", or "" for any other."""
    if path.suffix == ".msgpack":
        return "flax"
    if path.suffix in _OURS or not path.is_file():
        return ""
    found = _kind_of_content(path)
    return "torch" if path.suffix in _TORCH else found


def _kind_of_content(path: Path) -> str:
    with located(str(path)), InputFile(path) as file:
        start = file.read(0, min(file.size_bytes, len(_TORCH_START)))
        if start == _TORCH_START or (start.startswith(LOCAL_SIGNATURE) and _has_torch_pickle(file)):
            return "torch"
    if path.suffix in _PICKLES or start[:2] in _PICKLE_STARTS:
        return "pickle"
    if path.name.startswith(_FLAX_NAME) and not path.suffix:
        return "flax"
    first, second = (*start, 0, 0)[:2]
    return "flax" if first in _LONG_MAPS or (first in _SHORT_MAPS and second in _NAMES) else ""


def _has_torch_pickle(file: InputFile) -> bool:
    return any(name.endswith(_TORCH_PICKLE) for name in read_directory(file).members)
