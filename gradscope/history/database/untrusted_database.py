"""Opens a database that anybody may have written, so that nothing in it runs and no query of it is endless."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.storage_errors import located, machine_errors
from gradscope.errors import DumpError, MachineError
from gradscope.history.database.schema import ALL_PARAMETERS, APPLICATION_ID, LARGEST, VERSION, tables_of
from gradscope.history.database.settled_copy import INDEX, JOURNAL, LOG, beside, copied
from gradscope.history.database.writable_database import is_written_here
from gradscope.naming import printable

_HEADER: Final = b"SQLite format 3\0"
#: What is read of it, and where the size of a page is in it.
_HEADER_BYTES: Final = 20
_PAGE_SIZE: Final = slice(16, 18)
#: Offset of the byte in the header that is 2 where readers need the write-ahead log.
_READ_VERSION: Final = 19
_WITH_LOG: Final = 2

#: The longest text or blob, in bytes.
_LONGEST: Final = 1 << 20
#: Steps of SQLite's machine for each byte of the file that a query may take, and between two looks at their number. A
#: page that many others point to makes a small file endless.
_WORK_PER_BYTE: Final = 64
WORK_UNIT: Final = 100_000

#: What a damaged file makes SQLite and its texts raise.
_DAMAGED: Final = (sqlite3.Error, UnicodeDecodeError)

#: What is said of a file that SQLite reads nothing of.
NO_HISTORY: Final = "it is not a history that can be read"

#: What SQLite says where it may only read, and would have to undo or to complete what another process began.
_UNSETTLED: Final = frozenset({
    sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY, sqlite3.SQLITE_READONLY_CANTINIT,
    sqlite3.SQLITE_CANTOPEN,
})  # fmt: skip

#: Errors of SQLite for which no file is to blame, and those among them for which one is: a page that is not whole.
_OF_MACHINE: Final = frozenset({
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL,
})  # fmt: skip
_OF_FILE: Final = frozenset({sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS})

#: Columns that have integers only.
_INTEGERS: Final = frozenset(
    {"id", "tensor", "step", "examples", "skipped", "zeros", "nan", "inf", "groups", "group_size"}
)
#: The least of the numbers of tensors, the others being counts.
_LEAST: Final = {"tensor": ALL_PARAMETERS}
#: Columns of magnitudes, which are not negative.
_MAGNITUDES: Final = frozenset(
    {"l2", "rms", "std", "amax", "ratio", "grad_norm", "grad_norm_clipped", "update_norm", "param_norm"}
)

_SHAPE: Final = re.compile(r"\[(?:\d{1,18}(?:, ?\d{1,18}){0,63})?\]")


def opened(path: Path) -> tuple[sqlite3.Connection, int]:
    """Returns a connection that only reads, and the steps of SQLite's machine that a query may take.

    Raises:
        DumpError: It is no file of SQLite, or damaged.
        MachineError: It cannot be read.
    """
    path = Path(os.path.realpath(path))  # beside which SQLite looks for the log
    with machine_errors("read", path), _translated(path, NO_HISTORY):
        kept = beside(path)
        connection = _checked(path, "?mode=ro") if _is_ours(path) else _of_others(path, kept)
        size_bytes = sum(each.st_size for each in (path.stat(), *kept.values()))
    return connection, _WORK_PER_BYTE * size_bytes + 10 * WORK_UNIT


def _is_ours(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return is_written_here(path.stat())
    return False


def _of_others(path: Path, kept: Collection[str]) -> sqlite3.Connection:
    """Returns a connection to a history that this process does not write.

    Args:
        path: The file.
        kept: The ends of the names of the files beside it.
    """
    has_log = _header(path)[_READ_VERSION] == _WITH_LOG
    if LOG in kept:
        is_settled = INDEX in kept  # without one, nobody has it open, and SQLite would make one
        return _checked(path, "?mode=ro") if is_settled else _of_copy(path)
    if has_log and JOURNAL in kept:
        return _of_copy(path)
    # Without a log no process writes to it, and SQLite would make one, which a folder that is read-only refuses.
    return _checked(path, "?mode=ro&immutable=1" if has_log else "?mode=ro")


def _header(path: Path) -> bytes:
    """Returns the first bytes of a file that this process does not write.

    Raises:
        DumpError: It is no file of SQLite, or cut short.
        MachineError: It cannot be read.
    """
    with InputFile(path) as file:
        header = file.read(0, min(file.size_bytes, _HEADER_BYTES))
    if not header.startswith(_HEADER) or len(header) < _HEADER_BYTES:
        raise DumpError("it is not a history: it is no file of SQLite")
    if _is_cut_short(path, header):
        raise DumpError("it is cut short: its last page is not whole")
    return header


def _checked(path: Path, options: str) -> sqlite3.Connection:
    """Returns a connection to a file; to a copy of it where SQLite would have to change it first."""
    connection = _connected(path, options)
    try:
        connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        connection.close()
        if getattr(error, "sqlite_errorcode", 0) not in _UNSETTLED:
            raise
        return _of_copy(path)
    return connection


def _of_copy(path: Path) -> sqlite3.Connection:
    with copied(path) as copy:
        connection = _connected(copy, "")
        connection.execute("PRAGMA schema_version")
    return connection


def _connected(path: Path, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(path))}{options}", uri=True, isolation_level=None, check_same_thread=False
    )
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


@contextmanager
def reading(path: Path, unless: str = "it is damaged") -> Generator[None]:
    """Turns what SQLite raises in a block into an error about a file.

    Args:
        path: The file.
        unless: What the file is, unless another process has locked it.

    Raises:
        DumpError: It cannot be read.
        MachineError: The machine is why.
    """
    with located(str(path)), _translated(path, unless):
        yield


@contextmanager
def _translated(path: Path, unless: str) -> Generator[None]:
    """Turns what SQLite raises into what `reading` does, without the file in front of it."""
    try:
        yield
    except _DAMAGED as error:
        code = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF == sqlite3.SQLITE_BUSY:
            hint = "end that process, or wait for it, and try again"
            raise DumpError("another process has locked it", hint=hint) from error
        if code == sqlite3.SQLITE_READONLY_ROLLBACK:  # since it was opened, when a copy would have been read
            raise DumpError("the process that writes it was killed meanwhile", hint="try again") from error
        _require_of_file(path, error)
        raise DumpError(f"{unless}: {error}") from error


def _require_of_file(path: Path, error: Exception) -> None:
    """Raises where it is not the file for which SQLite fails, but the disk, a permission or memory.

    Raises:
        MachineError: It is one of these.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    # A log that nobody has closed needs an index beside it, which a full or read-only folder refuses.
    unmade = code & 0xFF == sqlite3.SQLITE_CANTOPEN and path.with_name(f"{path.name}-wal").is_file()
    if unmade or (code & 0xFF in _OF_MACHINE and code not in _OF_FILE):
        raise MachineError(
            f"cannot read {printable(str(path))}: {error}",
            hint="check free space and permissions: a run that was killed needs some to be read",
        ) from error


def _is_cut_short(path: Path, header: bytes) -> bool:
    """Returns whether the file ends within a page, while no process writes to it."""
    page = int.from_bytes(header[_PAGE_SIZE], "big")
    page = 1 << 16 if page == 1 else page
    written = any(path.with_name(f"{path.name}{suffix}").exists() for suffix in ("-wal", "-journal"))
    # The size is looked at last: what was being written before has a log or a journal.
    return not written and page > 0 and path.stat().st_size % page != 0


def required_version(connection: sqlite3.Connection) -> int:
    """Returns the version of a history's schema, and refuses a file that has any other schema than a history.

    Raises:
        DumpError: It has.
        sqlite3.Error: It is damaged.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise DumpError("it is not a history: another program wrote it")
    if version > VERSION:
        raise DumpError(f"its version is {version}, and this gradscope reads {VERSION}", hint="upgrade gradscope")
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 64").fetchall()
    expected = {("table", name, name, statement) for name, statement in tables_of(version).items()}
    if set(found) != expected or len(found) != len(expected):
        strange = next((f"the {kind} {printable(str(name))}" for kind, name, table, sql in found
                        if (kind, name, table, sql) not in expected), "a table that is missing")  # fmt: skip
        raise DumpError(f"its schema is not that of a history: {strange}")
    return version


def is_strange(column: str, kind: type) -> str:
    """Returns the condition, in SQL, that a column has a value of a type, sign or size that no sound history has."""
    if kind is str:
        return f"typeof({column}) NOT IN ('text', 'null')"
    if kind is bytes:
        return f"typeof({column}) <> 'blob'"
    if column in _INTEGERS:
        least = _LEAST.get(column, 0)
        return f"typeof({column}) NOT IN ('integer', 'null') OR {column} NOT BETWEEN {least} AND {LARGEST}"
    negative = f" OR {column} < 0" if column in _MAGNITUDES else ""
    return f"typeof({column}) NOT IN ('integer', 'real', 'null'){negative}"


def stored_shape(text: str | None) -> tuple[int, ...] | None:
    """Returns the shape that a text has; None for none.

    Raises:
        DumpError: It has none.
    """
    if text is None:
        return None
    if not _SHAPE.fullmatch(text):
        raise DumpError("a shape in its table tensors is none")
    return tuple(int(size) for size in re.findall(r"\d+", text))
