"""`implements` marks the methods of a class that are those of a protocol, where what they do is documented.

A class need not inherit from the protocols that it implements, so that `typing.override` does not apply to its methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Method = TypeVar("Method", bound=Callable[..., object])


def implements(protocol: type) -> Callable[[Method], Method]:
    """Returns a decorator for a method that does what a protocol says of the method of that name.

    Such a method needs no docstring (ruff's `ignore-decorators`); one says what it does beyond that.

    Raises:
        TypeError: The protocol has no such method.
    """

    def marked(method: Method) -> Method:
        if not hasattr(protocol, method.__name__):
            raise TypeError(f"{protocol.__name__} has no {method.__name__}")
        return method

    return marked
