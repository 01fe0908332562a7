"""An attempt to explain something reports that it failed, and takes nothing else down with it."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from gradscope.errors import GradscopeError

#: The most characters of an error that are reported.
_MOST: Final = 200


class Attempt:
    """An `Attempt` is a context in which an explanation is searched for, and which ends where the search fails.

    Explanations run the user's operations one at a time, in combinations that neither JAX nor the user has tested. What
    was captured is right without them.

    Attributes:
        failure: Why there is no explanation, "could not be explained: ..."; None where the search did not fail.
    """

    def __init__(self) -> None:
        self.failure: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        text = error.message if isinstance(error, GradscopeError) else f"{type(error).__name__}: {error}"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        self.failure = f"could not be explained: {' '.join(lines)[:_MOST]}"
        return True
