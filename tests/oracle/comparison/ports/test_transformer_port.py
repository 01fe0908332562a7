"""A port of a transformer: scanned in JAX, its heads apart and its layers stacked; one module for each in PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.comparison import CompareOptions, Comparison, compare
from gradscope.comparison.pairing.map_file import read_map, write_map
from models.transformer import Transformer

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - needs PyTorch

from gradscope.frameworks.torch import capture  # noqa: E402

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH = 2, 8, 2, 11, 5
MODEL = Transformer(layers=LAYERS, width=WIDTH, heads=HEADS, vocabulary=VOCABULARY, length=LENGTH)

#: What PyTorch's linear layers are of the stacked kernels with heads of their own.
RULES = r"""
[[rule]]
candidate = 'block/\d+/attn/(query|key|value)/weight'
reference = 'block/attn/{1}/kernel'
steps = [{ transpose = [1, 0] }, { reshape = [8, 2, 4] }, { stack = 0 }]

[[rule]]
candidate = 'block/\d+/attn/out/weight'
reference = 'block/attn/out/kernel'
steps = [{ transpose = [1, 0] }, { reshape = [2, 4, 8] }, { stack = 0 }]

[[rule]]
candidate = 'block/\d+/mlp/(up|down)/weight'
reference = 'block/mlp/{1}/kernel'
steps = [{ transpose = [1, 0] }, { stack = 0 }]
"""

#: What only one side has a layer for: what PyTorch computes inside of `Attention`, and the loss.
ONE_SIDED = (r".*/attn/(scores|softmax|mix)", "loss")


class Add(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position, self.add = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH), Add()

    def forward(self, tokens: Any) -> Any:
        return self.add(self.token(tokens), self.position(torch.arange(LENGTH)[None]))


class Attention(nn.Module):
    def __init__(self, *, looks_ahead: bool = False) -> None:
        super().__init__()
        for name in ("query", "key", "value", "out"):
            self.add_module(name, nn.Linear(WIDTH, WIDTH, bias=False))
        self.hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(2 if looks_ahead else 1)

    def forward(self, x: Any) -> Any:
        def heads(name: str) -> Any:
            return self.get_submodule(name)(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)

        scores = heads("query") @ heads("key").transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        mixed = scores.masked_fill(self.hidden, torch.finfo(scores.dtype).min).softmax(-1) @ heads("value")
        return self.get_submodule("out")(mixed.transpose(1, 2).flatten(2))


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(*sizes, bias=False) for sizes in ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)))
        self.gelu = nn.GELU(approximate="tanh")

    def forward(self, x: Any) -> Any:
        return self.down(self.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.norm1, self.attn, self.add1 = nn.LayerNorm(WIDTH), Attention(**options), Add()
        self.norm2, self.mlp, self.add2 = nn.LayerNorm(WIDTH), Perceptron(), Add()

    def forward(self, x: Any) -> Any:
        x = self.add1(x, self.attn(self.norm1(x)))
        return self.add2(x, self.mlp(self.norm2(x)))


class Port(nn.Module):
    def __init__(self, **last: bool) -> None:
        super().__init__()
        self.embed, self.norm = Embed(), nn.LayerNorm(WIDTH)
        self.block = nn.ModuleList(Block(**(last if number == LAYERS - 1 else {})) for number in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.block:
            x = block(x)
        return self.head(self.norm(x))


def set_weights(port: Port, params: Any) -> None:
    """Give a port the JAX model's parameters."""
    for name, parameter in port.named_parameters():
        *path, last = name.split(".")
        block = int(path.pop(1)) if path[0] == "block" else None
        found = params
        for part in path:
            found = found[part]
        array = found.get("kernel", found.get("embedding", found.get("scale"))) if last == "weight" else found[last]
        array = np.array(array if block is None else array[block])
        if "kernel" in found:
            inside = WIDTH if path[-1] != "down" else 4 * WIDTH
            array = array.reshape(inside, -1).T
        parameter.data.copy_(torch.from_numpy(np.array(array)))


@pytest.fixture(scope="module")
def arguments() -> tuple[Any, Any]:
    variables = MODEL.init(jax.random.key(0))
    random = np.random.default_rng(0)
    noise = jax.tree.map(lambda leaf: (leaf + 0.1 * random.standard_normal(leaf.shape)).astype(leaf.dtype), variables)
    return noise, MODEL.batch(jax.random.key(1), 2)


@pytest.fixture(scope="module")
def scanned(arguments: tuple[Any, Any]) -> gs.Dump:
    return gs.capture(MODEL.loss, *arguments)


def ported(arguments: tuple[Any, Any], **last: bool) -> gs.Dump:
    variables, batch = arguments
    port = Port(**last)
    set_weights(port, variables["params"])
    tokens, targets = (torch.from_numpy(np.array(batch[name])).long() for name in ("tokens", "targets"))
    return capture(port, lambda logits: nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), tokens)


def judged(ref: gs.Dump, cand: gs.Dump, rules: Path) -> Comparison:
    options = CompareOptions(
        map_rules=read_map(rules), allow_missing=(*ONE_SIDED, "(input|input_grad|state|aux)/.*"),
    )  # fmt: skip
    return compare(ref.source, cand.source, options=options)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    (tmp_path / "map.toml").write_text(RULES)
    return tmp_path / "map.toml"


@pytest.mark.slow
def test_a_right_port_is_the_same_layer_by_layer(arguments: tuple[Any, Any], scanned: gs.Dump, rules: Path) -> None:
    found = judged(scanned, ported(arguments), rules)
    assert found.verdict == "same", found.sentence
    rows = {f"{row.family}/{row.name}": row for row in found.rows}
    assert {row.matched_by for row in found.rows} == {"name", "path", "map", "iterations", None}
    query = rows["param_grad/block/attn/query/kernel"]
    assert (query.matched_by, query.made_by) == ("map", "transpose [1, 0], reshape [8, 2, 4], stack 0")
    assert rows["param_grad/block/norm1/scale"].made_by == "stack 0"
    assert rows["activation/block[1]/attn/query"].made_by == "reshape [2, 5, 2, 4]"
    assert rows["activation/block"].matched_by == "iterations"


@pytest.mark.slow
def test_an_off_by_one_mask_in_one_block_of_the_port_is_found_there(
    arguments: tuple[Any, Any], scanned: gs.Dump, rules: Path
) -> None:
    first = judged(scanned, ported(arguments, looks_ahead=True), rules).first_divergence
    assert first.forward is not None
    assert first.forward.name == f"block[{LAYERS - 1}]/attn/out"


def test_the_map_that_is_written_finds_the_pairs_of_a_port_again(
    arguments: tuple[Any, Any], scanned: gs.Dump, rules: Path
) -> None:
    port = ported(arguments)
    found = judged(scanned, port, rules)
    written = rules.with_name("written.toml")
    write_map(written, found.matches)
    again = judged(scanned, port, written)
    assert again.verdict == "same"
    assert {row.matched_by for row in again.rows} == {"name", "map", "iterations", None}


class _Tied(nn.Module):
    """A module whose head has the weights of its embedding, by a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.middle = nn.Embedding(9, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(self.embed(tokens))))


@pytest.mark.slow
@pytest.mark.parametrize("slope", [1.0, -3.0])
def test_a_tied_head_is_paired_by_its_parameters_whatever_its_values_are(slope: float) -> None:
    torch.manual_seed(0)
    module, tokens = _Tied(), torch.arange(8).reshape(2, 4)
    table, weight, bias = (
        module.state_dict()[name].numpy() for name in ("embed.weight", "middle.weight", "middle.bias")
    )

    def loss(weights: Any, tokens: Any) -> Any:
        with jax.named_scope("wte"):
            x = weights["wte"][tokens]
        with jax.named_scope("mix"):
            x = x @ weights["mix"]["w"] + weights["mix"]["b"][None, None]
        x = jnp.tanh(slope * x)
        with jax.named_scope("logits"):
            x = x @ weights["wte"].T
        return jnp.square(x).mean()

    reference = capture(module, lambda output: output.square().mean(), {"tokens": tokens})
    weights = {"wte": table, "mix": {"w": weight.T, "b": bias}}
    found = gs.compare(reference, gs.capture(loss, weights, tokens.numpy(), origins=False))
    assert found.verdict == ("same" if slope == 1.0 else "different"), found.sentence
    pairs = {row.name: row.counterpart for row in found.rows if row.family == "activation"}
    assert pairs["head"] == "logits", found.sentence
