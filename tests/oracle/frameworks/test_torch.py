"""What is captured of a PyTorch model is what `torch.autograd.grad` says of values that a plain function keeps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.api.capture_function import capture as jax_capture
from gradscope.api.comparing import compare
from gradscope.api.reading import Dump
from gradscope.dump.verify import verify
from gradscope.errors import ModelError, UsageError

torch = pytest.importorskip("torch", reason="PyTorch is absent: what is captured of its models was NOT checked")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from gradscope.frameworks.torch import capture, torch_environment  # noqa: E402


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def assert_gradients(dump: Dump, loss: Tensor, values: Mapping[str, Tensor]) -> None:
    """Every value, and the gradient with respect to it, by key and bit for bit."""
    gradients = torch.autograd.grad(loss, list(values.values()))
    assert dump.loss == loss.item()
    for (key, value), gradient in zip(values.items(), gradients, strict=True):
        family, _, name = key.partition("/")
        assert np.array_equal(dump[key], value.detach().numpy()), key
        assert np.array_equal(dump[f"{family}_grad/{name}"], gradient.numpy()), key


class Branching(nn.Module):
    """In-place operations, a module called twice, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.pool = Pool()
        self.head = nn.Linear(4, 2)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        x = self.relu(self.norm(self.conv(image)))
        x = self.relu(x - 0.1)
        mean, largest = self.pool(x)
        return {"logits": self.head(mean + largest), "largest": largest}


class Pool(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.mean((2, 3)), x.amax((2, 3))


def loss_of(output: Mapping[str, Tensor]) -> Tensor:
    return output["logits"].square().mean() + output["largest"].sum()


def branching(model: Branching, image: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The same by hand, nothing in place, every value kept."""
    conv = F.conv2d(image, model.conv.weight)
    norm = F.batch_norm(conv, None, None, model.norm.weight, model.norm.bias, training=True)
    relu = F.relu(norm)
    again = F.relu(relu - 0.1)
    mean, largest = again.mean((2, 3)), again.amax((2, 3))
    head = F.linear(mean + largest, model.head.weight, model.head.bias)
    activations = {"conv": conv, "norm": norm, "relu": relu, "relu#2": again, "pool.0": mean, "pool.1": largest}
    values = {f"activation/{name}": value for name, value in (activations | {"head": head}).items()}
    values |= {f"param/{name.replace('.', '/')}": parameter for name, parameter in model.named_parameters()}
    return loss_of({"logits": head, "largest": largest}), values | {"input/image": image}


def test_in_place_operations_repeated_modules_and_several_outputs() -> None:
    model, image = Branching(), torch.randn(2, 3, 6, 6)
    dump = capture(model, loss_of, image)
    assert_gradients(dump, *branching(model, image.clone().requires_grad_()))
    assert set(dump.manifest.ledger.counts()) == {"captured"}


@pytest.mark.parametrize(
    ("module", "precision"), [(nn.Linear(3, 2), "highest"), (nn.Sequential(nn.Conv2d(3, 2, 1)), "tensorfloat32")]
)
def test_convolutions_on_a_gpu_are_in_tensorfloat32_by_default(
    monkeypatch: pytest.MonkeyPatch, module: nn.Module, precision: str
) -> None:
    assert torch_environment.provenance(module, ())["matmul_precision"] == "highest"
    monkeypatch.setattr(torch_environment, "_device", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    assert torch_environment.provenance(module, ())["matmul_precision"] == precision


def test_buffers_are_the_state_before_the_run() -> None:
    model = Branching()
    model.norm.running_mean.fill_(3.0)  # type: ignore[union-attr]
    dump = capture(model, loss_of, torch.randn(2, 3, 6, 6))
    assert np.array_equal(dump["state/norm/running_mean"], np.full(4, 3, np.float32))
    assert dump["state/norm/num_batches_tracked"] == 0


def test_buffers_that_the_run_changes_are_auxiliary_outputs() -> None:
    model, image = Branching(), torch.randn(2, 3, 6, 6)
    updated = copy.deepcopy(model)
    updated(image)
    model.register_buffer("missing", torch.full((2,), torch.nan))
    dump = capture(model, loss_of, image)
    aux = {key.removeprefix("aux/"): np.asarray(dump[key]) for key in dump if key.startswith("aux/")}
    assert aux.keys() == {"norm/running_mean", "norm/running_var", "norm/num_batches_tracked"}
    assert all(np.array_equal(value, updated.get_buffer(name.replace("/", "."))) for name, value in aux.items())
    for without in (capture(model, loss_of, image, updates=False), capture(model.eval(), loss_of, image)):
        assert not any(key.startswith("aux/") for key in without)


def test_the_module_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.ReLU())
    before = copy.deepcopy(model)
    kept = torch.ones(3, 3)
    model[0].weight.grad = kept
    x, drawn = torch.randn(5, 3), torch.random.get_rng_state()
    capture(model, torch.sum, x)
    assert model[0].weight.grad is kept
    assert torch.equal(kept, torch.ones(3, 3))
    assert model[0].bias.grad is None
    assert x.grad is None
    assert not x.requires_grad
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    for (name, one), other in zip(before.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_gradients_are_captured_where_the_caller_has_switched_them_off(off: Callable[[], Any]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), torch.randn(5, 4)
    expected = capture(model, lambda y: (y**3).sum(), x)
    with off():
        dump = capture(model, lambda y: (y**3).sum(), x + 0)
    assert set(dump) == set(expected)
    assert "input_grad/input" in dump
    assert all(np.array_equal(dump[key], expected[key]) for key in expected)


class _Averaging(nn.Module):
    """A running mean that is assigned, not changed in place, and a cache that grows with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("cache", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.cache = torch.ones(len(x))
        return self.layer(x - self.mean) * self.cache[:, None]


def test_a_buffer_that_the_run_assigns_anew_is_put_back_and_a_cache_that_grew_is_kept() -> None:
    model, x = _Averaging(), torch.randn(3, 4)
    mean = model.mean
    first, second = (capture(model, torch.sum, x, updates=True) for _ in range(2))
    assert model.mean is mean
    assert not mean.any()
    assert model.cache.shape == (3,)
    assert np.array_equal(first["activation/layer"], second["activation/layer"])
    assert np.allclose(first["aux/mean"], 0.1 * x.mean(0).numpy())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (partial(nn.Sequential, nn.LazyLinear(2)), "0/weight has no shape before the module has run"),
        (partial(nn.Linear, 4, 2, device="meta"), "weight has no values: it is on the device meta"),
    ],
)
def test_a_module_without_values_is_refused(model: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(ModelError) as error:
        capture(model(), torch.sum, torch.randn(3, 4))
    assert error.value.message == said


def test_hooks_are_taken_off_when_the_model_fails() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        capture(model, torch.sum, torch.randn(5, 4))
    assert not model[0]._forward_hooks


class _Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.layer(x)
        raise NotImplementedError


class _Trying(nn.Module):
    """Takes another module where the first one fails."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _Failing(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        try:
            y = self.first(x)
        except NotImplementedError:
            y = self.second(x)
        return y * 2


def test_a_call_that_fails_and_that_the_model_catches_has_no_output_and_is_around_nothing_else() -> None:
    model, x = nn.Sequential(_Trying(), nn.Tanh()), torch.randn(4, 3)
    dump = capture(model, torch.sum, x)
    layers = {layer.path: (layer.parent, layer.outputs) for layer in dump.source.manifest.layers}
    assert layers["0/first"] == ("0", ())
    assert layers["0/second"] == ("0", ("0/second",))
    assert layers["0"] == (None, ("0",))
    assert layers["1"] == (None, ("1",))
    np.testing.assert_allclose(dump["activation/0"], 2 * dump["activation/0/second"])


class _Straight(torch.autograd.Function):
    """A function whose rule returns None for one of its operands."""

    @staticmethod
    def forward(_context: Any, x: Tensor, y: Tensor) -> Tensor:
        return 2 * x + y

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


class _Ruled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut, self.kept = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return _Straight.apply(self.cut(x), self.kept(x))


def test_a_rule_that_returns_no_gradient_leaves_none() -> None:
    dump = capture(_Ruled(), torch.sum, torch.randn(4, 3))
    assert np.array_equal(dump["activation_grad/kept"], np.ones((4, 2), np.float32))
    absent = {line.name for line in dump.source.manifest.ledger.missing if line.reason == "disconnected"}
    assert absent == {"cut", "cut/weight", "cut/bias"}


def test_two_captures_draw_the_same_dropout() -> None:
    model, x = nn.Sequential(nn.Linear(3, 8), nn.Dropout()), torch.randn(5, 3)
    assert compare(capture(model, torch.sum, x), capture(model, torch.sum, x), bitwise=True)


def test_layers_are_nested_and_linked_to_what_they_use_and_make() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 1))
    dump = capture(model, torch.sum, torch.randn(5, 3))
    layers = {layer.path: layer for layer in dump.layers}
    assert list(layers) == ["0", "0/0", "0/1", "1"]
    assert layers["0/1"].parent == "0"
    assert layers["0/0"].params == ("0/0/weight", "0/0/bias")
    assert layers["0/0"].inputs == ("input",)
    assert layers["0/1"].inputs == ("0/0",)
    assert layers["1"].outputs == ("1",)
    # From two sums over the same elements, in different orders.
    of_dump = pytest.approx(dump.stats("activation/0/1").rms, rel=1e-12)
    assert (layers["1"].rms["in"], layers["0"].rms["out"]) == (of_dump, of_dump)
    assert layers["1"].rms["grad_in"] == pytest.approx(dump.stats("activation_grad/0/1").rms, rel=1e-12)
    assert dump.source.entry("param/0/0/weight").site.layer == "0/0"
    assert all(layer.source is not None and layer.source.startswith("test_torch.py:") for layer in layers.values())


class _Gated(nn.Module):
    """Reads what no module returned, and returns what it computes from the outputs of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.gate, self.out = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.out(self.filter(x + 1).tanh() * self.gate(x.detach() + 1).sigmoid())
        return x + self.scale * out, out


def test_a_layer_uses_the_parameters_of_modules_inside_it_that_nothing_calls() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(self.attention(x, x, x)[0], self.head.weight, self.head.bias)

    layers = {layer.path: layer.params for layer in capture(Tied(), torch.sum, torch.ones(2, 3, 4)).layers}
    assert {path: {*params} for path, params in layers.items()} == {
        "attention": {
            f"attention/{name}" for name in ("in_proj_weight", "in_proj_bias", "out_proj/weight", "out_proj/bias")
        },
        "Tied": {"head/weight", "head/bias"},
    }


def test_layers_state_what_they_are_computed_from_where_no_module_returned_it() -> None:
    dump = capture(nn.Sequential(nn.Tanh(), _Gated()), lambda outputs: outputs[0].sum(), torch.randn(5, 3))
    layers = {layer.path: {*layer.sources} for layer in dump.layers}
    assert layers == {
        "0": set(),  # its input says it
        "1": {"activation/0", "activation/1/out", "param/1/scale"},
        "1/filter": {"activation/0", "param/1/filter/weight", "param/1/filter/bias"},
        "1/gate": set(),  # nothing is known to be behind what is detached
        "1/out": {"activation/1/filter", "activation/1/gate", "param/1/out/weight", "param/1/out/bias"},
    }


def test_an_output_that_a_wrapper_returns_unchanged_is_its_childs() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.Identity()), nn.Dropout(0.0).eval())
    dump = capture(model, torch.sum, torch.randn(5, 3))
    for family in ("activation", "activation_grad"):
        assert [dump.source.resolve(f"{family}/{name}") for name in ("0/1", "0", "1")] == [f"{family}/0/0"] * 3


def test_what_the_module_itself_computes_goes_by_its_class() -> None:
    class Squared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) ** 2

    dump = capture(Squared(), torch.sum, torch.randn(5, 3))
    assert np.array_equal(dump["activation/Squared"], dump["activation/linear"] ** 2)
    assert np.array_equal(dump["activation_grad/Squared"], np.ones((5, 2), np.float32))


def test_integers_have_no_gradient_and_tied_parameters_are_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embed(tokens))

    model, tokens = Tied(), torch.tensor([[1, 2, 2]])
    dump = capture(model, torch.sum, {"tokens": tokens})
    embedded = F.embedding(tokens, model.embed.weight)
    logits = F.linear(embedded, model.embed.weight)
    values = {"activation/embed": embedded, "activation/head": logits, "param/embed/weight": model.embed.weight}
    assert_gradients(dump, logits.sum(), values)
    assert dump["input/tokens"].dtype == np.int64
    assert dump.source.entry("input_grad/tokens").absent == "non-differentiable"
    for family in ("param", "param_grad"):
        assert dump.source.resolve(f"{family}/head/weight") == f"{family}/embed/weight"


def test_a_frozen_or_unused_parameter_is_recorded_as_such() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)
            self.used.bias.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    dump = capture(Half(), torch.sum, torch.randn(2, 3))
    assert dump.source.entry("param_grad/used/bias").absent == "frozen"
    assert dump.source.entry("param_grad/unused/weight").absent == "disconnected"
    assert dump.ledger.counts()["disconnected"] == 2


def test_bfloat16_survives(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 3).bfloat16(), torch.randn(2, 3).bfloat16()
    with capture(model, torch.sum, x, tmp_path / "half.npz") as dump:
        assert dump["param/weight"].dtype.name == "bfloat16"
        assert np.array_equal(dump["param/weight"].astype(np.float32), model.weight.detach().float().numpy())
        assert dump["input_grad/input"].dtype.name == "bfloat16"


def test_complex_values_and_conjugate_views() -> None:
    model, x = nn.Identity(), torch.randn(4, dtype=torch.complex64)
    dump = capture(model, lambda y: (y.conj() * y).real.sum(), x.conj())
    assert np.array_equal(dump["input/input"], x.numpy().conj())
    assert np.allclose(dump["input_grad/input"], 2 * x.numpy())


def test_gradients_of_complex_values_are_those_of_jax() -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, dtype=torch.cfloat))
            self.spectrum = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(self.spectrum(torch.fft.rfft(x) * self.weight), n=8)

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("spectrum"):
            y = jnp.fft.rfft(x) * weights["weight"][None]
        return jnp.square(jnp.fft.irfft(y, n=8)[:, :3]).mean()

    model, x = Filter(), torch.randn(2, 8)
    dump = capture(model, lambda y: y[:, :3].square().mean(), x)
    weights = {"weight": model.weight.detach().numpy()}
    assert np.allclose(dump["param_grad/weight"], jax.grad(loss)(weights, x.numpy())["weight"], atol=1e-6)
    found = compare(dump, jax_capture(loss, weights, x.numpy(), origins=False))
    assert found.verdict == "same", found.sentence


def test_non_reentrant_checkpoints_are_recorded_once() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)

    model, x = Checkpointed(), torch.randn(2, 3)
    dump = capture(model, torch.sum, x)
    assert [layer.path for layer in dump.layers] == ["block", "block/0", "block/1"]
    hidden = F.linear(x, model.block[0].weight, model.block[0].bias)
    out = torch.tanh(hidden)
    assert_gradients(dump, out.sum(), {"activation/block/0": hidden, "activation/block/1": out})


class Reentrant(nn.Module):
    """A block that is checkpointed twice, on values of its own each time."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last, self.reentrant = nn.Linear(3, 3), nn.Linear(3, 2), reentrant
        self.block = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        for _ in range(2):
            hidden = torch.utils.checkpoint.checkpoint(self.block, hidden, use_reentrant=self.reentrant)
        return self.last(hidden)


def test_reentrant_checkpoints_have_the_gradients_of_the_others() -> None:
    model, x = Reentrant(reentrant=True), torch.randn(4, 3)
    model.last.weight.grad = kept = torch.ones(2, 3)
    dump = capture(model, torch.sum, x)
    assert model.last.weight.grad is kept
    assert model.first.weight.grad is None
    model.reentrant = False
    other = capture(model, torch.sum, x)
    assert {"activation_grad/block/0#2", "activation_grad/block/2", "param_grad/block/0/weight"} <= set(dump)
    assert set(other) == set(dump)
    assert all(np.array_equal(dump[key], other[key]) for key in other)


def test_an_optimizer_in_the_backward_pass_takes_no_step_of_a_reentrant_checkpoint() -> None:
    model, x = Reentrant(reentrant=False), torch.randn(4, 3)
    expected = capture(model, torch.sum, x)
    before = copy.deepcopy(model.state_dict())
    steps: list[Tensor] = []

    def step(parameter: Tensor) -> None:
        assert parameter.grad is not None
        steps.append(parameter)
        parameter.data -= parameter.grad
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    model.reentrant = True
    dump = capture(model, torch.sum, x)
    assert not steps
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    gradients = [key for key in expected if key.startswith("param_grad/")]
    assert gradients
    assert all(np.allclose(dump[key], expected[key]) for key in gradients)
    model(x).sum().backward()  # outside of a capture, they are taken
    assert {*map(id, steps)} == {*map(id, model.parameters())}


class _Block(nn.Module):
    """A block that returns what its last layer returns, and values that it was given or makes for all, as T5's do."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.scale, self.drop = nn.Linear(3, 3), nn.Linear(3, 3), nn.Dropout(0.5).eval()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor, bias: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        scale = self.scale(bias) if scale is None else self.drop(scale)
        return self.drop(self.act(self.mix(x) * scale + bias)), self.drop(bias), scale


class _Stack(nn.Module):
    """Blocks, checkpointed or not, that pass on a parameter and a value that the first of them makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.embed = nn.Parameter(torch.randn(5, 3)), nn.Linear(3, 3)
        self.blocks = nn.ModuleList([_Block(), _Block(), _Block()])
        self.checkpointed = False

    def forward(self, x: Tensor) -> Tensor:
        values = self.embed(x), self.bias, None
        for block in self.blocks:
            run = partial(torch.utils.checkpoint.checkpoint, block, use_reentrant=True) if self.checkpointed else block
            values = run(*values)
        return values[0] * values[1] + values[2]


def test_values_in_reentrant_checkpoints_have_all_their_names_and_one_gradient() -> None:
    module, x = _Stack(), torch.randn(5, 3)
    plain = capture(module, lambda y: y.square().sum(), x)
    module.checkpointed = True
    found = compare(plain, capture(module, lambda y: y.square().sum(), x))
    assert found.verdict == "same", found.sentence
    assert {row.status for row in found.rows} == {"same"}


@pytest.mark.parametrize("inner", [False, True])
def test_a_compiled_module_is_captured_as_the_one_that_was_written(*, inner: bool) -> None:
    model, x = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)), torch.randn(5, 3)
    plain = capture(model, torch.sum, x)
    if inner:
        model[0] = torch.compile(model[0], backend="eager")
    compiled = capture(model if inner else torch.compile(model, backend="eager"), torch.sum, x)
    assert set(compiled) == set(plain)
    assert all(np.array_equal(plain[key], compiled[key]) for key in plain)


def test_a_captured_file_is_a_dump_like_any_other(tmp_path: Path) -> None:
    model, x = Branching(), torch.randn(2, 3, 6, 6)
    with capture(model, loss_of, x, tmp_path / "run.npz") as dump:
        assert verify(tmp_path / "run.npz").complete
        assert compare(capture(model, loss_of, x), dump, bitwise=True)
        assert dump.manifest.provenance["model"] == "Branching"
        assert "norm" in dump.table()
    with pytest.raises(UsageError, match="exists"):
        capture(model, loss_of, x, tmp_path / "run.npz")


def test_tensors_are_written_as_they_appear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gradscope.dump.writer import DumpWriter

    written: list[str] = []
    add = DumpWriter.add
    monkeypatch.setattr(DumpWriter, "add", lambda self, record: (written.append(record.name), add(self, record))[1])
    counts: list[int] = []
    model = nn.Sequential(nn.Linear(3, 3), Counting(counts, written), nn.Linear(3, 3))
    capture(model, torch.sum, torch.randn(2, 3), tmp_path / "run.npz").close()
    forward, backward = counts
    assert written[:forward] == ["input", "0"], "before the second module runs, the first one's output is on its way"
    assert written[backward - 1] == "2", "and its gradient before that of the module in front"


class Counting(nn.Module):
    """Notes how much has been written when it runs forward, and when backward."""

    def __init__(self, counts: list[int], written: list[str]) -> None:
        super().__init__()
        self.counts, self.written = counts, written

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        self.counts.append(len(self.written))
        y.register_hook(lambda _: self.counts.append(len(self.written)))
        return y


@dataclass
class Output:
    """What many libraries return."""

    hidden: Tensor
    also: tuple[Tensor, None]


def test_dataclasses_and_nested_outputs_are_all_seen() -> None:
    class Nested(nn.Module):
        def forward(self, x: Tensor) -> Output:
            return Output(hidden=x * 2, also=(x * 3, None))

    dump = capture(nn.Sequential(Nested()), lambda out: out.hidden.sum() + out.also[0].sum(), torch.ones(2))
    assert np.array_equal(dump["activation/0.0"], [2, 2])
    assert np.array_equal(dump["activation/0.1"], [3, 3])
    assert np.array_equal(dump["input_grad/input"], [5, 5])


def test_a_penalty_on_a_gradient_that_the_module_takes_is_a_part_of_the_loss() -> None:
    """The gradients are those of the loss, and not those that it is made of."""

    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.terms(x)[-2:]

        def terms(self, x: Tensor) -> tuple[Tensor, ...]:
            first = self.first(x)
            scored = self.second(F.softplus(first))
            return x, first, scored, torch.autograd.grad(scored.sum(), x, create_graph=True)[0]

    def loss_of(terms: tuple[Tensor, ...]) -> Tensor:
        return terms[-2].mean() + (terms[-1].norm(dim=1) - 1).square().mean()

    module, inputs = Penalised(), torch.randn(6, 4)
    dump = capture(module, loss_of, inputs)
    x, first, scored, gradient = module.terms(inputs.requires_grad_())
    assert_gradients(
        dump,
        loss_of((scored, gradient)),
        {
            "input/x": x,
            "activation/first": first,
            "activation/second": scored,
            **{f"param/{name.replace('.', '/')}": each for name, each in module.named_parameters()},
        },
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, of its forward mode
@pytest.mark.parametrize(
    "transform",
    [
        torch.vmap,
        lambda layer: torch.func.grad(lambda x: torch.tanh(layer(x)).sum()),
        lambda layer: lambda x: torch.func.jvp(layer, (x,), (x,))[1],
    ],
)
def test_what_a_function_transform_keeps_to_itself_is_listed(transform: Callable[[Any], Any]) -> None:
    class Transformed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return transform(self.inner)(x)

    module, x = Transformed(), torch.randn(5, 4)
    dump = capture(module, lambda y: y.square().sum(), x)
    loss = module(x.requires_grad_()).square().sum()
    weight, inputs = torch.autograd.grad(loss, [module.inner.weight, x])
    assert np.array_equal(dump["param_grad/inner/weight"], weight.numpy())
    assert np.array_equal(dump["input_grad/x"], inputs.numpy())
    missing = [(line.family, line.name, line.reason) for line in dump.source.manifest.ledger.missing]
    assert missing[:2] == [("activation", "inner", "opaque"), ("activation_grad", "inner", "opaque")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused_by_name() -> None:
    scripted = nn.Sequential(nn.Linear(4, 3), torch.jit.trace(nn.Linear(3, 3), torch.randn(2, 3)))
    with pytest.raises(ModelError, match="the module 1 is of TorchScript"):
        capture(scripted, lambda y: y.sum(), torch.randn(2, 4))


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda y: y, r"must be a scalar, and has shape \(2, 3\)"),
        (lambda y: 1.0, "must return a tensor, and returned float"),
        (lambda y: y.argmax(), "must be a real floating-point number"),
        (lambda y: y.detach().sum(), "depends on no parameter and no input"),
    ],
)
def test_a_loss_that_is_none_is_refused(loss: Callable[[Tensor], Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        capture(nn.Linear(3, 3), loss, torch.randn(2, 3))


class _Passing(nn.Module):
    """A module that returns a parameter as it is, as a dropout does in evaluation, and another that uses it twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        table = self.drop(self.table)
        return self.head(x @ table + table.sum(0))


def test_a_module_that_returns_a_parameter_can_be_captured_again_and_keeps_no_hook() -> None:
    module, x = _Passing().eval(), torch.ones(4, 2)
    first, again = (capture(module, torch.mean, {"x": x}) for _ in range(2))
    expected = torch.autograd.grad(module(x).mean(), module.table)[0].numpy()
    assert all(np.array_equal(dump["activation_grad/drop"], expected) for dump in (first, again))
    drop = next(layer for layer in again.source.manifest.layers if layer.path == "drop")
    assert (drop.inputs, drop.outputs) == ((), ("drop",))
    assert not module.table._backward_hooks


class _Changing(nn.Module):
    """Two modules that return what they are given, which is changed between them where gradients are off."""

    def __init__(self, change: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.first, self.second, self.head, self.change = nn.Identity(), nn.Identity(), nn.Linear(3, 1), change

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.first(x * 1)
            self.change(x)
            x = self.second(x)
        return self.head(x)


@pytest.mark.parametrize("change", [lambda x: x.add_(1), lambda x: x.data.add_(1), lambda x: x[0].mul_(3)])
def test_an_object_that_is_changed_where_gradients_are_off_is_another_value(change: Callable[[Tensor], object]) -> None:
    x = torch.randn(2, 3)
    dump = capture(_Changing(change), torch.mean, x)
    expected = x.clone()
    change(expected)
    assert np.array_equal(dump["activation/first"], x.numpy())
    assert np.array_equal(dump["activation/second"], expected.numpy())


class _Halves(nn.Module):
    """The second half of the channels that a layer computes, which nothing else reads unless the rest is added."""

    def __init__(self, *, added: bool) -> None:
        super().__init__()
        self.linear, self.added = nn.Linear(6, 8), added

    def forward(self, x: Tensor) -> Tensor:
        self.computed = self.linear(x) * 2
        self.rest = self.computed.sum() if self.added else x.new_zeros(())
        return self.computed.view(-1, 2, 4)[:, 1]


class _Changed(nn.Module):
    def __init__(self, first: nn.Module, *, inplace: bool) -> None:
        super().__init__()
        self.first, self.act = first, nn.ReLU(inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        return (x * x).sum() + (self.first.rest if isinstance(self.first, _Halves) else 0)


@pytest.mark.parametrize(
    ("first", "shape"),
    [
        (nn.InstanceNorm2d(3, affine=True), (2, 3, 4, 4)),
        (nn.InstanceNorm1d(3), (2, 3, 5)),
        (_Halves(added=False), (5, 6)),
        (nn.Sequential(nn.Linear(6, 4), nn.Unflatten(1, (2, 2))), (5, 6)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_gradient_of_a_view_arrives_that_is_changed_in_place(first: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = capture(_Changed(first, inplace=False), lambda value: value, x)
    dump = capture(_Changed(first, inplace=True), lambda value: value, x)
    gradients = [key for key in expected.keys() if key.startswith("activation_grad/")]  # noqa: SIM118 - no mapping
    assert "activation_grad/first" in gradients
    assert all(np.array_equal(dump[key], expected[key]) for key in gradients)


def test_no_gradient_is_stated_of_a_changed_view_where_another_value_reads_what_it_is_a_view_of() -> None:
    dump = capture(_Changed(_Halves(added=True), inplace=True), lambda value: value, torch.randn(5, 6))
    assert ("activation_grad", "first") in [(line.family, line.name) for line in dump.manifest.ledger.missing]


class EncoderDecoder(nn.Module):
    """Its output that was made first has a name more, which is seen last."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.key, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encoder(x)
        key = self.key(hidden)
        return self.head(hidden * (key.detach() if self.training else key)), hidden


def test_all_names_of_a_value_have_its_place_so_that_the_gradient_is_named_that_is_wrong_first() -> None:
    model, x = nn.Sequential(EncoderDecoder()), torch.randn(3, 4)
    ref, cand = (capture(model.train(training), lambda out: (out[0] ** 3).sum(), x) for training in (False, True))
    owner, other = (ref.source.entry(f"activation/{name}") for name in ("0/encoder", "0.1"))
    assert (other.alias_of, other.site.index) == ("activation/0/encoder", owner.site.index)
    found = compare(ref, cand).first_divergence.backward
    assert found is not None
    assert found.name == "0/key"
