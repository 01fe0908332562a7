"""Importing loads the file, module or zoo model that a target names.

A file is loaded under a name of its own (`gradscope_model_...`), registered so that its classes can be pickled. The
folder of a user's file is put first on `sys.path` and stays there, as if Python had run the file, so that a function
may import its neighbours late. The working directory is put there for module targets only. What gradscope and its
libraries import is not looked for there: a file `csv.py` beside the model is one for the model alone.

Sharp edge: importing runs the file with the user's rights. There is no sandbox.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Final, NoReturn

from gradscope.dump.storage.storage_errors import permitted
from gradscope.errors import ModelError, UsageError
from gradscope.frameworks.extras import install_hint
from gradscope.naming.selecting.nearest_names import did_you_mean
from gradscope.naming.wording import some_of
from gradscope.tracing.jaxpr.source_lines import is_library_file
from gradscope.tracing.loading.importing.replaced_functions import remember_functions
from gradscope.tracing.loading.target import Target, near_files, python_files
from gradscope.tracing.loading.zoo import zoo_file
from gradscope.tracing.user_frames import is_installed, user_code

#: How the names of files begin that are on the stack while something is imported.
_IMPORTING: Final = ("<frozen importlib", importlib.__file__.removesuffix("__init__.py"), __file__)

#: What is installed with Python and with gradscope.
_INSTALLED: Final = sys.stdlib_module_names | {
    *("jax", "jaxlib", "ml_dtypes", "numpy", "opt_einsum", "optax", "pygments", "rich", "scipy", "typer"),
}

#: The package whose modules stay loaded.
_OURS: Final = __name__.partition(".")[0]

#: Seconds in which a thread that does nothing has to come to its end.
_THREAD_SECONDS: Final = 10.0


def import_location(target: Target) -> ModuleType:
    """Returns the module that a target's location names.

    Raises:
        UsageError: There is no such file or module.
        ModelError: It does not import.
    """
    remember_functions()
    os.environ.setdefault("KERAS_BACKEND", "jax")  # its default is TensorFlow, whose models have no jaxpr
    with _keeping_gradscope():
        module = _module_at(target)
    _require_threads()
    return module


def _module_at(target: Target) -> ModuleType:
    if target.rule == "module":
        return _imported(target.location)
    if target.rule == "zoo":
        return _loaded(zoo_file(target.location))
    location = Path(target.location)
    with permitted(location):
        path = _existing_file(location).resolve()
        path.open("rb").close()  # Python would say of a file without permission that the model failed
    _put_first(path.parent)
    return _loaded(path)


def _imported(name: str) -> ModuleType:
    _put_first(Path.cwd())
    importlib.invalidate_caches()  # a file written since Python last looked is found, too
    with user_code(f"importing {name}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A module that is missing in the module's own imports is the model's failure, not the target's.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            hint = install_hint(error.name) or "run from the folder that contains it, or install its package"
            raise UsageError(f"there is no module {error.name!r}", hint=hint) from error


def _hint_on_neighbours(path: Path) -> str:
    """Returns which file beside one that does not exist may be meant, or how many there are."""
    # Not `Path` by `Path`, which takes half a second for 30,000 files.
    folder, names = str(path).removesuffix(path.name), python_files(path.parent)
    if near := near_files(path.name, names):
        return did_you_mean(f"{folder}{name}" for name in near)
    where = "this folder" if path.parent == Path() else path.parent
    return f"{where} has {some_of(names) if names else 'no Python file'}"


def _existing_file(path: Path) -> Path:
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint=f"name a file in it, such as {path / 'model.py'}")
    if not path.exists():
        raise UsageError(f"there is no file {path}", hint=_hint_on_neighbours(path))
    if path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file", hint="name a .py file; a dump is shown by 'gradscope show'")
    if not path.is_file():
        raise UsageError(f"{path} is not a regular file", hint="a FIFO or a device cannot be imported: name a file")
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the path of {path} is not UTF-8, and JAX takes no source of such a path", hint="rename it"
        ) from error
    return path


class _Uncached(SourceFileLoader):
    """`_Uncached` compiles a file anew each time, without a `__pycache__`."""

    # So an edit within the same second is seen.

    def path_stats(self, path: str) -> NoReturn:
        """Raises `OSError`, by which a loader declares that it keeps no compiled files."""
        raise OSError(path)


def _loaded(path: Path) -> ModuleType:
    """Runs a file as a module with a name that no other file has."""
    name = f"gradscope_model_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    loader = _Uncached(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None, "a loader that knows its file makes a spec"
    module = module_from_spec(spec)
    sys.modules[name] = module
    with user_code(f"importing {path.name}"):
        loader.exec_module(module)
    return module


def _put_first(folder: Path) -> None:
    if str(folder) not in sys.path[:1]:
        sys.path.insert(0, str(folder))
    _FINDER.folders.add(str(folder))
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


class _BesideModel:
    """`_BesideModel` finds what a library imports elsewhere, where a file of the same name is beside the model.

    Attributes:
        folders: The folders of models.
    """

    def __init__(self) -> None:
        self.folders: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002 - Python passes it
        """Returns where Python is to load a module from; None for where it would find it by itself."""
        if path is not None or name not in _INSTALLED or not self._has(name) or _is_imported_by_model():
            return None
        return PathFinder.find_spec(name, [each for each in sys.path if each not in self.folders])

    def _has(self, name: str) -> bool:
        return any(Path(each, name + end).exists() for each in self.folders for end in ("", ".py"))


def _is_imported_by_model() -> bool:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_IMPORTING):
        frame = frame.f_back
    file = "" if frame is None else frame.f_code.co_filename
    return not (is_library_file(file) or is_installed(file))


_FINDER: Final = _BesideModel()


@contextmanager
def _keeping_gradscope() -> Generator[None]:
    """Puts back what a file removes of gradscope from the modules that Python knows: it would be loaded once more."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == _OURS}
    try:
        yield
    finally:
        sys.modules.update(before)


def _require_threads() -> None:
    """Refuses a trace function that ends every thread before that has done anything: its result would never come.

    Raises:
        ModelError: There is one.
    """
    if threading.gettrace() is None and threading.getprofile() is None:
        return
    begun, reason = threading.Event(), "it does not come to an end"

    def tell(ended: threading.ExceptHookArgs) -> None:
        nonlocal reason
        reason = f"{ended.exc_type.__name__}: {ended.exc_value}"

    hook, threading.excepthook = threading.excepthook, tell
    try:
        thread = threading.Thread(target=begun.set, daemon=True)
        thread.start()
        thread.join(_THREAD_SECONDS)
    finally:
        threading.excepthook = hook
    if not begun.is_set():
        raise ModelError(
            f"the model has Python trace threads by a function that lets none of them begin: {reason}",
            hint="leave out threading.settrace and threading.setprofile, or let the function return",
        )
