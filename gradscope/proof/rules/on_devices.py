"""`on_devices` runs an equation of a `shard_map` by itself, on the mesh of that and with its types.

All devices have the same operands there. A collective is then a function of these like any other, and a rule with
collectives is right or wrong for it as it is in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from gradscope.tracing.jaxpr.jaxcompat import Equation, bind, manual_axes, traced_as
from gradscope.tracing.jaxpr.sharding import axes_of_type, varying


def on_devices(
    split: Equation,
    equation: Equation,
    values: Sequence[Any],
    function: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> list[Any]:
    """Returns the outputs of an equation inside a `shard_map`, on the first device where they vary.

    Args:
        split: The `shard_map`.
        equation: An equation of its body, or of a body inside that.
        values: The operands, which all devices get.
        function: What runs in the equation's place; None for the equation itself.
    """
    axes_in = [axes_of_type(atom.aval) for atom in equation.invars]
    axes_out = [axes_of_type(variable.aval) for variable in equation.outvars]

    def run(values: Sequence[Any]) -> list[Any]:
        operands = [varying(value, axes) for value, axes in zip(values, axes_in, strict=True)]
        made = bind(equation, operands) if function is None else function(operands)
        return [value[None] if axes else value for value, axes in zip(made, axes_out, strict=True)]

    with traced_as(split):
        made = jax.shard_map(
            run,
            mesh=split.params["mesh"],
            in_specs=PartitionSpec(),
            out_specs=[PartitionSpec(axes) if axes else PartitionSpec() for axes in axes_out],
            axis_names=frozenset(manual_axes(split)),
            check_vma=True,
        )(list(values))
    return [value[0] if axes else value for value, axes in zip(made, axes_out, strict=True)]
