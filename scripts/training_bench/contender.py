"""A loop that is measured against the plain one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

#: Takes so many steps, and waits for them.
Take: TypeAlias = Callable[[int], None]

#: Of loops that watch only some steps, every so many are watched.
INTERVAL = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A loop that is measured.

    Attributes:
        name: What watches it.
        what: What it watches.
        build: Makes the loop, with a state of its own; what it has to close goes onto the stack.
        round: Steps of a round.
        limit: The ratio to hold; None where it is somebody else's, or where there is none.
    """

    name: str
    what: str
    build: Callable[[ExitStack], Take]
    round: int = 2
    limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A plain loop, and the loops that are measured against it.

    Attributes:
        plain: Makes the plain loop.
        contenders: The others.
    """

    plain: Callable[[], Take]
    contenders: tuple[Contender, ...]
