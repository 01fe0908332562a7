"""Source lines are where an equation was traced, in files of the model or of the libraries that it uses."""

from __future__ import annotations

import functools
import inspect
import linecache
import site
import sysconfig
from collections.abc import Callable, Iterable
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import CodeType
from typing import Any, Final

import jax

from gradscope.tracing.jaxpr.jaxcompat import Equation

#: The libraries whose modules are called.
_FRAMEWORKS: Final = ("flax", "equinox", "haiku", "keras")

#: Packages whose frames are never "the user's line": JAX, and the libraries that models are written with.
_LIBRARIES: Final = (
    *("jax", "jaxlib", *_FRAMEWORKS, "optax", "gradscope"),
    *("diffrax", "jaxopt", "lineax", "optimistix"),
)

#: The folder of JAX that has the rules of its operations.
_RULES: Final = "/lax/"

#: Folders of JAX whose functions are made of many operations.
_FUNCTIONS: Final = ("/nn/", "/ops/", "/scipy/")

#: Lines before and after a source line, and the most characters of one, that `lines_around` returns.
_LINES_AROUND: Final = 3
_LONGEST_LINE: Final = 200

_PACKAGE: Final = str(Path(__file__).resolve().parents[2]) + "/"
#: Calls the user's loss where a framework's modules may be among its arguments.
_CALLS_LOSSES: Final = f"{_PACKAGE}frameworks/functions_of_modules.py"


@cache
def is_library_file(file_name: str) -> bool:
    """Returns whether a file belongs to JAX, a modelling library, the standard library or gradscope."""
    if file_name.startswith("<"):
        return True
    if file_name.startswith(_PACKAGE):
        return not file_name.startswith(_PACKAGE + "models/")  # the zoo, where an installed wheel keeps it
    return file_name.startswith(_library_folders())


@cache
def is_file_of(library: str, file_name: str) -> bool:
    """Returns whether a file belongs to one library."""
    return file_name.startswith(tuple(f"{folder}/{library}/" for folder in _package_folders()))


@cache
def _library_folders() -> tuple[str, ...]:
    libraries = [f"{folder}/{name}/" for folder in _package_folders() for name in _LIBRARIES]
    standard = [sysconfig.get_path("stdlib") + f"/{name}" for name in ("contextlib.py", "functools.py", "threading.py")]
    return (*libraries, *standard)


@cache
def _package_folders() -> frozenset[str]:
    # JAX's own folder too: a .pth file may put it, and what is installed with it, on the path from anywhere.
    beside_jax = str(Path(jax.__file__).resolve().parents[1])
    return frozenset(
        {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), beside_jax}
    )


def source_of(equation: Equation) -> str | None:
    """Returns `file:line` of the user's code that traced an equation, the file without its folder; None if unknown."""
    frame = user_frame(equation)
    return None if frame is None else f"{Path(frame[0]).name}:{frame[1]}"


def definition_of(function: Callable[..., Any]) -> str | None:
    """Returns `file:line` of where the user's code defines a function; None where that is in a library, or unknown."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    if not isinstance(code, CodeType) or is_library_file(code.co_filename):
        return None
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def lines_around(equations: Iterable[Equation]) -> dict[str, tuple[int, list[str]]]:
    """Returns the text of the source lines of equations: by `source_of`, the number of the first line, and the lines.

    Args:
        equations: The equations; those whose file cannot be read have no lines.
    """
    found: dict[str, tuple[int, list[str]]] = {}
    for file_name, line, _ in filter(None, map(user_frame, equations)):
        label = f"{Path(file_name).name}:{line}"
        if label not in found:
            first = max(line - _LINES_AROUND, 1)
            lines = linecache.getlines(file_name)[first - 1 : line + _LINES_AROUND]
            found[label] = first, [each.rstrip()[:_LONGEST_LINE] for each in lines]
    return {label: text for label, text in found.items() if text[1]}


def user_frame(equation: Equation) -> tuple[str, int, str] | None:
    """Returns file, line and function of the user's innermost frame; None where all frames are in libraries."""
    traceback = equation.source_info.traceback
    if traceback is None:
        return None
    for frame in traceback.frames:
        if not is_library_file(frame.file_name):
            return frame.file_name, frame.line_num, frame.function_name
    return None


def function_inside(equations: Iterable[Equation], function: str, file_name: str) -> tuple[str, int, str] | None:
    """Returns file, line and function of the user's frame that a library's function calls; None where it calls none.

    Where the library decorates a function of another one, as Equinox does those of Optimistix, it is that function.

    Args:
        equations: Equations that were traced inside the library's function.
        function: Its name.
        file_name: Its file.
    """
    of_library: Any = None
    for equation in equations:
        traceback = equation.source_info.traceback
        frames = [] if traceback is None else traceback.frames
        around = [
            at for at, each in enumerate(frames)
            if each.file_name == file_name and each.function_name.rpartition(".")[2] == function
        ]  # fmt: skip
        for frame in reversed(frames[: around[0]]) if around else ():
            if not is_library_file(frame.file_name):
                return _called(frame)
            if of_library is None and frame.file_name != file_name and not is_file_of("jax", frame.file_name):
                of_library = frame
    return None if of_library is None else _called(of_library)


def _called(frame: Any) -> tuple[str, int, str]:
    return frame.file_name, frame.line_num, frame.function_name.rpartition(".")[2]


def library_function(equation: Equation) -> str | None:
    """Returns the function of a modelling library, or of `jax.nn` or `jax.scipy`, that traced an equation, if any."""
    traceback, found = equation.source_info.traceback, None
    for frame in [] if traceback is None else traceback.frames:
        if found is None and (
            any(each in frame.file_name for each in _FUNCTIONS) or not is_file_of("jax", frame.file_name)
        ):
            found = frame
        if found is not None and frame.file_name == found.file_name:
            found = frame  # of several functions of one file, the one that was called
        if not is_library_file(frame.file_name):
            break
    return None if found is None or not is_library_file(found.file_name) else found.function_name


def is_traced_by_rule(equation: Equation, function: str) -> bool:
    """Returns whether a rule of JAX itself calls the function that traces such an equation.

    That of `vmap` for `cond` keeps constant what a branch reads that is not taken, whose results are thrown away. In a
    loop, the equation has the frames of the `cond`, and none of the function.

    Args:
        equation: The equation.
        function: The name of the function.
    """
    frames = [] if equation.source_info.traceback is None else list(equation.source_info.traceback.frames)
    at = next((number for number, frame in enumerate(frames) if frame.function_name == function), None)
    if at is None or at + 1 == len(frames):
        return bool(frames) and at is None
    caller = frames[at + 1]
    return caller.function_name.startswith("_") and is_file_of("jax", caller.file_name) and _RULES in caller.file_name


def is_in_module(equation: Equation) -> bool:
    """Returns whether a framework, or our adapter of one, calls a module that traced an equation.

    What calls the user's own loss calls no module: only frames inside that one count.
    """
    traceback = equation.source_info.traceback
    files = (frame.file_name for frame in ([] if traceback is None else traceback.frames))
    return any(map(_is_of_framework, takewhile(_CALLS_LOSSES.__ne__, files)))


@cache
def _is_of_framework(file_name: str) -> bool:
    return file_name.startswith(f"{_PACKAGE}frameworks/") or any(is_file_of(each, file_name) for each in _FRAMEWORKS)


def is_lifted(equation: Equation) -> bool:
    """Returns whether a lifting transformation of Flax (`nn.scan`, `nnx.scan`) runs an equation for a module.

    The caller of JAX decides, which is the innermost frame outside JAX.
    """
    traceback = equation.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    caller = next((frame.file_name for frame in frames if not is_file_of("jax", frame.file_name)), "")
    return is_file_of("flax", caller)
