"""Models that transformers has in PyTorch and in Flax: the ports of others, compared with their originals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradscope as gs

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'gradscope-jax[zoo]'"
)
torch = pytest.importorskip("torch", reason="PyTorch is absent: ports of transformers were NOT compared")
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402

_TOKENS = np.random.default_rng(0).integers(3, 59, (2, 7))
_MASK = np.array([[1] * 7, [1] * 5 + [0] * 2])
TEXT = {"input_ids": _TOKENS, "attention_mask": _MASK}
BOTH = {**TEXT, "decoder_input_ids": _TOKENS[:, ::-1].copy()}
IMAGE = {"pixel_values": np.random.default_rng(1).normal(size=(2, 3, 32, 32)).astype(np.float32)}

_WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_SIZES = {**_WIDTHS, "vocab_size": 60, "max_position_embeddings": 20}

#: Positions for one example or for each, a bias and a factor within a layer or behind it, outputs in another order, a
#: frozen table, a norm and a pooler that nothing reads, gated layers and queries that share their keys.
MODELS = {
    "BertForMaskedLM": ("BertConfig", _SIZES, TEXT),
    "GPT2LMHeadModel": (
        "GPT2Config", {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 20}, TEXT
    ),
    "RoFormerForMaskedLM": ("RoFormerConfig", _SIZES, TEXT),
    "XGLMForCausalLM": (
        "XGLMConfig",
        {"vocab_size": 60, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48,
         "max_position_embeddings": 20},
        TEXT,
    ),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0},
        BOTH,
    ),
    "BigBirdForMaskedLM": ("BigBirdConfig", {**_SIZES, "attention_type": "original_full"}, TEXT),
    "MistralForCausalLM": ("MistralConfig", {**_SIZES, "num_key_value_heads": 2}, TEXT),
    "CLIPVisionModel": ("CLIPVisionConfig", {**_WIDTHS, "image_size": 32, "patch_size": 8}, IMAGE),
}  # fmt: skip


def _drawn(module: Any) -> None:
    """Gives the trained parameters of a module values of which none is zero or one."""
    random = np.random.default_rng(2)
    with torch.no_grad():
        for each in filter(lambda each: each.requires_grad, module.parameters()):
            drawn = torch.tensor(random.normal(size=each.shape), dtype=each.dtype)
            fan_in = max(1, each[0].numel()) if each.ndim > 1 else 25
            each.copy_(drawn / fan_in**0.5 + (each if each.ndim == 1 else 0))
        module.tie_weights()


def _outcome(outputs: Any) -> Any:
    return outputs.logits if "logits" in outputs else outputs.last_hidden_state


def _compared(name: str, folder: Path, **changed: Any) -> Any:
    config_name, sizes, batch = MODELS[name]
    config = getattr(transformers, config_name)(**sizes, attn_implementation="eager")
    module = getattr(transformers, name)(config).eval()
    _drawn(module)
    module.save_pretrained(folder)
    net = getattr(transformers, f"Flax{name}").from_pretrained(folder, from_pt=True, **changed)

    def loss(params: Any, batch: Mapping[str, Any]) -> Any:
        y = _outcome(net(**batch, params=params, train=False))
        return jnp.sin(y).sum() + jnp.square(y).mean()

    reference = capture(
        module,
        lambda outputs: torch.sin(_outcome(outputs)).sum() + _outcome(outputs).square().mean(),
        {key: torch.tensor(value) for key, value in batch.items()},
    )
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        arrays = {key: jnp.asarray(value) for key, value in batch.items()}
        return gs.compare(reference, gs.capture(loss, net.params, arrays, origins=False))


@pytest.mark.parametrize("name", MODELS)
def test_a_port_of_transformers_is_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = jnp.clip  # its ports are older than the names of the arguments
    monkeypatch.setattr(
        jnp, "clip", lambda x=None, a_min=None, a_max=None, *, a=None: clip(a if x is None else x, a_min, a_max)
    )
    found = _compared(name, tmp_path)
    assert found.verdict == "same", found.sentence


def test_another_form_of_a_function_is_named(tmp_path: Path) -> None:
    found = _compared("BertForMaskedLM", tmp_path, hidden_act="gelu_new")
    assert found.verdict == "different"
    assert found.sentence.startswith(
        "Forward first differs at `bert/encoder/layer/0/intermediate/intermediate_act_fn` "
    )
    assert "it is gelu by erf in the reference, and gelu by tanh in the candidate" in found.sentence


def test_the_function_of_a_gated_layer_is_named(tmp_path: Path) -> None:
    found = _compared("MistralForCausalLM", tmp_path, hidden_act="relu")
    assert found.verdict == "different"
    assert found.sentence.startswith("Forward first differs at `model/layers/0/mlp/down_proj` ")
    gate, up = (f"`model/layers/0/mlp/{name}`" for name in ("gate_proj", "up_proj"))
    assert f"which reads the silu of {gate} times {up}, and in the candidate the relu" in found.sentence


@pytest.mark.parametrize("name", ["BertForMaskedLM", "MistralForCausalLM"])
def test_a_port_that_computes_in_bfloat16_is_the_same(name: str, tmp_path: Path) -> None:
    found = _compared(name, tmp_path, dtype=jnp.bfloat16)
    assert found.verdict == "same", found.sentence
