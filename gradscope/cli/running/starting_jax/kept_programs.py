"""Compiled programs are kept for the next command, and those that it is likely to need are loaded while it traces.

JAX keeps a compiled program in a file (its persistent compilation cache) and finds it by a hash of the lowered program.
So it loads one when tracing is over: for ResNet-50 on two cores, six tenths of a second behind 1.6 s in which one core
is idle (2026-11). XLA loads without the interpreter's lock. What a command loaded when it ran last on the same source
is therefore loaded by a thread as soon as the command compiles anything. JAX still decides by its hash what it needs; a
program that it does not ask for was loaded in vain.

JAX runs whatever program a file has: where it is another program's, that ends in an error of XLA, or computes something
else. So the files that a command writes have a digest of their name and bytes beside them, and a file that has another
one, or none, is removed, as if it had never been there. The program is compiled again.

This needs two functions of JAX's own (`jax._src.compilation_cache`), and two of the options that they receive, which
versions 0.6 to 0.12 have and which nothing promises. Where one is missing, programs are loaded when they are needed.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from gradscope.cli.printing import say
from gradscope.cli.running.starting_jax.program_notes import ProgramNotes
from gradscope.user_cache import cache_folder

#: Seconds from which on loading or compiling a program is worth noting.
_LOADED_SECONDS: Final = 0.1
_COMPILED_SECONDS: Final = 1

#: How JAX ends the name of a program's file, and the length of a digest as text.
_FILE_SUFFIX: Final = "-cache"
_DIGEST_BYTES: Final = 64

#: A compiled program, and the seconds that compiling it took; both None where it is not kept.
_Loaded = tuple[Any, Any]


def keep_programs(config: Any, programs_of: Sequence[object]) -> tuple[str, ...]:
    """Makes JAX keep compiled programs in the user's cache folder, if there is one, and load early what is expected.

    Args:
        config: JAX's configuration.
        programs_of: What the programs depend on: the model's options, the target, and more options.

    Returns:
        Messages about what could not be done and does not affect the result.
    """
    # Later errors of the cache are not reported: the result does not depend on it.
    try:
        folder = cache_folder("compiled")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        return (f"compiled programs are not kept: {error}",)
    if not os.access(folder, os.W_OK):
        return (f"compiled programs are not kept: {folder} is read-only",)
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    config.update("jax_compilation_cache_dir", str(folder))
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    with suppress(ImportError, AttributeError):
        _load_early(import_module("jax._src.compilation_cache"), ProgramFiles(folder), ProgramNotes(programs_of))
    return ()


def load_named_programs(folder: Path) -> None:
    """Makes JAX load, of a cache of the user's own, only programs that have the name of their file.

    What else is there is compiled again: another program fails somewhere in JAX, and a FIFO would be waited for.

    Args:
        folder: The folder of the cache.
    """
    with suppress(ImportError, AttributeError):
        cache: Any = import_module("jax._src.compilation_cache")
        load: Callable[..., _Loaded] = cache.get_executable_and_time

        def loaded(name: str, *rest: Any) -> _Loaded:
            path = folder / f"{name}{_FILE_SUFFIX}"
            if not path.is_file() and path.exists():
                return None, None
            program, seconds = load(name, *rest)
            other = None if program is None else _other_name(program, name)
            if other is None:
                return program, seconds
            say(f"{path} has the program {other}, and is not used: remove it")
            return None, None

        cache.get_executable_and_time = loaded


def _other_name(program: Any, name: str) -> str | None:
    """Returns the name in a compiled program, where its file has that of another one; None where that is not known.

    Args:
        program: The program.
        name: The name of the file: that of the program, and a hash.
    """
    try:
        own = str(program.hlo_modules()[0].name)
    except (AttributeError, IndexError, RuntimeError):  # RuntimeError: the backend of a device does not know
        return None
    return None if _plain(own) == _plain(name.rpartition("-")[0]) else own


def _plain(name: str) -> bytes:
    """Returns the name of a program with what XLA replaces, byte by byte, as those of a letter with an accent."""
    return re.sub(rb"\W", b"_", os.fsencode(name))


def _load_early(cache: Any, files: ProgramFiles, notes: ProgramNotes) -> None:
    """Makes JAX's cache load the noted programs at the first request for any, and notes those that are requested."""
    save: Callable[..., None] = cache.put_executable_and_time
    load: Callable[..., _Loaded] = cache.get_executable_and_time

    def sound(name: str, *rest: Any) -> _Loaded:
        return load(name, *rest) if files.is_sound(name) else (None, None)

    expected = _Expected(sound, notes)

    def saved(name: str, *rest: Any) -> None:
        save(name, *rest)
        files.sign(name)
        if rest[-1] >= _COMPILED_SECONDS:
            expected.note(name)

    cache.get_executable_and_time = expected.load
    cache.put_executable_and_time = saved


class ProgramFiles:
    """`ProgramFiles` are the files of compiled programs in a folder, each of which has a digest beside it.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sign(self, name: str) -> None:
        """Writes the digest of a program's file."""
        path, signature = self._paths(name)
        partial = signature.with_name(f"{signature.name}.{os.getpid()}")
        with suppress(OSError):
            partial.write_text(_digest(path))
            partial.replace(signature)

    def is_sound(self, name: str) -> bool:
        """Returns whether a program's file is as it was written, or there is none; removes any other."""
        path, signature = self._paths(name)
        with suppress(OSError, UnicodeDecodeError):
            # Of a FIFO, nothing is read: it would be waited for.
            known = _is_file(path) and _is_file(signature) and signature.stat().st_size <= _DIGEST_BYTES
            if (known and signature.read_text() == _digest(path)) or not (known or os.path.lexists(path)):
                return True
        with suppress(OSError):  # a folder stays, and what JAX would write there is not kept
            path.unlink()
        return False

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self._folder / f"{name}{_FILE_SUFFIX}", self._folder / f"{name}-digest"


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _digest(path: Path) -> str:
    """Returns a digest of a file's name and bytes."""
    found = hashlib.blake2b(path.name.encode(), digest_size=_DIGEST_BYTES // 2)
    found.update(path.read_bytes())
    return found.hexdigest()


class _Expected:
    """`_Expected` programs are loaded in a thread, before they are requested.

    Args:
        load: JAX's function: from a program's name, its options, the backend and its devices to the program.
        notes: Which programs are expected.
    """

    def __init__(self, load: Callable[..., _Loaded], notes: ProgramNotes) -> None:
        self._load = load
        self._notes = notes
        self._noted = notes.read()
        self._options: dict[str, bytes] = {}
        self._needed: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._loading: dict[str, Future[_Loaded]] = {}
        self._place: tuple[Any, ...] = ()

    def load(self, name: str, options: Any, *place: Any) -> _Loaded:
        """Returns a program that JAX requests: an expected one, or one that is loaded now.

        Args:
            name: What JAX calls it: a hash of the lowered program, its options and the devices.
            options: The options for which it was compiled.
            place: The backend and the devices. Programs are expected on those of the first request.
        """
        try:
            stated, parsed = options.SerializeAsString(), type(options).ParseFromString
        except AttributeError:  # of another JAX
            return self._load(name, options, *place)
        with self._lock:
            if not self._place:
                self._place = place
                self._begin(parsed)
            if place == self._place:  # XLA ends the process where a program is loaded on fewer devices than its own
                self._options[name] = stated
            loading = self._loading.pop(name, None)
        if loading is not None and stated == self._noted[name] and place == self._place:
            self.note(name)
            if loading.exception() is None:  # which is raised again, to JAX
                return loading.result()
        begin = time.perf_counter()
        found = self._load(name, options, *place)
        if found[0] is not None and time.perf_counter() - begin >= _LOADED_SECONDS:
            self.note(name)
        return found

    def note(self, name: str) -> None:
        """Notes that this command needs a program, if it is one for the devices of the first request."""
        with self._lock:
            if name not in self._options:
                return
            self._needed[name] = self._options[name]
            if not self._needed.items() <= self._noted.items():
                self._notes.write(self._needed)

    def _begin(self, parsed: Callable[[bytes], Any]) -> None:
        def load(name: str) -> _Loaded:
            return self._load(name, parsed(self._noted[name]), *self._place)

        pool = ThreadPoolExecutor(1, thread_name_prefix="gradscope-programs")
        self._loading = {each: pool.submit(load, each) for each in self._noted}
        pool.shutdown(wait=False)
