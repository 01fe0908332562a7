"""Optimizers, schedules and ways to clip have names: all of optax's, and those of TensorFlow 1 that optax lacks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite, isnan
from types import MappingProxyType
from typing import Any, Final

import optax
import optax.contrib
from jax.tree_util import tree_leaves

from gradscope.errors import UsageError
from gradscope.naming.selecting.nearest_names import nearest_hint
from gradscope.training.optimizers import clip, tensorflow1
from gradscope.training.optimizers.literal_expressions import Expression, parse_expression

#: The arguments of optimizers by which an update is multiplied.
_RATES: Final = ("learning_rate", "step_size")

#: A schedule: the learning rate as a function of the number of steps that were taken before.
Schedule = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An `Optimizer` is a gradient transformation of optax that knows the learning rate by which it multiplies.

    Attributes:
        init: `init(params) -> state`, as optax has it.
        update: `update(gradients, state, params, **extra) -> (updates, state)`; `extra` are arguments that some take.
        learning_rate: The learning rate or its schedule; None where it is not known.
        text: The expression that it was made from.
    """

    init: Callable[..., Any]
    update: Callable[..., Any]
    learning_rate: float | Schedule | None
    text: str


def parse_optimizer(text: str, learning_rate: str | float | None = None) -> Optimizer:
    """Returns the optimizer that an expression names.

    Args:
        text: A name with literal arguments, `adam(1e-3, b1=0.9)`; schedules may be among them.
        learning_rate: A number or a schedule, where the expression has none.

    Raises:
        UsageError: The expression has another form, names no optimizer, or has arguments that it does not take, or a
            learning rate that is not finite.
    """
    expression = parse_expression(text)
    if not isinstance(expression, Expression):
        raise UsageError(f"{text!r} is not an optimizer", hint="write its name: 'sgd(0.1)'")
    make = _named(expression, _optimizers(), "optimizer")
    if learning_rate is not None:
        expression = _with_learning_rate(expression, make, parse_schedule(learning_rate))
    elif _lacks_learning_rate(expression, make):
        raise UsageError(
            f"{text!r} has no learning rate",
            hint=f"state one, as in '{expression.name}(0.1)', or beside it, as --learning-rate does",
        )
    arguments = _finite(expression, expression.bound(make, _schedule_or_optimizer))
    made = expression.called(make, arguments)
    if not isinstance(made, optax.GradientTransformation):
        raise UsageError(f"{text!r} is not an optimizer", hint="write its name: 'sgd(0.1)'")
    return Optimizer(
        init=made.init,
        update=optax.with_extra_args_support(made).update,
        learning_rate=arguments.arguments.get("learning_rate"),
        text=text,
    )


def transformation(value: object) -> object:
    """Returns the transformation of `optax.MultiSteps`, which is none itself; any other value as it is."""
    return value.gradient_transformation() if isinstance(value, optax.MultiSteps) else value


def is_optimizer(value: object) -> bool:
    """Returns whether a value can serve as the optimizer of a step: one of optax, or one of `parse_optimizer`."""
    return isinstance(value, Optimizer | optax.GradientTransformation)


def parse_schedule(text: str | float) -> float | Schedule:
    """Returns the number or the schedule that an expression states.

    Raises:
        UsageError: It is neither, or a schedule does not take the arguments.
    """
    if not isinstance(text, str):
        return float(text)
    found = parse_expression(text)
    return _schedule_of(found) if isinstance(found, Expression) else found


def parse_clip(text: str) -> optax.GradientTransformation:
    """Returns the way to clip that an expression names, as in `value(-1, 1)`, or `global_norm(1)`.

    Raises:
        UsageError: It names none, or a limit is not above 0.
    """
    expression = parse_expression(text)
    if not isinstance(expression, Expression):
        raise UsageError(f"{text!r} is no way to clip", hint=f"one of {', '.join(_CLIPS)}, as in 'global_norm(1)'")
    return expression.of(_named(expression, _CLIPS, "way to clip"), _no_limit)


_CLIPS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"value": clip.value, "norm": clip.norm, "average_norm": clip.average_norm, "global_norm": clip.global_norm}
)


def _lacks_learning_rate(expression: Expression, make: Callable[..., Any]) -> bool:
    """Returns whether all that an expression lacks to make an optimizer is a learning rate."""
    parameters = inspect.signature(make).parameters
    rate = parameters.get("learning_rate")
    is_needed = rate is not None and rate.default is inspect.Parameter.empty
    is_stated = bool(expression.positional) or "learning_rate" in expression.keyword
    return is_needed and not is_stated and expression.keyword.keys() <= parameters.keys()


def _with_learning_rate(expression: Expression, make: Callable[..., Any], rate: float | Schedule) -> Expression:
    """Returns the expression of an optimizer with a learning rate that is stated beside it.

    Raises:
        UsageError: The expression has one, or the optimizer takes none.
    """
    names = list(inspect.signature(make).parameters)
    if "learning_rate" not in names:
        raise UsageError(f"{expression.name} takes no learning rate", hint="state none beside it")
    if "learning_rate" in expression.keyword or names.index("learning_rate") < len(expression.positional):
        raise UsageError(
            f"{expression.text!r} has a learning rate, and another is stated beside it",
            hint="leave one out; the other arguments are then named, as in 'adam(b1=0.8)'",
        )
    return replace(expression, keyword={**expression.keyword, "learning_rate": rate})


def _schedule_of(expression: Expression) -> Any:
    """Returns the schedule that an expression names."""
    make = _named(expression, _schedules(), "schedule")
    return expression.called(make, _finite(expression, expression.bound(make, _schedule_of)))


def _no_limit(expression: Expression) -> Any:
    """Refuses an argument of a way to clip that is no number."""
    raise UsageError(f"{expression.text!r} is no limit of a clip", hint="a number, as in 'global_norm(1)'")


def _schedule_or_optimizer(expression: Expression) -> Any:
    """Returns what an argument of an optimizer names: a schedule, or another optimizer."""
    known = {**_optimizers(), **_schedules()}
    make = _named(expression, known, "schedule or optimizer")
    return expression.called(make, _finite(expression, expression.bound(make, _schedule_or_optimizer)))


def _finite(expression: Expression, arguments: inspect.BoundArguments) -> inspect.BoundArguments:
    """Returns arguments whose learning rate is finite, and of a schedule every number: other arguments may be infinite.

    Raises:
        UsageError: One is not.
    """
    given = arguments.arguments
    rates = given if expression.name in _schedules() else {name: given.get(name) for name in _RATES}
    wrong = next((each for each in tree_leaves(dict(rates)) if isinstance(each, float) and not isfinite(each)), None)
    if wrong is not None:
        raise UsageError(
            f"{expression.text!r} has a learning rate that is {'no number' if isnan(wrong) else 'infinite'}",
            hint="give a finite one",
        )
    return arguments


def _named(expression: Expression, known: Mapping[str, Callable[..., Any]], kind: str) -> Callable[..., Any]:
    found = known.get(expression.name)
    if found is None:
        raise UsageError(f"there is no {kind} called {expression.name!r}", hint=nearest_hint(expression.name, known))
    return found


@cache
def _optimizers() -> Mapping[str, Callable[..., Any]]:
    """Returns every optimizer by name: a public function of optax that returns a gradient transformation, and ours."""
    own = {
        each.__name__: each
        for each in (tensorflow1.ftrl, tensorflow1.momentum, tensorflow1.tf1_adam, tensorflow1.tf1_rmsprop)
    }
    contributed = {f"contrib.{name}": function for name, function in _transformations(optax.contrib).items()}
    return MappingProxyType({**_transformations(optax), **contributed, **own})


def _transformations(module: Any) -> dict[str, Callable[..., Any]]:
    return {
        name: function
        for name, function in vars(module).items()
        if not name.startswith("_")
        and inspect.isfunction(function)
        and "GradientTransformation" in str(inspect.signature(function).return_annotation)
    }


@cache
def _schedules() -> Mapping[str, Callable[..., Any]]:
    """Returns every schedule of optax by name."""
    public = {name: each for name, each in vars(optax.schedules).items() if inspect.isfunction(each)}
    return MappingProxyType({name: each for name, each in public.items() if not name.startswith(("_", "inject_"))})
