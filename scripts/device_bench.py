"""Measures what observing a step costs on the device that is here, an accelerator above all.

The plain step and the observing ones take turns, and a figure is the median of the turns' ratios. Beside them stands
what the least would take: every observed tensor has to be made, which the program `tensors` does and a plain step may
avoid by computing it where it is needed, and statistics have to read each once.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
import jax
import jax.numpy as jnp
import numpy as np
import resnet50
import transformer

from gradscope.capturing.execution.observation import Observation
from gradscope.capturing.records.prefetch import in_order
from gradscope.capturing.records.session import AHEAD
from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.planning import make_plan
from gradscope.instrument.statistics.core_statistics import core_statistics
from gradscope.instrument.statistics.histogram_counts import statistics_and_histogram
from gradscope.instrument.taps import full_tensor
from gradscope.tracing.tracer import trace_loss

#: How often the programs take turns.
ROUNDS = 15

#: What is observed of every tensor.
OBSERVERS: dict[str, Callable[[Any], Any]] = {
    "tensors": full_tensor,
    "core statistics": core_statistics,
    "statistics and histograms": statistics_and_histogram,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model whose step is observed.

    Attributes:
        title: What it is called on the page.
        loss: Its loss.
        variables: Its variables.
        batch: A batch.
    """

    title: str
    loss: Callable[[Any, Any], Any]
    variables: Any
    batch: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What a program costs.

    Attributes:
        subject: The title of the model.
        program: What is observed, "plain" for nothing.
        milliseconds: The median time of a step.
        ratio: The median ratio to the plain step of the same turn.
        least: The least.
        most: The largest.
        compiling: Seconds of compilation, with what earlier programs of the model left in caches.
        temporary: MB of temporary memory.
        observed: GB of the tensors that are observed; 0 for the plain step.
    """

    subject: str
    program: str
    milliseconds: float
    ratio: float
    least: float
    most: float
    compiling: float
    temporary: float
    observed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """How fast the tensors of a step arrive on the host, in GB/s: one after the other, and under way ahead of use."""

    subject: str
    size: float
    one_by_one: float
    ahead: float


def subjects(*, quick: bool) -> Iterator[Subject]:
    """Yields ResNet-50 in float32, and a transformer of 100 million parameters in bfloat16; `quick`: small ones."""
    init_key, batch_key = jax.random.split(jax.random.key(0))
    resnet, size = (resnet50.ResNet(18, 10, 32), 4) if quick else (resnet50.ResNet(), 64)
    title = f"ResNet-{resnet.depth} in float32, {size} images of {resnet.image_size} pixels"
    yield Subject(
        title=title, loss=resnet.loss, variables=jax.jit(resnet.init)(init_key), batch=resnet.batch(batch_key, size)
    )
    large = transformer.Transformer(layers=12, width=768, heads=12, vocabulary=10_000, length=512)
    decoder, size = (transformer.Transformer(), 8) if quick else (large, 16)
    title = f"A transformer of {decoder.layers} blocks of width {decoder.width} in bfloat16, {size} x {decoder.length}"
    yield Subject(
        title=f"{title} tokens", loss=_in_bfloat16(decoder.loss), variables=jax.jit(decoder.init)(init_key),
        batch=decoder.batch(batch_key, size),
    )  # fmt: skip


def _in_bfloat16(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a loss whose float32 variables are cast to bfloat16 first, as mixed precision has it."""

    def narrow(leaf: Any) -> Any:
        return leaf.astype(jnp.bfloat16) if leaf.dtype == jnp.float32 else leaf

    return lambda variables, batch: loss(jax.tree_util.tree_map(narrow, variables), batch).astype(jnp.float32)


def figures(subject: Subject) -> Iterator[Figure | Transfer]:
    """Yields what each program of a model costs, and how fast its tensors arrive on the host."""
    leaves, tree = jax.tree_util.tree_flatten((subject.variables, subject.batch))
    trace = trace_loss(subject.loss, subject.variables, subject.batch)

    def plain(leaves: list[jax.Array]) -> object:
        variables, batch = jax.tree_util.tree_unflatten(tree, leaves)

        def loss(params: Any) -> Any:
            out = subject.loss({**variables, "params": params}, batch)
            return out if isinstance(out, tuple) else (out, None)

        return jax.value_and_grad(loss, has_aux=True)(variables["params"])

    programs: dict[str, Callable[[list[jax.Array]], Any]] = {"plain": plain}
    for name, observer in OBSERVERS.items():
        programs[name] = observing_program(trace, make_plan(trace, CaptureSpec(), observer))[0]
    compiled, compiling = {}, {}
    for name, program in programs.items():
        lowered = jax.jit(program).lower(leaves)
        begin = time.perf_counter()
        compiled[name] = lowered.compile()
        compiling[name] = time.perf_counter() - begin
        jax.block_until_ready(compiled[name](leaves))
    seconds: dict[str, list[float]] = {name: [] for name in compiled}
    for _ in range(ROUNDS):
        for name, program in compiled.items():
            begin = time.perf_counter()
            jax.block_until_ready(program(leaves))
            seconds[name].append(time.perf_counter() - begin)
    memory = {name: each.memory_analysis() for name, each in compiled.items()}
    for name, each in seconds.items():
        ratios = sorted(one / other for one, other in zip(each, seconds["plain"], strict=True))
        yield Figure(
            subject=subject.title, program=name, milliseconds=1e3 * statistics.median(each),
            ratio=statistics.median(ratios), least=ratios[0], most=ratios[-1], compiling=compiling[name],
            temporary=memory[name].temp_size_in_bytes / 1e6,
            observed=0 if name == "plain" else memory["tensors"].output_size_in_bytes / 1e9,
        )  # fmt: skip
    yield _transfer(subject.title, lambda: compiled["tensors"](leaves))


def _transfer(title: str, run: Callable[[], Any]) -> Transfer:
    speeds = []
    for begin_copies in (False, True):
        arrays = [each for each in jax.tree_util.tree_leaves(run()) if isinstance(each, jax.Array)]
        jax.block_until_ready(arrays)
        begin = time.perf_counter()
        waiting = (Observation(value=each) for each in arrays)
        size = sum(_bytes_ahead(waiting) if begin_copies else map(_host_bytes, waiting))
        speeds.append(size / (time.perf_counter() - begin) / 1e9)
    return Transfer(subject=title, size=size / 1e9, one_by_one=speeds[0], ahead=speeds[1])


def _bytes_ahead(waiting: Iterator[Observation]) -> Iterator[int]:
    """Yields the bytes of each tensor, read as far ahead of their use as in a dump."""
    begun = (each.under_way() for each in waiting)
    return in_order(_host_bytes, begun, ahead=AHEAD, size_of=lambda each: each.size_bytes)


def _host_bytes(observation: Observation) -> int:
    return np.asarray(observation.full()).nbytes


_HEAD = """# The bench of the device

`scripts/bench device` runs steps on the accelerator that is there, plain and observed, in turns, and writes this page.
All tensors of the forward and the backward pass are observed, in every step; a loop that is watched every tenth step
pays a tenth. The program `tensors` makes every observed tensor, which the plain step need not do where the compiler
computes a value again in place of storing it; statistics read each of them once more. Products of float32 are computed
as the device does by default, on this GPU in TensorFloat-32.

"""


def write_page(path: Path, found: list[Figure | Transfer]) -> None:
    """Writes the page of the documentation."""
    lines = [f"Measured on {jax.devices()[0].device_kind} with JAX {jax.__version__}.", ""]
    for title in dict.fromkeys(each.subject for each in found):
        lines += [
            f"## {title}", "",
            "| observed | step | of plain | least to most | compiling | temporary memory |", "| --- " * 6 + "|",
        ]  # fmt: skip
        lines += [
            f"| {each.program} | {each.milliseconds:.1f} ms | {each.ratio:.2f} | {each.least:.2f} to {each.most:.2f} | "
            f"{each.compiling:.1f} s | {each.temporary:,.0f} MB |"
            for each in found if isinstance(each, Figure) and each.subject == title
        ]  # fmt: skip
        lines += [
            "", *(f"The tensors, {each.size:.1f} GB, arrive on the host at {each.one_by_one:.1f} GB/s one by one, and "
                  f"at {each.ahead:.1f} GB/s where their transfer begins ahead of their use." for each in found
                  if isinstance(each, Transfer) and each.subject == title), "",
        ]  # fmt: skip
    path.write_text(_HEAD + "\n".join(lines[:-1]) + "\n", encoding="utf-8")
