"""The adapter of transformers (before 5.0) takes Flax models: a Linen module with parameters, often pretrained.

A target names an instance, `bert = FlaxBertModel.from_pretrained(FOLDER)` in a file of the user's. Such a model fills
in missing inputs itself, masks and positions, so that only the tokens need a description. Its bare Linen module,
`bert.module`, is a target like any other, and needs all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jax import Array
from transformers.modeling_flax_utils import FlaxPreTrainedModel

from gradscope.frameworks.modules.adapter import PARAMS, RNGS, CalledObject, Variables
from gradscope.frameworks.modules.calling import CallShape
from gradscope.frameworks.modules.input_spec import InputSpec

#: The names of its parameters and of the key of its dropout.
_PARAMS: Final = "params"
_DROPOUT: Final = "dropout_rng"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersAdapter(CalledObject):
    """A `TransformersAdapter` adapts a Flax model of transformers."""

    net: Any
    framework: str = "transformers"
    initialised: bool = True
    inputs: tuple[InputSpec, ...] = ()

    @property
    def supplied(self) -> Collection[str]:
        """The parameters of the model, and the key of its dropout."""
        return self.signature.parameters.keys() & {_PARAMS, _DROPOUT}

    def init(self, key: Array, call: CallShape, inputs: Mapping[str, Any]) -> Variables:  # noqa: ARG002 - they exist already
        """Returns the model's parameters, other collections where it has them, and a key."""
        collections = self.net.params if self._has_collections else {PARAMS: self.net.params}
        return {**collections, RNGS: {_DROPOUT: key}} if _DROPOUT in self.supplied else collections

    def apply(self, variables: Variables, call: CallShape, inputs: Mapping[str, Any]) -> tuple[Any, Variables]:
        """Returns outputs, and the collections that training updates."""
        positional, keyword = call.arguments(inputs)
        collections = {name: each for name, each in variables.items() if name != RNGS}
        params = collections if self._has_collections else collections[PARAMS]
        returned = self.net(*positional, **keyword, **variables.get(RNGS, {}), **{_PARAMS: params})
        updates = self._has_collections and call.flags.get("train", False)
        return returned if updates else (returned, {})

    @property
    def _has_collections(self) -> bool:
        return PARAMS in self.net.params


def adapt(found: Any, *, train: bool) -> TransformersAdapter | None:  # noqa: ARG001 - it receives the mode when it is called
    """Returns the adapter of a Flax model of transformers; None for another object."""
    return TransformersAdapter(net=found) if isinstance(found, FlaxPreTrainedModel) else None


def builder(found: Any, *, seed: int) -> None:
    """Returns None: an instance is created in a file of the user's."""
