"""Some repairs are of patterns of several operations, such as the log of a softmax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gradscope.capturing.explain.nonfinite.causes.repairs import LOG_SIGMOID, LOG_SOFTMAX, UNDER_ROOT, X_LOG_X
from gradscope.primitive_groups import LOGARITHMS, SLICES
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.lookup.operations import Operation, Operations

#: Return elements of their first operand, or of any where a predicate selects.
_SELECTIONS: Final = ("gather", *sorted(SLICES), "select_n")


def repair_of_pattern(operation: Operation, primitive: str, operations: Operations) -> str:
    """Returns the repair of a cause that is a known pattern of several operations; "" where it is none.

    Args:
        operation: The operation that made what is not finite.
        primitive: The primitive inside it that did.
        operations: All operations, to find what is around it.
    """
    if primitive in LOGARITHMS and operation.primitive == primitive:
        return X_LOG_X if _is_x_log_x(operation, operations) else _repair_of_log(operation, operations)
    if primitive == "div" and operation.primitive == "div" and operations.made_by(operation.values[-1:], "sqrt"):
        return UNDER_ROOT
    return ""


def _repair_of_log(operation: Operation, operations: Operations) -> str:
    """Returns what to use in place of the log of a softmax or of a sigmoid; "" for any other."""
    values = _selected_from(operation.values, operations)
    if operations.made_by(values, "logistic"):
        return LOG_SIGMOID
    sums = [summed for shares in operations.made_by(values, "div")
            for summed in operations.made_by(shares.values[-1:], "reduce_sum")]  # fmt: skip
    return LOG_SOFTMAX if any(operations.made_by(each.values, "exp") for each in sums) else ""


def _selected_from(values: Sequence[ValueAt], operations: Operations) -> list[ValueAt]:
    """Returns values and those that their elements are taken from, as the share of each example's class."""
    found = [*values]
    for value in found:  # which grows
        for primitive in _SELECTIONS:
            for selection in operations.made_by([value], primitive):
                operands = selection.values if primitive == "select_n" else selection.values[:1]
                found += [each for each in operands if each not in found]
        found += [each for each in _weighted_by_labels(value, operations) if each not in found]
    return found


def _weighted_by_labels(value: ValueAt, operations: Operations) -> Iterator[ValueAt]:
    """Yields what a value is the sum of, weighted by rows of `one_hot`: the share of each example's class."""
    products = operations.made_by([value], "dot_general")
    for total in operations.made_by([value], "reduce_sum"):
        products += operations.made_by(total.values, "mul")
    for product in products:
        labels = [each for each in product.values if operations.made_by([each], "eq")]
        if labels:
            yield from (each for each in product.values if each not in labels)


def _is_x_log_x(operation: Operation, operations: Operations) -> bool:
    """Returns whether a logarithm is multiplied by the number that it is the logarithm of."""
    values, logs = set(operation.values), list(operation.outputs)
    for _ in range(2):  # the logarithm itself, or one to another base
        readers = [reader for log in logs for reader in operations.readers(log)]
        if any(reader.primitive == "mul" and values & set(reader.values) for reader in readers):
            return True
        logs = [output for reader in readers if reader.primitive in ("div", "mul", "neg") for output in reader.outputs]
    return False
