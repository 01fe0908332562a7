"""Two ways to the same tensors: the engine, which observes a loss that knows nothing of it, and JAX alone.

`observe` runs an observing program and gives what it saw by name. `expected` has the loss itself hand out its
activations through *probes* and differentiates with respect to something added at each of them. A loss under test takes
its probe as third argument; by default it is the identity, which leaves no trace in the jaxpr.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.instrument.observing_program import Observed, Reached, observing_program
from gradscope.instrument.plan import Plan
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.planning import make_plan
from gradscope.instrument.taps import Observer, full_tensor
from gradscope.tracing.jaxpr.frames import iterations
from gradscope.tracing.tracer import Trace, trace_loss

Probe = Callable[[str, Any], Any]
Loss = Callable[..., Any]


def unprobed(name: str, value: Any) -> Any:
    """The probe that does nothing."""
    return value


def layer(name: str, function: Callable[..., Any], *values: Any, probe: Probe = unprobed, at: str | None = None) -> Any:
    """One layer of a test's loss: `function` under the scope `name`, probed under `at` where scopes lie around it."""
    with jax.named_scope(name):
        return probe(name if at is None else at, function(*values))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of one name.

    Attributes:
        activation: The value; None where it did not run.
        gradient: The gradient; None where there is none.
    """

    activation: Any
    gradient: Any


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One run of an observing program, by names.

    Attributes:
        trace: The traced loss.
        plan: What was observed.
        reached: What the loss is connected to.
        observed: What the program handed out.
    """

    trace: Trace
    plan: Plan
    reached: Reached
    observed: Observed

    @property
    def loss(self) -> Any:
        return self.observed.loss

    @property
    def seen(self) -> dict[str, Seen]:
        """By every name of every site and iteration."""
        found: dict[str, Seen] = {}
        for number, site in enumerate(self.plan.sites):
            for name, seen in self._iterations(number):
                assert name not in found, f"two tensors are called {name}"
                found[name] = seen
            assert self.observed.captured.values[number].dtype is not None, site
        return found

    @property
    def params(self) -> dict[str, Any]:
        """Gradients of the parameters the loss is connected to, by name."""
        return self._arguments("param")

    @property
    def inputs(self) -> dict[str, Any]:
        """Gradients of the inputs the loss is connected to, by name."""
        return self._arguments("input")

    def _arguments(self, family: str) -> dict[str, Any]:
        leaves = enumerate(self.trace.arguments)
        return {
            leaf.name: self.observed.gradients[number]
            for number, leaf in leaves
            if leaf.family == family and number in self.reached.arguments
        }

    def _iterations(self, number: int) -> list[tuple[str, Seen]]:
        site = self.plan.sites[number]
        captured = self.observed.captured
        executed, counts = captured.executed.get(number), captured.iterations.get(number)
        found: list[tuple[str, Seen]] = []
        for iteration in iterations(site.loops):
            known = tuple(index for index, loop in zip(iteration, site.loops, strict=True) if loop.length is not None)
            ran = executed is None or bool(_iteration(executed, known))
            counted = [] if counts is None else _iteration(counts, known).tolist()
            ran = ran and all(counted)
            last = iter(counted)
            named = tuple(
                max(next(last) - 1, 0) if loop.length is None else index
                for index, loop in zip(iteration, site.loops, strict=True)
            )
            gradient = (
                _iteration(self.observed.cotangents[number], known) if number in self.reached.sites and ran else None
            )
            activation = _iteration(captured.values[number], known) if ran else None
            seen = Seen(activation=activation, gradient=gradient)
            found += [(str(name.at(named)), seen) for name in site.names]
        return found


def _iteration(values: Any, iteration: tuple[int, ...]) -> Any:
    # On the host, since a value sharded over explicit axes does not let itself be indexed.
    return np.asarray(values)[iteration] if iteration else values


def observe(
    loss: Loss,
    variables: Any,
    batch: Any,
    *,
    spec: CaptureSpec | None = None,
    observer: Observer = full_tensor,
    jit: bool = True,
) -> Observation:
    """Trace, plan and run an observing program.

    Args:
        loss: The loss.
        variables: Its variables.
        batch: Its batch.
        spec: What to observe; everything by default.
        observer: What is kept of each tensor.
        jit: Whether it is compiled as a whole or run operation by operation.
    """
    spec = CaptureSpec() if spec is None else spec
    trace = trace_loss(loss, variables, batch, operations=spec.looks_inside_layers)
    return observe_plan(trace, make_plan(trace, spec, observer), variables, batch, jit=jit)


def observe_plan(trace: Trace, plan: Plan, variables: Any, batch: Any, *, jit: bool) -> Observation:
    """Run the observing program of a plan; see `observe`."""
    program, reached = observing_program(trace, plan)
    leaves = jax.tree_util.tree_leaves((variables, batch))
    if jit:
        observed = jax.jit(program)(leaves)
    else:
        with jax.disable_jit():
            observed = program(leaves)
    return Observation(trace=trace, plan=plan, reached=reached, observed=observed)


def _is_inexact(value: Any) -> bool:
    return value is not None and jnp.issubdtype(value.dtype, jnp.inexact)


def expected(loss: Loss, variables: Any, batch: Any, *, zeros: Mapping[str, Any] | None = None) -> dict[str, Seen]:
    """What a loss's probes see, and the gradients with respect to something added there.

    Args:
        loss: `loss(variables, batch, probe)`.
        variables: Its variables.
        batch: Its batch.
        zeros: What is added at each probe; None to run the loss once more for their shapes.
    """

    def zeros_for(variables: Any, batch: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def probe(name: str, value: Any) -> Any:
            found[name] = jnp.zeros_like(value)
            return value

        loss(variables, batch, probe)
        return found

    def perturbed(added: Mapping[str, Any]) -> Any:
        found: dict[str, Any] = {}

        def probe(name: str, value: Any) -> Any:
            assert name not in found, f"two probes are called {name}"
            found[name] = value
            return value + added[name] if name in added else value

        out = loss(variables, batch, probe)
        return (out[0] if isinstance(out, tuple) else out), found

    with jax.disable_jit():  # a probe inside a jitted function hands out values, not tracers
        zeros = zeros_for(variables, batch) if zeros is None else zeros
        added = {name: zero for name, zero in zeros.items() if jnp.issubdtype(zero.dtype, jnp.inexact)}
        gradients, values = jax.grad(perturbed, has_aux=True)(added)
    return {name: Seen(activation=value, gradient=gradients.get(name)) for name, value in values.items()}


def scalar(loss: Loss) -> Loss:
    """The loss without what it returns beside the scalar."""

    def alone(*args: Any) -> Any:
        out = loss(*args)
        return out[0] if isinstance(out, tuple) else out

    return alone


def bits(value: Any) -> bytes:
    """An array's bytes: -0.0 is not 0.0, and NaN equals itself."""
    array = np.asarray(value)
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


def assert_close(found: Any, expected_array: Any, *, what: str = "") -> None:
    """Equal up to the compiler's rounding, in the dtype's own precision."""
    left, right = np.asarray(found), np.asarray(expected_array)
    assert (left.shape, left.dtype) == (right.shape, right.dtype), what
    if not jnp.issubdtype(left.dtype, jnp.inexact):
        np.testing.assert_array_equal(left, right, err_msg=what)
        return
    epsilon = float(jnp.finfo(left.dtype).eps)
    wide = np.complex128 if jnp.issubdtype(left.dtype, jnp.complexfloating) else np.float64
    left, right = left.astype(wide), right.astype(wide)
    largest = float(np.abs(right).max(initial=0.0, where=np.isfinite(right)))
    np.testing.assert_allclose(left, right, rtol=64 * epsilon, atol=64 * epsilon * largest, err_msg=what)


def check_stepwise(loss: Loss, variables: Any, batch: Any) -> Observation:
    """Hold a loss's observed value and parameter gradients to `jax.grad`, operation by operation and bit for bit."""
    with jax.disable_jit():
        value, gradients = jax.value_and_grad(scalar(loss))(variables, batch)
    observation = observe(loss, variables, batch, jit=False)
    assert bits(observation.loss) == bits(value)
    for number, gradient in enumerate(jax.tree_util.tree_leaves(gradients)):  # variables come first
        assert bits(observation.observed.gradients[number]) == bits(gradient), observation.trace.arguments[number].name
    return observation


def check_compiled(loss: Loss, variables: Any, batch: Any) -> Observation:
    """Hold a loss's observed value and parameter gradients to `jax.grad`, compiled and to rounding."""
    value, gradients = jax.jit(jax.value_and_grad(scalar(loss)))(variables, batch)
    observation = observe(loss, variables, batch)
    assert_close(observation.loss, value)
    for number, gradient in enumerate(jax.tree_util.tree_leaves(gradients)):  # variables come first
        assert_close(observation.observed.gradients[number], gradient, what=observation.trace.arguments[number].name)
    return observation


def check_gradients(loss: Loss, variables: Any, batch: Any) -> Observation:
    """Hold a loss's value and parameter gradients to `jax.grad`: bit for bit uncompiled, to rounding compiled."""
    stepwise = check_stepwise(loss, variables, batch)
    compiled = observe_plan(stepwise.trace, stepwise.plan, variables, batch, jit=True)
    assert_close(compiled.loss, stepwise.loss)
    for number, gradient in stepwise.observed.gradients.items():
        assert_close(compiled.observed.gradients[number], gradient, what=compiled.trace.arguments[number].name)
    return compiled


def check(
    loss: Loss, variables: Any, batch: Any, *, twin: Loss | None = None, exactly: bool = True, stepwise: bool = True
) -> Observation:
    """Hold a loss to everything JAX alone can say: loss, parameter gradients, activations and their gradients.

    Args:
        loss: The loss under test.
        variables: Its variables.
        batch: Its batch.
        twin: The same function with probes, where the loss itself cannot carry them (inside a scan, say).
        exactly: Whether the probes are all the names there are.
        stepwise: Whether to hold it to them operation by operation as well.
    """
    observation = (check_gradients if stepwise else check_compiled)(loss, variables, batch)
    seen = observation.seen
    zeros = {name: np.zeros_like(each.activation) for name, each in seen.items() if _is_inexact(each.activation)}
    reference = expected(loss if twin is None else twin, variables, batch, zeros=zeros)
    assert set(reference) <= set(seen), (set(reference) - set(seen), set(seen))
    if exactly:
        assert set(seen) == set(reference)
    for name, tensor in reference.items():
        assert seen[name].activation is not None, name
        assert_close(seen[name].activation, tensor.activation, what=name)
        if tensor.gradient is None or seen[name].gradient is None:
            assert seen[name].gradient is None, name
            assert tensor.gradient is None or not np.asarray(tensor.gradient).any(), name
        else:
            assert_close(seen[name].gradient, tensor.gradient, what=name)
    return observation
