"""Flax models of transformers: compared with every call of their modules, with the inputs that they fill themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.zoo import agreement

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'gradscope-jax[zoo]'")
import jax
import jax.numpy as jnp

from tests.zoo.flax.linen import calls_of, captured

TRANSFORMERS = """
from transformers import BartConfig, FlaxBartForConditionalGeneration, FlaxGPT2LMHeadModel
from transformers import FlaxViTForImageClassification, GPT2Config, ViTConfig

gpt2 = FlaxGPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=2, n_head=2), input_shape=(1, 4))
image = dict(image_size=16, patch_size=8, num_labels=3)
vit = FlaxViTForImageClassification(
    ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, **image)
)
sizes = {f"{part}_{what}": size for part in ("encoder", "decoder")
         for what, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}
bart = FlaxBartForConditionalGeneration(
    BartConfig(vocab_size=50, d_model=16, max_position_embeddings=16, **sizes), input_shape=(1, 4)
)
"""


def test_a_model_of_transformers_fills_its_masks_itself(folder: Path) -> None:
    text = """
from transformers import BertConfig, FlaxBertForSequenceClassification
sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
bert = FlaxBertForSequenceClassification(BertConfig(vocab_size=50, num_labels=3, **sizes), input_shape=(1, 4))
"""
    target = f"{agreement.source(folder, text)}:bert"
    seen = agreement.dump(target, "int32[2,6]:0..50", loss="cross-entropy")
    from net import bert

    key = jax.random.wrap_key_data(seen["state/rngs/dropout_rng"])
    batch = agreement.family(seen, "input")

    def loss(params: Any) -> Any:
        outputs = bert(batch["input_ids"], params=params, dropout_rng=key, train=True)
        return agreement.cross_entropy(outputs.logits, batch["labels"])

    value, gradients = jax.value_and_grad(loss)(agreement.nested(agreement.family(seen, "param")))
    assert seen.loss == pytest.approx(float(value), rel=1e-5)
    agreement.assert_gradients(seen, gradients)
    agreement.assert_layers_hold_parameters(seen)


def test_bert_of_transformers(folder: Path) -> None:
    text = """
from transformers import BertConfig, FlaxBertModel
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
bert = FlaxBertModel(config, input_shape=(1, 4)).module
"""
    tokens = "int32[2,6]:0..50", "attention_mask=int32[2,6]:1", "token_type_ids=int32[2,6]"
    rest = "position_ids=int32[2,6]:0..6", "head_mask=float32[2,2]:1"
    seen = agreement.dump(f"{agreement.source(folder, text)}:bert", *tokens, *rest, train=False, loss="mse")
    from net import bert

    params, batch = agreement.nested(agreement.family(seen, "param")), agreement.family(seen, "input")
    labels = batch.pop("labels")

    def loss(params: Any) -> Any:
        outputs, updated = bert.apply({"params": params}, **batch, capture_intermediates=True)
        return jnp.square(outputs.last_hidden_state - labels).mean(), updated["intermediates"]

    gradients, intermediates = jax.grad(loss, has_aux=True)(params)
    agreement.assert_gradients(seen, gradients)
    expected = captured(intermediates, "FlaxBertModule")
    assert len(expected) == 43
    root = expected["FlaxBertModule"]  # its other output is used by no loss
    expected["FlaxBertModule"] = root.last_hidden_state
    agreement.assert_activations(seen, expected, {name for name in expected if name.endswith("dropout")})
    agreement.assert_layers_hold_parameters(seen)
    assert {"output/last_hidden_state", "output/pooler_output"} <= set(agreement.family(seen, "aux"))


@pytest.mark.parametrize(
    ("name", "inputs", "layers"),
    [
        ("gpt2", ("int32[2,6]:0..50",), 25),
        ("vit", ("float32[2,3,16,16]",), 37),
        ("bart", ("int32[2,6]:0..50", "decoder_input_ids=int32[2,6]:0..50"), 39),
    ],
)
def test_more_models_of_transformers(folder: Path, name: str, inputs: tuple[str, ...], layers: int) -> None:
    target = f"{agreement.source(folder, TRANSFORMERS)}:{name}"
    seen = agreement.dump(target, *inputs, loss="cross-entropy", train=False)
    import net as module

    net, batch = getattr(module, name), agreement.family(seen, "input")
    labels = batch.pop("labels")

    def run(params: Any, added: Any) -> Any:
        return calls_of(lambda: net(**batch, params=params, train=False), added)

    def loss(params: Any, added: Any) -> Any:
        outputs, called = run(params, added)
        return agreement.cross_entropy(outputs.logits, labels), called

    params = agreement.nested(agreement.family(seen, "param"))
    added = agreement.zeros_like_arrays(lambda: run(params, None)[1])
    stepped = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, added)
    (value, called), (gradients, of_layers) = stepped
    assert seen.loss == pytest.approx(float(value), rel=1e-5)
    agreement.assert_gradients(seen, gradients)
    agreement.assert_layers_hold_parameters(seen)
    # Of several outputs the loss is made of the first.
    called = {each: value if isinstance(value, jax.Array) else value[0] for each, value in called.items()}
    idle = {each for each in called if "dropout" in each.rpartition("/")[2]}
    agreement.assert_activation_gradients(seen, {each: of_layers[each] for each in of_layers.keys() - idle})
    assert len(called.keys() - idle) == layers
    agreement.assert_activations(seen, called, idle)
