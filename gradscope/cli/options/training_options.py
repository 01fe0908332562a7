"""Training options state how a model is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gradscope.tracing.loading.model import Model
    from gradscope.training.step import TrainStep

_OPTIMIZER: Final = "Optimizer"

#: The options that make the optimizer.
_OF_OPTIMIZER: Final = ("--optimizer", "--learning-rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """`StepOptions` state one step: the optimizer, and what happens to gradients before it gets them."""

    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="EXPR",
            help="An optimizer of optax with literal arguments, 'adam(1e-3, b1=0.9)'; by default the model file's own "
            "optimizer().",
            rich_help_panel=_OPTIMIZER,
        ),
    ] = None
    learning_rate: Annotated[
        str | None,
        typer.Option(
            metavar="EXPR",
            help="A number, or a schedule of optax: 'exponential_decay(0.1, 1000, 0.96, staircase=True)'.",
            rich_help_panel=_OPTIMIZER,
        ),
    ] = None
    clip: Annotated[
        list[str],
        typer.Option(
            metavar="EXPR",
            help="Clip gradients: value(-1, 1), norm(5) of each tensor, average_norm(0.1), global_norm(1). Repeatable, "
            "in order.",
            rich_help_panel=_OPTIMIZER,
        ),
    ] = field(default_factory=list[str])
    multiply: Annotated[
        list[str],
        typer.Option(
            metavar="PATTERN=FACTOR",
            help="Multiply the gradients of these parameters, before clipping. Repeatable.",
            rich_help_panel=_OPTIMIZER,
        ),
    ] = field(default_factory=list[str])
    only: Annotated[
        list[str],
        typer.Option(metavar="PATTERN", help="Train only these parameters. Repeatable.", rich_help_panel=_OPTIMIZER),
    ] = field(default_factory=list[str])
    freeze: Annotated[
        list[str],
        typer.Option(metavar="PATTERN", help="Do not train these parameters. Repeatable.", rich_help_panel=_OPTIMIZER),
    ] = field(default_factory=list[str])
    ema: Annotated[
        str | None,
        typer.Option(
            metavar="DECAY",
            help="Keep exponential moving averages of the parameters: 0.999, or 0.999,warmup.",
            rich_help_panel=_OPTIMIZER,
        ),
    ] = None
    state_updates: Annotated[
        bool,
        typer.Option(
            "--state-updates/--no-state-updates",
            help="Whether collections that the loss returns, as batch norm's statistics, are carried on.",
            rich_help_panel=_OPTIMIZER,
        ),
    ] = True

    def factors(self) -> dict[str, float]:
        """Returns the factors of `--multiply` by pattern.

        Raises:
            UsageError: One is not of the form PATTERN=FACTOR.
        """
        from gradscope.errors import UsageError

        factors: dict[str, float] = {}
        for text in self.multiply:
            pattern, equals, factor = text.rpartition("=")
            try:
                factors[pattern] = float(factor)
            except ValueError:
                equals = ""
            if not (pattern and equals):
                raise UsageError(f"--multiply {text!r} is not PATTERN=FACTOR", hint="as in --multiply 'embed/*=0.1'")
        return factors

    def step(
        self, model: Model, select: list[str], exclude: list[str], *, before: Callable[[], Mapping[str, str]]
    ) -> TrainStep:
        """Returns the step.

        Args:
            model: The model, whose `optimizer()` serves where `--optimizer` is not set.
            select: Patterns of what is observed; all where empty.
            exclude: Patterns of what is not.
            before: Returns the options with which the run was started that is to be continued; none for another run.

        Raises:
            UsageError: An expression, a factor or an average is none, or there is no optimizer.
            ModelError: The model's `optimizer()` fails, or returns something else.
        """
        from gradscope.instrument.query.capture_spec import CaptureSpec
        from gradscope.training.step import make_train_step

        return make_train_step(
            model.loss, self._chosen_optimizer(model, before), clip=self.clip, multiply=self.factors(), only=self.only,
            freeze=self.freeze, ema=self.ema, state_updates=self.state_updates,
            spec=CaptureSpec.of(select, exclude, None, None),
        )  # fmt: skip

    def described(self) -> dict[str, str]:
        """Returns the options that are set, as texts by name."""
        specified = {
            "--optimizer": self.optimizer, "--learning-rate": self.learning_rate, "--clip": self.clip,
            "--multiply": self.multiply, "--only": self.only, "--freeze": self.freeze, "--ema": self.ema,
            "--no-state-updates": None if self.state_updates else "on",
        }  # fmt: skip
        return {
            name: value if isinstance(value, str) else " ".join(value) for name, value in specified.items() if value
        }

    def _chosen_optimizer(self, model: Model, before: Callable[[], Mapping[str, str]]) -> object:
        from gradscope.errors import ModelError, UsageError
        from gradscope.tracing.user_frames import user_code
        from gradscope.training.optimizers.optimizers_by_name import is_optimizer, parse_optimizer, transformation

        if self.optimizer is not None:
            return parse_optimizer(self.optimizer, self.learning_rate)
        if model.optimizer is None:
            started = before()
            again = " ".join(f"{name} '{started[name]}'" for name in _OF_OPTIMIZER if name in started)
            raise UsageError(
                f"{model.name} has no optimizer()",
                hint=f"the run was started with {again}: give it again"
                if again
                else "name one, as in --optimizer 'adam(1e-3)', or define it, without arguments",
            )
        if self.learning_rate is not None:
            raise UsageError(
                f"--learning-rate goes to --optimizer, and that of {model.name} is its own",
                hint="name the optimizer, too",
            )
        with user_code(f"optimizer of {model.name}"):
            made = transformation(model.optimizer())
        if not is_optimizer(made):
            raise ModelError(
                f"optimizer() of {model.name} returned {type(made).__name__}, expected an optimizer of optax",
                hint="return one, such as optax.adam(1e-3)",
            )
        return made
