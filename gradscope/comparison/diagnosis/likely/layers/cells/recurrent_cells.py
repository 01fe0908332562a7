"""`RecurrentLayer` computes what a recurrent layer of PyTorch's layout makes of a sequence, by one form or another."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.cells.forms import Form, Kind
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE, Elementwise
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import PARAM, key_of

#: The functions that a cell may apply, by their words.
_FUNCTIONS: Final[Mapping[str, Elementwise]] = MappingProxyType({"no function": np.copy, **ELEMENTWISE})

#: The names of a weight in a layer of PyTorch: what, which layer, which direction.
_NAME: Final = re.compile(r"(.*?)(weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)_l(\d{1,3})(_reverse)?$")

#: The kinds by their number of gates.
_KINDS: Final[Mapping[int, Kind]] = MappingProxyType({3: "GRU", 4: "LSTM", 1: "RNN"})

#: The most steps of cells that are computed: a few seconds.
_MOST_STEPS: Final = 1 << 15

#: The state of a cell, with what an LSTM carries besides.
_States: TypeAlias = tuple[Array, Array]


class Cell(NamedTuple):
    """Cell has the weights of one direction of one layer, each with an axis of gates first, in the order of PyTorch.

    Attributes:
        inputs: The weights of the inputs, of shape `[gates, states, inputs]`.
        states: Those of the states, of shape `[gates, states, states]`.
        input_bias: The bias of the inputs, of shape `[gates, states]`.
        state_bias: That of the states, of the same shape.
    """

    inputs: Array
    states: Array
    input_bias: Array
    state_bias: Array


class RecurrentLayer(NamedTuple):
    """RecurrentLayer has the cells of a recurrent layer.

    Attributes:
        kind: What it is.
        cells: Its cells, by layers and directions: the second one of two runs from the end.
    """

    kind: Kind
    cells: Sequence[Sequence[Cell]]

    def next_states(self, read: Array, states: Array, direction: int, form: Form) -> Array:
        """Returns what each step of a layer without one before it makes of the state that it returned the step before.

        Args:
            read: What the layer reads, of shape `[steps, examples, inputs]`, in the order in which it runs.
            states: What it returned, of shape `[steps, examples, states]`, in the same order; not those of an LSTM.
            direction: Which of its directions.
            form: Its form.
        """
        before = np.concatenate([np.zeros_like(states[:1]), states[:-1]])
        flat = [each.reshape(1, -1, each.shape[-1]) for each in (read, before)]
        made, _ = next(self._steps(self.cells[0][direction], flat[0], form, flat[1][0]))
        return made.reshape(states.shape)

    def run(self, cell: Cell, read: Array, form: Form, *, backwards: bool) -> Array:
        """Returns what a cell makes of a sequence, of shape `[steps, examples, states]`.

        Args:
            cell: The cell.
            read: The sequence, of shape `[steps, examples, inputs]`.
            form: The form of the cell.
            backwards: Whether it is one of those that run from the end.
        """
        from_end = backwards is not form.turned
        sequence = read[::-1] if from_end else read
        begin = np.zeros((sequence.shape[1], cell.states.shape[-1]))
        states = self._steps(cell, sequence, form, begin)
        made = np.stack([carried if form.cell_state else state for state, carried in states])
        return made[::-1] if from_end and not form.reversed else made

    def _steps(self, cell: Cell, sequence: Array, form: Form, state: Array) -> Iterator[_States]:
        """Yields the state and what an LSTM carries besides at each step, given the state before the first."""
        order = list(form.order)
        weights, recurrent = cell.inputs[order], cell.states[order]
        added, bias = cell.input_bias[order] * form.input_bias, cell.state_bias[order] * form.recurrent_bias
        if not form.state_bias:
            bias = bias * (np.arange(len(order)) < len(order) - 1)[:, None]
        step = {"GRU": _gru, "LSTM": _lstm, "RNN": _rnn}[self.kind]
        carried = np.zeros_like(state)
        for read in np.einsum("tbi,ghi->tgbh", sequence, weights, optimize=True) + added[:, None]:
            state, carried = step(read, (state, carried), recurrent, bias[:, None], form)
            yield state, carried


class Runs:
    """Runs computes what a layer makes of one sequence by some forms, each cell once by each, until it took too long.

    Args:
        layer: The layer.
        read: The sequence, of shape `[steps, examples, inputs]`.
    """

    def __init__(self, layer: RecurrentLayer, read: Array) -> None:
        self._layer, self._read, self._left = layer, read, _MOST_STEPS
        self._made: dict[tuple[object, ...], Array] = {}

    def outputs(self, forms: Mapping[tuple[int, int], Form]) -> list[Array] | None:
        """Returns what each direction of the last layer makes; None once all took too long.

        Args:
            forms: The forms of its cells, by their layer and direction.
        """
        made, before = [self._read], tuple[object, ...]()
        for layer, cells in enumerate(self._layer.cells):
            keys = [(*before, forms[layer, direction], direction) for direction in range(len(cells))]
            value = np.concatenate(made, -1)
            for direction, (key, cell) in enumerate(zip(keys, cells, strict=True)):
                if key not in self._made:
                    self._left -= len(value)
                    if self._left < 0:
                        return None
                    made_by = self._layer.run(cell, value, forms[layer, direction], backwards=bool(direction))
                    self._made[key] = made_by
            made, before = [self._made[key] for key in keys], (*before, *(key[-2] for key in keys), layer)
        return made


def _rnn(read: Array, states: _States, kernel: Array, bias: Array, form: Form) -> _States:
    state, _ = states
    new = _FUNCTIONS[form.function](read[0] + state @ kernel[0].T + bias[0])
    return new, new


def _gru(read: Array, states: _States, kernel: Array, bias: Array, form: Form) -> _States:
    state, _ = states
    gate = _FUNCTIONS[form.gates]
    reset, update = (gate(read[at] + state @ kernel[at].T + bias[at]) for at in (0, 1))
    product = (reset * state) @ kernel[2].T if form.reset_first else state @ kernel[2].T
    if form.reset_first or form.bias_behind:
        product = (product if form.reset_first else reset * product) + bias[2]
    else:
        product = reset * (product + bias[2])
    new = _FUNCTIONS[form.function](read[2] + product)
    made = update * new + (1 - update) * state if form.swapped else (1 - update) * new + update * state
    return made, made


def _lstm(read: Array, states: _States, kernel: Array, bias: Array, form: Form) -> _States:
    state, carried = states
    sums = read + state @ kernel.swapaxes(1, 2) + bias
    gate = _FUNCTIONS[form.gates]
    forget = gate(sums[1] + form.forget)
    carried = forget * carried + gate(sums[0]) * _FUNCTIONS[form.function](sums[2])
    return gate(sums[3]) * _FUNCTIONS[form.output](carried), carried


def recurrent_layer(layer: Layer, tensors: FloatTensors) -> RecurrentLayer | None:
    """Returns a recurrent layer of PyTorch by the names of its parameters; None for another layer.

    Args:
        layer: The layer.
        tensors: The tensors of its program.
    """
    found: defaultdict[tuple[int, int], dict[str, Array]] = defaultdict(dict)
    prefixes: set[str] = set()
    for name in layer.params:
        match, tensor = _NAME.match(name), tensors.tensor(key_of(PARAM, name))
        if match is None or tensor is None or match[2] == "weight_hr":  # one with projections
            return None
        prefixes.add(match[1])
        found[int(match[3]), int(bool(match[4]))][match[2]] = tensor
    depth, directions = (1 + max((place[axis] for place in found), default=-1) for axis in (0, 1))
    if depth * directions != len(found):  # the numbers of a file may be any
        return None
    places = [[(at, direction) for direction in range(directions)] for at in range(depth)]
    if len(prefixes) != 1 or sorted(found) != [place for each in places for place in each]:
        return None
    cells = [[_cell(found[place]) for place in each] for each in places]
    known = [[cell for cell in each if cell is not None] for each in cells]
    kinds: set[Kind | None] = {_KINDS.get(len(cell.states)) for each in known for cell in each}
    kind = kinds.pop() if len(kinds) == 1 and [*map(len, known)] == [*map(len, cells)] else None
    return None if kind is None else RecurrentLayer(kind, known)


def _cell(parts: Mapping[str, Array]) -> Cell | None:
    weights, states = parts.get("weight_ih"), parts.get("weight_hh")
    if weights is None or states is None or states.ndim != 2 or len(states) % states.shape[-1]:
        return None
    gates, zeros = len(states) // states.shape[-1], np.zeros(len(states))
    each = (weights, states, parts.get("bias_ih", zeros), parts.get("bias_hh", zeros))
    if any(len(part) != len(states) for part in each):
        return None
    return Cell(*(part.reshape(gates, -1, *part.shape[1:]) for part in each))


def is_recurrent(layer: Layer) -> bool:
    """Returns whether a layer may be a recurrent one, by the names of its parameters.

    Args:
        layer: The layer.
    """
    return any(map(_NAME.match, layer.params))
