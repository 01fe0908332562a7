"""A step that the user wrote is compiled twice: as it is, and with what it observes as extra outputs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, NamedTuple

import jax

from gradscope import naming
from gradscope.capturing.in_steps.compiling_note import CompilingNote
from gradscope.capturing.in_steps.seen import Seen
from gradscope.errors import UsageError
from gradscope.frameworks.detect import leaf_without_values
from gradscope.history.history_rows import LossFault
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.naming import printable
from gradscope.training.probing.collected import Collected
from gradscope.training.probing.collecting import Collector, collecting
from gradscope.training.probing.returned.handed_on import states_to_hand_on

#: The error of Flax where a module is changed inside a program that was made outside of it.
_OTHER_TRACE: Final = ("flax.errors", "TraceContextError")


class Layout(NamedTuple):
    """A `Layout` states, from the trace of an observed step, what its extra outputs are.

    Attributes:
        outlines: The shapes of the observations of each loss.
        shapes: What has the shape and dtype of further tensors, by key.
        names: The keys that a dump has for the step's arguments, by the number of the leaf.
        changes: What is to be said where a value is not another one at the next step.
    """

    outlines: list[Seen]
    shapes: dict[str, Any]
    names: dict[int, str]
    changes: tuple[LossFault, ...] = ()


class ProbedStep:
    """A `ProbedStep` has two programs of one step.

    Args:
        function: The step.
        options: The options of `jax.jit`.
        spec: The selection that is observed.

    Attributes:
        layout: What the observed program returns; None before it was traced.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any], spec: CaptureSpec) -> None:
        self._function = function
        self._options = options
        self._spec = spec
        self._loss_at: int | None = None
        self._called: set[str] = set()
        self.layout: Layout | None = None
        shardings = options.get("out_shardings")
        of_observed: dict[str, Any] = {} if shardings is None else {"out_shardings": (shardings, None)}
        self._plain_program = jax.jit(self._plain(), **options)
        self._observed_program = jax.jit(self._observed(), **{**options, **of_observed})

    @property
    def function(self) -> Callable[..., Any]:
        """The step as the user wrote it."""
        return self._function

    @property
    def plain(self) -> Any:
        """The program of `jax.jit` and `jax.value_and_grad`."""
        return self._plain_program

    def taken(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Returns what the step returns, and its loss where that is among it; None where it is not."""
        self._require_arrays(args, kwargs)
        with self._first_call("plain", f"compiling {self._name} as it is"), _ModulesOfTheStep(self._name):
            out = self._plain_program(*args, **kwargs)
        at = self._loss_at
        return out, None if at is None else jax.tree_util.tree_leaves(out)[at]

    def observed(self, *args: Any, **kwargs: Any) -> tuple[Any, Collected]:
        """Returns what the step returns, and what was observed in it."""
        self._require_arrays(args, kwargs)
        note = f"compiling {self._name} with what is observed in it"
        with self._first_call("observed", note), _ModulesOfTheStep(self._name):
            return self._observed_program(*args, **kwargs)

    def _first_call(self, program: str, text: str) -> AbstractContextManager[object]:
        """Returns a context that says on a terminal what the first call of a program is doing."""
        if program in self._called:
            return nullcontext()
        self._called.add(program)
        return CompilingNote(f"{text} ...")

    def _require_arrays(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Requires that modules of Equinox among the step's arguments have no leaves that are no arrays.

        Raises:
            UsageError: One has, and is not static.
        """
        if self.layout is not None:
            return  # the program has taken such arguments
        for name, each in self._traced_by_name(args, kwargs).items():
            if (path := leaf_without_values(each)) is not None:
                raise UsageError(
                    f"{self._name} takes a module of Equinox, whose {printable(name + path)} is no array, and jax.jit, "
                    "and so probe.jit, takes arrays",
                    hint="give the step the module's arrays: params, static = eqx.partition(module, "
                    "eqx.is_inexact_array) before the loop, and module = eqx.combine(params, static) in the loss",
                )

    def _traced_by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments that are not static, by what the step calls them."""
        given = _by_name(self._function, args, kwargs)
        static = {*_each(self._options.get("static_argnames")), *_each(self._options.get("static_argnums"))}
        count = len(given)
        return {name: each for at, (name, each) in enumerate(given.items()) if not {name, at, at - count} & static}

    def _plain(self) -> Callable[..., Any]:
        @functools.wraps(self._function)
        def step(*args: Any, **kwargs: Any) -> Any:
            collector = Collector(self._spec, observes=False)
            with collecting(collector):
                out = self._function(*args, **kwargs)
            self._require_loss(collector)
            self._loss_at = _position(collector.losses, out)
            return out

        return step

    def _observed(self) -> Callable[..., Any]:
        @functools.wraps(self._function)
        def step(*args: Any, **kwargs: Any) -> tuple[Any, Collected]:
            collector = Collector(self._spec, observes=True)
            # Before the step runs: modules of NNX are pytrees whose leaves it may replace in place.
            given = jax.tree_util.tree_map(lambda leaf: leaf, _by_name(self._function, args, kwargs))
            leaves = jax.tree_util.tree_leaves((args, kwargs))
            with collecting(collector):
                out = self._function(*args, **kwargs)
            self._require_loss(collector)
            names = _named(collector, leaves)
            self._require_handed_on(leaves, jax.tree_util.tree_leaves((args, kwargs)), names, out)
            of_losses = {id(array) for _, array in collector.arguments}
            collector.changes.update(states_to_hand_on(given, of_losses, out, collector.optimizer))
            collected = collector.collected(given, out)
            self.layout = Layout(collector.outlines, collector.shapes, names, tuple(collector.changes))
            return out, collected

        return step

    def _require_handed_on(
        self, before: Sequence[Any], after: Sequence[Any], names: Mapping[int, str], out: Any
    ) -> None:
        """Refuses a step that changes the parameters of a module in place, where nothing of it leaves the program."""
        if len(before) != len(after):
            return
        changed = [
            at for at, key in names.items()
            if after[at] is not before[at] and naming.split_key(key)[0] == naming.PARAM
        ]  # fmt: skip
        returned = {leaf.shape for leaf in jax.tree_util.tree_leaves(out) if hasattr(leaf, "shape")}
        if changed and returned.isdisjoint(after[at].shape for at in changed):
            raise UsageError(
                f"{self._name} changes {printable(names[changed[0]])} in place and does not return it: jax.jit, and so "
                "probe.jit, drops what a step does not return, and nothing would be trained",
                hint="of NNX, hand over states and return them: graph, state = nnx.split((model, optimizer)); in the "
                "step, model, optimizer = nnx.merge(graph, state), and return nnx.state((model, optimizer))",
            )

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", "the step")

    def _require_loss(self, collector: Collector) -> None:
        if not collector.losses:
            raise UsageError(
                f"{self._name} calls probe.value_and_grad nowhere, so that there is nothing to observe",
                hint="call it in place of jax.value_and_grad",
            )


class _ModulesOfTheStep:
    """`_ModulesOfTheStep` says what to do where a step changes a module of NNX that was made outside of it.

    Args:
        name: What the step is called.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Flax need not be installed: an error of it is known by its name.
        if kind is not None and (kind.__module__, kind.__name__) == _OTHER_TRACE:
            said = str(error).partition(" (http")[0]
            raise UsageError(
                f"{self._name} changes a module of NNX that was made outside of it: {said}",
                hint="make it in the step: graph, state = nnx.split((model, optimizer)) before the loop; in the step, "
                "model, optimizer = nnx.merge(graph, state), and return nnx.state((model, optimizer))",
            ) from error


def _by_name(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a step by what it calls them; by number where it does not say."""
    try:
        return dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {f"argument {number}": each for number, each in enumerate(args)} | dict(kwargs)


def _each(option: Any) -> Sequence[Any]:
    return () if option is None else (option,) if isinstance(option, str | int) else option


def _named(collector: Collector, leaves: Sequence[Any]) -> dict[int, str]:
    """Returns the keys of those leaves of a step's arguments that it hands to a loss as they are, by number."""
    keys = {id(array): key for key, array in reversed(collector.arguments)}
    return {at: keys[id(leaf)] for at, leaf in enumerate(leaves) if id(leaf) in keys}


def _position(losses: list[Any], out: Any) -> int | None:
    """Returns which leaf of a step's output is its loss; None where none is."""
    if len(losses) != 1:
        return None
    return next((at for at, leaf in enumerate(jax.tree_util.tree_leaves(out)) if leaf is losses[0]), None)
