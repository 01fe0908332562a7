"""`Probe` records the steps of a loop that the user wrote."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, SupportsIndex

import jax
from jax.core import Tracer

from gradscope.capturing.execution.function_call import indices
from gradscope.capturing.in_steps.seen import Seen
from gradscope.capturing.in_steps.signature import Signature, of_modules
from gradscope.errors import UsageError
from gradscope.history.history_rows import step_number
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.training.probing.alarm_capture import saved_arguments
from gradscope.training.probing.collected import Collected
from gradscope.training.probing.collecting import FUNCTIONAL, current
from gradscope.training.probing.observed_outside import collected_from, outlines_of, steps_in
from gradscope.training.probing.probe_alarms import ON_ALARM, OnAlarm, ProbeAlarms
from gradscope.training.probing.probe_history import ProbeHistory, close_at_exit
from gradscope.training.probing.probed_step import Layout, ProbedStep
from gradscope.training.step_seen import StepSeen
from gradscope.typed_arguments import typed


class Probe:
    """A `Probe` records the steps of your own training loop in the folder of a run, which `show` and `load` read.

    Three lines of the loop change: the probe is made; `probe.value_and_grad` takes the place of `jax.value_and_grad`
    in the step; `probe.jit` takes that of `jax.jit` around it. Steps that are not due run the program that they would
    run without the probe. It is a context manager; a thread writes, and `close`, which the end of the program calls at
    the latest, waits for it. Steps of several threads are taken one after the other.

    A step that calls `value_and_grad` several times, to accumulate gradients, counts as one step on all of its
    batches: the statistics of activations are those of the batches together, the loss is the mean of the losses, and a
    parameter's gradient the mean of its gradients.

    Args:
        folder: The folder of the run; it is made where it does not exist.
        every: Steps that this divides are recorded.
        start: The number of the first step: of a run that is continued, how many it has taken. What the folder has
            recorded from that step on is removed as soon as the probe is made, before any step is taken.
        force: Whether a run in the folder may be replaced, which is done as soon as the probe is made, too.
        on_alarm: What an alarm does: "save" saves the state before its step and the batch, "stop" also ends the loop by
            a `ModelError` from one of the next steps, "note" only writes that it was. For the first two the probe holds
            two copies of the state on its device, and the batches of up to twice `keep_every` steps.
        keep_every: Steps between two copies of the state; None for `every`, and at least 20.
        keep_alarms: How many of the folders that alarms saved are kept: the first and the last ones; of one the last.
        select: Patterns of names to observe; all where empty. A string is one pattern.
        exclude: Patterns of names to leave out.
        families: Families to observe: those of `value_and_grad`, `update`, `slot` or `slot/mu`; None for all.
        depth: Only layers of at most so many scopes.

    Raises:
        UsageError: An argument is out of its range, the folder holds a run that would be lost, or another process
            writes to it.
        MachineError: The folder cannot be written.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import gradscope as gs
        >>> def loss(params, x):
        ...     return jnp.mean((x @ params["w"] - 1) ** 2)
        >>> probe = gs.Probe("today", every=2)
        >>> def step(params, x):
        ...     value, grads = probe.value_and_grad(loss)(params, x)
        ...     updates = jax.tree.map(lambda grad: -0.1 * grad, grads)
        ...     probe.record(updates=updates)
        ...     return jax.tree.map(jnp.add, params, updates), value
        >>> compiled, params = probe.jit(step, donate_argnums=0), {"w": jnp.zeros(3)}
        >>> with probe:
        ...     for _ in range(5):
        ...         params, value = compiled(params, jnp.eye(3))
        >>> with gs.load("today") as run:
        ...     print(run.steps["step"].tolist(), round(float(run.steps["loss"][0]), 3))
        ...     print(run.series("update/w", "l2").round(3).tolist())
        [0, 2, 4] 1.0
        [0.115, 0.101, 0.088]
    """

    @typed("every", "start", "keep_every", "keep_alarms")
    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: SupportsIndex = 10,
        *,
        start: SupportsIndex = 0,
        force: bool = False,
        on_alarm: OnAlarm = "save",
        keep_every: int | None = None,
        keep_alarms: int = 3,
        select: str | Sequence[str] = (),
        exclude: str | Sequence[str] = (),
        families: str | Collection[str] | None = None,
        depth: int | None = None,
    ) -> None:
        every, start = step_number("every", every, 1), step_number("start", start)
        if on_alarm not in ON_ALARM:
            skips = " A probe cannot skip an update: the state is the loop's own." if on_alarm == "skip" else ""
            raise UsageError(f"on_alarm is {on_alarm!r}.{skips}".rstrip("."), hint=f"one of {', '.join(ON_ALARM)}")
        keep_alarms = step_number("keep_alarms", keep_alarms, 1)
        keep_every = max(every, 20) if keep_every is None else step_number("keep_every", keep_every, 1)
        self._every, self._next = every, start
        self._spec = CaptureSpec.of(select, exclude, families, depth)
        self._history = ProbeHistory(Path(folder), start, force=force)
        self._alarms = ProbeAlarms(
            self._history, on_alarm=on_alarm, keep=keep_alarms,
            keep_every=keep_every, every=every,
        )  # fmt: skip
        self._step: ProbedStep | None = None
        self._closed = False
        self._at_once = threading.RLock()  # one thread at a time, of several that take steps
        close_at_exit(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"next step {self._next:,}"
        return f"<gradscope.Probe {self._history.folder.path}: every {self._every:,} steps, {state}>"

    @typed("argnums")
    def value_and_grad(
        self,
        fun: Callable[..., Any],
        argnums: SupportsIndex | Sequence[SupportsIndex] = 0,
        has_aux: bool = False,
        holomorphic: bool = False,
        allow_int: bool = False,
    ) -> Callable[..., tuple[Any, Any]]:
        """Returns the function of `jax.value_and_grad`, which is observed where the step is due.

        Args:
            fun: Returns a real scalar, or a pair of it and a pytree if `has_aux`.
            argnums: The position of the argument that is differentiated, or those of several.
            has_aux: Whether `fun` returns a pair.
            holomorphic: Whether `fun` is holomorphic.
            allow_int: Whether differentiated arguments may have integers.

        Returns:
            A function of the arguments of `fun` that returns its value and its gradients.

        Raises:
            UsageError: From the function returned: it is called outside of a step of `probe.jit`, or inside a
                transformation of its own.
        """
        signature = Signature(argnums=indices(argnums), has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int)

        @functools.wraps(fun, updated=())
        def observed(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            own, how = of_modules(fun, signature, args, kwargs)
            return own.restored(current("value_and_grad").value_and_grad(own.function, how, own.args, own.kwargs))

        return observed

    def record(self, *, updates: Any = None, opt_state: Any = None, params: Any = None) -> None:
        """Records, inside the step, what the optimizer makes of the gradients; nothing of it is an output of the step.

        Args:
            updates: What is added to the parameters: the pytree that the optimizer returned. Where it is not given, and
                `params` is, their difference.
            opt_state: The optimizer's state, as optax has it; the variables that it keeps for a parameter each are
                recorded as `slot/mu/...`.
            params: The parameters after the step.

        Raises:
            UsageError: It is called outside of a step of `probe.jit`, inside a transformation of its own, or with a
                pytree of another structure than the parameters.
        """
        current("record").record(updates, opt_state, params)

    @typed()
    def jit(self, step: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Returns the step compiled, in place of `jax.jit`: as it is, and once more to be observed where it is due.

        Args:
            step: The step, which calls `probe.value_and_grad`.
            **options: Those of `jax.jit`: `donate_argnums`, `static_argnames`, `in_shardings`, ...

        Returns:
            A function of the step's arguments that returns what the step returns. Its `lower` is that of `jax.jit` of
            the step as it is.

        Raises:
            UsageError: The probe has a step already; from the function returned: the probe is closed, the step calls
                `value_and_grad` nowhere, or it is itself called inside a transformation.
            MachineError: From the function returned: the history cannot be written.
            ModelError: From the function returned: an alarm stops the loop.
        """
        if self._step is not None:
            raise UsageError("this probe has a step already", hint="make a probe for each step, in a folder of its own")
        probed = self._step = ProbedStep(step, options, self._spec)

        @functools.wraps(step)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._at_once:
                return self._taken(probed, args, kwargs)

        call.lower = probed.plain.lower  # type: ignore[attr-defined]
        return call

    @staticmethod
    @typed()
    def arguments_before(alarm: str | os.PathLike[str], *args: Any) -> Any:
        """Returns the arguments of the step that an alarm saved, bit for bit, to go on from before it.

        Args:
            alarm: The alarm's folder, such as `today/alarm-000030`.
            *args: The step's arguments as the loop has them, of the same structure, shapes and dtypes.

        Returns:
            The saved arguments as a tuple, on the devices of those given.

        Raises:
            DumpError: The folder cannot be read, or is of a step with other arguments.
        """
        return saved_arguments(Path(alarm), (args, {}))[0]

    def write(self, step: SupportsIndex, seen: Seen[Any] | StepSeen, *, loss: Any = None, updates: Any = None) -> None:
        """Writes observations that a program returned: of one step, or of a scan over steps of as many.

        Args:
            step: The number of the step, or of the first.
            seen: What `gs.value_and_grad` or `gs.train_step` observed.
            loss: The loss to record, of the shape of the one in `seen`, which it replaces.
            updates: What was added to the parameters, a pytree like them; of several steps with a leading axis.

        Raises:
            UsageError: A step from this one on was written before, or these are no statistics of steps in a row.
            MachineError: The history cannot be written.
            ModelError: An alarm stops the loop.
        """
        with self._at_once:
            self._require_open()
            self._alarms.act()
            step = step_number("step", step)
            if step <= self._history.last:
                after = f"step {step:,} was to be written after step {self._history.last:,}"
                raise UsageError(after, hint="write steps in their order")
            number = steps_in(seen)
            collected = collected_from(seen, loss, updates)
            self._history.describe(collected, Layout(outlines_of(seen), {}, {}))
            for at in range(number or 1):
                one = collected if number is None else jax.tree_util.tree_map(lambda leaf, at=at: leaf[at], collected)
                self._write(step + at, one)

    def close(self) -> None:
        """Waits until everything is written, and unlocks the folder; does nothing later, or in a forked process.

        Raises:
            MachineError: The history cannot be written.
        """
        with self._at_once:
            if self._closed or not self._history.writer.is_of_this_process:
                return
            self._closed = True
            try:
                self._alarms.finish()
            finally:
                self._history.close(taken=max(self._next, self._history.last + 1))

    def _taken(self, step: ProbedStep, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._require_open()
        if any(isinstance(leaf, Tracer) for leaf in jax.tree_util.tree_leaves((args, kwargs))):
            raise UsageError(
                "the step of a probe is called inside a transformation (scan, vmap, or another jit), "
                "from which nothing gets out but by being returned",
                hint=FUNCTIONAL,
            )
        number, arguments, loss = self._next, (args, kwargs), None
        self._alarms.before(step, number, arguments)
        if number % self._every:
            out, loss = step.taken(*args, **kwargs)
        else:
            out, collected = step.observed(*args, **kwargs)
            assert step.layout is not None
            self._history.describe(collected, step.layout)
            self._write(number, collected)
        self._alarms.after(number, arguments, out, loss)
        self._next = number + 1
        return out

    def _write(self, number: int, collected: Collected) -> None:
        step_number("step", number)
        recorded, follows = self._history.recorded(collected)
        self._history.write(number, self._alarms.record(number, collected.keys, recorded, follows=follows))

    def _require_open(self) -> None:
        self._history.writer.require_this_process()
        if self._closed:
            raise UsageError("the probe is closed", hint="take all steps before close, inside of with gs.Probe(...)")
