"""Makes, opens and changes the database of a history that is written, one transaction after the other."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import weakref
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from gradscope.errors import MachineError
from gradscope.history.database.schema import APPLICATION_ID, LOSSES_SINCE, NOISE, STATS, STEPS, TABLES, VERSION
from gradscope.naming import printable

#: Seconds that a write waits for a reader, where there is no write-ahead log.
_LOCK_SECONDS: Final = 60.0

#: How the names of the files end, behind that of the database, which are open as long as that is.
_LASTING: Final = frozenset({"", "-wal", "-shm"})


def opened_to_write(path: Path, facts: Mapping[str, str]) -> sqlite3.Connection:
    """Returns a connection that writes a history; one of an older version gets the tables of this one.

    Args:
        path: The file; it is made where it does not exist.
        facts: Facts about the run that a new history has from its first moment on.

    Raises:
        sqlite3.Error: It cannot be written.
        OSError: It cannot be made.
    """
    if not path.exists():
        _create(path, facts)
    connection = _connected(path)
    connection.execute("PRAGMA journal_mode=WAL")  # where the file system has none, it stays a rollback journal
    connection.execute("PRAGMA synchronous=FULL")
    _renew(connection)
    return connection


class OpenFiles:
    """`OpenFiles` are the descriptors that a database has open in this process, where the system lists them (Linux).

    SQLite takes ten seconds for each transaction that it tries with a descriptor that the program has closed, and would
    write to whatever file has got its number since.

    Args:
        path: The file of the database, which is going to be opened to write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, dict[int, os.stat_result]] = {}
        self._file: os.stat_result | None = None

    def begin(self) -> None:
        """Lists the descriptors of the database, its log and the index of that, which are open from now on."""
        real = os.path.realpath(self._path)
        with suppress(OSError):  # it has been removed
            self._file = self._path.stat()
        _WRITTEN.add(self)
        self._files.clear()
        for each in Path("/proc/self/fd").glob("*"):
            with suppress(OSError):  # what listed them is closed
                name = str(each.readlink())
                kind = name.removeprefix(real)
                if name.startswith(real) and kind in _LASTING and (kind or _is_writable(int(each.name))):
                    self._files.setdefault(kind, {})[int(each.name)] = os.fstat(int(each.name))

    def require(self) -> None:
        """Refuses to use them where the program has closed one, or another file has its number.

        Raises:
            MachineError: It has.
        """
        # Any of a log: the others are those of whoever read it in this process meanwhile.
        if all(any(_is_open(number, known) for number, known in each.items()) for each in self._files.values()):
            return
        shown = printable(str(self._path))
        raise MachineError(f"cannot write to {shown}: its file was closed", hint="close only files of your own")

    def close(self, connection: sqlite3.Connection) -> None:
        """Closes the connection that has them, unless SQLite would use descriptors that are no longer its own."""
        try:
            self.require()
        except MachineError:
            _LOST.append(connection)
        else:
            connection.close()
            _WRITTEN.discard(self)

    def is_of(self, file: os.stat_result) -> bool:
        """Returns whether a file is that of the database, since they are listed."""
        return self._file is not None and os.path.samestat(self._file, file)


def is_written_here(file: os.stat_result) -> bool:
    """Returns whether this process writes a history that is a file.

    Nothing may open and close that file but SQLite: where a process closes any descriptor of a file, it loses all locks
    that it has on it. The next process that has read the history would remove the log that is being written.
    """
    return any(each.is_of(file) for each in list(_WRITTEN))


def _is_writable(descriptor: int) -> bool:
    """Returns whether a descriptor is that of who writes the database: all others only read it."""
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR


def _is_open(descriptor: int, known: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), known)
    except OSError:
        return False


#: Those of databases that this process writes.
_WRITTEN: Final = weakref.WeakSet[OpenFiles]()
#: Connections that are not closed.
_LOST: Final[list[sqlite3.Connection]] = []


def insertion(table: str, columns: int) -> str:
    """Returns the statement that inserts a row of so many columns, in place of the one of its key."""
    return f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * columns)})"  # noqa: S608 - our own names


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[sqlite3.Connection]:
    """Makes what is done with a connection one transaction, of which all or nothing is written."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        # SQLite may have rolled back by itself, as it does where the disk is full.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False)


def _create(path: Path, facts: Mapping[str, str]) -> None:
    """Makes a history without steps, under another name first: one that exists has its tables."""
    made = path.with_name(f".gradscope-{path.name}")
    made.unlink(missing_ok=True)
    units = [(column, unit, meaning) for column, (unit, meaning) in {**STEPS, **STATS, **NOISE}.items()]
    try:
        connection = _connected(made)
        with closing(connection), transaction(connection):
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={VERSION}")
            for statement in TABLES.values():
                connection.execute(statement)
            connection.executemany("INSERT INTO units VALUES (?, ?, ?)", units)
            connection.executemany("INSERT INTO run VALUES (?, ?)", list(facts.items()))
        made.replace(path)
    except BaseException:  # a folder in which it stays is no empty one
        made.unlink(missing_ok=True)
        raise


def _renew(connection: sqlite3.Connection) -> None:
    """Gives a history of an older version the losses of all steps, as far as it knows them."""
    with transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version < LOSSES_SINCE:
            connection.execute(TABLES["losses"])
            connection.execute("INSERT INTO losses SELECT step, loss FROM steps")
            connection.execute(f"PRAGMA user_version={VERSION}")
