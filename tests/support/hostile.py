"""The hostile corpus: files that break lenient readers, made byte by byte, each with the error that it must cause.

`FOREIGN` contains zip files without a manifest, and files that are not zip files. `OURS` contains dumps in which one
fact is altered and everything else, offsets and checksums included, is consistent. `MANIFESTS` are consistent, too, and
are read: their numbers are those of no tensor.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.dump.manifest.operation_facts.saturation import Saturation
from gradscope.dump.record import Json, Record, SiteFacts
from gradscope.dump.storage.writing.partial_file import PartialFile
from gradscope.dump.zip.zip_writer import Payload, ZipWriter
from tests.support.dumps import npy, some_of_everything, write

GOOD = npy(np.arange(4.0))
MANIFEST = "__gradscope__.json"


class Canary:
    """Creates a file when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("canary",)


@dataclass(frozen=True, kw_only=True)
class Crafted:
    """A zip member to be written; a field that is None gets its correct value."""

    name: bytes = b"a.npy"
    data: bytes = GOOD
    method: int = 0
    flags: int = 0
    crc32: int | None = None
    size: int | None = None
    offset: int | None = None
    local_name: bytes | None = None


def craft(
    *members: Crafted, before: bytes = b"", after: bytes = b"", count: int | None = None, directory_extra: bytes = b""
) -> bytes:
    """Returns a zip file of crafted members."""
    body, directory = before, b""
    for member in members:
        crc32 = zlib.crc32(member.data) if member.crc32 is None else member.crc32
        size = len(member.data) if member.size is None else member.size
        common = (20, member.flags, member.method, 0, 33, crc32, len(member.data), size)
        name = member.local_name or member.name
        offset = len(body) if member.offset is None else member.offset
        body += struct.pack("<4s5H3L2H", b"PK\3\4", *common, len(name), 0) + name + member.data
        location = (len(member.name), 0, 0, 0, 0, 0, offset)
        directory += struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, *common, *location) + member.name
    directory += directory_extra
    claimed = len(members) if count is None else count
    return (
        body
        + directory
        + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, claimed, claimed, len(directory), len(body), 0)
        + after
    )


def header(descr: str, shape: str, data: bytes = bytes(16), *, version: int = 1) -> bytes:
    """Returns a `.npy` file with a header that NumPy would not write."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes((version, 0)) + len(text).to_bytes(2 if version == 1 else 4, "little") + text + data


def raw_header(text: bytes, *, length: int | None = None, version: int = 1) -> bytes:
    """Returns a `.npy` file whose header is not a dictionary."""
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes((version, 0)) + size.to_bytes(2 if version == 1 else 4, "little") + text


def deflated(data: bytes) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflater.compress(data) + deflater.flush()


def inflating(data: bytes, **facts: Any) -> Crafted:
    """Returns a deflated member."""
    return Crafted(data=deflated(data), method=8, **{"crc32": zlib.crc32(data), "size": len(data), **facts})


def as_member(data: bytes) -> bytes:
    return craft(Crafted(data=data))


FOREIGN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "text": (b"hello, this is a text file\n" * 9, "not a dump"),
    "program": (b"\x7fELF" + bytes(100), "not a dump"),
    "pickle": (pickle.dumps(Canary(), protocol=4), "pickle"),
    "pickle in a member": (as_member(pickle.dumps(Canary())), "does not start like an npy"),
    "object array": (as_member(npy(np.array([Canary()], object))), "never unpickled"),
    "json": (b"{}", "not a dump"),
    "half a zip": (craft(Crafted(), Crafted(name=b"b.npy"))[:300], "no zip directory"),
    "nothing but a signature": (b"PK\3\4", "no zip directory"),
    "the same name twice": (craft(Crafted(), Crafted()), "twice"),
    "climbing name": (craft(Crafted(name=b"../../evil.npy")), "leads out of the file"),
    "climbing name inside": (craft(Crafted(name=b"a/../../evil.npy")), "leads out of the file"),
    "absolute name": (craft(Crafted(name=b"/etc/evil.npy")), "leads out of the file"),
    "drive": (craft(Crafted(name=b"C:\\evil.npy")), "leads out of the file"),
    "drive with slashes": (craft(Crafted(name=b"C:/evil.npy")), "leads out of the file"),
    "nul in a name": (craft(Crafted(name=b"a\0b.npy")), "leads out of the file|refused"),
    "empty name": (craft(Crafted(name=b"")), "refused"),
    "long name": (craft(Crafted(name=b"n" * 10_000)), "more than 1000"),
    "name not in UTF-8": (craft(Crafted(name=b"\xff\xfe.npy")), "not UTF-8"),
    "folder entry": (craft(Crafted(name=b"a/", data=b"")), "refused"),
    "member that is no array": (craft(Crafted(), Crafted(name=b"a.txt")), "not an array"),
    "no member that is an array": (craft(Crafted(name=b"a.txt")), "without arrays"),
    "two names for a member": (craft(Crafted(local_name=b"b.npy")), "disagree on its name"),
    "more elements than bytes": (as_member(header("'<f8'", "(1000000000000,)")), "do not agree"),
    "many more elements than bytes": (as_member(header("'<f4'", "(1500000000,)")), "do not agree"),
    "fewer elements than bytes": (as_member(header("'<f4'", "(2,)")), "do not agree"),
    "shape that overflows": (as_member(header("'<f4'", f"({2**32}, {2**32})")), "larger than any memory"),
    "negative shape": (as_member(header("'<f4'", "(-2, -2)")), "malformed"),
    "boolean shape": (as_member(header("'<f4'", "(True, 4)")), "malformed"),
    "elements without bytes": (as_member(header("'|V0'", "(1000000000000000,)")), "refused"),
    "strings without bytes": (as_member(header("'|S0'", "(100000000000,)")), "refused"),
    "strings": (as_member(npy(np.array(["a", "b"]))), "refused"),
    "struct": (as_member(npy(np.zeros(2, [("x", "f4")]))), "structured"),
    "any float8": (as_member(header("'|V1'", "(16,)")), "every float8"),
    "forty axes": (as_member(header("'<f4'", "(" + "1, " * 40 + ")", bytes(4))), "40 axes"),
    "parentheses": (as_member(raw_header(b"(" * 4000)), "malformed"),
    "minus signs": (as_member(raw_header(b"-" * 9000)), "more than 4096"),
    "gibibyte of header": (as_member(raw_header(b" " * 100, length=2**30, version=2)), "more than 4096"),
    "header behind the end": (as_member(raw_header(b"{", length=4000)), "malformed"),
    "code in a header": (as_member(raw_header(b"__import__('os').mkdir('canary')")), "malformed"),
    "wrong CRC in the directory": (craft(Crafted(crc32=1)), "CRC-32"),
    "wrong size": (craft(Crafted(size=len(GOOD) - 1)), "two different sizes"),
    "bomb by its claimed size": (craft(inflating(GOOD, size=2**31)), "a bomb"),
    "deflated data cut short": (craft(inflating(GOOD, size=len(GOOD) + 64)), "ends too early"),
    "deflated garbage": (craft(Crafted(data=b"\xff" * 50, method=8, size=192)), "damaged"),
    "bzip2": (craft(Crafted(method=12)), "method 12"),
    "lzma": (craft(Crafted(method=14)), "method 14"),
    "unknown method": (craft(Crafted(method=99)), "method 99"),
    "encrypted": (craft(Crafted(flags=1)), "encrypted"),
    "overlapping members": (craft(*(Crafted(name=f"{n}.npy".encode(), offset=0) for n in range(100))), "overlaps"),
    "member behind the directory": (craft(Crafted(offset=4000)), "overlaps|no header"),
    "more members claimed than there are": (craft(Crafted(), count=2), "room|cut short|damaged"),
    "fewer members claimed than there are": (
        craft(Crafted(), Crafted(name=b"b.npy"), count=1),
        "longer than its members",
    ),
    "a million members claimed": (craft(Crafted(), count=0xFFFE), "room"),
    "directory with a tail": (craft(Crafted(), directory_extra=b"x" * 30), "longer than its members"),
    "bytes before": (craft(Crafted(), before=b"PK\3\4" + b"x" * 400)[4:], "not a dump"),
    "no members": (craft(), "without any tensor"),
    "npy cut short": (GOOD[:-1], "do not agree"),
    "npy with a tail": (GOOD + b"x", "do not agree"),
}


def _safetensors(header_text: str | bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header_text.encode() if isinstance(header_text, str) else header_text
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def _described(dtype: str = '"F32"', shape: str = "[2]", offsets: str = "[0, 8]", more: str = "") -> str:
    return f'{{"a": {{"dtype": {dtype}, "shape": {shape}, "data_offsets": {offsets}{more}}}}}'


SAFETENSORS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "ends"),
    "header behind the end": (_safetensors("{}", length=50), "ends"),
    "huge header": (_safetensors("{}", length=2**62), "more than"),
    "not json": (_safetensors("{'a'}"), "malformed"),
    "not an object": (_safetensors("[]"), "not an object"),
    "no tensors": (_safetensors("{}"), "no tensors"),
    "name twice": (_safetensors('{"a": {}, "a": {}}'), "twice"),
    "unknown dtype": (_safetensors(_described('"F4"'), bytes(8)), "dtype 'F4'"),
    "negative size": (_safetensors(_described(shape="[-2]"), bytes(8)), "size of -2"),
    "size not a number": (_safetensors(_described(shape='["2"]'), bytes(8)), "size of '2'"),
    "wrong size": (_safetensors(_described(shape="[3]"), bytes(8)), "do not agree"),
    "hole in front": (_safetensors(_described(offsets="[4, 12]"), bytes(12)), "do not follow"),
    "data behind the end": (_safetensors(_described(offsets="[0, 8]"), bytes(7)), "the rest is missing"),
    "tail": (_safetensors(_described(), bytes(9)), "end at byte"),
    "more facts": (_safetensors(_described(more=', "x": 1'), bytes(8)), "malformed"),
    "lacks facts": (_safetensors('{"a": {"dtype": "F32"}}'), "malformed"),
    "overflow": (_safetensors(_described(shape=f"[{2**40}, {2**40}, {2**40}]"), bytes(8)), "larger than any memory"),
}

Members = dict[str, bytes]
Alteration = Callable[[Members, Any], None]


def _entry(document: Any, number: int = 0) -> Any:
    return document["entries"][number]


def _with(**facts: Any) -> Alteration:
    return lambda members, document: _entry(document).update(facts)


def _with_stored(**facts: Any) -> Alteration:
    return lambda members, document: _entry(document)["stored"].update(facts)


def _extra_member(members: Members, document: Any) -> None:
    members["activation/extra.npy"] = GOOD


def _renamed_entry(members: Members, document: Any) -> None:
    _entry(document, 1)["name"] = "another"


def _entry_twice(members: Members, document: Any) -> None:
    document["entries"].append(_entry(document, -1))


def _alias_of_alias(members: Members, document: Any) -> None:
    document["entries"].append({**_entry(document, 7), "name": "again", "alias_of": "activation/wrapper"})


def _newer(members: Members, document: Any) -> None:
    document.update(schema=3, new_field={})


def _deep(members: Members, document: Any) -> None:
    nested: Any = 1
    for _ in range(50):
        nested = [nested]
    document["provenance"] = {"a": nested}


OURS: dict[str, tuple[Alteration, str]] = {
    "newer schema": (_newer, "schema 3"),
    "deep manifest": (_deep, "nested deeper"),
    "member that the manifest lacks": (_extra_member, "member 'activation/extra.npy' that its manifest does not name"),
    "member that is missing": (lambda members, document: members.pop("param/w.npy"), "lacks the member 'param/w.npy'"),
    "entry under another name": (_renamed_entry, "disagree on its name"),
    "entry twice": (_entry_twice, "twice"),
    "alias of an alias": (_alias_of_alias, "no tensor of its own"),
    "alias of nothing": (lambda members, document: _entry(document, 7).update(alias_of="x"), "no tensor of its own"),
    "other shape": (_with(shape=[3, 2]), "states shape"),
    "other dtype": (_with(dtype="int32"), "states dtype"),
    "dtype of another meaning": (_with(dtype="key<fry>"), "states"),
    "unknown dtype": (_with(dtype="float1"), "states dtype"),
    "other stored dtype": (_with_stored(dtype="<i4"), "states dtype"),
    "other CRC": (_with_stored(crc32=1), "CRC-32"),
    "other offset": (_with_stored(offset=64), "disagree on its offset"),
    "other size": (_with_stored(size_bytes=23), "disagree on its offset"),
    "other member": (_with_stored(member="activation/codes.npy"), "lacks|disagree|does not name"),
    "statistic that no float holds": (_with(stats={"size": 6, "zeros": 10**400}), "integer of 401 digits"),
    "other float8": (lambda members, document: _entry(document, 1).update(dtype="float8_e5m2"), "states dtype"),
}


def of_one_hash(number: int) -> list[int]:
    """Returns a shape that has the hash of all others, as Python takes integers modulo 2**61 - 1."""
    return [1] * 22 + [1 + (2**61 - 1) * (number // 4**axis % 4) for axis in range(8)]


def relaid(folder: Path, alter: Alteration, records: Sequence[Record] = ()) -> Path:
    """Writes a dump whose manifest or members are altered, with everything else as the writer would write it."""
    path = write(folder / "altered.npz", records or [*some_of_everything(), _last()])
    with zipfile.ZipFile(path) as archive:
        members = {each.filename: archive.read(each) for each in archive.infolist()}
        facts = {each.filename: _facts(each.extra) for each in archive.infolist()}
    document = json.loads(members.pop(MANIFEST))
    alter(members, document)
    members[MANIFEST] = json.dumps(document).encode()
    file = PartialFile(path)
    file.create()
    writer = ZipWriter(file)
    for name, data in members.items():
        payload = Payload(head=data, array=np.empty(0, np.uint8))
        writer.add(name, payload, len(data), facts=facts.get(name, b""))
    file.publish(path, writer.finish(), replace=True)
    file.close()
    return path


def _last() -> Any:
    """Returns a last record, whose member can be removed without moving another."""
    from tests.support.dumps import record

    return record("w", np.zeros(3), family="param")


def _facts(extra: bytes) -> bytes:
    return extra[4:] if extra[:2] == b"GS" else b""


def _value(*shape: int, primitive: str = "div", **stats: Json) -> Entry:
    site = SiteFacts(index=1, primitive=primitive)
    return Entry(family="activation", name="value", shape=shape, dtype="float32", stats=stats, site=site)


def _before_kernels(*values: Entry, rms: dict[str, float] | None = None) -> Manifest:
    """Returns values before two layers with a kernel: what is inside of a model, and no answer."""
    made = {
        "k": ("activation", (4, 8)),
        "w": ("param", (16, 8)),
        "k2": ("activation", (4, 8)),
        "w2": ("param", (16, 8)),
    }
    kernels = (
        Entry(
            family=family,
            name=name,
            shape=shape,
            dtype="float32",
            stats={},
            site=SiteFacts(index=1000, primitive="dot_general"),
        )
        for name, (family, shape) in made.items()
    )
    layers = (
        Layer(path="k", index=1000, params=("w",), outputs=("k",), rms=rms or {}),
        Layer(path="k2", index=2000, params=("w2",), outputs=("k2",), rms={"in": 1.0, "out": 1.0}),
    )
    return Manifest(entries=(*values, *kernels), layers=layers)  # fmt: skip


_DIGITS = f"k[{'9' * 5000}]"

MANIFESTS: dict[str, Manifest] = {
    "softmax of a row without end": _before_kernels(
        _value(2, 2**62, mean=2.0**-62, min=0, max=0.5, size=1, zeros=1, rms=0.1)
    ),
    "units without elements": Manifest(entries=(_value(2, 0, dead=0.9),)),
    "softmax without a size": _before_kernels(_value(2, 4, mean=0.25, min=0.1, max=0.5)),
    "softmax with a square beyond float64": _before_kernels(
        _value(2, 4, mean=0.25, min=0.1, max=0.5, size=8, rms=1e200)
    ),
    "gain with a square beyond float64": _before_kernels(rms={"in": 1.0, "out": 1e200}),
    "gain below zero": _before_kernels(rms={"in": -1.0, "out": 100.0}),
    "bias with a spread of nothing": Manifest(
        entries=tuple(
            Entry(family="param", name=name, shape=shape, dtype="float32", site=SiteFacts(index=0),
                  stats={"size": 8, "std": 0.0, "rms": -1.0, "amax": -1.0})
            for name, shape in (("b", (8,)), ("w", (8, 8)))
        )
    ),
    "index of five thousand digits": Manifest(
        entries=(
            Entry(family="activation", name=_DIGITS, shape=(4, 8), dtype="float32", stats={},
                  site=SiteFacts(index=1, layer=_DIGITS, iteration=(9,))),
            Entry(family="param", name="w", shape=(16, 8), dtype="float32", stats={}, site=SiteFacts(index=1)),
        ),
        layers=(Layer(path=_DIGITS, index=1, params=("w",), outputs=(_DIGITS,)),),
    ),
    "layer around itself": Manifest(
        entries=(),
        layers=(Layer(path="a", index=0, parent="b"), Layer(path="b", index=0, parent="a")),
        saturations=(Saturation(function="softmax", index=1, saturated=1.0, layer="a"),),
    ),
}  # fmt: skip
