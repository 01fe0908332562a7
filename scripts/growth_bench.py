"""The bench of growth: how the seconds of each phase grow with the number of recorded tensors, and with their bytes.

A network of n layers `tanh(x @ w + b)` records 6 n tensors: of each layer an output, two parameters, and the gradients
of these. A network of four layers `tanh(x * w)` records few tensors of any size. Both are run by `gradscope dump` in
processes of their own, which time their phases. Tracing and planning, `show` and `compare` are measured up to
numbers of tensors that would take XLA an hour to compile.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, Protocol

import depth_bench
from reading_bench.files import write_dump

#: What an exponent should not exceed.
LIMIT: Final = 1.1

#: Tensors that are recorded of each layer, and the tensors of the layer's size that the network of four records.
_PER_LAYER: Final = 6
_LARGE_TENSORS: Final = 18

#: How often a measurement is repeated, at most and until it has taken so many seconds in all.
_REPEATS: Final = 3
_ENOUGH: Final = 30.0

#: Seconds up to which a figure is start-up, in units of those of the smallest size.
_START_UP: Final = 2.0

_PHASES: Final = ("trace", "compile", "run", "write")
_PLAIN_PHASES: Final = ("plain compile", "plain run")

_DEEP: Final = """
import jax, jax.numpy as jnp

def init(key):
    return {{f"layer{{n}}": {{"w": 0.9 * jnp.eye(4), "b": jnp.zeros(4)}} for n in range({layers})}}

def loss(variables, batch):
    x = batch
    for n in range({layers}):
        with jax.named_scope(f"layer{{n}}"):
            x = jnp.tanh(x @ variables[f"layer{{n}}"]["w"] + variables[f"layer{{n}}"]["b"])
    return (x**2).mean()

def batch(key, size):
    return jax.random.normal(key, (2, 4))
"""

_LARGE: Final = """
import jax, jax.numpy as jnp

def init(key):
    return {{f"layer{{n}}": jnp.full({elements}, 0.9) for n in range(4)}}

def loss(variables, batch):
    x = batch
    for n in range(4):
        with jax.named_scope(f"layer{{n}}"):
            x = jnp.tanh(x * variables[f"layer{{n}}"])
    return (x**2).mean()

def batch(key, size):
    return jax.random.normal(key, ({elements},))
"""

#: The gradient of a model, without us: seconds of compiling it and of its second run.
_PLAIN: Final = """
import json, sys, time
import jax
sys.path.insert(0, ".")
import model
keys = jax.random.split(jax.random.key(0))
variables, batch = model.init(keys[0]), model.batch(keys[1], 1)
lowered = jax.jit(jax.value_and_grad(model.loss)).lower(variables, batch)
begin = time.perf_counter()
step = lowered.compile()
compiled = time.perf_counter()
jax.block_until_ready(step(variables, batch))
print(json.dumps({"plain compile": compiled - begin, "plain run": time.perf_counter() - compiled}))
"""

_HEAD: Final = """# The bench of growth

`scripts/bench growth` measures how the seconds of each phase grow with the number of tensors that a dump records, and
with their bytes; it writes this page. `scripts/bench growth --quick` measures small sizes and writes nothing, and
`scripts/bench growth --most` goes on to 20 GiB. An exponent is the slope of the logarithm of the seconds over the
logarithm of the size, by least squares, without the sizes at which a figure is start-up: below twice that of the
smallest size. The last step's is that between the two largest sizes. Seconds are the least of up to three repetitions.

The networks are unrolled: XLA takes an hour to compile the gradient of 5,000 layers, with and without us, so that the
phases of `dump` end earlier than the others. Their seconds are those that `dump` itself states, of the clock, so that
other load on the machine and a disk that does not keep up are in them; those of tracing and planning, `show` and
`compare` are of the processor.

"""


class Cost(Protocol):
    """The CPU seconds of a command."""

    cpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The seconds of one phase by size.

    Attributes:
        of: What grows, `tensors` or `bytes`.
        phase: The phase.
        seconds: The least of the repetitions by size.
        exponent: The slope over the sizes beyond start-up; that of the last step where there is one size at most.
        last: The slope between the two largest sizes.
        limit: What the exponent should not exceed; None for what is not ours.
    """

    of: str
    phase: str
    seconds: dict[int, float]
    exponent: float
    last: float
    limit: float | None


def measurements(folder: Path, run: Callable[[list[str], str], Cost], *, quick: bool, most: bool) -> list[Growth]:
    """Measures every phase.

    Args:
        folder: An empty folder.
        run: Runs a command in a folder.
        quick: Whether sizes are few and small.
        most: Whether they go on to 20 GiB.
    """
    bench = _Bench(folder, run, 0.0 if quick else _ENOUGH)
    layers = (5, 17, 50) if quick else (17, 50, 167, 500)
    traced = (17, 50, 167) if quick else (17, 50, 167, 500, 1_667, 5_000)
    tensors = (300, 1_000, 3_000) if quick else (100, 300, 1_000, 3_000, 10_000, 30_000)
    sizes = [mebibytes << 20 for mebibytes in ((1, 16) if quick else (1, 16, 256, 1024, 4096))]
    sizes += [20 << 30] if most else []
    deep = {_PER_LAYER * each: bench.dumped(_DEEP.format(layers=each)) for each in layers}
    planned = {_PER_LAYER * each: bench.repeated(lambda each=each: _planned(each)) for each in traced}
    read = {each: bench.read(each) for each in tensors}
    large = {each: bench.large(each) for each in sizes}
    return [
        *_growths("tensors", deep, (*_PHASES, *_PLAIN_PHASES)),
        *_growths("tensors", planned, ("trace and plan", "plain lower")),
        *_growths("tensors", read, ("write small tensors", "show", "compare")),
        *_growths("bytes", large, ("run", "write", "show", "compare", "plain run")),
    ]


class _Bench:
    """_Bench measures programs in a folder."""

    def __init__(self, folder: Path, run: Callable[[list[str], str], Cost], enough: float) -> None:
        self._folder = folder
        self._run = run
        self._enough = enough

    def repeated(self, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Returns the least of several measurements, which others disturb the least; of a long one, its only one."""
        begin = time.perf_counter()
        found = [measure()]
        while time.perf_counter() - begin < self._enough and len(found) < _REPEATS:
            found.append(measure())
        return {phase: min(each[phase] for each in found) for phase in found[0]}

    def dumped(self, model: str) -> dict[str, float]:
        """Returns the seconds of the phases of a dump, and of the plain gradient."""
        (self._folder / "model.py").write_text(model, encoding="utf-8")
        return self.repeated(lambda: self._dump() | self._plain())

    def large(self, size_bytes: int) -> dict[str, float]:
        """Returns the same of a network that records so many bytes, and the seconds of reading its dump."""
        found = self.dumped(_LARGE.format(elements=size_bytes // 4 // _LARGE_TENSORS))
        dump = self._folder / "dump.npz"
        (self._folder / "one.npz").unlink(missing_ok=True)
        dump.rename(self._folder / "one.npz")
        return found | self._reading("one.npz", "one.npz")

    def read(self, tensors: int) -> dict[str, float]:
        """Returns the seconds of writing and reading dumps of small tensors."""
        (self._folder / "one.npz").unlink(missing_ok=True)
        begin = time.process_time()
        write_dump(self._folder / "one.npz", tensors, name="layer[{}]/w".format)
        written = time.process_time() - begin
        (self._folder / "other.npz").write_bytes((self._folder / "one.npz").read_bytes())
        return {"write small tensors": written} | self._reading("one.npz", "other.npz")

    def _reading(self, one: str, other: str) -> dict[str, float]:
        ours = [sys.executable, "-P", "-m", "gradscope"]
        commands = {"show": [*ours, "show", one], "compare": [*ours, "compare", one, other]}
        return self.repeated(lambda: {name: self._run(each, str(self._folder)).cpu for name, each in commands.items()})

    def _dump(self) -> dict[str, float]:
        command = ["dump", "model.py", "--output", "dump.npz", "--force", "--no-cache", "--json"]
        found = json.loads(self._printed("-P", "-m", "gradscope", *command))
        return {phase: found["timings"][phase] for phase in _PHASES}

    def _plain(self) -> dict[str, float]:
        return json.loads(self._printed("-c", _PLAIN))

    def _printed(self, *arguments: str) -> str:
        process = subprocess.run(
            [sys.executable, *arguments], cwd=self._folder, capture_output=True, text=True, check=False
        )
        if process.returncode:
            raise SystemExit(f"{arguments} ended with status {process.returncode}: {process.stderr[-500:]}")
        return process.stdout


def _planned(layers: int) -> dict[str, float]:
    """Returns the CPU seconds of tracing and planning, and of lowering the plain gradient."""
    plain, analysed, _ = depth_bench.measured(layers)
    return {"trace and plan": analysed, "plain lower": plain}


def _growths(of: str, found: Mapping[int, Mapping[str, float]], phases: Sequence[str]) -> Iterator[Growth]:
    for phase in phases:
        seconds = {size: each[phase] for size, each in found.items()}
        exponent, last = _exponents(seconds)
        plain = phase.startswith("plain ")
        limit = LIMIT
        if f"plain {phase}" in phases:  # what XLA's own growth is, is not ours
            limit = max(LIMIT, *_exponents({size: each[f"plain {phase}"] for size, each in found.items()}))
        yield Growth(of=of, phase=phase, seconds=seconds, exponent=exponent, last=last, limit=None if plain else limit)


def _exponents(seconds: Mapping[int, float]) -> tuple[float, float]:
    """Returns the slope beyond start-up, and that between the two largest sizes."""
    sizes = sorted(seconds)
    beyond = [size for size in sizes if seconds[size] > _START_UP * seconds[sizes[0]]]
    last = _slope({size: seconds[size] for size in sizes[-2:]})
    return (_slope({size: seconds[size] for size in beyond}) if len(beyond) > 1 else last), last


def _slope(seconds: Mapping[int, float]) -> float:
    return statistics.linear_regression(list(map(math.log, seconds)), list(map(math.log, seconds.values()))).slope


def json_text(found: Sequence[Growth]) -> str:
    """Returns the figures, and what they were measured with, as JSON."""
    return json.dumps({"schema": 1, **_machine(), "rows": [asdict(each) for each in found]}, indent=2)


def write_page(path: Path, found: Sequence[Growth]) -> None:
    """Writes the page."""
    machine = ", ".join(f"{name} {value}" for name, value in _machine().items())
    blocks = [_table(of, [each for each in found if each.of == of]) for of in ("tensors", "bytes")]
    path.write_text(f"{_HEAD}Measured with {machine}.\n\n" + "\n".join(blocks), encoding="utf-8")


def _table(of: str, found: Sequence[Growth]) -> str:
    lines = [
        f"## By the number of {of}\n",
        f"| phase | seconds by {of} | exponent | last step | to hold |",
        "| --- " * 5 + "|",
    ]
    for each in found:
        seconds = ", ".join(f"{_size(of, size)}: {taken:.2g}" for size, taken in each.seconds.items())
        limit = "" if each.limit is None else f"{each.limit:.2f}"
        lines.append(f"| {each.phase} | {seconds} | {each.exponent:.2f} | {each.last:.2f} | {limit} |")
    return "\n".join(lines) + "\n"


def _size(of: str, size: int) -> str:
    if of != "bytes":
        return f"{size:,}"
    return f"{size >> 30} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"


def _machine() -> dict[str, str]:
    names = {"gradscope": "gradscope-jax", "JAX": "jax", "NumPy": "numpy"}
    return {name: version(each) for name, each in names.items()} | {"Python": platform.python_version()}
