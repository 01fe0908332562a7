"""Work for threads is done where Python starts no more of them, in the order and with the errors that it would have."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import Executor, ThreadPoolExecutor, thread

import pytest

from gradscope.work_for_threads import mapped, submitted


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Executor:
    """A pool of a program whose main thread has ended."""
    monkeypatch.setattr(thread, "_shutdown", True)
    return ThreadPoolExecutor(1)


def test_a_pool_that_takes_no_more_work_is_done_without(ending: Executor) -> None:
    with pytest.raises(RuntimeError, match="after interpreter shutdown"):
        ending.submit(abs, -1)
    assert submitted(ending, threading.get_ident).result() == threading.get_ident()
    assert mapped(ending, abs, [-1, 2, -3]) == [1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        submitted(ending, divmod, 1, 0).result()


def test_work_is_done_where_python_imports_no_pools_any_more() -> None:
    program = (
        "import atexit, threading\n"
        "def at_end():\n"
        "    from gradscope.work_for_threads import ThreadPool, mapped\n"
        "    with ThreadPool(1, thread_name_prefix='x') as pool: print(mapped(pool, abs, [-1, 2]))\n"
        "atexit.register(at_end)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[1, 2]\n", "")


def test_a_pool_that_takes_work_has_it_done_in_its_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert submitted(pool, threading.get_ident).result() != threading.get_ident()
        assert mapped(pool, abs, [-1, 2, -3]) == [1, 2, 3]


def test_a_system_that_has_no_more_threads_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        submitted(ThreadPoolExecutor(1), abs, -1)
