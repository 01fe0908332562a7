"""Loops in JAX: plain, with a probe, with norms in the step, with `optax.snapshot`, and as `gradscope train` has it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gradscope as gs
from gradscope.training.loop.step_programs import StepPrograms
from training_bench.contender import INTERVAL, Contender, Contest, Take
from training_bench.subjects import Subject

RATE, MOMENTUM = 1e-4, 0.9
PARAMETERS = ("param", "param_grad", "update", "slot")

#: Loops whose figures others are computed from.
ALL_FAMILIES = ("gs.Probe", "all families every step")
HISTOGRAM_STEPS = ("gradscope train", "all families with histograms every step")
NORMS = ("norms in the step, as Levanter", "norms of parameters, gradients and updates every step")


def contest(subject: Subject, folder: Path) -> Contest:
    """Returns the loops of a model; probes write into folders in `folder`."""
    model, tx = subject.model, optax.sgd(RATE, momentum=MOMENTUM)
    chained = optax.chain(optax.snapshot("grads", _norms), tx, optax.snapshot("updates", _norms))

    def probed(stack: ExitStack, every: int, families: tuple[str, ...] | None) -> Take:
        probe = stack.enter_context(gs.Probe(folder / f"{every}-{families is None}", every, families=families))
        step = _step(model, tx, probe.value_and_grad, probe.record)
        return _loop(subject, tx, probe.jit(step, donate_argnums=(0, 1)))

    def plain(of: Any) -> Any:
        return jax.jit(_step(model, of), donate_argnums=(0, 1))

    probes = (
        Contender(name="gs.Probe", what=f"all families every {INTERVAL} steps", round=INTERVAL, limit=1.01,
                  build=lambda stack: probed(stack, INTERVAL, None)),
        Contender(name=ALL_FAMILIES[0], what=ALL_FAMILIES[1], limit=1.15, build=lambda stack: probed(stack, 1, None)),
        Contender(name="gs.Probe", what="parameters, gradients, updates and slots every step", limit=1.05,
                  build=lambda stack: probed(stack, 1, PARAMETERS)),
        Contender(name=HISTOGRAM_STEPS[0], what=HISTOGRAM_STEPS[1], build=lambda _: _histograms(subject)),
    )  # fmt: skip
    others = (
        Contender(name=NORMS[0], what=NORMS[1], build=lambda _: _loop(subject, tx, _watched(model, tx))),
        Contender(name="optax.snapshot", what="norms of gradients and updates every step",
                  build=lambda _: _loop(subject, chained, _read(plain(chained)))),
    )  # fmt: skip
    return Contest(plain=lambda: _loop(subject, tx, plain(tx)), contenders=(*probes, *others))


def _loss(model: Any) -> Callable[..., Any]:
    def loss(params: Any, rest: Any, batch: Any) -> Any:
        out = model.loss({**rest, "params": params}, batch)
        return out if isinstance(out, tuple) else (out, None)

    return loss


def _step(
    model: Any, tx: Any, value_and_grad: Any = jax.value_and_grad, record: Callable[..., None] = lambda **_: None
) -> Callable[..., Any]:
    def train_step(params: Any, slots: Any, rest: Any, batch: Any) -> Any:
        (value, _), grads = value_and_grad(_loss(model), has_aux=True)(params, rest, batch)
        updates, slots = tx.update(grads, slots, params)
        record(updates=updates, opt_state=slots)
        return optax.apply_updates(params, updates), slots, value

    return train_step


def _watched(model: Any, tx: Any) -> Callable[..., Any]:
    """Returns a step that also computes norms, which are read."""

    def with_norms(params: Any, slots: Any, rest: Any, batch: Any) -> Any:
        (value, _), grads = jax.value_and_grad(_loss(model), has_aux=True)(params, rest, batch)
        updates, slots = tx.update(grads, slots, params)
        return (optax.apply_updates(params, updates), slots, value), [_norms(each) for each in (params, grads, updates)]

    program = jax.jit(with_norms, donate_argnums=(0, 1))

    def step(*arguments: Any) -> Any:
        out, norms = program(*arguments)
        jax.tree_util.tree_map(float, norms)
        return out

    return step


def _read(program: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step whose snapshots are read."""

    def step(*arguments: Any) -> Any:
        out = program(*arguments)
        jax.tree_util.tree_map(float, [optax.tree.get(out[1], name) for name in ("grads", "updates")])
        return out

    return step


def _norms(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: jnp.sqrt(jnp.sum(leaf * leaf)), tree)


def _begin(subject: Subject) -> tuple[Any, Any]:
    """Returns initial variables and the batch of every step."""
    init_key, batch_key = jax.random.split(jax.random.key(0))
    return jax.jit(subject.model.init)(init_key), subject.model.batch(batch_key, subject.batch_size)


def _loop(subject: Subject, tx: Any, step: Callable[..., Any]) -> Take:
    variables, batch = _begin(subject)
    rest = {key: each for key, each in variables.items() if key != "params"}
    state = (variables["params"], tx.init(variables["params"]))
    del variables  # of the state alone, which steps donate

    def take(steps: int) -> None:
        nonlocal state
        value: Any = None
        for _ in range(steps):
            *moved, value = step(*state, rest, batch)
            state = tuple(moved)
        jax.block_until_ready((state, value))

    return take


def _histograms(subject: Subject) -> Take:
    """Returns the loop of `gradscope train` where every step is observed with histograms, which are read."""
    variables, batch = _begin(subject)
    step = gs.train_step(subject.model.loss, optax.sgd(RATE, momentum=MOMENTUM))
    programs = StepPrograms(step, check=True)
    state = step.init(variables)
    del variables
    sound, previous = programs.sound_so_far(), programs.no_gradients(state)

    def take(steps: int) -> None:
        nonlocal state, sound, previous
        for _ in range(steps):
            taken = programs.observed(state, sound, previous, batch, histograms=True)
            state, sound, previous = taken.state, taken.sound, taken.gradients
            jax.tree_util.tree_map(np.asarray, taken.recorded)
        jax.block_until_ready(state)

    return take
