"""How a process ends: with the right status also where native code or the model ends it without an exception."""

from __future__ import annotations

import json
import os
import pstats
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration import models
from tests.integration.command import GRADSCOPE, TIMEOUT, gradscope, gradscope_process
from tests.support.sampled import sampled

ENDED = "a library or the model ended the process"

#: What the supervised process does: the exit status, and what is said.
ENDINGS = {
    "os.abort()": (5, f"{ENDED} by SIGABRT"),
    "os._exit(0)": (5, f"{ENDED} with status 0"),
    "os._exit(1)": (5, f"{ENDED} with status 1"),
    "os.kill(os.getpid(), signal.SIGSEGV)": (5, f"{ENDED} by SIGSEGV"),
    "os.kill(os.getpid(), signal.SIGKILL)": (-signal.SIGKILL, ""),
    "os.closerange(3, 100); ends_with(1); os._exit(1)": (1, ""),
}
SUPERVISED = "import os, signal\nfrom gradscope.cli.running.supervisor import supervise\nends_with = supervise()\n"


def python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, in a process of its own."""
    command = [sys.executable, "-P", "-c", program]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)


@pytest.mark.parametrize("line", ENDINGS)
def test_a_process_that_something_else_ends_has_no_status_of_a_result(tmp_path: Path, line: str) -> None:
    done = python(SUPERVISED + line, tmp_path)
    status, says = ENDINGS[line]
    assert done.returncode == status
    assert says in done.stderr if says else not done.stderr


@pytest.mark.parametrize("line", ["os.abort()", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_terminal_gets_its_cursor_back_from_a_process_that_something_else_ends(tmp_path: Path, line: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-c", SUPERVISED + line]
    done = subprocess.run(command, cwd=tmp_path, stderr=theirs, timeout=TIMEOUT, check=False)
    assert done.returncode == ENDINGS[line][0]
    assert os.read(ours, 1000).startswith(b"\r\x1b[2K\x1b[?25h")
    os.close(ours)
    os.close(theirs)


def test_a_command_whose_loss_closes_its_files_has_no_status_of_a_result(tmp_path: Path) -> None:
    loss = models.LOSS.replace("    return", "    os.closerange(3, 100)\n    return")
    models.write(tmp_path, models.source(more="import os", loss=loss))
    done = gradscope_process("dump", "model.py", folder=tmp_path)
    assert (done.status, "Bad file descriptor" in done.errors) == (5, True), done.errors
    assert "Traceback" not in done.errors
    assert not list(tmp_path.glob("*.npz"))


def test_a_process_that_the_model_forks_has_no_say_in_the_status(tmp_path: Path) -> None:
    lines = ("import os, sys", "if not os.fork():", "    sys.exit(3)", "os.wait()", "os._exit(0)")
    (tmp_path / "model.py").write_text("\n".join(lines))
    done = gradscope_process("dump", "model.py", folder=tmp_path)
    assert done.status == 5
    assert f"{ENDED} with status 0" in done.errors


def test_a_model_whose_path_jax_cannot_take_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.py")).write_text(models.source())
    done = gradscope("inspect", os.fsdecode(b"\xff.py"), folder=tmp_path)
    assert done.status == 2
    assert (
        done.lines[0] == "gradscope: error: the path of \\udcff.py is not UTF-8, and JAX takes no source of such a path"
    )


def test_a_process_that_the_model_leaves_behind_ends_with_the_command(tmp_path: Path) -> None:
    lines = (
        "import os, time", "orphans = []", "def serves(): os.setsid(); os.closerange(0, 99)",
        "for begins in (os.getpid, serves):", "    orphans.append(os.fork())",
        "    if not orphans[-1]:", "        begins(); time.sleep(100); os._exit(0)",
        "open('orphans', 'w').write(' '.join(map(str, orphans)))", "os._exit(0)",
    )  # fmt: skip
    (tmp_path / "model.py").write_text("\n".join(lines))
    assert gradscope_process("dump", "model.py", folder=tmp_path).status == 5
    left, server = map(int, (tmp_path / "orphans").read_text().split())
    with pytest.raises(ProcessLookupError):
        os.kill(left, 0)
    os.kill(server, signal.SIGKILL)  # it began a session of its own, and goes on


#: Runs a program in a terminal of its own, which it closes when the program has begun.
IN_TERMINAL = """
import os, pty, sys
child, terminal = pty.fork()
if not child:
    os.execv(sys.executable, [sys.executable, "-P", "-c", {program!r}])
said = b""
while b"begun" not in said:
    said += os.read(terminal, 100)
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_terminal_that_is_closed_ends_a_command_that_has_it_to_itself(tmp_path: Path) -> None:
    """The system tells only the first process of the terminal's session, which is the supervisor."""
    waits = "import contextlib, time\nfrom gradscope.cli.interrupts import Interrupts\n"
    # The terminal may be closed before the write returns, which fails then.
    waits += "with Interrupts(ends_with):\n    with contextlib.suppress(OSError): print('begun', flush=True)\n"
    waits += "    time.sleep(60)"
    assert python(IN_TERMINAL.format(program=SUPERVISED + waits), tmp_path).returncode == 129


#: Sends itself a signal when something is imported.
SIGNALLED = """
import os, signal, sys
class Importing:
    def find_spec(self, name, path, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIG{signal})
sys.meta_path.insert(0, Importing())
sys.argv = ["gradscope", *{arguments}]
from gradscope.cli.main import command
command()
"""


@pytest.mark.parametrize(
    ("name", "status", "module", "arguments"),
    [
        ("INT", 130, "gradscope.cli.standard_streams", ["explain", "rms"]),
        ("HUP", 129, "gradscope.cli.leaving", ["explain", "rms"]),
        ("TERM", 143, "gradscope.cli.running.supervisor", ["dump", "model.py"]),
        ("TERM", 143, "ctypes", ["dump", "model.py"]),  # by the supervisor and its child, right after they part
    ],
)
def test_a_signal_before_anything_is_imported_is_one_like_any_other(
    tmp_path: Path, name: str, status: int, module: str, arguments: list[str]
) -> None:
    program = SIGNALLED.format(module=module, signal=name, arguments=arguments)
    done = python(program, tmp_path)
    assert (done.returncode, done.stderr) == (status, "gradscope: interrupted\n")


def test_a_signal_while_a_process_ends_is_one_like_any_other(tmp_path: Path) -> None:
    more = "import atexit, os, signal\natexit.register(os.kill, os.getpid(), signal.SIGINT)"
    models.write(tmp_path, models.source(more=more))
    done = gradscope_process("dump", "model.py", "--quiet", folder=tmp_path)
    assert (done.status, done.errors) == (130, "gradscope: interrupted\n")
    assert (tmp_path / "model.npz").exists()


def test_a_signal_while_a_file_is_written_leaves_nothing_of_it(tmp_path: Path, dumps: Path) -> None:
    program = (
        "import os, signal, sys, time\nfrom gradscope.cli.main import command\n"
        "os.fsync = lambda _: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(60))\n"
        f"sys.argv = ['gradscope', 'report', {str(dumps / 'a.npz')!r}, '-o', 'page.html']\ncommand()"
    )
    done = python(program, tmp_path)
    assert (done.returncode, done.stderr) == (143, "gradscope: interrupted\n")
    assert not list(tmp_path.iterdir())


def test_a_flag_that_xla_does_not_know_is_no_difference(tmp_path: Path) -> None:
    models.write(tmp_path, models.source())
    done = gradscope_process("dump", "model.py", folder=tmp_path, XLA_FLAGS="--xla_no_such_flag=1")
    assert done.status == 5
    assert "xla_no_such_flag" in done.errors
    assert ENDED in done.errors


def test_a_setting_that_jax_refuses_is_named(tmp_path: Path) -> None:
    done = gradscope_process("dump", "mlp", folder=tmp_path, JAX_ENABLE_X64="maybe")
    assert (done.status, len(done.lines)) == (5, 2)
    assert "JAX refuses its settings: invalid truth value 'maybe'" in done.lines[0]


@sampled(
    ("name", "value", "says"),
    [
        ("JAX_DUMP_IR_TO", "/dev/null/x", "JAX cannot write its programs to /dev/null/x: Not a directory"),
        ("JAX_DUMP_IR_TO", "model.py", "JAX cannot write its programs to model.py: File exists"),
        (
            "JAX_DUMP_IR_TO",
            "sponge",
            "JAX writes its programs to TEST_UNDECLARED_OUTPUTS_DIR where JAX_DUMP_IR_TO is sponge: it is not set",
        ),
        ("JAX_RANDOM_SEED_OFFSET", str(1 << 31), f"JAX takes no offset of seeds of more than 32 bits: {1 << 31}"),
    ],
)
def test_a_setting_that_jax_fails_with_is_named(tmp_path: Path, name: str, value: str, says: str) -> None:
    models.write(tmp_path, models.source())
    done = gradscope_process("dump", "model.py", folder=tmp_path, **{name: value})
    assert (done.status, done.lines) == (5, [f"gradscope: error: {says}", f"hint: correct {name}, or unset it"])


@pytest.mark.parametrize(
    ("made", "raised", "says"),
    [
        ("class Odd(BaseException): pass", "Odd('x')", "Odd: x"),
        ("", "GeneratorExit", "GeneratorExit"),
        ("class Odd(Exception):\n    def __str__(self): raise ValueError", "Odd()", "Odd: <exception str() failed>"),
    ],
)
def test_whatever_a_model_raises_is_its_own_failure(tmp_path: Path, made: str, raised: str, says: str) -> None:
    loss = models.LOSS.replace("    return", f"    raise {raised}\n    return")
    models.write(tmp_path, models.source(more=made, loss=loss))
    done = gradscope("dump", "model.py", folder=tmp_path)
    assert done.status == 4
    assert done.lines[0] == f"gradscope: error: loss of model: {says}"


#: What a model does to a module at the end of its file, and the name that the message has.
REPLACED = {
    "import hashlib; hashlib.sha256 = None": "hashlib.sha256",
    "import numpy; numpy.flatnonzero = None": "numpy.flatnonzero",
    "import os; os.getpid = None": "os.getpid",
    "import builtins; builtins.len = bool": "builtins.len",
}


@sampled("line", REPLACED)
def test_a_function_that_a_model_replaces_is_named_where_something_fails_for_it(tmp_path: Path, line: str) -> None:
    models.write(tmp_path, f"{models.source()}\n{line}\n")
    done = gradscope_process("dump", "model.py", "--force", folder=tmp_path)
    assert done.status == 4, done.errors
    assert f"the model takes away or replaces {REPLACED[line]}, which is needed: " in done.errors
    assert "Traceback" not in done.errors


def test_a_model_that_removes_our_modules_gets_its_results(tmp_path: Path) -> None:
    removing = "[sys.modules.pop(each) for each in [*sys.modules] if each.startswith('gradscope')]"
    models.write(tmp_path, models.source(more=f"import sys\n{removing}"))
    done = gradscope_process("dump", "model.py", "--json", folder=tmp_path)
    assert (done.status, done.errors) == (0, "")
    assert json.loads(done.output)["rows"]


@pytest.mark.parametrize("sets", ["settrace", "setprofile"])
def test_a_model_that_lets_no_thread_begin_is_refused(tmp_path: Path, sets: str) -> None:
    tracing = f"import threading\ndef f(*_): raise RuntimeError('mine')\nthreading.{sets}(f)"
    models.write(tmp_path, models.source(more=tracing))
    done = gradscope_process(
        "train", "model.py", "--steps", "1", "--optimizer", "sgd(0.1)", "-o", "run", folder=tmp_path
    )
    assert done.status == 4
    assert "a function that lets none of them begin: RuntimeError: mine" in done.lines[0]
    assert "Traceback" not in done.errors


def test_a_model_may_replace_what_makes_json(tmp_path: Path) -> None:
    """As a program does that has a faster one, which returns bytes and has no indentation."""
    models.write(tmp_path, models.source(more="import json\njson.dumps = lambda value, **_: b'[]'"))
    done = gradscope_process("dump", "model.py", "--json", folder=tmp_path)
    assert done.status == 0, done.errors
    assert json.loads(done.output)["rows"]
    options = ("--steps", "2", "--optimizer", "sgd(0.1)", "-o", "run")
    done = gradscope_process("train", "model.py", *options, "--json", folder=tmp_path)
    assert done.status == 0, done.errors
    assert json.loads(done.output)["steps"] == 2
    assert gradscope("show", "run", folder=tmp_path).status == 0


def test_a_killed_parent_leaves_no_process_behind(tmp_path: Path) -> None:
    loss = models.LOSS.replace("    return", "    print('running', flush=True)\n    time.sleep(60)\n    return")
    models.write(tmp_path, models.source(more="import time", loss=loss))
    command = [*GRADSCOPE, "dump", "model.py"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "running\n"
        running.kill()
        running.stderr.read()  # until nobody has it open any more
        assert running.wait(10) == -signal.SIGKILL


def test_a_thread_that_never_ends_does_not_keep_the_command(tmp_path: Path) -> None:
    more = "import atexit, threading, time\natexit.register(print, 'at exit')"
    start = "threading.Thread(target=time.sleep, args=(60,), name='saver').start()"
    models.write(tmp_path, models.source(more=f"{more}\n{start}"))
    done = gradscope_process("inspect", "model.py", "--json", folder=tmp_path)
    assert (done.status, done.json["command"]) == (0, "inspect")
    assert "ends without threads of the model that go on: saver" in done.errors
    assert "at exit" not in done.errors


@pytest.mark.parametrize(
    ("begins", "says"),
    [
        ("atexit.register(time.sleep, 60)", ""),
        ("multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)).start()", ", ForkProcess-1"),
    ],
)
def test_what_comes_behind_the_threads_does_not_keep_a_command(tmp_path: Path, begins: str, says: str) -> None:
    program = (
        "import atexit, multiprocessing, time\nfrom gradscope.cli import leaving\nleaving._PATIENCE_SECONDS = 0.2\n"
        f"leaving.leave_behind_the_last()\n{begins}\nends_with(1)\nleaving.leave_threads(1)\nleaving.leave(1)"
    )
    done = python(SUPERVISED + program, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"gradscope: the command ends without waiting for what the model does at its end{says}\n"
    )


#: Everything that reaches standard output or its descriptor, at once and later, and a thread that ends.
NOISE = """
import atexit, ctypes, os, subprocess, threading, time, warnings
warnings.simplefilter("error")
atexit.register(print, "at exit")
ctypes.CDLL(None).puts(b"from C")
os.write(1, b"raw")
subprocess.run(["echo", "child"])
def write():
    while True:
        time.sleep(0.001)
        os.write(1, b"thread")
        print("printed")
threading.Thread(target=write, daemon=True).start()
threading.Thread(target=time.sleep, args=(0.5,), name="saver").start()
"""


@sampled("command", ["inspect", "check", "dump"])
def test_nothing_that_a_model_writes_gets_between_the_results_and_a_thread_may_end(
    command: str, tmp_path: Path
) -> None:
    models.write(tmp_path, models.source(more=NOISE))
    done = gradscope_process(command, "model.py", "--json", folder=tmp_path)
    assert (done.status, done.json["command"]) == (0, command)
    assert all(each in done.errors for each in ("at exit", "from C", "raw", "child", "thread", "printed"))
    assert "saver" not in done.errors
    assert "unclosed file" not in done.errors


#: A model that takes the standard streams away at any moment, and the arguments.
TAKEN_AWAY = """
import sys, threading
class Stream:
    def write(self, text):
        return len(text)
def take():
    while True:
        sys.stdout = sys.stderr = Stream()
        time.sleep(0.001)
import time
threading.Thread(target=take, daemon=True).start()
sys.argv[:] = []
"""


def test_what_a_model_puts_in_the_place_of_the_streams_gets_no_results(tmp_path: Path) -> None:
    models.write(tmp_path, models.source(more=TAKEN_AWAY))
    done = gradscope_process("dump", "model.py", "--json", folder=tmp_path)
    assert (done.status, done.json["command"]) == (0, "dump"), done.errors


#: Runs the command line in a process that has something to do at its end, and goes on behind it where it may.
AT_THE_END = """
import atexit, gc, sys
from gradscope.cli.main import command, main

atexit.register(print, "at the end")
sys.argv[1:] = ["--version"]
try:
    {line}
except SystemExit as end:
    print("goes on", end.code, gc.get_threshold()[0] < 10_000)
"""


@pytest.mark.parametrize(
    ("line", "goes_on"),
    [
        ("command()", False),
        ("main()", True),
        ("sys.setprofile(lambda *_: None); command()", True),
        ("sys.settrace(lambda *_: None); command()", True),
        ("sys.modules['coverage'] = sys; command()", True),
        ("import runpy; runpy.run_module('gradscope', run_name='__main__')", True),
    ],
)
def test_only_a_process_of_its_own_that_nothing_watches_ends_at_once(tmp_path: Path, line: str, goes_on: bool) -> None:
    program = [sys.executable, "-P", "-c", AT_THE_END.format(line=line)]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("gradscope ")
    assert rest == (["goes on 0 True", "at the end"] if goes_on else [])


def test_a_profiler_has_what_it_saw_of_a_command(dumps: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "cProfile", "-o", tmp_path / "seen", *GRADSCOPE[2:], "show", dumps / "a.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    functions = {name for _, _, name in pstats.Stats(str(tmp_path / "seen")).stats}  # type: ignore[attr-defined]
    assert "print_report" in functions


#: A model that has something to do when Python takes its process apart, has written to a stream of its own on standard
#: error, and keeps a file open or does not.
LEFT_TO_THE_END = """
import atexit
class Log:
    def __del__(self):
        print("taken apart")
LOG = Log()
atexit.register(print, "at exit")
ERRORS = open(2, "w", closefd=False)
ERRORS.write("in a buffer")
if {opens}:
    FILE = open("log.txt", "w")
    FILE.write("written last")
"""


@pytest.mark.parametrize("opens", [False, True])
def test_a_process_is_taken_apart_only_where_a_file_has_something_to_lose(tmp_path: Path, opens: bool) -> None:
    models.write(tmp_path, models.source(more=LEFT_TO_THE_END.format(opens=opens)))
    program = "from gradscope.cli.main import command; command()"
    line = [sys.executable, "-P", "-c", program, "inspect", "model.py", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (done.returncode, json.loads(done.stdout)["command"]) == (0, "inspect")
    assert "at exit" in done.stderr
    assert "in a buffer" in done.stderr
    assert ("taken apart" in done.stderr) == opens
    assert not opens or (tmp_path / "log.txt").read_text() == "written last"
