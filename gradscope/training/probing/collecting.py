"""Collects what a step observes while JAX traces it, and turns it into extra outputs of the step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from gradscope import naming
from gradscope.capturing.execution.function_call import Call, is_array, positions
from gradscope.capturing.in_steps.seen import Seen
from gradscope.capturing.in_steps.signature import Signature, plain_value_and_grad
from gradscope.capturing.in_steps.value_and_grad import observing_value_and_grad
from gradscope.errors import UsageError
from gradscope.history.history_rows import LossFault
from gradscope.instrument.query.capture_spec import EVERYTHING, CaptureSpec
from gradscope.instrument.statistics.core_statistics import core_statistics, merged_statistics
from gradscope.tracing.jaxpr.jaxcompat import trace_state
from gradscope.tracing.leaves import leaves_of, variable_leaves
from gradscope.tracing.tracer import Trace
from gradscope.training.optimizers.stated_learning_rate import stated_learning_rate
from gradscope.training.optimizers.tree_norm import tree_norm
from gradscope.training.probing.collected import Collected
from gradscope.training.probing.returned.applied_updates import moves, new_params
from gradscope.training.probing.same_loss import same_loss
from gradscope.training.recording.compared_arrays import cosine, is_same
from gradscope.training.recording.expected_changes import ExpectedChange, expected_changes, joined
from gradscope.training.recording.recorded import outline_of
from gradscope.training.state import named_leaves, slots_of

FUNCTIONAL = (
    "there, write (value, grads), seen = gs.value_and_grad(loss)(...), return seen, and call probe.write(step, seen) "
    "outside"
)
#: Of a scan over parts of a batch, what is observed of each part would be written as a step.
_IN_SCANS = (
    "where gradients of parts of a batch are added up, differentiate jax.lax.map(jax.checkpoint(lambda part: "
    f"loss(params, part)), parts).mean() once; in a scan over steps, {FUNCTIONAL.removeprefix('there, ')}"
)


class Collector:
    """Collects during one trace of a step; where it does not observe, it leaves the step the program that it is.

    Args:
        spec: The selection that is observed.
        observes: Whether the step is observed.

    Attributes:
        losses: The value of each loss that was differentiated.
        outlines: The shapes of the observations of each of them.
        shapes: What has the shape and dtype of further tensors, by key.
        arguments: The arguments of the losses: the key that a dump has for each, and the array.
        optimizer: The state of an optimizer that the step records; None where it records none.
        changes: What should be other values at the next step, by what is to be said where they are not.
    """

    def __init__(self, spec: CaptureSpec, *, observes: bool) -> None:
        self._spec = spec
        self._observes = observes
        self._trace = trace_state()
        self._function: Callable[..., Any] | None = None
        self._seen: list[Seen] = []
        self._params: dict[str, Any] = {}
        self._paths: dict[str, str] = {}
        self._differentiated: tuple[Any, Any] = (None, None)
        self._gradients: dict[str, list[Any]] = {}
        self._updates: Any = None
        self.optimizer: Any = None
        self._after: Any = None
        self.losses: list[Any] = []
        self.outlines: list[Seen] = []
        self.shapes: dict[str, Any] = {}
        self.arguments: list[tuple[str, Any]] = []
        self._inputs: dict[str, list[Any]] = {}
        self.changes: dict[LossFault, ExpectedChange] = {}

    def value_and_grad(self, function: Callable[..., Any], signature: Signature, args: Any, kwargs: Any) -> Any:
        """Returns what `jax.value_and_grad` returns, and keeps what it observes.

        Raises:
            UsageError: It is inside a transformation of its own, or the step has differentiated another loss.
        """
        self._require_outermost("value_and_grad")
        self._function = same_loss(self._function, function)
        if not self._observes:
            out = plain_value_and_grad(function, signature)(*args, **kwargs)
        else:
            observing = observing_value_and_grad(function, signature, self._spec, "stats", ran=self._expect)
            out, seen = observing(*args, **kwargs)
            call = Call(function, args, kwargs, positions(signature.argnums, len(args)), is_array)
            trees = (out[1], _names(call, signature), _differentiated(signature, args))
            self._keep(seen, *map(signature.parameters_of, trees))
            leaves = [*variable_leaves(call.variables), *leaves_of(call.batch, naming.INPUT)]
            arrays = jax.tree_util.tree_leaves((call.variables, call.batch))
            keys = [naming.key_of(leaf.family, leaf.name) for leaf in leaves]
            self.arguments += zip(keys, arrays, strict=True)
            self._observe_inputs(call)
        self.losses.append(out[0][0] if signature.has_aux else out[0])
        return out

    def record(self, updates: Any, optimizer: Any, params: Any) -> None:
        """Keeps updates, an optimizer's state and new parameters; None for what there is none of.

        Raises:
            UsageError: It is inside a transformation of its own.
        """
        self._require_outermost("record")
        self._updates = self._updates if updates is None else updates
        self.optimizer = self.optimizer if optimizer is None else optimizer
        self._after = self._after if params is None else params

    def collected(self, given: Mapping[str, Any], returned: Any) -> Collected:
        """Returns the extra outputs of the step.

        Args:
            given: The arguments of the step by name, before it ran.
            returned: What it returned.
        """
        gradients = {name: _mean(each) for name, each in self._gradients.items()}
        updates, after = self._by_name(self._updates, "updates"), self._by_name(self._after, "params")
        new = [dict(after)] if updates and after else new_params(*self._differentiated, given, returned)
        if not updates:
            updates = {name: each - self._params[name] for name, each in after.items()}
        vectors = {key: _together(each) for key, each in self._inputs.items()} | _merged(self._seen, gradients)
        own = {naming.key_of(naming.UPDATE, name): leaf for name, leaf in updates.items()} | self._slots()
        chosen = {key: leaf for key, leaf in own.items() if selects(self._spec, key)}
        vectors |= {key: core_statistics(leaf) for key, leaf in chosen.items()}
        self.shapes |= {key: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for key, leaf in chosen.items()}
        numbers = {"loss": _mean(self.losses), "grad_norm": tree_norm(gradients), "param_norm": tree_norm(self._params)}
        if updates:
            numbers["update_norm"] = tree_norm(updates)
        if (rate := stated_learning_rate(self.optimizer)) is not None:
            numbers["learning_rate"] = rate
        unchanged = {name: is_same(new, self._params[name]) for name, new in after.items()}
        return Collected(
            keys=tuple(vectors),
            vectors=jnp.stack(list(vectors.values())) if vectors else jnp.zeros((0, 0)),
            numbers={name: jnp.asarray(each, jnp.float32) for name, each in numbers.items()},
            gradients=gradients,
            unchanged=unchanged,
            directions={name: cosine(leaf, gradients[name].astype(leaf.dtype)) for name, leaf in updates.items()},
            changes={fault.why: each for fault, each in self.changes.items()},
            applied={
                name: moves(self._params[name], update, [each[name] for each in new])
                for name, update in updates.items()
                if new and name in new[0] and update.shape == self._params[name].shape
            },
        )  # fmt: skip

    def _expect(self, trace: Trace, inputs: Sequence[Any], auxiliary: Sequence[Any]) -> None:
        for fault, change in expected_changes(trace, inputs, auxiliary):
            known = self.changes.get(fault)
            self.changes[fault] = change if known is None else joined(known, change)

    def _keep(self, seen: Seen, gradients: Any, names: Any, params: Any) -> None:
        self._seen.append(seen)
        self.outlines.append(outline_of(seen))
        self._differentiated = (params, names)
        paths = named_leaves(gradients)
        for name, (path, gradient), param in zip(
            jax.tree_util.tree_leaves(names), paths.items(), jax.tree_util.tree_leaves(params), strict=True
        ):
            if name and jnp.issubdtype(param.dtype, jnp.inexact):
                self._params[name] = param
                self._paths[path] = name
                self._gradients.setdefault(name, []).append(gradient)

    def _observe_inputs(self, call: Call) -> None:
        for leaf, array in zip(leaves_of(call.batch, naming.INPUT), jax.tree_util.tree_leaves(call.batch), strict=True):
            key = naming.key_of(naming.INPUT, leaf.name)
            if is_array(array) and selects(self._spec, key):
                self._inputs.setdefault(key, []).append(core_statistics(array))
                self.shapes[key] = jax.ShapeDtypeStruct(array.shape, array.dtype)

    def _by_name(self, tree: Any, what: str) -> dict[str, Any]:
        """Returns the leaves of a pytree like the parameters by parameter.

        Raises:
            UsageError: None of its leaves is where a parameter is.
        """
        if tree is None:
            return {}
        named = named_leaves(tree)
        found = {self._paths[path]: leaf for path, leaf in named.items() if path in self._paths}
        if named and not found:
            known = ", ".join(list(self._paths)[:3])
            raise UsageError(
                f"probe.record({what}=...) has another structure than the gradients: no leaf of it is at the place of "
                f"a parameter, such as {known}",
                hint="hand over the pytree that the optimizer returned for these gradients",
            )
        return found

    def _slots(self) -> dict[str, Any]:
        if self.optimizer is None:
            return {}
        of_paths = {path: self._params[name] for path, name in self._paths.items()}
        slots = slots_of(self.optimizer, of_paths)
        renamed = ((*naming.split_key(key), leaf) for key, leaf in slots.items())
        return {naming.key_of(family, self._paths[path]): leaf for family, path, leaf in renamed}

    def _require_outermost(self, method: str) -> None:
        if trace_state() != self._trace:
            raise UsageError(
                f"probe.{method} is called inside a transformation of its own (scan, vmap, shard_map, or another jit), "
                "from which nothing gets out but by being returned",
                hint=_IN_SCANS,
            )


class Observer(Protocol):
    """An `Observer` runs the methods of a probe that are called inside a step."""

    def value_and_grad(self, function: Callable[..., Any], signature: Signature, args: Any, kwargs: Any) -> Any:
        """Returns what `jax.value_and_grad` returns."""
        ...

    def record(self, updates: Any, optimizer: Any, params: Any) -> None:
        """Keeps updates, an optimizer's state and new parameters; None for what there is none of."""
        ...


_current: ContextVar[Observer | None] = ContextVar("collector", default=None)


@contextmanager
def collecting(collector: Observer) -> Generator[None]:
    """Makes an observer the one that `current` returns."""
    token = _current.set(collector)
    try:
        yield
    finally:
        _current.reset(token)


def current(method: str) -> Observer:
    """Returns the observer of the step that is being traced.

    Raises:
        UsageError: None is: the step was not compiled by `probe.jit`.
    """
    found = _current.get()
    if found is None:
        raise UsageError(
            f"probe.{method} is called outside of a step that probe.jit compiled",
            hint=f"compile the step with probe.jit, in place of jax.jit; or, {FUNCTIONAL}",
        )
    return found


def selects(spec: CaptureSpec, key: str) -> bool:
    """Returns whether a selection has a key, of whatever family."""
    family, name = naming.split_key(key)
    families = spec.families | ({naming.SLOT_PREFIX} if spec.families == EVERYTHING else frozenset())
    return bool({family, family.partition("/")[0]} & families) and spec.selection.selects(name, key)


def _differentiated(signature: Signature, args: Sequence[Any]) -> Any:
    """Returns the pytree of what is differentiated, which that of the gradients is like."""
    numbers = signature.argnums
    return args[numbers] if isinstance(numbers, int) else [args[number] for number in numbers]


def _names(call: Call, signature: Signature) -> Any:
    """Returns the pytree of the gradients with the parameters' names; "" for what is no parameter."""
    names = [leaf.name if leaf.family == naming.PARAM else "" for leaf in variable_leaves(call.variables)]
    tree = jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(call.variables), names)
    own = call.differentiated_in(tree)
    return own[0] if isinstance(signature.argnums, int) else own


def _merged(seen: Sequence[Seen], gradients: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the statistics of each tensor over all calls: as of their batches together."""
    found: dict[str, list[Any]] = {}
    for each in seen:
        for key in each:
            found.setdefault(key, []).append(each[key].vector)
    merged: dict[str, Any] = {}
    for key, vectors in found.items():
        family, name = naming.split_key(key)
        if family == naming.PARAM:
            merged[key] = vectors[0]
        elif family == naming.PARAM_GRAD and len(vectors) > 1:
            merged[key] = core_statistics(gradients[name])
        else:
            merged[key] = _together(vectors)
    return merged


def _together(vectors: Sequence[Any]) -> Any:
    return vectors[0] if len(vectors) == 1 else merged_statistics(vectors)


def _mean(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else sum(values[1:], values[0]) / len(values)
