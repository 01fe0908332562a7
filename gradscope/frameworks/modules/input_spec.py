"""An input spec describes an input by the text of `--input`, `[NAME=]DTYPE[SHAPE][:VALUES]`.

    float32[8,224,224,3]                  standard normal
    tokens=int32[8,128]:0..30522          uniform; an integer stays below the upper end
    image=float32[8,28,28,1]:normal(0.1,0.3)
    mask=int32[8,128]:1                   the same number everywhere
    labels=float32[8,5]:one-hot           one 1 in each row, or binary: 0 or 1 everywhere

Without VALUES, floating-point inputs are standard normal, integers and booleans 0 or 1 with equal chances: valid for
any embedding and any mask. A name with a slash is a leaf of a dictionary: `graph/nodes`.

Sharp edge: the leading axis is the number of examples, and `--batch-size` changes it in every input that shares it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import ml_dtypes
import numpy as np

from gradscope.arrays.dtypes import as_numpy_dtype, is_complex, is_floating, storable
from gradscope.errors import UsageError

#: The distributions of an input's values.
Kind: TypeAlias = Literal["normal", "uniform", "constant", "binary", "one-hot"]

_FORM: Final = "write [NAME=]DTYPE[SHAPE][:VALUES], such as float32[8,224,224,3] or tokens=int32[8,128]:0..30522"
_SPEC: Final = re.compile(r"(?:(?P<name>[^=\[\]]+)=)?(?P<dtype>\w+)\[(?P<shape>[\d,\s]*)\](?::(?P<values>.+))?")
_NUMBER: Final = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NUMBERS: Final[dict[Kind, tuple[float, ...]]] = {"normal": (0.0, 1.0)}
_VALUES: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("normal", re.compile(r"normal")),
    ("normal", re.compile(rf"normal\(\s*({_NUMBER})\s*,\s*({_NUMBER})\s*\)")),
    ("uniform", re.compile(rf"uniform\(\s*({_NUMBER})\s*,\s*({_NUMBER})\s*\)")),
    ("uniform", re.compile(rf"({_NUMBER}?)\.\.({_NUMBER})")),
    ("constant", re.compile(rf"({_NUMBER})")),
    ("binary", re.compile("binary")),
    ("one-hot", re.compile("one-hot")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputValues:
    """`InputValues` are the distribution of an input's values.

    Attributes:
        kind: `normal` (mean, standard deviation), `uniform` (lower end, upper end), `constant` (the number), `binary`
            (0 or 1) or `one-hot` (a 1 among zeros along the last axis).
        numbers: Its parameters.
    """

    kind: Kind
    numbers: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """An `InputSpec` describes one input.

    Attributes:
        name: The parameter to which it is passed; None where that follows from its position.
        dtype: Name of its dtype.
        shape: Its shape, examples first.
        values: The distribution of its values.
    """

    name: str | None = None
    dtype: str
    shape: tuple[int, ...]
    values: InputValues

    @classmethod
    def of(cls, dtype: str, shape: tuple[int, ...], name: str | None = None) -> InputSpec:
        """Returns a spec with the default values of its dtype."""
        return cls(name=name, dtype=dtype, shape=shape, values=_default_values(dtype))

    def __str__(self) -> str:
        prefix = "" if self.name is None else f"{self.name}="
        return f"{prefix}{self.dtype}[{','.join(map(str, self.shape))}]"


def parse_input(text: str) -> InputSpec:
    """Returns the spec that a text describes.

    Raises:
        UsageError: It is not of the form of a spec, or there is no such dtype.
    """
    found = _SPEC.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} does not describe an input", hint=_FORM)
    dtype, shape = found["dtype"], tuple(int(size) for size in found["shape"].split(",") if size.strip())
    if not storable(dtype):
        raise UsageError(f"{text!r}: there is no dtype {dtype!r}", hint="name it in full, such as float32 or int32")
    plain = InputSpec.of(dtype, shape, found["name"])
    return plain if found["values"] is None else replace(plain, values=_values(text, found["values"], dtype))


def with_batch_size(specs: Sequence[InputSpec], size: int | None) -> tuple[InputSpec, ...]:
    """Returns the specs for another number of examples; None keeps it."""
    count = examples(specs)
    if size is None or count is None:
        return tuple(specs)
    return tuple(replace(spec, shape=(size, *spec.shape[1:])) if spec.shape[:1] == (count,) else spec for spec in specs)


def examples(specs: Sequence[InputSpec]) -> int | None:
    """Returns the number of examples: the leading axis of the first spec that has one."""
    return next((spec.shape[0] for spec in specs if spec.shape), None)


def _default_values(dtype: str) -> InputValues:
    if is_floating(dtype) or is_complex(dtype):
        return InputValues(kind="normal", numbers=(0.0, 1.0))
    return InputValues(kind="uniform", numbers=(0, 2))


def _values(text: str, written: str, dtype: str) -> InputValues:
    for kind, form in _VALUES:
        found = form.fullmatch(written.strip())
        if found is not None:
            numbers = tuple(float(number or 0) for number in found.groups()) or _NUMBERS.get(kind, ())
            return _checked(text, InputValues(kind=kind, numbers=numbers), dtype)
    raise UsageError(
        f"{text!r} does not describe the input's values: {written!r}",
        hint="write a range 0..255, normal(MEAN,DEVIATION), uniform(LOW,HIGH), binary, one-hot or one number",
    )


def _checked(text: str, values: InputValues, dtype: str) -> InputValues:
    """Returns the values; raises `UsageError` where the dtype cannot represent them."""
    discrete = not (is_floating(dtype) or is_complex(dtype))
    if discrete and values.kind == "normal":
        raise UsageError(f"{text!r}: {dtype} has no normal distribution", hint="write a range, such as 0..255")
    if values.kind == "uniform" and is_complex(dtype):
        raise UsageError(f"{text!r}: complex numbers have no range", hint="write normal(MEAN,DEVIATION) or one number")
    if values.kind == "uniform" and values.numbers[0] >= values.numbers[1]:
        raise UsageError(f"{text!r}: the range is empty", hint="write the lower end first")
    if discrete and not _representable(values, as_numpy_dtype(dtype)):
        raise UsageError(
            f"{text!r}: {dtype} cannot represent these values", hint="use whole numbers that fit the dtype"
        )
    return values


def _representable(values: InputValues, dtype: np.dtype[Any]) -> bool:
    if not all(number.is_integer() for number in values.numbers):
        return False
    low, high = (0, 1) if dtype == np.bool_ else (ml_dtypes.iinfo(dtype).min, ml_dtypes.iinfo(dtype).max)
    if not values.numbers:
        return True
    last = values.numbers[-1] - (values.kind == "uniform")
    return low <= values.numbers[0] and last <= high
