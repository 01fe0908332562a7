"""Errors are the exceptions that gradscope raises on purpose, and state what each means to a shell.

Every error says what failed, on what, what was expected and what came; `hint` says what to do about it. The class
decides the exit status (the table in docs/reference/cli.md), so a caller never chooses a number:

    ======================  ====  ==========================================================
    class                   exit  meaning
    ======================  ====  ==========================================================
    `UsageError`               2  the command line or arguments are wrong, or nothing was compared
    `DumpError`                3  a dump or data file is missing, damaged or refused
    `ModelError`               4  the user's model, batch or loss failed
    `MachineError`             5  the environment failed: memory, disk, permission, device, versions
    ======================  ====  ==========================================================

Anything else that escapes is a bug of gradscope's (exit 70) and is reported as one by the error boundary in `cli`.
"""

from __future__ import annotations

from typing import ClassVar


class GradscopeError(Exception):
    """A `GradscopeError` is an expected failure.

    Args:
        message: What failed, on what, expected and found; one sentence without a full stop at the end.
        hint: What the user can do about it, as an imperative sentence; None where there is nothing to say.

    Example:
        >>> import gradscope as gs
        >>> try:
        ...     gs.load("missing.npz")
        ... except gs.GradscopeError as error:
        ...     print(type(error).__name__, error.exit_code)
        DumpError 3
    """

    exit_code: ClassVar[int]
    slug: ClassVar[str]

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint is not None and not isinstance(self, KeyError):  # whose text has it
            self.add_note(f"hint: {hint}")  # for who reads a traceback


class UsageError(GradscopeError):
    """The request itself is wrong: an unknown pattern, a contradictory option, an output path that cannot be used."""

    exit_code = 2
    slug = "usage"


class MissingKeyError(UsageError, KeyError):
    """A dump, or what a step observed, has no tensor of a key: also Python's error for a mapping without one."""

    def __str__(self) -> str:
        # A traceback shows this text and nothing else; KeyError would show its repr.
        return self.message if self.hint is None else f"{self.message} ({self.hint})"


class ArgumentTypeError(UsageError, TypeError):
    """An argument of a public function is of a wrong type: also Python's error for that."""


class DumpError(GradscopeError):
    """A dump or data file is missing, damaged, hostile, or of a kind that is refused."""

    exit_code = 3
    slug = "dump"


class ModelError(GradscopeError):
    """The user's model, batch or loss failed.

    Args:
        message: As for `GradscopeError`.
        hint: As for `GradscopeError`.
        user_frames: The user's own stack frames, formatted, innermost last; empty where there are none.
    """

    exit_code = 4
    slug = "model"

    def __init__(self, message: str, *, hint: str | None = None, user_frames: str = "") -> None:
        super().__init__(message, hint=hint)
        self.user_frames = user_frames


class MachineError(GradscopeError):
    """The environment failed: memory, disk, permission, no such device, mismatched versions."""

    exit_code = 5
    slug = "machine"
