"""The error boundary: every kind of failure has its exit status and its few lines."""

from __future__ import annotations

import builtins
import errno
import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
import typer

from gradscope.cli import error_boundary
from gradscope.cli.error_boundary import guarded
from gradscope.errors import DumpError, MachineError, ModelError, UsageError
from gradscope.tracing import user_frames
from gradscope.tracing.loading.importing.replaced_functions import remember_functions


def raising(error: BaseException) -> Callable[[], object]:
    """Returns a program that raises an error without a frame of this file, which is none of gradscope's own."""
    future: Future[object] = Future()
    future.set_exception(error)
    return future.result


def of_typer(error: BaseException) -> Callable[[], object]:
    """Returns a program of one command that Typer runs, which raises an error."""
    program = typer.Typer()
    program.command()(raising(error))
    return partial(program, [])


@pytest.mark.parametrize(
    ("program", "status"),
    [
        (lambda: None, 0),
        (lambda: 0, 0),
        (lambda: 1, 1),
        (lambda: 130, 130),
        (of_typer(typer.Exit()), 0),
        (of_typer(typer.Exit(1)), 1),
        (of_typer(typer.BadParameter("")), 2),
        (raising(SystemExit(0)), 4),
        (raising(SystemExit(1)), 4),
        (raising(UsageError("")), 2),
        (raising(DumpError("")), 3),
        (raising(ModelError("")), 4),
        (raising(MachineError("")), 5),
        (raising(MemoryError()), 5),
        (raising(OSError(errno.ENOSPC, "No space left on device")), 5),
        (raising(PermissionError(errno.EACCES, "Permission denied", "x.npz")), 5),
        (raising(FileNotFoundError(errno.ENOENT, "No such file or directory", "x.npz")), 70),
        (raising(KeyError("x")), 70),
        (raising(RecursionError()), 70),
        (raising(KeyboardInterrupt()), 130),
        (raising(BrokenPipeError(errno.EPIPE, "Broken pipe")), 141),
    ],
)
def test_every_end_has_its_exit_status(program: Callable[[], object], status: int) -> None:
    assert guarded(program, []) == status


def test_a_broken_pipe_has_a_status_of_its_own_under_typer() -> None:
    assert guarded(of_typer(BrokenPipeError(errno.EPIPE, "Broken pipe")), []) == 141


def test_an_exit_that_something_else_raises_is_no_status(capsys: pytest.CaptureFixture[str]) -> None:
    lines = reported(SystemExit(0), capsys)  # as a signal handler of the model does in the middle of a command
    assert lines[0] == "gradscope: error: the command was ended before it was done: SystemExit: 0"


class Odd(BaseException):
    """Odd is no exception that a program expects."""


@pytest.mark.parametrize("error", [RuntimeError("mine"), Odd("mine")])
def test_what_a_signal_handler_of_the_model_raises_is_the_models_failure(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    def handler() -> NoReturn:
        raise error

    assert user_frames.__name__ in sys.modules  # a model was loaded
    assert guarded(handler, []) == 4
    said, frame, *_ = capsys.readouterr().err.splitlines()
    assert said.endswith(f"as in a signal handler: {type(error).__name__}: mine")
    assert frame.endswith("in handler")


TAKEN = {
    "sys.excepthook": (sys, "excepthook", None, RuntimeError("sys.excepthook is None")),
    "threading.excepthook": (threading, "excepthook", None, RuntimeError("threading.excepthook is None")),
    "builtins.__import__": (builtins, "__import__", None, TypeError("'NoneType' object is not callable")),
    "sys.argv": (sys, "argv", None, TypeError("'NoneType' object is not iterable")),
    "sys.path": (sys, "path", [], ModuleNotFoundError("No module named 'rich'")),
    "sys.meta_path": (sys, "meta_path", [], ModuleNotFoundError("No module named 'rich'")),
    "sys.path_hooks": (sys, "path_hooks", [], ModuleNotFoundError("No module named 'rich'")),
    "sys.modules": (sys, "modules", {}, AttributeError("module 'sys' has no attribute 'warnoptions'")),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_model_that_takes_python_apart_is_told_so(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, attribute, value, failure = TAKEN[name]
    monkeypatch.setattr(module, attribute, getattr(module, attribute))  # which is put back behind this test
    monkeypatch.delitem(sys.modules, user_frames.__name__, raising=False)  # the frames of this test are no model's

    def model() -> NoReturn:
        setattr(module, attribute, value)
        raise failure

    assert guarded(model, []) == 4
    error = f"gradscope: error: the model takes away or replaces {name}, which is needed: {type(failure).__name__}: "
    assert capsys.readouterr().err.startswith(error)
    assert getattr(module, attribute)


def test_a_function_that_a_model_replaces_and_nothing_that_fails_calls_is_no_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remember_functions()
    before = json.dumps
    monkeypatch.setattr(json, "dumps", None)
    monkeypatch.delitem(sys.modules, user_frames.__name__, raising=False)  # the frames of this test are no model's
    assert guarded(raising(KeyError("mine")), []) == 70
    assert "this is a bug in gradscope: KeyError" in capsys.readouterr().err
    assert json.dumps is before


def test_a_model_that_lowers_the_recursion_limit_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, user_frames.__name__, raising=False)  # the frames of this test are no model's
    before = sys.getrecursionlimit()
    lowered = len(inspect.stack()) + 60

    def model() -> object:
        sys.setrecursionlimit(lowered)
        return raising(RecursionError("maximum recursion depth exceeded"))()

    assert guarded(model, []) == 4
    assert (
        f"replaces the recursion limit, which is {lowered}, which is needed: RecursionError: "
        in capsys.readouterr().err
    )
    assert sys.getrecursionlimit() == before


#: A model whose timer interrupts everything from now on, and what the command then does.
TICKING = """
import signal, sys
from gradscope.cli.error_boundary import guarded
def tick(*_): raise SystemError("tick")
def run():
    signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
    {then}
sys.exit(guarded(run, []))
"""


@pytest.mark.parametrize(("then", "status"), [("while True: pass", 70), ("raise MemoryError", 5), ("return 1", 1)])
def test_a_handler_that_raises_all_the_time_does_not_reach_the_end(then: str, status: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", TICKING.format(then=then)], capture_output=True, text=True, check=False
    )
    assert ended.returncode in {status, 70}  # 70 where the timer comes before what the model does
    assert "Traceback" not in ended.stderr


def test_a_handler_that_raises_where_signals_are_taken_from_it_does_not_reach_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = [SystemError("tick")]

    def still(_: object) -> None:  # what a handler raises at the call comes before anything in the function
        if left:
            raise left.pop()

    monkeypatch.setattr(error_boundary, "_still", still)
    assert guarded(raising(MemoryError()), []) == 5


def test_a_part_of_a_list_may_be_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, user_frames.__name__, raising=False)

    def model() -> NoReturn:
        sys.path.pop()
        raise KeyError

    assert guarded(model, []) == 70
    assert guarded(raising(KeyboardInterrupt()), []) == 130


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "check free space and permissions"), (errno.EMFILE, "raise the limit on open files (ulimit -n)")],
)
def test_what_to_do_about_an_error_of_the_system_depends_on_it(
    number: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, hint = reported(OSError(number, "failed", "x.npz"), capsys)
    assert first == "gradscope: error: x.npz: failed"
    assert hint.startswith(f"hint: {words}")


def reported(error: BaseException, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    guarded(raising(error), arguments)
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_an_expected_failure_is_reported_in_a_line_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert reported(UsageError("pattern 'x' selects nothing", hint="did you mean y?"), capsys) == [
        "gradscope: error: pattern 'x' selects nothing",
        "hint: did you mean y?",
    ]
    assert reported(DumpError("a.npz is truncated"), capsys) == ["gradscope: error: a.npz is truncated"]


def test_a_models_failure_shows_the_users_frames(capsys: pytest.CaptureFixture[str]) -> None:
    frames = '  File "model.py", line 12, in loss\n    return x @ w'
    assert reported(ModelError("loss of net: TypeError: no", hint="look", user_frames=frames), capsys) == [
        "gradscope: error: loss of net: TypeError: no",
        "hint: look",
        '  File "model.py", line 12, in loss',
        "    return x @ w",
    ]


def test_names_in_messages_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert reported(DumpError("no layer \x1b[2Jevil\u202e", hint="a\x07b"), capsys) == [
        "gradscope: error: no layer \\x1b[2Jevil\\u202e",
        "hint: a\\x07b",
    ]


def test_a_current_folder_that_was_removed_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert guarded(Path.cwd, []) == 5
    assert capsys.readouterr().err.startswith("gradscope: error: the current folder has been removed\n")


def test_a_stream_that_the_model_has_closed_does_not_change_the_status(tmp_path: Path) -> None:
    program = "import sys\nfrom gradscope.cli.error_boundary import guarded\nfrom gradscope.cli.printing import say\n"
    program += "def run(): print('x'); sys.stderr.close(); say('lost'); return 1\nsys.exit(guarded(run, []))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (run.returncode, run.stdout) == (1, b"x\n")


def test_a_limit_on_threads_is_the_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(RuntimeError("can't start new thread")), []) == 5
    assert capsys.readouterr().err.startswith("gradscope: error: can't start new thread\n")


def test_a_library_that_no_memory_is_left_for_is_the_machines(capsys: pytest.CaptureFixture[str]) -> None:
    text = "libblas.so: failed to map segment from shared object"
    failure = ImportError("how to get help")  # as NumPy raises it
    failure.__cause__ = ImportError(f"help\n{text}")
    assert guarded(raising(failure), []) == 5
    assert capsys.readouterr().err.startswith(f"gradscope: error: a library cannot be loaded: {text}\nhint: raise")
    assert guarded(raising(ImportError("cannot import name 'x'")), []) == 70


def test_a_path_that_is_too_long_is_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: Path("n" * 300).exists(), []) == 2
    assert capsys.readouterr().err == (
        f"gradscope: error: the file name is too long: {'n' * 60}...\nhint: name a shorter path\n"
    )


def test_an_unexpected_error_is_a_bug_that_asks_for_a_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    first, second, third, fourth = reported(ValueError("odd\nlong"), capsys, "show", "a b.npz")
    assert first.startswith("gradscope: error: this is a bug in gradscope: ValueError: odd at _base.py:")
    assert first.endswith(" in __get_result")
    assert second.startswith("seen in: gradscope ")
    assert third == "command: gradscope show 'a b.npz'"
    assert fourth.startswith("hint: please report")


def test_a_bug_beside_a_cache_of_ones_own_may_be_a_wrong_program_in_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/scratch/programs")
    monkeypatch.setitem(sys.modules, "jax", sys)
    *_, last = reported(AssertionError((6, 1)), capsys, "dump", "mlp")
    assert last.startswith("hint: if JAX_ENABLE_COMPILATION_CACHE=false helps, /scratch/programs has a wrong program")


def test_a_traceback_is_shown_on_request_and_before_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise DumpError("damaged") from KeyError("x")
    except DumpError as error:
        lines = reported(error, capsys, "show", "x.npz", "--traceback")
    assert lines[0] == "KeyError: 'x'"
    assert "Traceback (most recent call last):" in lines
    assert lines[-1] == "gradscope: error: damaged"


@pytest.mark.parametrize("run", [raising, of_typer])
def test_an_interrupt_is_reported_in_a_line(
    run: Callable[[BaseException], Callable[[], object]], capsys: pytest.CaptureFixture[str]
) -> None:
    guarded(run(KeyboardInterrupt()), [])
    assert capsys.readouterr().err.split("\n") == ["gradscope: interrupted", ""]


PRINTING = """
import sys
from gradscope.cli.error_boundary import guarded
sys.exit(guarded(lambda: print("x" * {size}), []))
"""


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_reader_that_goes_away_ends_the_program_quietly(size: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PRINTING.format(size=size)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate()
    assert (process.returncode, err) == (141, b"")


FULL_OUTPUT = "gradscope: error: cannot write to standard output: No space left on device"


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_full_disk_under_the_output_is_the_machines_failure(size: int) -> None:
    command = f"PYTHONUNBUFFERED= {sys.executable} -c '{PRINTING.format(size=size)}' > /dev/full"
    run = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert run.returncode == 5
    first, *hint = run.stderr.splitlines()
    assert first.endswith("No space left on device")
    # What is longer than the buffer does not stay in it, by which standard output is known.
    assert (first, hint) == (FULL_OUTPUT, []) if size == 10 else len(hint) == 1


@pytest.mark.parametrize("closing", [">&-", "2>&-", ">&- 2>&-", "2>/dev/full"])
def test_streams_that_are_closed_or_full_do_not_change_the_status(closing: str) -> None:
    program = "import sys\nfrom gradscope.cli.error_boundary import guarded\nfrom gradscope.errors import DumpError\n"
    program += 'def fail(): print("x"); raise DumpError("damaged")\nsys.exit(guarded(fail, []))'
    run = subprocess.run(["sh", "-c", f"{sys.executable} -c '{program}' {closing}"], capture_output=True, check=False)
    assert run.returncode == 3


def test_a_message_is_bounded_whatever_names_a_file_has(capsys: pytest.CaptureFixture[str]) -> None:
    guarded(raising(DumpError(f"has {'a' * 10**6} and more", hint="\x1b" * 10**5)), [])
    first, hint = capsys.readouterr().err.splitlines()
    assert (first[:25], first[-9:]) == ("gradscope: error: has aaa", " and more")
    assert hint.startswith("hint: \\x1b")
    assert max(len(first), len(hint)) < 5_000
