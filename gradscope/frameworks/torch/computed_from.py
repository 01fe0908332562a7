"""`named_sources` finds the nearest named values and parameters that a tensor is computed from, by autograd's graph.

A module may read what no module returned, such as a sum, and return what it computes from the outputs of its parts.
What is computed without gradients, or detached, has no graph, and nothing is known to be behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from gradscope import naming
from gradscope.frameworks.torch.torch_values import Values


def named_sources(tensor: Tensor, values: Values, parameters: Mapping[nn.Parameter, str]) -> Iterator[str]:
    """Yields the keys of the nearest named values and parameters behind a tensor, itself not among them.

    Args:
        tensor: The tensor.
        values: The values that are known.
        parameters: The names of the module's parameters.
    """
    waiting: list[Any] = [tensor.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        for each, number in () if node is None else node.next_functions:
            value = values.at(each, number)
            parameter = getattr(each, "variable", None)  # of a leaf
            if value is not None and value.names:
                yield naming.key_of(value.family, value.name)
            elif isinstance(parameter, nn.Parameter) and parameter in parameters:
                yield naming.key_of(naming.PARAM, parameters[parameter])
            elif each not in seen:
                seen.add(each)
                waiting.append(each)
