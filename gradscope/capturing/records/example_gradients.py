"""An example gradient is that of the loss of one example; their sum or mean may be the gradient of the batch.

The loss of a single example is the user's own loss of a batch of that one example. A leaf of the batch is split into
examples where its leading axis is as long as the number of examples; any other leaf, such as a key or a temperature, is
passed in full.

Sharp edges: the meaning of a leading axis is not known, so ten class weights next to ten examples are split, too. The
gradients of all examples are on the host at the same time.

Why one example after the other and not `jax.vmap` (2026-11): the user's loss takes a batch of one anyway, rounds as it
does for the batch, needs no more memory on the device than the batch did, and needs no batching rule for every
operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import numpy as np

from gradscope import naming
from gradscope.arrays.dtypes import as_numpy_dtype
from gradscope.capturing.execution.observation import Observation
from gradscope.capturing.execution.order import ExecutionOrder
from gradscope.capturing.execution.plain_loss import PlainLoss
from gradscope.capturing.execution.preparation import Prepared
from gradscope.capturing.execution.run import Run
from gradscope.capturing.explain.self_check import length, separation
from gradscope.capturing.records.pending_tensors import (
    PendingTensor,
    argument_origins,
    gradient_of_argument,
    pending_of,
    record_of,
)
from gradscope.capturing.timings import Timings
from gradscope.comparison.default_tolerances import default_tolerance, matmul_dtype
from gradscope.dump.manifest.manifest import Examples
from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.segments.program_steps import bytes_of
from gradscope.tracing.jaxpr.sharding import with_whole_axis
from gradscope.tracing.leaves import Leaf
from gradscope.tracing.loading.model import Model
from gradscope.tracing.user_frames import user_code

#: Gradients by the number of the argument, the leading axis the example.
ExampleGradients: TypeAlias = Mapping[int, np.ndarray]


class ExampleProgram:
    """An `ExampleProgram` computes the gradients of the loss of one example, compiled once for all examples.

    Args:
        model: The model.
        prepared: Its prepared run of the full batch.
        batch_size: Number of examples; None for that of the batch.
        timings: Receives the seconds of compiling, and of running under `examples`.

    Raises:
        UsageError: No leaf of the batch has an axis of examples, or several axes could be it.
        ModelError: The loss fails on a batch of one.
    """

    def __init__(self, model: Model, prepared: Prepared, batch_size: int | None, timings: Timings) -> None:
        trace, spec = prepared.resolved.trace, prepared.resolved.spec
        batch = {number: leaf for number, leaf in enumerate(trace.arguments) if leaf.family == naming.INPUT}
        self.count = example_count(list(batch.values()), batch_size)
        self._doing = f"loss of {model.name} on one example"
        self._timings = timings
        self._leaves = prepared.leaves
        self._split = frozenset(number for number, leaf in batch.items() if leaf.shape[:1] == (self.count,))
        self._shown = {
            number: leaf for number, leaf in enumerate(trace.arguments) if leaf.differentiated and _is_shown(leaf, spec)
        }
        self._loss = PlainLoss(model.loss, prepared)
        with timings.phase("compile"), user_code(self._doing):
            program = jax.jit(jax.grad(self._example_loss))
            self._program: Any = program.lower(self._differentiated(), self._leaves, np.int32(0)).compile()

    @property
    def size_bytes(self) -> int:
        """The bytes of the gradients of all examples."""
        return self.count * sum(map(bytes_of, self._shown.values()))

    def run(self) -> ExampleGradients:
        """Returns the gradients of each example, with respect to the selected parameters.

        Raises:
            ModelError: The loss failed.
            MachineError: Memory ran out.
        """
        with self._timings.phase("examples"), user_code(self._doing):
            found = {
                number: np.empty((self.count, *leaf.shape), as_numpy_dtype(str(leaf.dtype)))
                for number, leaf in self._shown.items()
            }
            for example in range(self.count):
                gradients = self._program(self._differentiated(), self._leaves, np.int32(example))
                for number, gradient in gradients.items():
                    found[number][example] = np.asarray(gradient)
        return found

    def _differentiated(self) -> dict[int, Any]:
        return {number: self._leaves[number] for number in self._shown}

    def _example_loss(self, differentiated: Mapping[int, Any], leaves: Sequence[Any], example: Any) -> Any:
        whole = {number: with_whole_axis(leaves[number]) for number in self._split}
        example_leaves = {number: jax.lax.dynamic_slice_in_dim(leaf, example, 1) for number, leaf in whole.items()}
        return self._loss({**example_leaves, **differentiated}, leaves)


def example_count(batch: Sequence[Leaf], batch_size: int | None) -> int:
    """Returns the number of examples of a batch.

    Args:
        batch: Its leaves.
        batch_size: The number that the caller specifies; None for none.

    Raises:
        UsageError: No leaf has an axis of examples, or several have leading axes that could be it.
    """
    sizes = {leaf.shape[0] for leaf in batch if leaf.shape}
    if batch_size is not None and batch_size in sizes - {0}:
        return batch_size
    if len(sizes) == 1 and 0 not in sizes:
        return sizes.pop()
    leaves = ", ".join(f"{naming.printable(leaf.name)} {leaf.dtype}{list(leaf.shape)}" for leaf in batch)
    examples = f"{batch_size} examples" if batch_size else "examples"
    raise UsageError(
        f"gradients of each example are requested, and the batch has no leading axis of {examples}: "
        f"it is {leaves or 'empty'}",
        hint="have batch(key, size) return leaves whose leading axis is the example",
    )


def pending_examples(
    run: Run, order: ExecutionOrder, gradients: ExampleGradients, count: int
) -> Iterator[PendingTensor]:
    """Yields the gradients of each example, in the order in which layers use the parameters.

    Args:
        run: The run of the full batch, which has the values that the loss depends on.
        order: Its execution order.
        gradients: The gradients.
        count: Number of examples.
    """
    origins = argument_origins(run, order)
    shown = (number for number, leaf in enumerate(run.trace.arguments) if _is_shown(leaf, run.spec))
    for number in sorted(shown, key=lambda at: origins[at].facts.index):
        leaf, origin = run.trace.arguments[number], origins[number]
        stacked = replace(leaf, shape=(count, *leaf.shape))
        batch = gradient_of_argument(run, number)
        source = batch if isinstance(batch, str) else Observation(value=gradients[number])
        yield pending_of(record_of(naming.EXAMPLE_GRAD, leaf.name, stacked, origin), origin, source)


def combination(run: Run, gradients: ExampleGradients, count: int, machine: Mapping[str, Json]) -> Examples | None:
    """Returns how the gradients of the examples combine to those of the batch.

    Args:
        run: The run of the full batch.
        gradients: Those of each example.
        count: Number of examples.
        machine: The environment of the run, with the precision of matrix multiplications.

    Returns:
        The combination; None where the loss depends on none of the selected parameters, or no gradient is finite.
    """
    batch = {n: np.asarray(run.observed.gradients[n]) for n in gradients if n in run.reached.arguments}
    if not any(np.isfinite(gradient).any() for gradient in batch.values()):
        return None
    sums = {number: _sum(gradients[number]) for number in batch}
    sizes = {number: length(each) for number, each in batch.items()}
    apart = {
        "mean": math.hypot(*(separation(sums[number] / count, batch[number]) for number in batch)),
        "sum": math.hypot(*(separation(sums[number], batch[number]) for number in batch)),
    }
    by = "mean" if apart["mean"] <= apart["sum"] else "sum"
    size = math.hypot(*sizes.values())
    products, dtypes = matmul_dtype(machine), {number: str(each.dtype) for number, each in batch.items()}
    rounding = (
        size * default_tolerance(naming.PARAM_GRAD, dtypes[number], dtypes[number], products=products)
        for number, size in sizes.items()
    )
    return Examples(
        count=count,
        combined_by=by,
        rel_l2=0.0 if apart[by] == 0 else apart[by] / size if size else math.inf,
        coupled=apart[by] > math.hypot(*rounding),
    )


def _is_shown(leaf: Leaf, spec: CaptureSpec) -> bool:
    return leaf.family == naming.PARAM and spec.selects(naming.EXAMPLE_GRAD, leaf.name)


def _sum(gradients: np.ndarray) -> np.ndarray:
    """Returns the sum over the examples, without a wider copy of all of them."""
    total = np.zeros(gradients.shape[1:], np.complex128 if gradients.dtype.kind == "c" else np.float64)
    with np.errstate(invalid="ignore"):
        for gradient in gradients:
            total += gradient.astype(total.dtype)
    return total
