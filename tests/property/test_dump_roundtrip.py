"""Names, arrays and all facts about them survive a round trip through a dump."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradscope.dump.manifest.json_text import dumps, loads
from gradscope.dump.reader import open_dump
from gradscope.dump.zip.member_names import key_of_member, member_name
from gradscope.errors import UsageError
from tests.support.dumps import read_all, record, write

#: Parts that file systems, zip readers or NumPy interpret; names contain them often, and lone surrogates, too.
PIECES = st.sampled_from(["/", "..", ".", "%", "%4", "41", ".npy", "\\", "\x00"])
NAMES = st.lists(
    st.text(st.characters(), max_size=5) | PIECES,
    min_size=1,
    max_size=6,
).map("".join)
ARRAYS = hnp.arrays(
    st.one_of(
        hnp.boolean_dtypes(),
        hnp.integer_dtypes(endianness="?"),
        hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
        hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    ),
    hnp.array_shapes(min_dims=0, min_side=0, max_dims=4, max_side=4),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
)


def storable(name: str) -> bool:
    try:
        member_name(f"activation/{name}")
    except UsageError:
        return False
    return bool(name)


@given(NAMES.filter(storable))
def test_a_name_comes_back_from_its_member(name: str) -> None:
    member = member_name(f"activation/{name}")
    assert key_of_member(member) == f"activation/{name}"
    assert not {"", ".", ".."} & set(member.split("/"))
    assert member.isprintable() or not member.isascii()


@given(st.sets(NAMES.filter(storable), max_size=6))
def test_different_names_have_different_members_whichever_way_numpy_asks(names: set[str]) -> None:
    members = {member_name(f"activation/{name}") for name in names}
    assert len(members | {member.removesuffix(".npy") for member in members}) == 2 * len(names)


@given(st.dictionaries(NAMES.filter(storable), ARRAYS, max_size=4), st.dictionaries(NAMES, JSON, max_size=3))
def test_a_dump_comes_back(arrays: dict[str, Any], stats: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "dump.npz")
        write(path, [record(name, array, stats=stats) for name, array in arrays.items()])
        native = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in arrays.items()}
        assert read_all(path) == {
            f"activation/{name}": (str(array.dtype), array.shape, array.tobytes()) for name, array in native.items()
        }
        with open_dump(path) as dump:
            assert all(entry.stats == stats for entry in dump.manifest.entries)
        np.load(path, allow_pickle=False).close()


@given(JSON)
def test_json_comes_back(value: Any) -> None:
    text = dumps(value)
    assert loads(text) == json.loads(text), "strictness changes no value"
    assert dumps(loads(text)) == text
