"""Numbers in names count the parts of a model: the 3 of `block3` and of `block[3]`."""

from __future__ import annotations

from typing import Final

#: The most digits of a number.
_MOST_DIGITS: Final = 18

#: The pattern of a number. A longer run of digits is text, as a hash is: no model has so many parts, and Python refuses
#: to convert those of over 4,300 digits, which a name from a file may have.
NUMBER: Final = rf"(?<!\d)\d{{1,{_MOST_DIGITS}}}(?!\d)"


def number_of(text: str) -> int | None:
    """Returns the number that a text is; None where it is anything else, or a longer run of digits."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
