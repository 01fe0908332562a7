"""Judge options state which tensors are compared with each other, and how strictly."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gradscope.comparison import CompareOptions, MapRule, ToleranceRule
    from gradscope.naming import Selection

_JUDGING = "How strictly"
_PAIRING = "What is compared with what"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """`JudgeOptions` state which tensors are compared with each other, and how strictly."""

    tol: Annotated[
        list[str],
        typer.Option(
            metavar="[REGEX=]EXPR",
            help="A limit on rel_l2, or 'rel_l2 < 1e-4 and max_abs < 1'; the first whose REGEX matches counts. "
            "Repeatable.",
            rich_help_panel=_JUDGING,
        ),
    ] = field(default_factory=list[str])
    tol_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Further rules, one on each line, that follow those of --tol.",
            rich_help_panel=_JUDGING,
        ),
    ] = None
    rtol: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="NUMBER",
            help="Judge as numpy.allclose does, with this relative tolerance (1e-5).",
            rich_help_panel=_JUDGING,
        ),
    ] = None
    atol: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="NUMBER",
            help="Judge as numpy.allclose does, with this absolute tolerance (1e-8).",
            rich_help_panel=_JUDGING,
        ),
    ] = None
    cand_dtype: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="DTYPE",
            help="Judge the candidate as computed in this dtype, bfloat16 or float16, where its dump does not show it.",
            rich_help_panel=_JUDGING,
        ),
    ] = None
    bitwise: Annotated[
        bool, typer.Option("--bitwise", help="Only equal bytes are the same.", rich_help_panel=_JUDGING)
    ] = False
    allow_missing: Annotated[
        list[str],
        typer.Option(
            metavar="REGEX", help="Names on one side only that do not count. Repeatable.", rich_help_panel=_JUDGING
        ),
    ] = field(default_factory=list[str])
    map_file: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="FILE",
            help="Rules in TOML that map the candidate's tensors to the reference's.",
            rich_help_panel=_PAIRING,
        ),
    ] = None

    @property
    def input_files(self) -> tuple[Path, ...]:
        """The files that the options name."""
        return tuple(filter(None, (self.tol_file, self.map_file)))

    @property
    def of_dumps(self) -> dict[str, object]:
        """The options that only a comparison of dumps has, as they are spelled, with their values."""
        return {"--map": self.map_file, "--as": self.cand_dtype}

    @property
    def specified(self) -> list[str]:
        """The options that were given, as they are spelled."""
        found: dict[str, object] = {
            "--tol": self.tol or None, "--tol-file": self.tol_file, "--rtol": self.rtol, "--atol": self.atol,
            "--bitwise": self.bitwise or None, "--allow-missing": self.allow_missing or None, **self.of_dumps,
        }  # fmt: skip
        return [name for name, value in found.items() if value is not None]

    def options(self, selection: Selection) -> CompareOptions:
        """Returns these options for a comparison of some names.

        Args:
            selection: The names.

        Returns:
            The options of the comparison.

        Raises:
            UsageError: A rule is not of its form.
            DumpError: A file of rules cannot be read.
        """
        from gradscope.comparison import CompareOptions

        return CompareOptions(
            selection=selection,
            map_rules=() if self.map_file is None else _map_rules(self.map_file),
            allow_missing=tuple(self.allow_missing),
            rules=_rules(self.tol, self.tol_file),
            bitwise=self.bitwise,
            cand_dtype=self.cand_dtype,
            rtol=self.rtol,
            atol=self.atol,
        )


def _map_rules(path: Path) -> tuple[MapRule, ...]:
    from gradscope.comparison.pairing.map_file import read_map

    return read_map(path)


def _rules(spellings: list[str], path: Path | None) -> tuple[ToleranceRule, ...]:
    """Returns the rules of `--tol` and of the file, in the order in which they count."""
    from gradscope.comparison import ToleranceRule, read_rules
    from gradscope.errors import UsageError

    try:
        rules = tuple(map(ToleranceRule.parse, spellings))
    except UsageError as error:
        raise UsageError(f"invalid value for '--tol': {error.message}", hint=error.hint) from error
    return rules if path is None else (*rules, *read_rules(path))
