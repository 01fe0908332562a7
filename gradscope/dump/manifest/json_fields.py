"""Reads typed values out of an untrusted JSON object, field by field; errors name the object and the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias, TypeGuard, TypeVar, cast

from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.record import Json
from gradscope.errors import DumpError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value")
Made = TypeVar("Made", bound="DataclassInstance")

#: Largest integer that is accepted: no file offset, count or size can be larger.
LARGEST: Final = 2**63 - 1

#: The most axes of a shape that is accepted: no array of NumPy has more.
MOST_AXES: Final = 64


@cache
def _field_names(kind: type[DataclassInstance]) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names of a dataclass's fields: of all, and of those without a default."""
    required = (field for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING)
    return frozenset(field.name for field in fields(kind)), frozenset(field.name for field in required)


@dataclass(slots=True)  # not frozen, because that takes three times as long, and a dump has three for each tensor
class Fields:
    """`Fields` read a JSON object that describes a dataclass, with one method for each type of field.

    A field that has a default may be absent. Its method then returns an empty value or zero, or the method's `default`.

    Attributes:
        values: The object.
        what: A description of the object for error messages, such as "layer 3".
    """

    values: dict[str, Json]
    what: str

    @classmethod
    def of(cls, value: Json, what: str, kind: type[DataclassInstance]) -> Fields:
        """Returns the fields of a JSON value that describes a dataclass of type `kind`.

        Raises:
            DumpError: The value is not an object, has a field that `kind` lacks, or lacks one without a default.
        """
        if not isinstance(value, dict):
            raise DumpError(f"{what} in the manifest is not an object")
        known, required = _field_names(kind)
        if not value.keys() <= known:
            raise DumpError(f"{what} in the manifest has unknown fields: {sorted(value.keys() - known)[:3]!r}")
        if not required <= value.keys():
            raise DumpError(f"{what} in the manifest lacks {', '.join(sorted(required - value.keys()))}")
        return cls(value, what)

    def text(self, name: str) -> str:
        """Returns a string."""
        value = self.values.get(name, "")
        return value if isinstance(value, str) else self._refuse(name, "text")

    def optional_text(self, name: str) -> str | None:
        """Returns a string, or None where the field is absent."""
        return self.text(name) if name in self.values else None

    def choice(self, name: str, choices: Sequence[Value], default: Value) -> Value:
        """Returns one of `choices`, or `default` where the field is absent."""
        if name not in self.values:
            return default
        for choice in choices:
            if self.values[name] == choice:
                return choice
        return self._refuse(name, f"one of {', '.join(map(str, choices))}")

    def count(self, name: str) -> int:
        """Returns an integer that is not negative."""
        value = self.values.get(name, 0)
        return value if _is_count(value) else self._refuse(name, "a count")

    def integer(self, name: str) -> int:
        """Returns a required whole number, which may be negative."""
        value = self.values.get(name)
        if type(value) is not int:
            self._refuse(name, "a whole number")
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        """Returns a boolean, or `default` where the field is absent."""
        value = self.values.get(name, default)
        return value if isinstance(value, bool) else self._refuse(name, "true or false")

    def flag(self, name: str) -> bool:
        """Returns a boolean that is false where the field is absent."""
        return self.boolean(name, default=False)

    def optional_number(self, name: str) -> float | None:
        """Returns a number, possibly NaN or infinite; None where the field is absent."""
        return self._number(name, self.values[name]) if name in self.values else None

    def number(self, name: str) -> float:
        """Returns a number, possibly NaN or infinite, of a field that has no default."""
        return self._number(name, self.values[name])

    def counts(self, name: str) -> tuple[int, ...]:
        """Returns a list of integers that are not negative."""
        value = self.values.get(name, [])
        if isinstance(value, list) and all(map(_is_count, value)):
            return tuple(cast("list[int]", value))
        return self._refuse(name, "a list of counts")

    def sizes(self, name: str) -> tuple[int, ...]:
        """Returns a list of integers that are not negative, one for each axis of an array."""
        found = self.counts(name)
        return found if len(found) <= MOST_AXES else self._refuse(name, f"a list of at most {MOST_AXES} counts")

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns a list of strings."""
        value = self.values.get(name, [])
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return tuple(cast("list[str]", value))
        return self._refuse(name, "a list of texts")

    def object(self, name: str) -> dict[str, Json]:
        """Returns an object with any fields."""
        value = self.values.get(name, {})
        return value if isinstance(value, dict) else self._refuse(name, "an object")

    def statistics(self, name: str) -> dict[str, Json]:
        """Returns an object with any fields, in which no integer is larger than a size can be."""
        found = self.object(name)
        for value in found.values():
            # Larger ones cannot be converted to a float, wherever one is divided or compared later.
            if type(value) is int and not -LARGEST <= value <= LARGEST:
                raise DumpError(f"{self.what} in the manifest: {name} has an integer of {len(str(value))} digits")
        return found

    def numbers(self, name: str) -> dict[str, float]:
        """Returns an object whose fields are numbers, possibly NaN or infinite."""
        return {key: self._number(name, value) for key, value in self.object(name).items()}

    def counted(self, name: str) -> dict[str, int]:
        """Returns an object whose fields are integers that are not negative."""
        found = self.object(name)
        return {key: value if _is_count(value) else self._refuse(name, "counts") for key, value in found.items()}

    def floats(self, name: str) -> tuple[float, ...]:
        """Returns a list of numbers, possibly NaN or infinite."""
        return self.each(name, lambda value, _: self._number(name, value))

    def each(self, name: str, make: Callable[[Json, int], Value]) -> tuple[Value, ...]:
        """Returns `make(item, position)` for every item of a list."""
        value = self.values.get(name, [])
        items = value if isinstance(value, list) else self._refuse(name, "a list")
        return tuple(make(item, position) for position, item in enumerate(items))

    def _number(self, name: str, value: Json) -> float:
        try:
            return as_float(value)
        except DumpError as error:
            raise DumpError(f"{self.what} in the manifest: {name}: {error.message}") from error

    def _refuse(self, name: str, expected: str) -> NoReturn:
        found = repr(self.values[name])
        raise DumpError(f"{self.what} in the manifest: {name} should be {expected}, found {found:.60}")


#: What reads each field of a dataclass, by its name.
Readers: TypeAlias = Mapping[str, Callable[[Fields, str], object]]


def read_object(value: Json, what: str, kind: type[Made], readers: Readers) -> Made:
    """Returns the dataclass that a JSON object describes.

    Args:
        value: The object.
        what: As for `Fields`.
        kind: The dataclass. A field that is absent has its default.
        readers: What reads each of its fields.

    Raises:
        DumpError: The value does not describe one.
    """
    if not isinstance(value, dict):
        raise DumpError(f"{what} in the manifest is not an object")
    fields = Fields(value, what)
    try:
        return kind(**{name: readers[name](fields, name) for name in value})
    except (KeyError, TypeError):
        Fields.of(value, what, kind)  # only now, because this takes as long as all the rest
        raise


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= LARGEST
