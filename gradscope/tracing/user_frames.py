"""Errors raised by the user's code state the lines of the user's files where they were raised.

Whatever runs the user's Python, or JAX on its behalf, runs inside `user_code`. An exception that escapes becomes a
`ModelError` with the frames of the user's files, or a `MachineError` where memory ran out. An error whose innermost
frame is in gradscope is a bug of gradscope and passes unchanged. An interrupt passes unchanged, too.

Sharp edges of JAX's tracebacks (0.6 to 0.12):

- JAX removes its own frames by default, so that its errors seem to come from the caller, which may be gradscope.
  Therefore `jax_traceback_filtering` is off inside `user_code`, in all threads.
- An error that a transformation finds after the user's function has returned, in a backward pass for example, has the
  frames of its operation on a *cause* of its own class.
- An error in a host callback arrives as text, traceback included.
- A function with a derivative rule of its own that uses a traced value without taking it as an argument, as implicit
  differentiation does where the function that it solves reads a value from around it, works where JAX differentiates
  before it stages, and fails here with errors that speak of something else.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from traceback import FrameSummary, StackSummary
from types import ModuleType, TracebackType
from typing import Any, Final

import jax

from gradscope.errors import GradscopeError, MachineError, ModelError
from gradscope.frameworks.extras import install_hint
from gradscope.tracing.jaxpr.source_lines import is_library_file

#: Lines of an error's text and frames of its stack that are shown; `--traceback` shows all.
_MOST_LINES: Final = 5
_MOST_FRAMES: Final = 8

#: The class of the causes that carry an operation's frames; it lives in a private module and is known by its name.
_JAX_STACK: Final = "JaxStackTraceBeforeTransformation"

#: The flag by which JAX removes its own frames.
_FILTERING: Final = "jax_traceback_filtering"

#: Classes and texts of the errors of a derivative rule that uses a traced value from around its function.
_CLOSED_OVER: Final = (
    ("CustomVJPException", "closed-over value"),
    ("TypeError", "Computation compiled for "),
    ("TypeError", "No constant handler for type: <class 'jax._src.interpreters.partial_eval.DynamicJaxprTracer'>"),
)
_CLOSED_OVER_HINT: Final = (
    "pass every array that the function uses as an argument: f(x, w, y) and run(start, w, y), where f now reads w or y "
    "from around it"
)

#: What JAX's runtime says where another process of a distributed run is gone.
_LOST_PROCESS: Final = re.compile(r"Gloo|[Cc]oordination ?[Ss]ervice|heartbeat|[Cc]onnection (reset|closed) by peer")

#: Errors of the system because of which the compiler cannot write the files that it hands to the one of a GPU.
_DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

#: How the files begin in which JAX calls the classes of pytrees that a model registers.
_TREES: Final = "tree_util"

_EMBEDDED_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)+")
_EMBEDDED_FRAME: Final = re.compile(r'^[ \t]+File "([^"\n]+)", line (\d+), in (.+)$', re.MULTILINE)

_PACKAGE: Final = str(Path(__file__).resolve().parents[1]) + "/"

#: A program asks for the value of what it computes, to branch or to index by it.
_CONCRETE: Final = (
    jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError,
)  # fmt: skip

_HINTS: Final = (
    (SystemExit, "", "put what runs as a script under if __name__ == '__main__':"),
    (RuntimeError, "has been deleted", "a function donates its inputs: call the one that does not"),
    (RecursionError, "", "a function calls itself without end"),
    (TypeError, "so the dtypes do not match", "begin the loop in the dtype that its body returns, as by zeros_like"),
    (_CONCRETE, "", "gradscope traces the loss, as jax.jit does, and jax.jit of it fails in the same way"),
)


def error_text(error: BaseException) -> str:
    """Returns the text of an error of any class, also of one whose `__str__` raises."""
    return str(traceback.TracebackException(type(error), error, None, lookup_lines=False))


class user_code:  # noqa: N801 - a context manager that reads as a clause
    """Runs the user's code, and turns its exceptions into expected errors that state where they were raised.

    Args:
        doing: What is being done, as the message begins: `loss of mymodel`.
        rules: Returns the functions with derivative rules of their own that may have failed, where no stack shows it.

    Raises:
        ModelError: The code raised, or tried to end the process.
        MachineError: Memory or the disk ran out, or another process of a distributed run is gone.
    """

    def __init__(self, doing: str, rules: Callable[[], Sequence[str]] = tuple) -> None:
        self._doing = doing
        self._rules = rules
        self._filtering = ""

    def __enter__(self) -> None:
        """Has JAX keep its frames, which tell its errors from ours."""
        config: Any = jax.config  # its flags are not typed
        self._filtering = config.jax_traceback_filtering
        config.update(_FILTERING, "off")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        jax.config.update(_FILTERING, self._filtering)
        if error is None or isinstance(error, KeyboardInterrupt | GradscopeError):
            return
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in error_text(error):
            raise MachineError(
                f"{self._doing}: out of memory: {_text(error)}",
                hint="use a smaller --batch-size, --select fewer layers, or --stats-only",
            ) from error
        if isinstance(error, jax.errors.JaxRuntimeError) and _is_of_disk(error_text(error)):
            raise MachineError(
                f"{self._doing}: {_text(error)}", hint="the compiler writes files below TMPDIR: make room there"
            ) from error
        # Where a collective fails while it is dispatched, JAX raises a ValueError.
        if isinstance(error, jax.errors.JaxRuntimeError | ValueError) and _LOST_PROCESS.search(error_text(error)):
            raise MachineError(
                f"{self._doing}: another process of the run has ended or does not answer: {_text(error)}",
                hint="what that process wrote says why; start all processes again",
            ) from error
        if not _is_ours(error):
            raise _model_error(self._doing, error, self._rules) from error


def failure_of_user(error: BaseException) -> ModelError | None:
    """Returns an error that the user's code raised where nothing called it, as a signal handler; None for another."""
    frames = [frame.filename for frame in _frames(error)]
    ours = list(map(_is_of_us, frames))
    behind_ours = frames[len(frames) - [*reversed(ours), True].index(True) :]
    if all(is_library_file(file) or is_installed(file) for file in behind_ours):
        return None
    in_tree = any(Path(file).name.startswith(_TREES) for file in behind_ours if is_library_file(file))
    where = "where its variables or its batch are taken apart" if in_tree else "as in a signal handler"
    return _model_error(f"the model failed outside of its functions, {where}", error, tuple)


def _is_of_disk(text: str) -> bool:
    """Returns whether JAX's runtime cannot write a file, by the text of its error; a callback is the user's."""
    return "allback" not in text and any(os.strerror(number) in text for number in _DISK_ERRORS)


def _model_error(doing: str, error: BaseException, rules: Callable[[], Sequence[str]]) -> ModelError:
    kind = type(error).__name__
    text = _text(error)
    if any(kind == name and part in text for name, part in _CLOSED_OVER):
        owner = _rule_owner(error) or " or ".join(rules()) or "a function"
        return ModelError(
            f"{doing}: the derivative rule of {owner} uses a value that it does not take as "
            "an argument, which JAX cannot differentiate once the loss is staged",
            hint=_CLOSED_OVER_HINT,
            user_frames=user_frames(error),
        )
    return ModelError(
        f"{doing}: {kind}: {text}" if text else f"{doing}: {kind}",
        hint=_hint(error, text),
        user_frames=user_frames(error),
    )


def _hint(error: BaseException, text: str) -> str | None:
    if isinstance(error, ModuleNotFoundError):
        return install_hint(error.name)
    if (hidden := _hidden_file(error)) is not None:
        return f"{hidden.name} beside the model is not it: another module of that name is loaded already; rename it"
    return next((hint for cls, part, hint in _HINTS if isinstance(error, cls) and part in text), None)


def _hidden_file(error: BaseException) -> Path | None:
    """Returns the file beside the user's that is not the module of its name, where that module lacks something."""
    module = error.obj if isinstance(error, AttributeError) else None
    if isinstance(error, ImportError) and error.name is not None:
        module = sys.modules.get(error.name)
    mine = [frame.filename for frame in _frames(error) if not is_library_file(frame.filename)]
    if not isinstance(module, ModuleType) or not mine:
        return None
    beside = Path(mine[-1]).with_name(f"{module.__name__}.py")
    return beside if beside.is_file() and getattr(module, "__file__", None) != str(beside) else None


def _rule_owner(error: BaseException) -> str:
    """Returns the package, and the line, that an error's innermost operation is in, other than JAX itself; or ""."""
    folders = _installed_folders()
    for frame in reversed([*_frames(error), *_operation_frames(error)]):
        folder = next((each for each in folders if frame.filename.startswith(each)), None)
        package = "" if folder is None else frame.filename.removeprefix(folder).partition("/")[0]
        if folder is not None and package not in {"jax", "jaxlib"} and not frame.filename.startswith(_PACKAGE):
            return f"{package} ({Path(frame.filename).name}:{frame.lineno})"
    return ""


def _text(error: BaseException) -> str:
    """Returns an error's text, shortened to the first lines; a traceback in it is replaced by its last line."""
    condensed = _EMBEDDED_TRACEBACK.sub("", error_text(error))
    lines = [line.rstrip() for line in condensed.splitlines() if line.strip()]
    return "\n".join(lines[:_MOST_LINES])


def user_frames(error: BaseException) -> str:
    """Returns the stack frames of an error that are in the user's files, formatted as Python does, innermost last."""
    stack = [*_operation_frames(error), *_frames(error), *_embedded_frames(error)]
    mine = [frame for frame in stack if not is_library_file(frame.filename)]
    nearest = [frame for frame in mine if not is_installed(frame.filename)] or mine
    return "".join(StackSummary.from_list([_shown(frame) for frame in nearest[-_MOST_FRAMES:]]).format()).rstrip("\n")


def _operation_frames(error: BaseException) -> Iterator[FrameSummary]:
    """Yields the recorded frames of the operation that a transformation was processing when it failed."""
    cause, seen = error.__cause__, {id(error)}
    while cause is not None and id(cause) not in seen:  # Python lets an error be a cause of itself
        seen.add(id(cause))
        if type(cause).__name__ == _JAX_STACK:
            yield from _frames(cause)
        cause = cause.__cause__


def _embedded_frames(error: BaseException) -> Iterator[FrameSummary]:
    """Yields the frames in the text of an error from a host callback, but for those that lead to us."""
    found = _EMBEDDED_FRAME.findall(error_text(error))
    ours = [number for number, (file_name, *_) in enumerate(found, 1) if _is_of_us(file_name)]
    for file_name, line, function in found[ours[-1] if ours else 0 :]:
        yield FrameSummary(file_name, int(line), function)


def _frames(error: BaseException) -> list[FrameSummary]:
    frames = list(traceback.extract_tb(error.__traceback__))
    if isinstance(error, SyntaxError) and error.filename is not None:
        frames.append(FrameSummary(error.filename, error.lineno or 1, "<module>", line=error.text))
    return frames


def _is_ours(error: BaseException) -> bool:
    frames = _frames(error)
    return bool(frames) and _is_of_us(frames[-1].filename)


def _is_of_us(file_name: str) -> bool:
    return file_name.startswith(_PACKAGE) and is_library_file(file_name)


def _shown(frame: FrameSummary) -> FrameSummary:
    """Returns the frame, its file relative to the working directory if it is below that."""
    path = Path(frame.filename)
    name = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else frame.filename
    return FrameSummary(name, frame.lineno, frame.name, line=frame.line)


def is_installed(file_name: str) -> bool:
    """Returns whether a file is of Python or of what is installed with it."""
    # The scripts of packages too, with which the text of an error in a host callback begins: our own is one.
    return file_name.startswith((*_installed_folders(), sysconfig.get_path("scripts") + "/"))


@cache
def _installed_folders() -> tuple[str, ...]:
    return tuple(sysconfig.get_path(name) + "/" for name in ("stdlib", "purelib", "platlib"))
