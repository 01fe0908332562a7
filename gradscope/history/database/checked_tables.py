"""Reads the tables of a history that anybody may have written.

The file is opened read-only. Its schema has to be the statements of `schema.tables_of`, letter by letter, before a
table is read; extensions are off, every value is checked for its type, and a query ends where it takes more work than
a sound file of that size could cause.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from gradscope.dump.storage.storage_errors import located
from gradscope.errors import DumpError
from gradscope.history.database.untrusted_database import (
    NO_HISTORY,
    WORK_UNIT,
    is_strange,
    opened,
    reading,
    required_version,
)

#: What is said of a table with a value that no sound history has.
_STRANGE: Final = "a value in its table {} is of a wrong type, sign or size"

#: Rows that are objects at the same time.
_ROWS_AT_ONCE: Final = 4_096


class CheckedTables:
    """`CheckedTables` are those of one history, open for reading.

    Args:
        path: The file.

    Attributes:
        version: The version of its schema.

    Raises:
        DumpError: It is damaged or not one that gradscope writes.
        MachineError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._work = 0
        with located(str(path)):
            self._connection, self._most_work = opened(path)
        self._connection.set_progress_handler(self._worked, WORK_UNIT)
        with self.opening():
            self.version = required_version(self._connection)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    @contextmanager
    def opening(self) -> Generator[None]:
        """Closes the file where what is read first is damaged, and says that it is no history.

        Raises:
            DumpError: It is.
        """
        try:
            with reading(self._path, NO_HISTORY):
                yield
        except DumpError:
            self.close()
            raise

    def reading(self) -> AbstractContextManager[None]:
        """Names the file in the error that something in it is damaged, or that it is locked: a `DumpError`."""
        return reading(self._path)

    def columns(self, table: str, names: Sequence[str], which: str, *values: int) -> dict[str, np.ndarray]:
        """Returns columns of numbers, `step` among them, as arrays: NaN where a value is missing.

        Args:
            table: The table.
            names: Its columns.
            which: Which rows, in which order, in SQL.
            *values: The values in that.

        Raises:
            DumpError: The table is damaged.
        """
        with self.reading():
            # Part by part, because objects take five times the memory of an array's numbers; and into an array that
            # grows, because parts take as much as what is made of them.
            numbers = array("d")
            for rows in self._parts(table, names, float, which, *values):
                numbers.frombytes(np.array(rows, np.float64).tobytes())
        columns = dict(zip(names, np.frombuffer(numbers).reshape(-1, len(names)).T, strict=True))
        if np.isnan(columns["step"]).any():
            raise DumpError(f"a row of its table {table} has no step")
        return {**columns, "step": columns["step"].astype(np.int64)}

    def rows(self, table: str, columns: Sequence[str], kind: type, which: str = "", *values: int) -> list[Any]:
        """Returns rows of a table whose columns are all texts, all numbers, or all blobs; the first two may be NULL.

        Args:
            table: The table.
            columns: Its columns.
            kind: `str`, `float` or `bytes`.
            which: Which rows, in which order, in SQL.
            *values: The values in that.

        Raises:
            DumpError: A value is of another type.
            sqlite3.Error: The file is damaged.
        """
        return [*self.each_row(table, columns, kind, which, *values)]

    def each_row(self, table: str, columns: Sequence[str], kind: type, which: str = "", *values: int) -> Iterator[Any]:
        """Yields the rows that `rows` returns, few of which are objects at once. Nothing else may be read meanwhile.

        Raises:
            DumpError: A value is of another type.
            sqlite3.Error: The file is damaged.
        """
        return chain.from_iterable(self._parts(table, columns, kind, which, *values))

    def require_sound(self, table: str, columns: Sequence[str], kind: type) -> None:
        """Refuses a table with a row that `rows` refuses, of which none is made an object.

        Raises:
            DumpError: There is one, or the file is damaged.
        """
        self._work = 0
        wrong = " OR ".join(is_strange(column, kind) for column in columns)
        with self.reading():
            if self._connection.execute(f"SELECT 1 FROM {table} WHERE {wrong} LIMIT 1").fetchone():  # noqa: S608 - our own names
                raise DumpError(_STRANGE.format(table))

    def _parts(self, table: str, columns: Sequence[str], kind: type, which: str, *values: int) -> Generator[list[Any]]:
        """Yields the rows that `rows` returns, some at once."""
        self._work = 0
        # SQLite stores any value in any column. The check is SQLite's, as Python takes a second for a million values.
        wrong = " OR ".join(is_strange(column, kind) for column in columns)
        listed = ", ".join(columns)
        query = f"SELECT {wrong}, {listed} FROM {table} {which}"  # noqa: S608 - our own names
        cursor = self._connection.execute(query, values)
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            if any(row[0] for row in rows):
                raise DumpError(_STRANGE.format(table))
            yield [row[1:] for row in rows]

    def _worked(self) -> bool:
        """Returns whether a query has to end; SQLite calls it."""
        self._work += WORK_UNIT
        return self._work > self._most_work
