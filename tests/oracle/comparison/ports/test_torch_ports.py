"""A network captured from PyTorch against its port, and the same tensors in an `.npz` without a manifest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.ports.networks.convnet import CONVNET, WIDTH
from tests.support.ports.port import FAULTS, captured, named_first

torch = pytest.importorskip("torch", reason="PyTorch is absent: ports of its captures were NOT compared")

from torch import Tensor, nn  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402
from tests.support.sampled import sampled  # noqa: E402

#: The statistics that a batch norm leaves behind are no tensors of a file without a manifest.
FORWARD_FAULTS = tuple(fault for fault in FAULTS if fault != "momentum")


class Convolution(nn.Conv2d):
    """A convolution, where PyTorch correlates."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        return self._conv_forward(input, self.weight.flip(2, 3), self.bias)


class Activated(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        return torch.relu(super().forward(input))


def _module(weights: Mapping[str, Mapping[str, Any]]) -> nn.Module:
    """PyTorch's own layers with the weights of the stand-ins that the port is made of."""
    module = nn.Sequential()
    for name, layer in (
        ("conv1", nn.Conv2d(WIDTH, WIDTH, 3, padding=1)),
        ("norm1", nn.BatchNorm2d(WIDTH)),
        ("act1", nn.GELU()),
        ("conv2", Convolution(WIDTH, WIDTH, 3, padding=1)),
        ("pool", nn.MaxPool2d(2)),
        ("conv3", nn.Conv2d(WIDTH, WIDTH, 3, padding=1)),
        ("flatten", nn.Flatten()),
        ("fc1", Activated(WIDTH * 9, 12)),
        ("fc2", nn.Linear(12, 12)),
    ):
        module.add_module(name, layer)
        tensors = {key: torch.from_numpy(np.array(value)) for key, value in weights.get(name, {}).items()}
        layer.load_state_dict(tensors, strict=False)
    return module


@pytest.fixture(scope="module")
def reference() -> Dump:
    _, weights, batch = CONVNET.reference
    label = torch.from_numpy(batch["label"]).long()
    return capture(
        _module(weights), lambda x: nn.functional.cross_entropy(x, label), {"input": torch.from_numpy(batch["image"])}
    )


@pytest.fixture(scope="module")
def bare(reference: Dump, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tensors of the reference by their keys, as `numpy.savez` writes them."""
    path = tmp_path_factory.mktemp("bare") / "bare.npz"
    tensors: dict[str, Any] = {key: np.asarray(reference[key]) for key in reference}
    np.savez(path, **tensors)
    return path


@pytest.fixture(scope="module")
def ports() -> dict[str, Dump]:
    return {fault: captured(CONVNET.candidate(fault)) for fault in ("", *FAULTS)}


def test_a_correct_port_of_a_capture_is_the_same(reference: Dump, ports: dict[str, Dump]) -> None:
    found = gs.compare(reference, ports[""])
    assert found.verdict == "same", [(row.family, row.name, row.why) for row in found.rows if row.counts]


@pytest.mark.slow
def test_what_a_capture_of_pytorch_never_holds_needs_no_counterpart(reference: Dump, ports: dict[str, Dump]) -> None:
    for one, other in ((reference, ports[""]), (ports[""], reference)):
        found = gs.compare(one, other)
        assert found, found.sentence
        alone = {f"{row.family}/{row.name}" for row in found.rows if not row.counts and "PyTorch" in row.why}
        assert alone == {"state/norm1/num_batches_tracked", "aux/norm1/num_batches_tracked", "input/label"}


def test_a_count_of_updates_needs_no_counterpart_among_updated_state(ports: dict[str, Dump]) -> None:
    _, weights, batch = CONVNET.reference
    label = torch.from_numpy(batch["label"]).long()
    images = {"input": torch.from_numpy(batch["image"])}
    updated = capture(_module(weights), lambda x: nn.functional.cross_entropy(x, label), images, updates=True)
    rows = [row for row in gs.compare(updated, ports[""]).rows if row.name == "norm1/num_batches_tracked"]
    assert [(row.family, row.status, row.counts) for row in rows] == [
        ("state", "missing", False), ("aux", "missing", False)
    ]  # fmt: skip


@pytest.mark.slow
def test_labels_that_only_the_loss_reads_are_not_missed_where_the_losses_differ_either(
    reference: Dump, ports: dict[str, Dump]
) -> None:
    found = gs.compare(reference, ports["padding"])
    assert found.verdict == "different"
    assert [row.counts for row in found.rows if (row.family, row.name) == ("input", "label")] == [False]


def test_a_correct_port_of_tensors_without_a_manifest_is_the_same(bare: Path, ports: dict[str, Dump]) -> None:
    for one, other in ((gs.load(bare), ports[""]), (ports[""], gs.load(bare))):
        found = gs.compare(one, other)
        assert found.verdict == "same", found.sentence
        assert found.first_divergence.forward is None


def test_labels_are_missed_in_tensors_without_a_manifest_where_gradients_differ(
    bare: Path, ports: dict[str, Dump]
) -> None:
    found = gs.compare(gs.load(bare), ports["padding"])
    assert any(row.counts and (row.family, row.name) == ("input", "label") for row in found.rows)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["param/fc1/bias", "input/input", "activation_grad/fc2"])
def test_what_layers_use_is_missed_in_tensors_without_a_manifest(
    bare: Path, ports: dict[str, Dump], tmp_path: Path, lost: str
) -> None:
    with np.load(bare) as tensors:
        np.savez(tmp_path / "fewer.npz", **{key: tensors[key] for key in tensors if key != lost})
    assert gs.compare(gs.load(tmp_path / "fewer.npz"), ports[""]).verdict == "different"


@pytest.mark.slow
@sampled("fault", FAULTS)
def test_a_fault_is_blamed_on_its_layer(reference: Dump, ports: dict[str, Dump], fault: str) -> None:
    found = gs.compare(reference, ports[fault])
    assert found.verdict == "different"
    first = found.first_divergence.forward
    assert first is not None
    assert first.name in CONVNET.shows_at[fault], found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("fault", FORWARD_FAULTS)
def test_a_fault_is_blamed_on_its_layer_without_a_manifest(bare: Path, ports: dict[str, Dump], fault: str) -> None:
    found = gs.compare(gs.load(bare), ports[fault])
    assert found.verdict == "different"
    first = found.first_divergence.forward
    assert first is not None
    assert first.name in CONVNET.shows_at[fault], found.sentence


@pytest.mark.parametrize(("shifted", "name"), [(True, "tokens"), (True, "input"), (False, "input")])
def test_tokens_and_labels_may_be_slices_of_one_array(shifted: bool, name: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    tokens = np.array([[1, 4, 2, 6, 0], [3, 3, 5, 1, 2]])
    both = torch.from_numpy(tokens)
    reference = capture(
        module, lambda x: nn.functional.cross_entropy(x.reshape(-1, 7), both[:, 1:].reshape(-1)), both[:, :-1]
    )

    def loss(weights: Any, batch: Any) -> Any:
        tokens, targets = batch[name][:, :-1], batch[name][:, 1:] if shifted else batch[name][:, :-1]
        with jax.named_scope("embed"):
            x = weights["embed"][tokens]
        with jax.named_scope("head"):
            x = x @ weights["head"]["kernel"] + weights["head"]["bias"][None, None]
        return -jnp.take_along_axis(jax.nn.log_softmax(x), targets[..., None], axis=-1).mean()

    state = {name: value.numpy() for name, value in module.state_dict().items()}
    weights = {"embed": state["0.weight"], "head": {"kernel": state["1.weight"].T.copy(), "bias": state["1.bias"]}}
    found = gs.compare(reference, gs.capture(loss, weights, {name: tokens.astype(np.int32)}, origins=False))
    assert found.verdict == ("same" if shifted else "different"), found.sentence
    assert found.first_divergence.forward is None


@cache
def _tied(*, tied: bool) -> gs.Comparison:
    """An embedding whose table PyTorch's last layer shares, against a port that has one name for it, or none of it."""
    torch.manual_seed(0)
    embedding, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    module = nn.Sequential(embedding, nn.Tanh(), head)
    head.weight = embedding.weight
    tokens = np.array([[1, 4, 2, 6], [3, 5, 1, 2]])

    def loss(weights: Any, tokens: Any) -> Any:
        with jax.named_scope("embed"):
            x = weights["embed"][tokens]
        x = jnp.tanh(x)
        with jax.named_scope("attend"):
            x = x @ weights["embed" if tied else "head"].T
        return jnp.square(x).mean()

    table = embedding.weight.detach().numpy()
    weights = {"embed": table} if tied else {"embed": table, "head": table[::-1].copy()}
    reference = capture(module, lambda x: x.square().mean(), torch.from_numpy(tokens))
    return gs.compare(reference, gs.capture(loss, weights, tokens.astype(np.int32), origins=False))


def test_a_second_name_of_a_shared_parameter_needs_no_counterpart() -> None:
    found = _tied(tied=True)
    assert found.verdict == "same", found.sentence
    assert [row.why for row in found.rows if row.name == "2/weight"] == [
        "the same tensor as param/0/weight, which is compared",
        "the same tensor as param_grad/0/weight, which is compared",
    ]
    assert _tied(tied=False).verdict == "different"


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_buffers_may_be_constants_of_the_port_or_left_out_of_it_where_nothing_reads_them(
    training: bool, around: bool
) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    norm.load_state_dict({"running_mean": torch.randn(3)}, strict=False)
    module = nn.Sequential(nn.Linear(4, 3, bias=False), norm).train(around)
    norm.train(training)
    x = torch.randn(6, 4)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("dense"):
            x = x @ weights["dense"]["kernel"]
        with jax.named_scope("norm"):
            mean = x.mean(0) if training else state["1.running_mean"]
            variance = x.var(0) if training else state["1.running_var"]
            x = (x - mean[None]) / jnp.sqrt(variance + 1e-5)[None]
            x = x * weights["norm"]["scale"][None] + weights["norm"]["bias"][None]
        return jnp.tanh(x + 1).mean()

    weights = {
        "dense": {"kernel": state["0.weight"].T.copy()},
        "norm": {"scale": state["1.weight"], "bias": state["1.bias"]},
    }
    found = gs.compare(
        capture(module, lambda x: torch.tanh(x + 1).mean(), x), gs.capture(loss, weights, x.numpy(), origins=False)
    )
    assert found.first_divergence.forward is None, found.sentence
    assert found.verdict == "same", found.sentence
    told = "the reference updates 2 running statistics that the candidate does not have, `1/running_mean`"
    assert (told in found.sentence) is training


@pytest.mark.slow
def test_statistics_that_a_norm_in_training_does_not_read_count_in_a_module_in_evaluation() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    norm.load_state_dict({"running_mean": torch.randn(3), "running_var": torch.rand(3) + 0.5}, strict=False)
    module = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Sequential(norm)).eval()
    norm.train()
    x = torch.randn(6, 4)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}

    def port(mean: Any) -> Dump:
        def loss(variables: Any, x: Any) -> Any:
            weights, old = variables["params"], variables["batch_stats"]["norm"]
            with jax.named_scope("dense"):
                x = x @ weights["dense"]["kernel"]
            with jax.named_scope("norm"):
                found = {"mean": x.mean(0), "var": x.var(0)}
                x = (x - found["mean"][None]) / jnp.sqrt(found["var"] + 1e-5)[None]
                x = x * weights["norm"]["scale"][None] + weights["norm"]["bias"][None]
            updated = {name: 0.9 * old[name] + 0.1 * value for name, value in found.items()}
            return jnp.tanh(x + 1).mean(), {"batch_stats": {"norm": updated}}

        params = {
            "dense": {"kernel": state["0.weight"].T.copy()},
            "norm": {"scale": state["1.0.weight"], "bias": state["1.0.bias"]},
        }
        statistics = {"norm": {"mean": mean, "var": state["1.0.running_var"]}}
        variables = {"params": params, "batch_stats": statistics}
        return gs.capture(loss, variables, x.numpy(), has_aux=True, origins=False)

    reference = capture(module, lambda x: torch.tanh(x + 1).mean(), x)
    assert reference.manifest.provenance["training_switched"] == ["1/0"]
    assert gs.compare(reference, port(state["1.0.running_mean"])).verdict == "same"
    other = gs.compare(reference, port(np.zeros(3, np.float32)))
    assert other.verdict == "different"
    assert not any("in evaluation" in row.why for row in other.rows if row.family == "state"), other.sentence


@pytest.mark.parametrize("count", [0, 1000])
@pytest.mark.parametrize("turned", [False, True])
def test_a_count_of_updates_that_began_at_another_number_is_no_difference(count: int, turned: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3))
    nn.init.uniform_(module[1].running_mean, 1, 2)
    nn.init.uniform_(module[1].running_var, 1, 2)
    x = torch.randn(6, 4)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}

    def loss(variables: Any, x: Any) -> Any:
        weights, old = variables["params"], variables["state"]
        with jax.named_scope("linear"):
            x = x @ weights["linear"]["w"]
        with jax.named_scope("norm"):
            found = {"mean": x.mean(0), "var": x.var(0)}
            x = (x - found["mean"][None]) / jnp.sqrt(found["var"] + 1e-5)[None]
            x = x * weights["norm"]["scale"][None] + weights["norm"]["offset"][None]
        updated = {
            each: {
                "hidden": 0.9 * own["hidden"] + 0.1 * found["var" if "var" in each else "mean"],
                "counter": own["counter"] + 1,
            }
            for each, own in old.items()
        }
        averages = {each: own["hidden"] / (1 - 0.9 ** own["counter"].astype(float)) for each, own in updated.items()}
        return jnp.tanh(x + 1).mean(), {each: {**updated[each], "average": averages[each]} for each in updated}

    statistics = {
        f"norm/~/{kind}_ema": {"hidden": value, "average": value.copy(), "counter": np.int32(count)}
        for kind, value in (("mean", state["1.running_mean"]), ("var", state["1.running_var"]))
    }
    weights = {
        "linear": {"w": state["0.weight"].T.copy()},
        "norm": {"scale": state["1.weight"], "offset": state["1.bias"]},
    }
    variables = {"params": weights, "state": statistics}
    dumps = [
        capture(module, lambda x: torch.tanh(x + 1).mean(), x),
        gs.capture(loss, variables, x.numpy(), has_aux=True, origins=False),
    ]
    found = gs.compare(*dumps[:: -1 if turned else 1])
    assert found.verdict == "same", found.sentence
    assert "PyTorch divides the variance by one less" in found.sentence


class _Attended(nn.Module):
    """A module that is called as the one of a port that ends before its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.out, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.out(self.value(x)))


@pytest.mark.slow
@sampled(("epsilon", "slope"), [(1e-5, 1.0), (0.1, 1.0), (1e-5, 9.0)])
def test_a_module_that_returns_what_its_norm_does_is_no_pair_with_one_of_its_name(epsilon: float, slope: float) -> None:
    torch.manual_seed(0)
    module = nn.Sequential()
    for number in range(2):
        layer = nn.Sequential()
        layer.add_module("attention", _Attended())
        layer.add_module("up", nn.Linear(4, 4))
        module.add_module(f"layer{number}", layer)
    x = torch.randn(5, 4)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}

    def dense(own: Any, x: Any, slope: float = 1.0) -> Any:
        return x @ own["kernel"] * slope + own["bias"][None]

    def loss(weights: Any, x: Any) -> Any:
        for number, name in enumerate(("layer_0", "layer_1")):
            own = weights[name]
            with jax.named_scope(name):
                with jax.named_scope("attention"):
                    with jax.named_scope("value"):
                        y = dense(own["attention"]["value"], x)
                    with jax.named_scope("out"):
                        y = dense(own["attention"]["out"], y)
                with jax.named_scope("after"):
                    x = x + y
                    mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
                    x = (x - mean) / jnp.sqrt(variance + (epsilon if number else 1e-5))
                    x = x * own["after"]["scale"][None] + own["after"]["bias"][None]
                with jax.named_scope("up"):
                    x = dense(own["up"], x, slope if number else 1)
        return jnp.square(x).mean()

    def kernel(name: str) -> dict[str, Any]:
        return {"kernel": state[f"{name}.weight"].T.copy(), "bias": state[f"{name}.bias"]}

    def layer(name: str) -> dict[str, Any]:
        after = {"scale": state[f"{name}.attention.norm.weight"], "bias": state[f"{name}.attention.norm.bias"]}
        attention = {part: kernel(f"{name}.attention.{part}") for part in ("value", "out")}
        return {"attention": attention, "after": after, "up": kernel(f"{name}.up")}

    weights = {f"layer_{number}": layer(f"layer{number}") for number in range(2)}
    found = gs.compare(
        capture(module, lambda x: x.square().mean(), x), gs.capture(loss, weights, x.numpy(), origins=False)
    )
    if epsilon == 1e-5 and slope == 1:
        assert found.verdict == "same", found.sentence
    else:
        first = "layer1/attention/norm" if slope == 1 else "layer1/up"
        assert found.sentence.startswith(f"Forward first differs at `{first}` "), found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1, 2])
def test_a_table_of_floating_point_numbers_may_be_a_constant_of_the_port(factor: int) -> None:
    torch.manual_seed(0)

    class Positioned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)
            self.register_buffer("table", torch.randn(5, 4))

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(torch.tanh(self.embed(tokens) + self.table))

    module, tokens = Positioned(), np.array([[1, 4, 2, 6, 0], [3, 3, 5, 1, 2]])
    state = {name: value.numpy() for name, value in module.state_dict().items()}

    def loss(weights: Any, tokens: Any) -> Any:
        with jax.named_scope("tokens"):
            x = weights["tokens"][tokens]
        x = jnp.tanh(x + factor * state["table"][None])
        with jax.named_scope("out"):
            x = x @ weights["out"]["kernel"] + weights["out"]["bias"][None, None]
        return jnp.square(x).mean()

    out = {"kernel": state["head.weight"].T.copy(), "bias": state["head.bias"]}
    weights = {"tokens": state["embed.weight"], "out": out}
    found = gs.compare(
        capture(module, lambda x: x.square().mean(), torch.from_numpy(tokens)),
        gs.capture(loss, weights, tokens.astype(np.int32), origins=False),
    )
    assert found.verdict == ("same" if factor == 1 else "different"), found.sentence
    assert ("the reference keeps 1 state tensor that the candidate does not have, `table`" in found.sentence) is (
        factor == 1
    )


@pytest.mark.slow
@sampled("reverse", [True, False])
def test_a_bidirectional_layer_is_named_before_the_many_steps_that_a_port_has_for_it(reverse: bool) -> None:
    torch.manual_seed(0)
    lstm, head, x = nn.LSTM(4, 3, bidirectional=True, batch_first=True), nn.Linear(6, 2), torch.randn(2, 3, 4)

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = lstm, head

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0])

    def direction(own: Any, xs: Any, reverse: bool) -> Any:
        def step(state: Any, x: Any) -> Any:
            with jax.named_scope("cell"):
                gates = x @ own["ih"] + state[0] @ own["hh"] + own["b"][None]
                i, f, g, o = jnp.split(gates, 4, axis=-1)
                cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
                return (jax.nn.sigmoid(o) * jnp.tanh(cell), cell), jax.nn.sigmoid(o) * jnp.tanh(cell)

        return jax.lax.scan(step, (jnp.zeros((2, 3)),) * 2, xs.swapaxes(0, 1), reverse=reverse)[1]

    def loss(weights: Any, x: Any) -> Any:
        both = [direction(weights["fw"], x, False), direction(weights["bw"], x, reverse)]
        with jax.named_scope("Dense_0"):
            x = jnp.concatenate(both, -1).swapaxes(0, 1) @ weights["head"]["w"] + weights["head"]["b"][None, None]
        return jnp.square(x).mean()

    state = {name: value.numpy() for name, value in Tagger().state_dict().items()}
    weights = {
        name: {kind: state[f"lstm.weight_{kind}_l0{end}"].T.copy() for kind in ("ih", "hh")}
        | {"b": state[f"lstm.bias_ih_l0{end}"] + state[f"lstm.bias_hh_l0{end}"]}
        for name, end in (("fw", ""), ("bw", "_reverse"))
    } | {"head": {"w": state["head.weight"].T.copy(), "b": state["head.bias"]}}
    found = gs.compare(
        capture(Tagger(), lambda x: x.square().mean(), x), gs.capture(loss, weights, x.numpy(), origins=False)
    )
    assert found.verdict == ("same" if reverse else "different"), found.sentence
    assert [row.name for row in found.blame.suspects][:1] == ([] if reverse else ["lstm.0"]), found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 1.1])
def test_what_joins_outputs_between_modules_is_known_from_the_port(scale: float) -> None:
    """A block returns the rectified sum of two layers, whose signs rounding decides at some of many elements."""
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(16, 4096, bias=False), nn.Linear(16, 4096, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return (self.one(x) + self.two(x)).relu()

    module, x = nn.Sequential(Block(), nn.Linear(4096, 8, bias=False)), torch.randn(64, 16)

    @jax.custom_vjp
    def scaled(values: Any) -> Any:
        return values

    scaled.defvjp(lambda values: (values, None), lambda _, gradient: (scale * gradient,))

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("block"):
            with jax.named_scope("a"):
                one = x @ weights["block"]["a"]
                one += 3e-5 * jax.lax.stop_gradient(jnp.sin(1e3 * one))
            one = scaled(one) if scale != 1 else one
            with jax.named_scope("b"):
                two = x @ weights["block"]["b"]
            x = jax.nn.relu(one + two)
        with jax.named_scope("head"):
            x = x @ weights["head"]
        return jnp.square(x).mean()

    state = {name: value.detach().numpy().T.copy() for name, value in module.state_dict().items()}
    weights = {"block": {"a": state["0.one.weight"], "b": state["0.two.weight"]}, "head": state["1.weight"]}
    found = gs.compare(
        capture(module, lambda x: x.square().mean(), x), gs.capture(loss, weights, x.numpy(), origins=False)
    )
    assert bool(found) is (scale == 1), found.sentence
    assert any(row.kinked for row in found.rows)
    assert [row.name for row in found.rows if row.family == "activation_grad" and row.status == "different"] == (
        [] if found else ["0/one"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("steps", [5, 4], ids=["all steps", "all but the last step"])
@sampled(("fault", "blamed"), [("", ""), ("bias", "1/conv"), ("act", "0")])
def test_a_causal_convolution_is_a_part_of_one_that_pads_both_sides(fault: str, blamed: str, steps: int) -> None:
    torch.manual_seed(0)

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = nn.Conv1d(4, 4, 3, groups=4, padding=2), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.out(nn.functional.silu(self.conv(x.mT)[..., : x.shape[1]].mT))

    module, x = nn.Sequential(Mixer(), Mixer()), torch.randn(2, 5, 4)

    def loss(weights: Any, x: Any) -> Any:
        for number, own in enumerate(weights):
            with jax.named_scope("ab"[number]):
                with jax.named_scope("conv"):
                    y = jax.lax.conv_general_dilated(
                        x, own["k"], (1,), [(2, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=4
                    )
                    y += 0 if (fault, number) == ("bias", 1) else own["b"][None, None]
                y = jax.nn.gelu(y) if (fault, number) == ("act", 0) else jax.nn.silu(y)
                with jax.named_scope("out"):
                    x += y @ own["out"]["k"] + own["out"]["b"][None, None]
        return jnp.square(x[:, :steps]).mean()

    state = {name: value.numpy() for name, value in module.state_dict().items()}
    weights = [
        {"k": state[f"{number}.conv.weight"].transpose(2, 1, 0).copy(), "b": state[f"{number}.conv.bias"]}
        | {"out": {"k": state[f"{number}.out.weight"].T.copy(), "b": state[f"{number}.out.bias"]}}
        for number in range(2)
    ]
    found = gs.compare(
        capture(module, lambda x: x[:, :steps].square().mean(), x), gs.capture(loss, weights, x.numpy(), origins=False)
    )
    assert found.verdict == ("different" if fault else "same"), found.sentence
    assert not fault or blamed in {*named_first(found)}, found.sentence
    if not fault and steps < 5:  # of more than the loss reads, the part is known by its values
        why = {row.family: row.why for row in found.rows if row.name == "0/conv" and row.status == "missing"}
        what = "what `a/conv` is a part of"
        assert why == {"activation": what, "activation_grad": f"its value is {what}"}


class _Gated(nn.Module):
    """Layers, behind the first of which PyTorch calls no module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(6, 6) for _ in range(3))
        self.tanh = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.first(x).softmax(-1) @ x.T @ x
        return self.last(self.tanh(self.second(mixed)))


def test_a_scope_around_more_than_a_module_is_not_at_fault_where_what_reads_it_agrees() -> None:
    torch.manual_seed(4)
    module, x = _Gated(), torch.randn(5, 6)
    for parameter in module.parameters():
        parameter.data *= 2
    weights = {name: np.array(value.numpy()) for name, value in module.state_dict().items()}

    def loss(weights: Any, batch: Any) -> Any:
        def dense(name: str, x: Any) -> Any:
            return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"][None]

        with jax.named_scope("mix"):
            mixed = jax.nn.softmax(dense("first", batch["x"])) @ batch["x"].T @ batch["x"]
        with jax.named_scope("second"):
            y = dense("second", mixed)
        with jax.named_scope("last"):
            y = dense("last", jnp.sin(y))
        return jnp.square(y).mean()

    port = gs.capture(loss, weights, {"x": x.numpy()}, origins=False)
    found = gs.compare(capture(module, lambda y: y.square().mean(), {"x": x}), port)
    assert named_first(found) & {"tanh", "last"}, found.sentence


class _Rectified(nn.Module):
    """Layers with functions of PyTorch between them, which no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second, self.last = (
            nn.Linear(6, 6),
            nn.LayerNorm(6),
            nn.Linear(6, 6),
            nn.Linear(6, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.norm(self.first(x)))
        return self.last(nn.functional.silu(self.second(x)))


@pytest.mark.slow
def test_no_error_is_made_anew_behind_a_function_between_modules() -> None:
    torch.manual_seed(5)
    module, x = _Rectified(), torch.randn(16, 6)
    weights = {name: np.array(value.numpy()) for name, value in module.state_dict().items()}

    def loss(weights: Any, batch: Any) -> Any:
        def dense(name: str, x: Any) -> Any:
            with jax.named_scope(name):
                return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"][None]

        x = dense("first", batch["x"])
        with jax.named_scope("norm"):
            x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 0.1)
            x = x * weights["norm.weight"][None] + weights["norm.bias"][None]
        return jnp.square(dense("last", jax.nn.silu(dense("second", jax.nn.relu(x))))).mean()

    port = gs.capture(loss, weights, {"x": x.numpy()}, origins=False)
    found = gs.compare(capture(module, lambda y: y.square().mean(), {"x": x}), port)
    assert found.sentence.startswith("Forward first differs at `norm` "), found.sentence
    assert "made anew" not in found.sentence, found.sentence


class _Dilated(nn.Module):
    """A gated convolution over time with a sum around it and another output, as WaveNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.gate = (nn.Conv1d(4, 4, 2, dilation=2) for _ in range(2))
        self.out, self.skip = nn.Conv1d(4, 4, 1), nn.Conv1d(4, 3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        padded = nn.functional.pad(x, (2, 0))
        gated = self.filter(padded).tanh() * self.gate(padded).sigmoid()
        return x + self.out(gated), self.skip(gated)


class _Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Conv1d(2, 4, 1), _Dilated(), nn.Conv1d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, skip = self.layer(self.first(x))
        return self.last(x) + skip


@pytest.mark.slow
@sampled(("fault", "blamed"), [("", ""), ("dilation", "layer/filter"), ("stop", "layer/gate")])
def test_layers_that_a_port_has_as_one_are_named_where_pytorch_calls_functions_before_them(
    fault: str, blamed: str
) -> None:
    torch.manual_seed(6)
    module, x = _Stacked(), torch.randn(3, 2, 9)

    def conv(own: Any, x: Any, dilation: int = 1) -> Any:
        padding = [(own["k"].shape[0] * dilation - dilation, 0)]
        dimensions = ("NWC", "WIO", "NWC")
        return (
            jax.lax.conv_general_dilated(
                x, own["k"], (1,), padding, rhs_dilation=(dilation,), dimension_numbers=dimensions
            )
            + own["b"][None, None]
        )

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("first"):
            x = conv(weights["first"], x)
        with jax.named_scope("wave"):
            one, other = jnp.split(conv(weights["both"], x, 1 if fault == "dilation" else 2), 2, -1)
            gated = jnp.tanh(one) * jax.nn.sigmoid(jax.lax.stop_gradient(other) if fault == "stop" else other)
            x, skip = x + conv(weights["out"], gated), conv(weights["skip"], gated)
        with jax.named_scope("last"):
            x = conv(weights["last"], x)
        return jnp.square(x + skip).mean()

    state = {name: np.array(value.numpy()) for name, value in module.state_dict().items()}

    def weights_of(name: str) -> dict[str, Any]:
        return {"k": state[f"{name}.weight"].transpose(2, 1, 0).copy(), "b": state[f"{name}.bias"]}

    weights = {name.rpartition(".")[2]: weights_of(name) for name in ("first", "layer.out", "layer.skip", "last")}
    one, other = weights_of("layer.filter"), weights_of("layer.gate")
    weights["both"] = {name: np.concatenate([one[name], other[name]], -1) for name in one}
    port = gs.capture(loss, weights, x.numpy().transpose(0, 2, 1).copy(), origins=False)
    found = gs.compare(capture(module, lambda y: y.square().mean(), x), port)
    assert found.verdict == ("different" if fault else "same"), found.sentence
    assert not fault or blamed in {row.name for row in (*found.blame.suspects, *found.blame.unpaired)}, found.sentence


class _Recurrent(nn.Module):
    """The last state of an LSTM is returned, and nothing reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm, self.head = nn.Linear(3, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.first(x))[0])


@pytest.mark.slow
@sampled("stop", [False, True])
def test_a_last_state_that_nothing_reads_has_no_gradient_to_lose(stop: bool) -> None:
    torch.manual_seed(7)
    module, x = _Recurrent(), torch.randn(2, 4, 3)

    def loss(weights: Any, batch: Any) -> Any:
        def dense(name: str, x: Any) -> Any:
            with jax.named_scope(name):
                return x @ weights[name]["k"] + weights[name]["b"][None, None]

        def step(state: Any, x: Any) -> tuple[Any, Any]:
            cell, hidden = state
            gates = jnp.concatenate([x, hidden], -1) @ weights["cell"]["k"] + weights["cell"]["b"][None]
            i, f, g, o = jnp.split(gates, 4, -1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (cell, hidden), hidden

        y = dense("embed", batch["x"])
        y = jax.lax.stop_gradient(y) if stop else y
        with jax.named_scope("cell"):
            _, y = jax.lax.scan(step, (jnp.zeros((2, 5)), jnp.zeros((2, 5))), y.swapaxes(0, 1))
        return jnp.square(dense("out", y.swapaxes(0, 1))).mean()

    state = {name: np.array(value.numpy()) for name, value in module.state_dict().items()}
    weights = {
        name: {"k": state[f"{of_ref}.weight"].T.copy(), "b": state[f"{of_ref}.bias"]}
        for name, of_ref in (("embed", "first"), ("out", "head"))
    }
    weights["cell"] = {
        "k": np.concatenate([state["lstm.weight_ih_l0"].T, state["lstm.weight_hh_l0"].T]),
        "b": state["lstm.bias_ih_l0"] + state["lstm.bias_hh_l0"],
    }
    port = gs.capture(loss, weights, {"x": x.numpy()}, origins=False)
    found = gs.compare(capture(module, lambda y: y.square().mean(), {"x": x}), port)
    assert found.verdict == ("different" if stop else "same"), found.sentence
    first = found.first_divergence.backward
    assert (first and first.name) == ("first" if stop else None), found.sentence


class _Autoencoder(nn.Sequential):
    """Two layers with a function between them, which the port has inside the scope of the first."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        return self[1](torch.relu(self[0](input)))


@pytest.mark.slow
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize(("slope", "stopped"), [(1.0, False), (1.1, False), (1.0, True)])
def test_a_loss_may_read_what_the_module_does_of_which_a_capture_has_no_gradient(
    slope: float, stopped: bool, rectified: bool
) -> None:
    torch.manual_seed(1)
    module = (_Autoencoder if rectified else nn.Sequential)(nn.Linear(4, 3), nn.Linear(3, 4))
    x = torch.randn(5, 4)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}

    def loss(weights: Any, batch: Any) -> Any:
        x = jax.lax.stop_gradient(batch["x"]) if stopped else batch["x"]
        with jax.named_scope("encode"):
            y = x @ weights["encode"]["kernel"] * slope + weights["encode"]["bias"][None]
            y = jax.nn.relu(y) if rectified else y
        with jax.named_scope("decode"):
            y = y @ weights["decode"]["kernel"] + weights["decode"]["bias"][None]
        return jnp.square(y - x).mean()

    weights = {
        name: {"kernel": state[f"{number}.weight"].T.copy(), "bias": state[f"{number}.bias"]}
        for number, name in enumerate(("encode", "decode"))
    }
    found = gs.compare(
        capture(module, lambda y: (y - x).square().mean(), {"input": x}),
        gs.capture(loss, weights, {"x": x.numpy()}, origins=False),
    )
    told = "1 input gradient differs, of `input`, which the loss reads"
    assert (found.verdict, told in found.sentence) == (
        "same" if slope == 1 and not stopped else "different",
        found.verdict == "same",
    )


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_a_loss_reads_an_input_only_where_its_dump_states_it(stopped: bool) -> None:
    torch.manual_seed(0)

    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.first(x)) + x)

    module, x = Skipping(), torch.randn(5, 4)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        with jax.named_scope("first"):
            y = x @ weights["first"]["kernel"] + weights["first"]["bias"][None]
        y = jnp.tanh(y) + (jax.lax.stop_gradient(x) if stopped else x)
        with jax.named_scope("last"):
            y = y @ weights["last"]["kernel"] + weights["last"]["bias"][None]
        return jnp.square(y).mean()

    weights = {
        name: {"kernel": state[f"{name}.weight"].T.copy(), "bias": state[f"{name}.bias"]} for name in ("first", "last")
    }
    found = gs.compare(
        capture(module, lambda y: y.square().mean(), {"x": x}),
        gs.capture(loss, weights, {"x": x.numpy()}, origins=False),
    )
    assert found.verdict == ("different" if stopped else "same"), found.sentence


@pytest.mark.parametrize("half", [False, True])
def test_a_mask_may_be_a_factor_in_one_program_and_what_the_other_selects_by(half: bool) -> None:
    torch.manual_seed(0)

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 4)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.last(self.first(x) * mask)

    module, x, mask = Masked(), torch.randn(5, 4), torch.tensor([[1.0], [0.0], [1.0], [1.0], [0.0]])
    mask = mask / 2 if half else mask
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("first"):
            y = batch["x"] @ weights["first"]["kernel"] + weights["first"]["bias"][None]
        with jax.named_scope("last"):
            kept = jnp.where(batch["mask"] > 0, y / 2 if half else y, 0.0)
            y = kept @ weights["last"]["kernel"] + weights["last"]["bias"][None]
        return jnp.square(y).mean()

    weights = {
        name: {"kernel": state[f"{name}.weight"].T.copy(), "bias": state[f"{name}.bias"]} for name in ("first", "last")
    }
    found = gs.compare(
        capture(module, lambda y: y.square().mean(), {"x": x, "mask": mask}),
        gs.capture(loss, weights, {"x": x.numpy(), "mask": mask.numpy()}, origins=False),
    )
    assert found.verdict == ("different" if half else "same"), found.sentence
    told = "a gradient of `mask`, of zeros and ones, arrives in one of the programs alone"
    assert (told in found.sentence) is not half


class _Encoder(nn.Module):
    """A module with a frozen table, a layer that nothing reads, and one that returns what its last layer does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.table.weight.requires_grad = False
        self.blocks, self.unread = nn.ModuleList([_Block(), _Block()]), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.table(torch.arange(5))
        for block in self.blocks:
            x, bias = block(x)
        self.unread(x)
        return x + bias


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.bias = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(x), self.bias(x)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (2.0, 0.0), (1.0, 1.0)])
def test_outputs_in_another_order_a_frozen_table_and_a_layer_that_nothing_reads(scale: float, shift: float) -> None:
    torch.manual_seed(0)
    module, x = _Encoder(), torch.randn(3, 5, 4)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    table = state.pop("table.weight") + shift

    def dense(weights: Any, name: str, x: Any, scale: float = 1.0) -> Any:
        with jax.named_scope(name.rpartition(".")[2]):
            return x @ weights[f"{name}.weight"].T * scale + weights[f"{name}.bias"]

    def loss(weights: Any, x: Any) -> Any:
        bias: Any = 0
        x = x + table
        for number, name in enumerate(("blocks.0", "blocks.1")):
            with jax.named_scope(f"blocks/{number}"):
                bias = dense(weights, f"{name}.bias", x, scale if number else 1.0)
                x = dense(weights, f"{name}.inner", x)
        with jax.named_scope("unread"):
            _ = (x - x.mean(-1, keepdims=True)) * weights["unread.weight"] + weights["unread.bias"]
        return jnp.square(x + bias).mean()

    with jax.numpy_rank_promotion("allow"):
        port = gs.capture(loss, state, x.numpy(), origins=False)
    found = gs.compare(capture(module, lambda y: y.square().mean(), x), port)
    if scale == 1 and not shift:
        assert found.verdict == "same", found.sentence
        assert "`table/weight`" in found.sentence
        assert [row.why for row in found.rows if (row.family, row.name) == ("activation", "unread")] == [
            "the loss reads it in neither program"
        ]
    else:
        first = "blocks/1/bias" if scale > 1 else "blocks/0/"
        assert found.sentence.startswith(f"Forward first differs at `{first}"), found.sentence


class Mixture(nn.Module):
    """Two experts, weighted by a gate, with a term for the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 2, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 4)) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shares = self.gate(x).softmax(-1)
        y = sum(shares[:, number, None] * expert(x) for number, expert in enumerate(self.experts))
        chosen = nn.functional.one_hot(shares.argmax(-1), 2).float()
        return torch.as_tensor(y), (chosen.mean(0) * shares.mean(0)).sum()


@pytest.mark.slow
@sampled(
    ("fault", "first"), [("", None), ("relu", "mixture.0"), ("half", "mixture.0"), ("another weight", "mixture/gate")]
)
def test_parts_of_a_layer_of_several_results_are_inside_it(fault: str, first: str | None) -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mixture = nn.LayerNorm(4, elementwise_affine=False), Mixture()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y, term = self.mixture(self.norm(x))
            return self.head(x + y), term

    torch.manual_seed(0)
    module, x = Network(), torch.randn(6, 4)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    gate = np.roll(state["mixture.gate.weight"], 1, 1) if fault == "another weight" else state["mixture.gate.weight"]

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        with jax.named_scope("norm"):
            y = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        with jax.named_scope("moe"):
            with jax.named_scope("router"):
                shares = jax.nn.softmax(y @ weights["gate"])
                largest, chosen = jax.lax.top_k(shares, 2)
                weights_of = (jax.nn.one_hot(chosen, 2) * largest[..., None]).sum(1)
            with jax.named_scope("experts"):
                y = jnp.einsum("td,edh->teh", y, weights["w1"]) + weights["b1"]
                y = jax.nn.relu(y) if fault == "relu" else jax.nn.silu(y)
                y = jnp.einsum("teh,ehd->ted", y, weights["w2"]) + weights["b2"]
                y = (y * weights_of[..., None]).sum(1) * (0.5 if fault == "half" else 1)
            term = (jax.nn.one_hot(chosen[:, 0], 2).mean(0) * shares.mean(0)).sum()
        with jax.named_scope("head"):
            y = (x + y) @ weights["head"] + weights["bias"][None]
        return jnp.square(y).mean() + term

    def stacked(name: str) -> Any:
        found = [state[f"mixture.experts.{number}.{name}"] for number in range(2)]
        return np.stack([np.ascontiguousarray(each.T) for each in found])

    weights = {
        "gate": gate.T.copy(),
        "head": state["head.weight"].T.copy(),
        "bias": state["head.bias"],
        "w1": stacked("0.weight"),
        "b1": stacked("0.bias"),
        "w2": stacked("2.weight"),
        "b2": stacked("2.bias"),
    }
    with jax.numpy_rank_promotion("allow"):
        port = gs.capture(loss, weights, {"x": x.numpy()}, origins=False)
    found = gs.compare(capture(module, lambda y: y[0].square().mean() + y[1], {"x": x}), port)
    assert found.verdict == ("same" if first is None else "different"), found.sentence
    assert first is None or f"Forward first differs at `{first}` (" in found.sentence, found.sentence


class _Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pos, self.out = nn.Embedding(5, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(x + self.pos(torch.arange(5))))


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0, 1])
def test_positions_may_be_looked_up_for_every_example_in_a_table_of_another_name(shift: int) -> None:
    torch.manual_seed(0)
    module, x = _Placed(), torch.randn(3, 5, 4)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    weights = {
        "pos": {"table": state["pos.weight"]},
        "out": {"kernel": state["out.weight"].T.copy(), "bias": state["out.bias"]},
    }

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("pos"):
            positions = weights["pos"]["table"][(jnp.tile(jnp.arange(5)[None], (3, 1)) + shift) % 5]
        with jax.named_scope("out"):
            y = jnp.tanh(x + positions) @ weights["out"]["kernel"] + weights["out"]["bias"]
        return jnp.square(y).mean()

    with jax.numpy_rank_promotion("allow"):
        port = gs.capture(loss, weights, x.numpy(), origins=False)
    found = gs.compare(capture(module, lambda y: y.square().mean(), x), port)
    if shift:
        assert found.sentence.startswith("Forward first differs at `pos` (rel_l2 "), found.sentence
    else:
        assert found.verdict == "same", found.sentence


class _Separate(nn.Module):
    """An attention whose projections are layers of their own, with biases of zero as at initialisation."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("query", "key", "value", "output"):
            layer = nn.Linear(8, 8)
            nn.init.zeros_(layer.bias)
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.get_submodule(name)(x).unflatten(-1, (2, 4)) for name in ("query", "key", "value"))
        scores = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / 2, dim=-1)
        return self.output(torch.einsum("bhqk,bkhd->bqhd", scores, v).flatten(-2))


@pytest.mark.parametrize("ops", [False, True])
def test_biases_of_zero_may_have_an_axis_of_heads(ops: bool) -> None:
    torch.manual_seed(0)
    module, x = _Separate(), torch.randn(3, 5, 8)
    reference = capture(module, lambda y: (y**3).mean(), x)
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    weights: dict[str, Any] = {
        short: {"w": state[f"{name}.weight"].T.reshape(8, 2, 4), "b": state[f"{name}.bias"].reshape(2, 4)}
        for short, name in (("q", "query"), ("k", "key"), ("v", "value"))
    }
    weights["o"] = {"w": state["output.weight"].T.copy(), "b": state["output.bias"]}

    def loss(weights: Any, x: Any) -> Any:
        made: dict[str, Any] = {}
        for name in ("q", "k", "v"):
            with jax.named_scope(name):
                made[name] = jnp.einsum("bnd,dhe->bnhe", x, weights[name]["w"]) + weights[name]["b"][None, None]
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", made["q"], made["k"]) / 2)
        y = jnp.einsum("bhqk,bkhd->bqhd", scores, made["v"]).reshape(x.shape)
        with jax.named_scope("o"):
            y = y @ weights["o"]["w"] + weights["o"]["b"][None, None]
        return (y**3).mean()

    port = gs.capture(loss, weights, x.numpy(), origins=False, ops=ops)
    for one, other in ((reference, port), (port, reference)):
        found = gs.compare(one, other)
        assert found.verdict == "same", found.sentence


@cache
def _normalised(*, momentum: float, unbiased: bool, mean_of_zero: bool) -> tuple[Dump, Dump, dict[int, str]]:
    """Two batch norms at initialisation, captured from PyTorch, the port, and the names that the port has for both."""
    torch.manual_seed(0)
    module = nn.Sequential(
        *(nn.Conv1d(6, 6, 3, bias=not mean_of_zero), nn.BatchNorm1d(6)),
        *(nn.Conv1d(6, 6, 1 if mean_of_zero else 3, bias=not mean_of_zero), nn.BatchNorm1d(6)),
    )
    x = torch.randn(8, 6, 9) + 1
    reference = capture(module, lambda y: (y**3).mean(), x, updates=True)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    names = {0: "z", 1: "norm_z", 2: "a", 3: "norm_a"}
    params: dict[str, Any] = {names[at]: {"kernel": state[f"{at}.weight"].T.copy()} for at in (0, 2)}
    if not mean_of_zero:
        params = {names[at]: params[names[at]] | {"bias": state[f"{at}.bias"]} for at in (0, 2)}
    params |= {names[at]: {"scale": state[f"{at}.weight"], "bias": state[f"{at}.bias"]} for at in (1, 3)}
    start = {names[at]: {"mean": np.zeros(6, np.float32), "var": np.ones(6, np.float32)} for at in (1, 3)}

    def loss(variables: Any, x: Any) -> Any:
        updated: dict[str, Any] = {}
        for conv, norm in (("z", "norm_z"), ("a", "norm_a")):
            own, old = variables["params"], variables["batch_stats"][norm]
            with jax.named_scope(conv):
                x = jax.lax.conv_general_dilated(
                    x, own[conv]["kernel"], (1,), "VALID", dimension_numbers=("NHC", "HIO", "NHC")
                )
                x = x + own[conv].get("bias", 0.0)
            with jax.named_scope(norm):
                mean, var = x.mean((0, 1)), x.var((0, 1))
                new = {"mean": mean, "var": x.var((0, 1), ddof=1) if unbiased else var}
                updated[norm] = {key: (1 - momentum) * old[key] + momentum * new[key] for key in new}
                x = (x - mean) * jax.lax.rsqrt(var + 1e-5) * own[norm]["scale"] + own[norm]["bias"]
        return (x**3).mean(), {"batch_stats": updated}

    variables = {"params": params, "batch_stats": start}
    with jax.numpy_rank_promotion("allow"):
        port = gs.capture(loss, variables, x.numpy().swapaxes(1, 2).copy(), origins=False)
    return reference, port, names


@pytest.mark.slow
@sampled("options", [{}, {"tol": 1e-3}])
def test_a_variance_that_pytorch_divides_by_one_less_is_told_and_is_no_difference(options: dict[str, Any]) -> None:
    reference, port, _ = _normalised(momentum=0.1, unbiased=False, mean_of_zero=False)
    for one, other in ((reference, port), (port, reference)):
        found = gs.compare(one, other, **options)
        assert found.verdict == "same", found.sentence
        assert "2 running variances differ, of `" in found.sentence
        assert "PyTorch divides the variance by one less than the number of values" in found.sentence
        assert gs.compare(one, other, bitwise=True).verdict == "different"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"tol": 1e-3}])
def test_another_momentum_is_found_beside_the_other_divisor(options: dict[str, Any]) -> None:
    reference, port, _ = _normalised(momentum=0.9, unbiased=False, mean_of_zero=False)
    found = gs.compare(reference, port, **options)
    assert found.verdict == "different"
    assert {"1/running_mean", "1/running_var"} & {*named_first(found)}, found.sentence
    likely = {row.likely for row in found.rows if row.name.endswith("running_var") and row.family == "aux"}
    assert any("counts 0.1, not 0.9" in each or "counts 0.9, not 0.1" in each for each in likely), likely


def _port_of_norm(module: nn.Sequential, x: Tensor, share: float, variance: Callable[[Any], Any]) -> Dump:
    """The port of a layer and a norm at initialisation that adds a share of what a function makes of what it reads."""
    weights = {name: value.numpy().copy() for name, value in module.state_dict().items() if "num" not in name}

    def loss(variables: Any, x: Any) -> Any:
        own, old = variables["params"], variables["batch_stats"]["bn"]
        with jax.named_scope("fc"):
            x = x @ own["fc"]["w"] + own["fc"]["b"][None]
        new = {"mean": x.mean(0), "var": variance(x)}
        with jax.named_scope("bn"):
            x = (x - new["mean"][None]) * jax.lax.rsqrt(x.var(0) + 1e-5)[None]
            x = x * own["bn"]["scale"][None] + own["bn"]["bias"][None]
        updated = {"bn": {each: (1 - share) * old[each] + share * new[each] for each in new}}
        return (x**3).mean(), {"batch_stats": updated}

    params = {
        "fc": {"w": weights["0.weight"].T.copy(), "b": weights["0.bias"]},
        "bn": {"scale": weights["1.weight"], "bias": weights["1.bias"]},
    }
    start = {"bn": {"mean": weights["1.running_mean"], "var": weights["1.running_var"]}}
    variables = {"params": params, "batch_stats": start}
    return gs.capture(loss, variables, x.numpy(), has_aux=True, origins=False)


@pytest.mark.slow
@sampled("momentum", [0.05, 0.3, None])
@sampled("channels", [1, 2, 8])
def test_a_momentum_need_not_be_common_to_be_told_from_the_divisor(channels: int, momentum: float | None) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(5, channels), nn.BatchNorm1d(channels, momentum=momentum)), torch.randn(8, 5)
    reference = capture(module, lambda y: (y**3).mean(), x)
    for share, verdict in ((momentum or 1.0, "same"), (0.6 * (momentum or 1.0), "different")):
        port = _port_of_norm(module, x, share, lambda x: x.var(0))
        for one, other in ((reference, port), (port, reference)):
            found = gs.compare(one, other)
            assert found.verdict == verdict, found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 2, 8, 64])
@sampled(
    "wrong",
    [lambda x: x.std(0), lambda x: x.var(0) + 1e-2, lambda x: (x**2).mean(0)],
    ids=["deviation", "epsilon added", "mean square"],
)
def test_what_is_no_variance_is_not_taken_for_one_with_the_other_divisor(
    channels: int, wrong: Callable[[Any], Any]
) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(5, channels), nn.BatchNorm1d(channels)), torch.randn(8, 5) + 1
    reference, port = capture(module, lambda y: (y**3).mean(), x), _port_of_norm(module, x, 0.1, wrong)
    for one, other in ((reference, port), (port, reference)):
        found = gs.compare(one, other)
        assert found.verdict == "different", found.sentence


@pytest.mark.slow
def test_a_port_that_returns_no_statistics_is_the_same_and_that_is_told() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6)), torch.randn(8, 5)
    weights = {name: value.numpy().copy() for name, value in module.state_dict().items() if "num" not in name}

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("fc"):
            x = x @ weights["0.weight"].T + weights["0.bias"][None]
        with jax.named_scope("bn"):
            x = (x - x.mean(0, keepdims=True)) * jax.lax.rsqrt(x.var(0, keepdims=True) + 1e-5)
            return ((x * weights["1.weight"][None] + weights["1.bias"][None]) ** 3).mean()

    found = gs.compare(capture(module, lambda y: (y**3).mean(), x), gs.capture(loss, weights, x.numpy(), origins=False))
    assert found.verdict == "same", found.sentence
    assert "the reference updates 2 running statistics that the candidate does not return" in found.sentence
    without = capture(module, lambda y: (y**3).mean(), x, updates=False)
    assert not any(key.startswith("aux/") for key in without)


@pytest.mark.slow
def test_running_statistics_at_initialisation_are_paired_by_the_layers_that_update_them() -> None:
    reference, port, names = _normalised(momentum=0.5, unbiased=False, mean_of_zero=False)
    found = gs.compare(reference, port)
    assert {match.ref: match.cand for match in found.matches if match.ref.startswith(("state/", "aux/"))} == {
        f"{family}/{at}/running_{kind}": f"{family}/batch_stats/{names[at]}/{kind}"
        for family in ("state", "aux")
        for at in (1, 3)
        for kind in ("mean", "var")
    }


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.1, 0.2])
def test_a_running_mean_may_be_zero_but_for_rounding(momentum: float) -> None:
    reference, port, _ = _normalised(momentum=momentum, unbiased=True, mean_of_zero=True)
    for one, other in ((reference, port), (port, reference)):
        found = gs.compare(one, other)
        assert found.verdict == ("same" if momentum == 0.1 else "different"), found.sentence
        means = [
            row
            for row in found.rows
            if row.family == "aux" and row.name in ("3/running_mean", "batch_stats/norm_a/mean")
        ]
        assert means[0].why.startswith("zero but for rounding: "), means[0].why


@pytest.mark.parametrize("summed", [False, True])
def test_rounding_is_larger_where_the_loss_is_a_sum(summed: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(1, 3, 2), nn.BatchNorm1d(3))
    x, labels = torch.randn(4, 1, 6), torch.randint(3, (4, 5))
    reduction = "mean" if summed else "sum"
    reference = capture(module, lambda y: nn.functional.cross_entropy(y, labels, reduction=reduction), x)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    weights = {
        "conv": {"kernel": state["0.weight"].T.copy(), "bias": state["0.bias"]},
        "norm": {"scale": state["1.weight"], "bias": state["1.bias"]},
    }

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("conv"):
            y = jax.lax.conv_general_dilated(
                batch["x"], weights["conv"]["kernel"], (1,), "VALID", dimension_numbers=("NHC", "HIO", "NHC")
            )
            y = y + weights["conv"]["bias"]
        with jax.named_scope("norm"):
            y = (y - y.mean((0, 1))) * jax.lax.rsqrt(y.var((0, 1)) + 1e-5) * weights["norm"]["scale"]
            y = y + weights["norm"]["bias"]
        losses = -jnp.take_along_axis(jax.nn.log_softmax(y), batch["label"][..., None], axis=-1)
        return losses.sum() if summed else losses.mean()

    with jax.numpy_rank_promotion("allow"):
        batch = {"x": x.numpy().swapaxes(1, 2).copy(), "label": labels.numpy().astype(np.int32)}
        port = gs.capture(loss, weights, batch, origins=False)
    found = gs.compare(reference, port)
    assert found.sentence.startswith("The loss is reduced otherwise: it is "), found.sentence
    assert ("a sum over 20 numbers is of their mean" if summed else "a mean over 20 numbers is of their sum") in (
        found.sentence
    )
    bias = next(row for row in found.rows if (row.family, row.name) == ("param_grad", "0/bias"))
    assert bias.why.startswith("zero but for rounding: "), bias.why


@pytest.mark.parametrize("axes", [(1, 2, 3), (3, 2, 1)])
def test_a_module_that_returns_what_it_reads_has_flattened_nothing(axes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 1), nn.Flatten(), nn.Dropout(), nn.Linear(4 * 3 * 5, 3)
    module = nn.Sequential(OrderedDict(zip(("conv", "flatten", "drop", "fc"), layers, strict=True))).eval()
    x = torch.randn(4, 2, 3, 5)
    state = {name: value.numpy() for name, value in module.state_dict().items()}

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("conv1"):
            x = jnp.einsum("nhwi,oi->nhwo", x, weights["conv.weight"][..., 0, 0]) + weights["conv.bias"]
        with jax.named_scope("flat"):
            x = x.transpose(0, *axes).reshape(len(x), -1)
        with jax.named_scope("drop"):
            x = x * 1.0
        with jax.named_scope("dense"):
            x = x @ weights["fc.weight"].T + weights["fc.bias"]
        return jnp.square(x).mean()

    reference = capture(module, lambda y: y.square().mean(), x)
    with jax.numpy_rank_promotion("allow"):
        found = gs.compare(reference, gs.capture(loss, state, x.numpy().transpose(0, 2, 3, 1), origins=False))
    assert named_first(found) == {"flatten"}, found.sentence
    assert found.blame.suspects or "it flattens the axes [1, 2, 3] of `conv`" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_the_outputs_of_a_model_are_paired_by_the_embedding_that_they_are_computed_with(scale: float) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = nn.Embedding(7, 8), nn.LayerNorm(8)

        def forward(self, tokens: Any) -> Any:
            return nn.functional.linear(self.norm(self.embed(tokens)) * 0.25, self.embed.weight)

    torch.manual_seed(0)
    module, tokens = Tied().eval(), torch.arange(20).reshape(4, 5) % 7
    state = {name: value.detach().numpy() for name, value in module.state_dict().items()}

    def loss(weights: Any, tokens: Any) -> Any:
        with jax.named_scope("Model"):
            with jax.named_scope("shared"):
                x = weights["embed.weight"][tokens]
            with jax.named_scope("LayerNorm_0"):
                x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
                x = x * weights["norm.weight"] + weights["norm.bias"]
            x = x * scale
            with jax.named_scope("attend"):
                y = x @ weights["embed.weight"].T
        return jnp.square(jax.nn.log_softmax(y)).mean()

    reference = capture(module, lambda y: y.log_softmax(-1).square().mean(), tokens)
    with jax.numpy_rank_promotion("allow"):
        found = gs.compare(reference, gs.capture(loss, state, tokens.numpy().astype(np.int32), origins=False))
    assert bool(found) is (scale == 0.25), found.sentence
    if scale != 0.25:
        assert "first differs at `Tied` (" in found.sentence
        assert "it is 4 times the reference's" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("padded", [True, False])
def test_the_rows_of_a_table_are_told_for_which_one_program_alone_has_a_gradient(padded: bool) -> None:
    torch.manual_seed(0)
    module, tokens = nn.Embedding(7, 8, padding_idx=2), torch.arange(20).reshape(4, 5) % 7
    table = {"table": module.weight.detach().numpy().copy() + 0.5}
    module.load_state_dict({"weight": torch.from_numpy(table["table"])})

    def loss(weights: Any, tokens: Any) -> Any:
        with jax.named_scope("embed"):
            x = weights["table"][tokens]
        x = jnp.where((tokens == 2)[..., None], jax.lax.stop_gradient(x), x) if padded else x
        return jnp.sin(x).mean()

    reference = capture(module, lambda x: x.sin().mean(), tokens)
    found = gs.compare(reference, gs.capture(loss, table, tokens.numpy().astype(np.int32), origins=False))
    assert bool(found) is padded, found.sentence
    if not padded:
        words = "differs in the rows [2] alone, for which the reference has none (as of PyTorch's `padding_idx`)"
        assert f"; the gradient of `weight` {words}" in found.sentence


def test_no_rows_are_told_of_a_table_for_which_one_program_has_no_gradient_at_all() -> None:
    torch.manual_seed(0)
    module, tokens = nn.Embedding(7, 8), torch.arange(20).reshape(4, 5) % 6
    table = {"table": module.weight.detach().numpy().copy()}

    def loss(weights: Any, tokens: Any) -> Any:
        with jax.named_scope("embed"):
            x = weights["table"][tokens]
        return jnp.sin(jax.lax.stop_gradient(x) + 0 * x).mean()

    reference = capture(module, lambda x: x.sin().mean(), tokens)
    found = gs.compare(reference, gs.capture(loss, table, tokens.numpy().astype(np.int32), origins=False))
    assert found.verdict == "different"
    assert "padding_idx" not in found.sentence


def test_rows_of_a_kernel_without_a_gradient_are_not_said_to_be_those_of_padding() -> None:
    torch.manual_seed(0)
    module, x = nn.Linear(3, 8), torch.randn(4, 3)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}

    def loss(state: Any, x: Any) -> Any:
        with jax.named_scope("qkv"):
            y = x @ state["weight"].T + state["bias"]
        stopped, left = jnp.split(y, [2], -1)
        return jnp.sin(jnp.concatenate([jax.lax.stop_gradient(stopped), left], -1)).mean()

    reference = capture(module, lambda y: y.sin().mean(), x)
    with jax.numpy_rank_promotion("allow"):
        found = gs.compare(reference, gs.capture(loss, state, x.numpy(), origins=False))
    assert "; the gradient of `weight` differs in the rows [0, 1] alone, for which it has none" in found.sentence
    assert "padding_idx" not in found.sentence


def test_the_row_that_padding_leaves_out_is_told_of_a_table_that_the_head_uses_too() -> None:
    torch.manual_seed(0)
    tokens = torch.arange(20).reshape(4, 5) % 7
    tied = nn.ModuleDict({"table": nn.Embedding(7, 8, padding_idx=2), "head": nn.Linear(8, 7, bias=False)})
    nn.init.normal_(tied["table"].weight)
    tied["head"].weight = tied["table"].weight
    tied.forward = lambda tokens: tied["head"](torch.sin(tied["table"](tokens)))

    def loss(state: Any, tokens: Any) -> Any:
        with jax.named_scope("table"):
            x = jnp.sin(state["weight"][tokens])
        with jax.named_scope("head"):
            return jnp.square(x @ state["weight"].T).mean()

    reference = capture(tied, lambda y: y.square().mean(), tokens)
    table = {"weight": tied["table"].weight.detach().numpy().copy()}
    found = gs.compare(reference, gs.capture(loss, table, tokens.numpy().astype(np.int32), origins=False))
    assert "differs in the rows [2] alone (as of PyTorch's `padding_idx`)" in found.sentence, found.sentence
    assert found.sentence.count("`table/weight`") == 2


@pytest.mark.slow
def test_a_kernel_in_a_scope_that_reads_tokens_for_another_parameter_is_no_table() -> None:
    torch.manual_seed(0)
    module, tokens = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 8)), torch.arange(20).reshape(4, 5) % 7
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}

    def loss(state: Any, tokens: Any) -> Any:
        with jax.named_scope("net"):
            y = state["0.weight"][tokens] @ state["1.weight"].T + state["1.bias"]
        stopped, left = jnp.split(y, [2], -1)
        return jnp.sin(jnp.concatenate([jax.lax.stop_gradient(stopped), left], -1)).mean()

    reference = capture(module, lambda y: y.sin().mean(), tokens)
    with jax.numpy_rank_promotion("allow"):
        found = gs.compare(reference, gs.capture(loss, state, tokens.numpy().astype(np.int32), origins=False))
    assert "differs in the rows [0, 1] alone, for which it has none" in found.sentence, found.sentence
    assert "padding_idx" not in found.sentence


@pytest.mark.slow
def test_no_layout_is_told_of_a_gradient_that_does_not_arrive() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)), torch.randn(4, 3, 5, 6)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}

    def loss(weights: Any, x: Any) -> Any:
        for at in "01":
            with jax.named_scope(f"conv_{at}"):
                x = jnp.einsum("nhwi,oi->nhwo", x, weights[f"{at}.weight"][..., 0, 0]) + weights[f"{at}.bias"]
            x = jax.lax.stop_gradient(x) if at == "0" else x
        return jnp.square(x).mean()

    reference = capture(module, lambda y: y.square().mean(), x)
    with jax.numpy_rank_promotion("allow"):
        found = gs.compare(reference, gs.capture(loss, state, x.numpy().transpose(0, 2, 3, 1), origins=False))
    assert found.verdict == "different"
    assert not [row.likely for row in found.rows if "axes in another order" in row.likely]


@pytest.mark.slow
def test_the_momentum_of_a_running_mean_is_told_without_a_divisor() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    nn.init.normal_(module[1].running_mean)
    x = torch.randn(12, 4)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}

    def loss(variables: Any, x: Any) -> Any:
        own, old = variables["params"], variables["batch_stats"]["norm"]
        with jax.named_scope("linear"):
            x = x @ own["linear"]["kernel"] + own["linear"]["bias"][None]
        with jax.named_scope("norm"):
            new = {"mean": x.mean(0), "var": x.var(0)}
            x = (x - new["mean"][None]) * jax.lax.rsqrt(new["var"] + 1e-5)[None]
            x = x * own["norm"]["scale"][None] + own["norm"]["bias"][None]
        return jnp.tanh(x).mean(), {"batch_stats": {"norm": {key: 0.1 * old[key] + 0.9 * new[key] for key in new}}}

    weights = {
        "linear": {"kernel": state["0.weight"].T.copy(), "bias": state["0.bias"]},
        "norm": {"scale": state["1.weight"], "bias": state["1.bias"]},
    }
    statistics = {"norm": {"mean": state["1.running_mean"], "var": state["1.running_var"]}}
    port = gs.capture(loss, {"params": weights, "batch_stats": statistics}, x.numpy(), has_aux=True, origins=False)
    found = gs.compare(capture(module, lambda x: torch.tanh(x).mean(), x), port)
    assert "1/running_mean" in named_first(found), found.sentence
    assert (
        "moves 9 times as far from its value before the step as the reference's, "
        "as where a batch counts 0.9, not 0.1: momentum is this share in PyTorch, and the rest in Flax"
        in (found.sentence)
    )


class _Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(7, 6), nn.Embedding(6, 6)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(4))
        return self.head(self.norm(x)).flatten(0, 1)


@pytest.mark.slow
@sampled(("first", "verdict"), [(0, "same"), (1, "different")])
def test_a_table_names_its_own_rows_in_one_program_and_a_sum_with_them_in_a_port_without_scopes(
    first: int, verdict: str
) -> None:
    torch.manual_seed(0)
    module, tokens = _Language(), torch.randint(7, (2, 4))
    state = {name.replace(".", "_"): value.numpy() for name, value in module.state_dict().items()}
    weights = {"wte": state.pop("wte_weight"), "wpe": state.pop("wpe_weight"), **state}
    labels = torch.randint(7, (8,))

    def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
        x = weights["wte"][batch["tokens"]] + weights["wpe"][None, first : first + 4]
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = x * weights["norm_weight"][None, None] + weights["norm_bias"][None, None]
        logits = jax.nn.log_softmax(x @ weights["head_weight"].T + weights["head_bias"][None, None])
        return -jnp.take_along_axis(logits, batch["labels"][..., None], axis=-1).mean()

    reference = capture(module, lambda logits: nn.functional.cross_entropy(logits, labels), {"tokens": tokens})
    batch = {"tokens": tokens.numpy().astype("int32"), "labels": labels.view(2, 4).numpy().astype("int32")}
    dump = gs.capture(loss, weights, batch, origins=False)
    assert {"activation/wpe", "activation_grad/wpe"} <= {*reference.keys()} & {*dump.keys()}
    found = gs.compare(reference, dump)
    assert found.verdict == verdict, found.sentence


class _Dueling2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.torso, self.value, self.advantage = nn.Linear(5, 6), nn.Linear(6, 1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.torso(x))
        advantage = self.advantage(hidden)
        return torch.tanh(self.value(hidden) + advantage - advantage.mean(1, keepdim=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "fault"),
    [
        (1, ""),
        (4, "The loss is reduced otherwise: it is 4 times the reference's"),
        (0.5, "Forward differs at the loss"),
    ],
)
def test_what_the_loss_computes_of_another_batch_is_no_pair_with_what_the_module_returns(
    factor: float, fault: str
) -> None:
    torch.manual_seed(0)
    module, target = _Dueling2(), _Dueling2()
    x, after, action, reward = torch.randn(4, 5), torch.randn(4, 5), torch.tensor([0, 2, 1, 1]), torch.randn(4)
    weights, targets = ({name: value.numpy() for name, value in each.state_dict().items()} for each in (module, target))

    def bootstrapped(values: Tensor) -> Tensor:
        with torch.no_grad():
            expected = reward + 0.9 * target(after).max(1).values
        return (values.gather(1, action[:, None])[:, 0] - expected).square().mean()

    def values_of(weights: dict[str, Any], x: Any) -> Any:
        def dense(name: str, x: Any) -> Any:
            with jax.named_scope(name):
                return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"][None]

        hidden = jax.nn.relu(dense("torso", x))
        advantage = dense("advantage", hidden)
        return jnp.tanh(dense("value", hidden) + advantage - advantage.mean(1, keepdims=True))

    def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
        found = jnp.take_along_axis(values_of(weights, batch["x"]), batch["action"][:, None], axis=1)[:, 0]
        discount = 0.9 if factor >= 1 else 0.9 * factor
        expected = jax.lax.stop_gradient(values_of(targets, batch["after"]))
        expected = batch["reward"] + discount * expected.max(1)
        return jnp.square(found - expected).mean() * max(factor, 1)

    reference = capture(module, bootstrapped, {"x": x})
    batch = {"x": x, "after": after, "action": action.int(), "reward": reward}
    port = gs.capture(loss, weights, {name: value.numpy() for name, value in batch.items()}, origins=False)
    found = gs.compare(reference, port)
    assert found.verdict == ("different" if fault else "same"), found.sentence
    assert found.sentence.startswith(fault), found.sentence
    assert found.first_divergence.forward is None or found.first_divergence.forward.name != "_Dueling2"
