"""`Form` states how a recurrent layer computes its states, and `other_forms` has those that ports have by mistake.

Of a GRU, some libraries multiply the state by the reset gate, and others its product; gates come in other orders; and a
sequence may be run through from the other end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

#: What a recurrent layer is.
Kind: TypeAlias = Literal["GRU", "LSTM", "RNN"]

#: The gates of the kinds in the order of PyTorch; `n` and `g` are the new states.
GATES: Final[Mapping[Kind, str]] = MappingProxyType({"GRU": "rzn", "LSTM": "ifgo", "RNN": "n"})

#: The functions that are tried, by their words: of new states, and of gates.
_OF_STATES: Final = ("tanh", "relu", "sigmoid", "no function", "softplus", "elu", "gelu by tanh", "gelu by erf", "silu")
_OF_GATES: Final = ("sigmoid", "hard_sigmoid", "hard_sigmoid of slope 0.2", "tanh", "relu", "no function")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Form stores how a cell computes its next state, and in which direction a layer runs it.

    Attributes:
        order: The order in which the gates are taken, each by its position in PyTorch's.
        reset_first: Whether the reset gate of a GRU multiplies the state, and not the product of that.
        bias_behind: Whether the recurrent bias of the new state of a GRU is added behind the reset gate.
        swapped: Whether the update gate of a GRU multiplies the new state, and not the old one.
        input_bias: Whether the bias of the inputs is added.
        recurrent_bias: Whether that of the states is.
        state_bias: Whether the part of that for the new state is.
        function: The function of new states, in words.
        gates: That of gates.
        output: That of what an LSTM returns of its cell state.
        forget: What an LSTM adds to the argument of its forget gate.
        cell_state: Whether an LSTM returns its cell state.
        turned: Whether it runs in the other direction than its name says.
        reversed: Whether what it returns is in the order in which it ran, where that is from the end.
    """

    order: tuple[int, ...] = ()
    reset_first: bool = False
    bias_behind: bool = False
    swapped: bool = False
    input_bias: bool = True
    recurrent_bias: bool = True
    state_bias: bool = True
    function: str = "tanh"
    gates: str = "sigmoid"
    output: str = "tanh"
    forget: float = 0.0
    cell_state: bool = False
    turned: bool = False
    reversed: bool = False


def usual_form(kind: Kind) -> Form:
    """Returns the form that PyTorch has.

    Args:
        kind: What the layer is.
    """
    return Form(order=tuple(range(len(GATES[kind]))))


def other_forms(kind: Kind, form: Form, *, backwards: bool) -> Iterator[Form]:
    """Yields the forms that differ from one in one fact.

    Args:
        kind: What the layer is.
        form: The form.
        backwards: Whether one of its directions runs from the end.
    """
    facts: list[tuple[str, Iterable[Any]]] = []
    if kind == "GRU":
        facts = [(name, (False, True)) for name in ("reset_first", "bias_behind", "swapped", "state_bias")]
    if kind == "LSTM":
        facts = [("forget", (0.0, 1.0)), ("cell_state", (False, True)), ("output", _OF_STATES)]
    facts += [("input_bias", (False, True)), ("recurrent_bias", (False, True)), ("function", _OF_STATES)]
    if kind != "RNN":
        facts += [("gates", _OF_GATES), ("order", itertools.permutations(range(len(GATES[kind]))))]
    facts += [("turned", (False, True)), *([("reversed", (False, True))] if backwards else [])]
    yield from (replace(form, **{name: each}) for name, some in facts for each in some if each != getattr(form, name))
    if form.input_bias is form.recurrent_bias:
        yield replace(form, input_bias=not form.input_bias, recurrent_bias=not form.recurrent_bias)


def difference(kind: Kind, one: Form, other: Form) -> tuple[str, str, str, str]:
    """Returns the name of the fact in which two forms differ, what that is, and how it is in both, in words.

    Args:
        kind: What the layer is.
        one: A form.
        other: The other one.
    """
    name = next(each.name for each in fields(Form) if getattr(one, each.name) != getattr(other, each.name))
    verb, words = _WORDS[name]
    own, its = (words(getattr(each, name), kind) for each in (one, other))
    if name == "input_bias" and one.recurrent_bias != other.recurrent_bias:
        own, its = (each.replace("no bias of the inputs", "no bias").replace("one", "both") for each in (own, its))
    return name, verb, own, its


def _by_truth(true: str, false: str) -> Callable[[Any, Kind], str]:
    return lambda fact, _: true if fact else false


def _order(order: tuple[int, ...], kind: Kind) -> str:
    """Returns which gate each part of the weights is taken for, in words."""
    return ", ".join(GATES[kind][order.index(part)] for part in range(len(order)))


#: What a cell does by a fact of its form, and how, given the fact.
_WORDS: Final[Mapping[str, tuple[str, Callable[[Any, Kind], str]]]] = MappingProxyType({
    "order": ("takes the parts of its weights for the gates", _order),
    "reset_first": ("applies its reset gate", _by_truth("to the state before the product", "to the product")),
    "bias_behind": ("adds the recurrent bias of the new state", _by_truth("behind the reset gate", "before it")),
    "swapped": ("multiplies the new state by", _by_truth("the update gate", "1 less the update gate")),
    "input_bias": ("adds", _by_truth("one", "no bias of the inputs")),
    "recurrent_bias": ("adds", _by_truth("one", "no bias of the states")),
    "state_bias": ("adds", _by_truth("one", "no recurrent bias of the new state")),
    "function": ("applies", lambda name, _: f"{name} to its new states"),
    "gates": ("applies", lambda name, _: f"{name} to its gates"),
    "output": ("applies", lambda name, _: f"{name} to its cell states"),
    "forget": ("adds", lambda added, _: f"{added:g} to the argument of its forget gate"),
    "cell_state": ("returns", _by_truth("the cell state", "the hidden state")),
    "turned": ("runs", _by_truth("from the other end", "from the end that its name says")),
    "reversed": ("returns its states", _by_truth("in the order in which it ran", "in the order of its inputs")),
})  # fmt: skip
