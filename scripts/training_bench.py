"""Measures what it costs to watch a training loop, by gradscope's probe and by what others offer.

A contender is a loop of its own with a state of its own; the loops take turns of ten steps, and each turn is compared
with the plain loop's turn of the same round, so that a machine whose speed drifts does not count.
"""

from __future__ import annotations

import importlib.util
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import gradscope as gs

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT / "models"))
import resnet50  # noqa: E402 - model files, which are no package
import transformer  # noqa: E402

BATCH = 8
TURN = 10
INTERVAL = 10
PARAMETERS = ("param", "param_grad", "update", "slot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A loop that is measured.

    Attributes:
        name: What watches it.
        what: What it watches.
        take: Takes so many steps, and waits for them.
        of: The name of the loop that it is compared with.
        limit: The ratio to hold; None where it is somebody else's.
    """

    name: str
    what: str
    take: Callable[[int], None]
    of: str
    limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The ratio of a loop's time to that of the plain one: least, median and most over the rounds."""

    name: str
    what: str
    least: float
    median: float
    most: float
    seconds: float
    limit: float | None


def measured(folder: Path, *, quick: bool, tell: Callable[[str], None]) -> list[Figure]:
    """Returns the figures, of a small transformer where it is to be quick, else of ResNet-50.

    Args:
        folder: Where probes write.
        quick: Whether the small model is measured.
        tell: Receives a line about what is left out.
    """
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    rounds = 3 if quick else 7
    model = transformer if quick else resnet50
    with_torch = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("transformers") is not None
    if not with_torch:
        tell("PyTorch is LEFT OUT: it takes the packages torch and transformers")
    contenders = [*_of_jax(folder, model), *(_of_torch(model, quick=quick) if with_torch else ())]
    for each in contenders:
        each.take(2)  # compiles; the second step of a watched loop is not due
    seconds: dict[str, list[float]] = {each.name + each.what: [] for each in contenders}
    for _ in range(rounds):
        for each in contenders:
            begin = time.perf_counter()
            each.take(TURN)
            seconds[each.name + each.what].append((time.perf_counter() - begin) / TURN)
    return [_figure(each, seconds) for each in contenders if each.name + each.what != each.of]


def write_page(path: Path, figures: Sequence[Figure], *, quick: bool) -> None:
    """Writes the page of the documentation."""
    model = "the small transformer of `gradscope train transformer`" if quick else "ResNet-50"
    versions = ", ".join(f"{name} {_version(name)}" for name in ("gradscope-jax", "jax", "optax", "torch", "numpy"))
    rows = [
        f"| {each.name} | {each.what} | {each.least:.2f} | {each.median:.2f} | {each.most:.2f} | "
        f"{'' if each.limit is None else f'{each.limit:.2f}'} |"
        for each in figures
    ]
    table = ["| loop | what is watched | least | median | most | to hold |", "| --- " * 6 + "|", *rows]
    measured_with = f"with {versions}, Python {platform.python_version()}."
    path.write_text(f"{_HEAD}Measured of {model}, {measured_with}\n\n" + "\n".join(table) + "\n", encoding="utf-8")


_HEAD = """# The bench of training

`scripts/bench train` measures what it costs to watch a training loop of ResNet-50 with a batch of 8 on the CPU, with
`--quick` of a small transformer, and writes this page. A figure is the time of a step over that of the plain loop,
which has the same step and nothing that watches it; PyTorch's is over a plain loop of PyTorch. The loops take turns of
ten steps, and a turn is compared with the plain one of the same round. What is to be held is for ResNet-50 and larger
models: a step of a small one is short, and a recorded step takes at least some milliseconds.


"""


def _figure(contender: Contender, seconds: dict[str, list[float]]) -> Figure:
    own = seconds[contender.name + contender.what]
    ratios = [ours / plain for ours, plain in zip(own, seconds[contender.of], strict=True)]
    return Figure(
        name=contender.name, what=contender.what, least=min(ratios), median=statistics.median(ratios), most=max(ratios),
        seconds=statistics.median(own), limit=contender.limit,
    )  # fmt: skip


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def _of_jax(folder: Path, model: Any) -> Iterator[Contender]:
    """Yields the loops in JAX."""
    plain = "plain JAX"
    tx = optax.sgd(1e-4, momentum=0.9)
    yield Contender(
        name=plain, what="", take=_loop(model, tx, jax.jit(_step(model, tx), donate_argnums=(0, 1))), of=plain
    )
    for what, every, families, limit in (
        ("all families every 10 steps", INTERVAL, None, 1.01),
        ("all families every step", 1, None, 1.15),
        ("parameters, gradients, updates and slots every step", 1, PARAMETERS, 1.05),
    ):
        probe = gs.Probe(folder / what.replace(" ", "-"), every, families=families)
        step = probe.jit(_step(model, tx, probe.value_and_grad, probe.record), donate_argnums=(0, 1))
        yield Contender(name="gs.Probe", what=what, take=_loop(model, tx, step), of=plain, limit=limit)
    for every in (INTERVAL, 1):
        what = f"norms of parameters, gradients and updates {_often(every)}"
        take = _loop(model, tx, _watched(model, tx, every))
        yield Contender(name="norms in the step, as Levanter", what=what, take=take, of=plain)
    chained = optax.chain(optax.snapshot("grads", _norms), tx, optax.snapshot("updates", _norms))
    for every in (INTERVAL, 1):
        what = f"norms of gradients and updates every step, read {_often(every)}"
        step = _read(jax.jit(_step(model, chained), donate_argnums=(0, 1)), every)
        yield Contender(name="optax.snapshot", what=what, take=_loop(model, chained, step), of=plain)


def _often(every: int) -> str:
    return "every step" if every == 1 else f"every {every} steps"


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


def _watched(model: Any, tx: Any, every: int) -> Callable[..., Any]:
    """Returns a step that is compiled twice, the second with norms as outputs, which are read when they are due."""

    def with_norms(params: Any, slots: Any, rest: Any, batch: Any) -> Any:
        (value, _), grads = jax.value_and_grad(_loss(model), has_aux=True)(params, rest, batch)
        updates, slots = tx.update(grads, slots, params)
        return (optax.apply_updates(params, updates), slots, value), [_norms(each) for each in (params, grads, updates)]

    plain = jax.jit(_step(model, tx), donate_argnums=(0, 1))
    observed = jax.jit(with_norms, donate_argnums=(0, 1))
    number = 0

    def step(*arguments: Any) -> Any:
        nonlocal number
        number += 1
        if (number - 1) % every:
            return plain(*arguments)
        out, norms = observed(*arguments)
        jax.tree_util.tree_map(float, norms)
        return out

    return step


def _read(program: Callable[..., Any], every: int) -> Callable[..., Any]:
    """Returns a step whose snapshots are read when they are due."""
    number = 0

    def step(*arguments: Any) -> Any:
        nonlocal number
        number += 1
        out = program(*arguments)
        if (number - 1) % every == 0:
            jax.tree_util.tree_map(float, [optax.tree.get(out[1], name) for name in ("grads", "updates")])
        return out

    return step


def _norms(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: jnp.sqrt(jnp.sum(leaf * leaf)), tree)


def _loop(model: Any, tx: Any, step: Callable[..., Any]) -> Callable[[int], None]:
    init_key, batch_key = jax.random.split(jax.random.key(0))
    batch = model.batch(batch_key, BATCH)
    variables = jax.jit(model.init)(init_key)
    rest = {key: each for key, each in variables.items() if key != "params"}
    state = (variables["params"], tx.init(variables["params"]))

    def take(steps: int) -> None:
        nonlocal state
        value: Any = None
        for _ in range(steps):
            *moved, value = step(*state, rest, batch)
            state = tuple(moved)
        jax.block_until_ready((state, value))

    return take


def _of_torch(model: Any, *, quick: bool) -> Iterator[Contender]:
    """Yields the loops in PyTorch, of a model of the same size: hooks on each module, which read statistics."""
    plain = "plain PyTorch"
    yield Contender(name=plain, what="", take=_torch_loop(model, None, quick=quick), of=plain)
    for every in (INTERVAL, 1):
        what = f"outputs of modules, their gradients and those of parameters {_often(every)}"
        yield Contender(name="PyTorch with hooks", what=what, take=_torch_loop(model, every, quick=quick), of=plain)


def _torch_loop(model: Any, every: int | None, *, quick: bool) -> Callable[[int], None]:
    import numpy as np
    import torch

    network, loss = _torch_model(quick=quick)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
    batch = {name: torch.from_numpy(np.array(each)) for name, each in model.batch(jax.random.key(1), BATCH).items()}
    rows: list[list[float]] = []
    due, number = False, 0

    def statistics_of(tensor: Any) -> None:
        values = tensor.detach().float()
        row = (
            values.norm(),
            values.mean(),
            values.std(),
            values.abs().max(),
            (values == 0).sum(),
            values.isnan().sum(),
        )
        rows.append([each.item() for each in row])

    def forward(_module: Any, _inputs: Any, output: Any) -> None:
        if due and isinstance(output, torch.Tensor):
            statistics_of(output)
            output.register_hook(statistics_of)

    for module in network.modules() if every is not None else ():
        if not list(module.children()):
            module.register_forward_hook(forward)

    def take(steps: int) -> None:
        nonlocal due, number
        for _ in range(steps):
            due = every is not None and number % every == 0
            optimizer.zero_grad()
            loss(network, batch).backward()
            if due:
                for parameter in network.parameters():
                    statistics_of(parameter)
                    statistics_of(parameter.grad)
            optimizer.step()
            number += 1
            rows.clear()

    return take


def _torch_model(*, quick: bool) -> tuple[Any, Callable[[Any, Any], Any]]:
    import torch
    import transformers

    if quick:
        made = transformer.Transformer()
        config = transformers.GPT2Config(
            vocab_size=made.vocabulary, n_positions=made.length, n_embd=made.width, n_layer=made.layers,
            n_head=made.heads, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False,
        )  # fmt: skip
        network = transformers.GPT2LMHeadModel(config)
        return network, lambda net, batch: torch.nn.functional.cross_entropy(
            net(batch["tokens"]).logits.flatten(0, 1), batch["targets"].flatten().long()
        )
    network = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
    return network, lambda net, batch: torch.nn.functional.cross_entropy(
        net(batch["image"].permute(0, 3, 1, 2)).logits, batch["label"].long()
    )
