"""What every test runs under: strict JAX, a cache of its own, examples that come out the same every time.

JAX is configured by the environment, so that the read side's tests never import it and programs started by a test
inherit the same rules.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import itertools
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Two dtypes never meet by accident, two ranks never broadcast by accident.
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
# Two devices where there is only a CPU, so that sharded programs can be tested anywhere.
os.environ["JAX_NUM_CPU_DEVICES"] = "2"

# Programs are compiled without the Python frames of each operation, which takes a fifteenth less: nothing reads them.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"

# What LLVM does to make programs fast takes most of the time of compiling them, and tests run each once. XLA's own
# passes, fusion among them, stay.
FLAGS = {
    "xla_backend_optimization_level": "0",
    # Programs of tests are too small to be worth compiling in parts, on several threads.
    "xla_cpu_parallel_codegen_split_count": "1",
}
# Of the two ways to emit code that this jaxlib has, the older one compiles many small programs in four fifths of the
# time; `.ci/run` tests on a jaxlib that has the newer one alone.
if version("jaxlib").startswith("0.10."):
    FLAGS["xla_cpu_use_fusion_emitters"] = "false"
OWN_FLAGS = os.environ.get("XLA_FLAGS", "")
ADDED_FLAGS = [f"--{flag}={FLAGS[flag]}" for flag in FLAGS if flag not in OWN_FLAGS]
os.environ["XLA_FLAGS"] = " ".join([OWN_FLAGS, *ADDED_FLAGS]).strip()

# There are at least as many workers as cores. Threads of PyTorch and of NumPy's products spin while they wait for each
# other: tests that run PyTorch took half as long again.
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

# Programs started by a test hear that their terminal is closed, also where the tests do not, as under `nohup`.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Where the environment keeps Python from writing bytecode, each of a hundred processes would compile the package anew,
# for a fifth of a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No deadline: the first example of a test pays for its compilation. The same examples in every run: red stays red.
hypothesis.settings.register_profile("gradscope", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("gradscope")

# Looking for cycles, Python's collector walks through all of JAX and its jaxprs again and again, and has JAX look for
# arrays that are garbage. It looks a hundred times as seldom, as the command line has it where a model runs.
gc.set_threshold(100_000, 20, 10)

#: Newer versions of JAX reuse the contexts in which they lower programs.
MAKES_CONTEXTS = version("jax").startswith("0.10.")

#: The modules after which programs are let go from memory, where each takes a third of a megabyte. Until then, what one
#: module has compiled and traced serves the next, which takes a thirtieth less.
KEPT_IN_MEMORY = 16
_modules = itertools.count(1)

CACHE = "XDG_CACHE_HOME"
WORKER = "PYTEST_XDIST_WORKER"


def pytest_configure() -> None:
    """Compiled programs go to a folder that this run alone uses, shared by its workers: never the user's.

    SIGINT has its default meaning, also where the tests run in the background of a shell that has it ignored: what a
    process ignores is ignored by the processes that it starts.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if WORKER not in os.environ:
        os.environ[CACHE] = tempfile.mkdtemp(prefix="gradscope-tests-")


def pytest_unconfigure() -> None:
    if WORKER in os.environ:
        # pytest ends with searches for cycles, which take seconds here; of what they find a worker reports nothing.
        gc.freeze()
    else:
        shutil.rmtree(os.environ[CACHE], ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The others wait for the first worker that collects: it compiles all modules, which they find compiled.

    Where they begin together, each compiles nearly everything: tests, packages that were just installed, and ours.
    """
    with Path(os.environ[CACHE], "collecting").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The many small modules come last, where they even out what the workers have done."""
    items.sort(key=lambda item: "unit" in item.path.parts)


@pytest.fixture(autouse=True, scope="module")
def programs() -> Iterator[None]:
    """What a module compiles is kept in the run's folder for others, and in memory for the next modules alone.

    It is the folder in which the command line keeps what it compiles. In memory JAX keeps every program.
    """
    if "jax" in sys.modules:
        folder = str(Path(os.environ[CACHE], "gradscope", "compiled"))
        sys.modules["jax"].config.update("jax_compilation_cache_dir", folder)
        sys.modules["jax"].config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        if MAKES_CONTEXTS:
            _share_context()
    yield
    if next(_modules) % KEPT_IN_MEMORY == 0 and "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


def _share_context() -> None:
    """Lower all programs of a module in one MLIR context for each thread, where this JAX makes one for each program.

    A context loads its dialects anew, which is most of what it takes to lower one of the small programs of tests: 4 of
    5 ms. What a context has interned it keeps as long as it lives, so each module has its own.
    """
    from jax._src.interpreters import mlir

    make = getattr(mlir.make_ir_context, "__wrapped__", mlir.make_ir_context)
    shared = threading.local()

    @functools.wraps(make)
    def make_ir_context() -> Any:
        if not hasattr(shared, "context"):
            shared.context = make()
        return shared.context

    mlir.make_ir_context = make_ir_context


@pytest.fixture
def x64() -> Iterator[None]:
    """JAX with 64-bit types, for the length of a test."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def lenient() -> Iterator[None]:
    """JAX as users have it, without the strictness that tests put on it, in all threads."""
    import jax

    settings = {"jax_numpy_dtype_promotion": "standard", "jax_numpy_rank_promotion": "allow"}
    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def compiled_in_a_hurry() -> Iterator[None]:
    """XLA takes less time over the programs of a module, in which layers and faults are the same."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
