"""Options that several commands share, as annotated types: the name, the help and the check of each stand here once."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, TypeAlias

import typer


class Format(StrEnum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


class Precision(StrEnum):
    """Matrix multiplication precisions that JAX knows on every backend."""

    DEFAULT = "default"
    HIGH = "high"
    HIGHEST = "highest"
    BFLOAT16 = "bfloat16"
    TENSORFLOAT32 = "tensorfloat32"
    FLOAT32 = "float32"


class FloatType(StrEnum):
    """Floating-point types a model can be run in."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class Loss(StrEnum):
    """What can be made of the outputs of a framework's module."""

    CROSS_ENTROPY = "cross-entropy"
    MSE = "mse"
    SUM = "sum"
    MEAN = "mean"


class CastType(StrEnum):
    """Types that narrow tensors may be stored as."""

    FLOAT32 = "float32"


_MODEL = "Model"
_SHOWN = "What is shown"
_ASKED = "What is asked"
_OUTPUT = "Output"

Target: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="The model: a file model.py or model.py:NAME, a module package.module:NAME, or a name of the zoo "
        "(resnet50, mlp, transformer, linear_regression). NAME may be a call with literal arguments, and a module of a "
        "framework, given its --input.",
    ),
]
Seed: TypeAlias = Annotated[
    int, typer.Option(help="Seed of the keys that init and batch receive.", rich_help_panel=_MODEL)
]
BatchSize: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Number of examples; by default what the model's batch says.", rich_help_panel=_MODEL),
]
Input: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--input",
        metavar="SPEC",
        help="An input of a module, [NAME=]DTYPE[SHAPE][:VALUES], as in ids=int32[8,128]:0..9. Repeatable.",
        rich_help_panel=_MODEL,
    ),
]
LossOf: TypeAlias = Annotated[
    Loss | None,
    typer.Option("--loss", help="What is made of a module's outputs; by default mse.", rich_help_panel=_MODEL),
]
Train: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--train/--eval", help="Run as in training, or as in evaluation; by default as in training.",
        rich_help_panel=_MODEL,
    ),
]  # fmt: skip
Dtype: TypeAlias = Annotated[
    FloatType | None, typer.Option(help="Convert floating-point variables and batch to it.", rich_help_panel=_MODEL)
]
X64: TypeAlias = Annotated[bool, typer.Option("--x64", help="Compute in float64.", rich_help_panel=_MODEL)]
MatmulPrecision: TypeAlias = Annotated[
    Precision | None, typer.Option(help="Precision of matrix multiplications.", rich_help_panel=_MODEL)
]
Distributed: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="auto|HOST:PORT,COUNT,INDEX",
        help="Run as one of several processes, each started so; the dump is a folder then.",
        rich_help_panel=_MODEL,
    ),
]
SelfCheck: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--self-check",
        help="Run the plain program too, and say how far observing it changed the gradients.",
        rich_help_panel=_MODEL,
    ),
]
NoCache: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Do not keep compiled programs in the user's cache folder.", rich_help_panel=_MODEL
    ),
]
Select: TypeAlias = Annotated[
    list[str],
    typer.Option(metavar="PATTERN", help="Only these names: a glob, or re:REGEX. Repeatable.", rich_help_panel=_SHOWN),
]
Exclude: TypeAlias = Annotated[
    list[str], typer.Option(metavar="PATTERN", help="Not these names. Repeatable.", rich_help_panel=_SHOWN)
]
Depth: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Only layers of at most so many scopes.", rich_help_panel=_SHOWN)
]
Operations: TypeAlias = Annotated[
    bool, typer.Option("--ops", help="Every operation, and not only layers.", rich_help_panel=_SHOWN)
]
Families: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Only these families, separated by commas: activation, activation_grad, param, param_grad, input, "
        "input_grad, state, aux.",
        rich_help_panel=_SHOWN,
    ),
]
Check: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Exit 1 if one of these findings is made, or 'all'.", rich_help_panel=_SHOWN),
]
Strict: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit 1 if anything is missing without your word: inside a custom rule, or behind a while loop.",
        rich_help_panel=_SHOWN,
    ),
]
MaxMemory: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Capture in several runs, none of which takes more memory than this: 4GiB, 500MB.",
        rich_help_panel=_OUTPUT,
    ),
]
Of: TypeAlias = Annotated[
    list[str],
    typer.Option(metavar="NAME", help="Differentiate this in place of the loss. Repeatable.", rich_help_panel=_ASKED),
]
Wrt: TypeAlias = Annotated[
    list[str],
    typer.Option(metavar="PATTERN", help="Only gradients with respect to these. Repeatable.", rich_help_panel=_ASKED),
]
Cotangent: TypeAlias = Annotated[
    list[str],
    typer.Option(
        metavar="FILE[:KEY]|ones",
        help="The initial gradient of an --of, in their order; ones where not given.",
        rich_help_panel=_ASKED,
    ),
]
StopGradient: TypeAlias = Annotated[
    list[str], typer.Option(metavar="NAME", help="This counts as constant. Repeatable.", rich_help_panel=_ASKED)
]
Fetch: TypeAlias = Annotated[
    list[str],
    typer.Option(
        metavar="NAME",
        help="Run only what this value needs; gradient/NAME for the gradient that arrives at it. Repeatable.",
        rich_help_panel=_ASKED,
    ),
]
Feed: TypeAlias = Annotated[
    list[str],
    typer.Option(
        metavar="NAME=FILE[:KEY]",
        help="Put a tensor in the place of a value; of gradient/NAME, of the gradient that arrives at it. Repeatable.",
        rich_help_panel=_ASKED,
    ),
]
OutputFormat: TypeAlias = Annotated[
    Format, typer.Option("--format", help="How results are written to standard output.", rich_help_panel=_OUTPUT)
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Short for --format json.", rich_help_panel=_OUTPUT)]
Sort: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Sort rows by this column, -COLUMN for largest first.", rich_help_panel=_SHOWN),
]
NoFold: TypeAlias = Annotated[
    bool, typer.Option("--no-fold", help="On a terminal, a line for every turn of a loop.", rich_help_panel=_SHOWN)
]
StatsOnly: TypeAlias = Annotated[
    bool, typer.Option("--stats-only", help="Write statistics and no tensors.", rich_help_panel=_OUTPUT)
]
ExactQuantiles: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--exact-quantiles", help="Quantiles from the sorted values, not from the histogram.", rich_help_panel=_OUTPUT
    ),
]
Cast: TypeAlias = Annotated[
    CastType | None,
    typer.Option(
        help="Store bfloat16 and float8 tensors as this, for readers that lack them.", rich_help_panel=_OUTPUT
    ),
]
Force: TypeAlias = Annotated[
    bool, typer.Option("--force", help="Replace an output that exists.", rich_help_panel=_OUTPUT)
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no messages.", rich_help_panel=_OUTPUT)
]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say why each thing was chosen.", rich_help_panel=_OUTPUT)
]
Traceback: TypeAlias = Annotated[
    bool, typer.Option("--traceback", help="Show the full traceback of an error.", rich_help_panel=_OUTPUT)
]


def chosen_format(output_format: Format, *, json: bool) -> Format:
    """The format asked for, `--json` being short for one of them."""
    return Format.JSON if json else output_format


def require_one_of(**values: object) -> None:
    """Refuse options that contradict each other.

    Args:
        values: What was given to them; None or False where nothing was.

    Raises:
        UsageError: More than one was given.
    """
    from gradscope.errors import UsageError

    given = [f"--{name.replace('_', '-')}" for name, value in values.items() if value not in (None, False)]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} contradict each other", hint="give one of them")


def listed(text: str, known: Collection[str], kind: str) -> frozenset[str]:
    """The names in an option's comma-separated list.

    Args:
        text: The list.
        known: The names there are.
        kind: What they are names of.

    Raises:
        UsageError: It names nothing, or something that is not known.
    """
    from gradscope.errors import UsageError
    from gradscope.naming.patterns import nearest_hint

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"there is no {kind} {name!r}", hint=nearest_hint(name, list(known)))
    if not names:
        raise UsageError(f"the list of {kind} names is empty", hint=f"there are {', '.join(known)}")
    return frozenset(names)


def family_set(families: str | None) -> frozenset[str] | None:
    """The families of a `--families` list; None where all are asked for.

    Raises:
        UsageError: There is no such family, or none is named.
    """
    from gradscope.naming import FAMILIES

    return None if families is None else listed(families, FAMILIES, "family")
