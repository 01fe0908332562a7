"""The name of a member is the key of its tensor, with ambiguous characters escaped."""

from __future__ import annotations

import pytest

from gradscope.dump.zip.member_names import LIMIT_BYTES, key_of_member, member_name
from gradscope.errors import UsageError


@pytest.mark.parametrize(
    "name", ["conv", "blocks[3]/attn", "embed#2", "lstm.1", "ünï/中", "50% off", "a b", "a.npy.gz", "...x"]
)
def test_a_harmless_name_stays_readable(name: str) -> None:
    assert member_name(f"activation/{name}") == f"activation/{name}.npy"


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("a\x00b", "a%00b"),
        ("a\x1b[2J", "a%1B[2J"),
        ("a\n", "a%0A"),
        ("\x85", "%C2%85"),
        ("C:\\evil", "C:%5Cevil"),
        ("../../evil", "%2E%2E/%2E%2E/evil"),
        ("a/./b", "a/%2E/b"),
        ("/etc", "%2Fetc"),
        ("a//b", "a/%2Fb"),
        ("a/", "a%2F"),
        ("a.npy", "a%2Enpy"),
        (".npy", "%2Enpy"),
        ("%41", "%2541"),
        ("\ud800", "%ED%A0%80"),
    ],
)
def test_what_is_unsafe_is_escaped_and_comes_back(name: str, escaped: str) -> None:
    member = member_name(f"activation/{name}")
    assert member == f"activation/{escaped}.npy"
    assert key_of_member(member) == f"activation/{name}"


def test_a_name_that_is_too_long_is_refused() -> None:
    longest = "a" * (LIMIT_BYTES - len(".npy"))
    assert len(member_name(longest)) == LIMIT_BYTES
    with pytest.raises(UsageError, match="1001 bytes"):
        member_name(longest + "a")


def test_the_length_is_that_of_the_bytes() -> None:
    with pytest.raises(UsageError, match="bytes"):
        member_name("ü" * 500)


def test_a_letter_spelt_as_two_surrogates_is_refused() -> None:
    with pytest.raises(UsageError, match="surrogate"):
        member_name("\ud834\udd1e")
