"""`RULES` has the rules that raise alarms."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gradscope import naming
from gradscope.history.folder.run_files import is_alarm_name
from gradscope.history.history_rows import Alarm

NONFINITE: Final = "nonfinite"
DIVERGING: Final = "diverging"
UNBOUNDED: Final = "unbounded"
RESET: Final = "reset"

#: The words in the reason of an alarm behind which a dump of its step may say more.
ZERO_GRADIENT: Final = "its gradient is exactly zero"

#: Tensors that deviate by this share of the largest deviation deviate alike.
_ALIKE: Final = 0.9

#: The statistics of tensors, by key and column.
Statistics = Mapping[str, Mapping[str, float | int | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRule:
    """An `AlarmRule` is one row of the table of rules.

    Attributes:
        name: The rule's stable name.
        sentence: A description, for users.
        formula: What is compared with what.
        remedy: What to look at, for users.
        watches: The column of `steps` that a spike is of; None for a rule about tensors.
        least_factor: How many times the mean of the last steps a spike is at least; 0 for a column that has no scale.
        families: The families of the tensors that an alarm may name.
        least_deviation: By how many of its standard deviations a tensor deviates that an alarm names; 0 where the
            number that is watched is made of these tensors, so that one of them deviates.
    """

    name: str
    sentence: str
    formula: str
    remedy: str
    watches: str | None = None
    least_factor: float = 0.0
    families: tuple[str, ...] = ()
    least_deviation: float = 0.0


_SPIKE: Final = (
    "above the mean of the last 128 steps by 6 of their standard deviations, and by 5 in logarithms, or more where a "
    "few of these steps are far above the others; where these steps fall, they count as if all had stayed at the level "
    "that the fall has come to, their deviation is that of the last 32 where this is more, and a spike is above 1.5 "
    "times this level, too; silent in the first 64 steps"
)

#: A norm that hardly varies is above that by chance, at a third more than it was: once in some 25,000 steps.
_NORM_FACTOR: Final = 1.5
_NORM_SPIKE: Final = f"above {_NORM_FACTOR:g} times the mean, and {_SPIKE}"

#: A tensor that drifts evenly is 1.8 of its own standard deviations from its median, and noise of so few values is 3 in
#: one of a hundred tensors.
_LEAST_DEVIATION: Final = 4.0

#: Every rule.
RULES: Final = (
    AlarmRule(
        name=NONFINITE,
        sentence="The loss or a gradient is NaN or infinite.",
        formula="an element that is not finite; not in the first 32 steps of which none that is recorded makes an "
        "update of it, as with a dynamic loss scale",
        families=(naming.PARAM_GRAD,),
        remedy="Look at the dump that the alarm saved, which says where the first NaN began and what mends it.",
    ),
    AlarmRule(
        name=DIVERGING,
        sentence="The loss grows by orders, or stays high, after updates about as large as the parameters: the "
        "learning rate is too large.",
        formula="loss above 10 times that of the first step, and of the median of the last 32, and where it has been "
        "negative as far above them as 9 times the largest of these, at 5 steps in a row, after "
        "l2(updates) / l2(parameters) of at least 0.3; or above 1,000 times, after one of at least 1; or not "
        "finite, after one of at least 10, or 0.3 where it was above 10 times; or, from the 128th step on after one of "
        "at least 0.1, a median of 8 losses of at least 2 times the first, and of the last 32 one of at least 0.8 "
        "times, and none below 0.72 times",
        remedy="Lower the learning rate, or warm it up; clip the gradients by their global norm.",
    ),
    AlarmRule(
        name=UNBOUNDED,
        sentence="The loss falls below zero without end: a term of it has no lower bound, such as one of the wrong "
        "sign.",
        formula="loss below -1,000 times the largest magnitude of the first 3 known, and norm of the gradients above "
        "1,000 times the largest of these, at 3 steps in a row at which both are known, and 16 times as far below zero "
        "as after half as many such steps; after 2, 4, 8, ... of them",
        remedy="Look for the sign of each term of the loss, and for an objective that is to be maximised.",
    ),
    AlarmRule(
        name="loss-spike", sentence="The loss jumps up.", formula=_SPIKE, watches="loss",
        families=(naming.INPUT, naming.PARAM, naming.ACTIVATION), least_deviation=_LEAST_DEVIATION,
        remedy="Look at the batch of that step, which the alarm saved, for an example that is unlike others; lower "
        "the learning rate, or clip the gradients, where it is none.",
    ),
    AlarmRule(
        name="grad-spike", sentence="The norm of the gradients jumps up.", formula=_NORM_SPIKE, watches="grad_norm",
        least_factor=_NORM_FACTOR, families=(naming.PARAM_GRAD, naming.ACTIVATION_GRAD),
        remedy="Look at the tensor that is named, in the dump that the alarm saved, and at the batch; clip the "
        "gradients by their global norm.",
    ),
    AlarmRule(
        name="update-spike", sentence="The norm of the updates jumps up.", formula=_NORM_SPIKE, watches="update_norm",
        least_factor=_NORM_FACTOR, families=(naming.UPDATE,),
        remedy="Look at the learning rate's schedule, and at an optimizer whose second moments have become small; "
        "clip the updates.",
    ),
    AlarmRule(
        name="stuck",
        sentence="A trained parameter does not change.",
        formula="its bytes are the same after the step, or its statistics those of the recorded step before, at 3 "
        "recorded steps in a row; only after 20 steps where other parameters move and neither its gradient nor the "
        "learning rate is 0, as an optimizer may update it once in several steps; not where it is kept constant on "
        "purpose, as a target network is, or because the optimizer never made an update of its gradient, while others "
        "move; nor where loss and gradients are 0, as of margins that are all kept, or gradients that are not 0 are "
        "together below 1e-5 of those of the first recorded step, as of a run that has converged, nor of one number to "
        "whose layer the gradients add up to 0, as the bias of a score of which the loss takes differences alone",
        families=(naming.PARAM,),
        remedy="Let the step return the new parameters and hand them on; look at a mask, a label or a rate of 0 of "
        "the optimizer, and, of bfloat16 parameters, at updates that rounding loses.",
    ),
    AlarmRule(
        name="raw-gradient",
        sentence="The update of a parameter is its gradient itself: it climbs the loss, while others descend.",
        formula="l2, mean and amax of the update within 1e-3 of those of the gradient, at 3 recorded steps in a row, "
        "and not of all parameters; not of one in which the loss is affine, as in a Lagrange multiplier",
        families=(naming.UPDATE,),
        remedy="Give every parameter an optimizer: optax.masked hands on the gradients of what it leaves out, and "
        "optax.set_to_zero in optax.multi_transform freezes.",
    ),
    AlarmRule(
        name=RESET,
        sentence="The optimizer's state begins anew at each step.",
        formula="mean(nu) / rms(mu)^2, of the moments of Adam and its kin, within 1e-3 of that of the first recorded "
        "step in every parameter, of at least 2, at 3 recorded steps in a row; or all of mu and nu zero though all of "
        "these parameters have an update",
        families=("slot/mu",),
        remedy="Make the state by init once, before the loop, and hand on the one that update returns.",
    ),
    AlarmRule(
        name="dying",
        sentence="More and more units of a layer get no gradient.",
        formula="share of exact zeros in a parameter's gradient, which is that of its dead units and of inputs that "
        "are zero: fewer than half as many elements that are not zero as the most before at 3 recorded steps in a row, "
        "less than 1/4 before, and never down by 1/4 from what it was; of a kernel where that is so of the bias "
        "beside it, too; not where of the gradients of the last layer's outputs fewer than 1/8 of the most before are "
        "not zero, or all gradients together are below 1e-5 of those of the first recorded step, or loss and gradients "
        "are 0, as of margins that are kept, nor of one number to whose layer the gradients add up to 0",
        families=(naming.PARAM_GRAD,),
        remedy="Lower the learning rate, or warm it up: a large step makes biases so negative that a ReLU is zero "
        "for all inputs. Use a function that passes a gradient below zero.",
    ),
    AlarmRule(
        name="update-ratio",
        sentence="The updates of a parameter are far too large or too small for it.",
        formula="l2(update) / l2(parameter) outside 1e-7..1e-1 at 10 recorded steps in a row, and not on its way back; "
        "too large only where the parameter's rms was never below a tenth of the median of all, too small only while "
        "the median of these ratios is not, or while none ever was more",
        families=(naming.UPDATE,),
        remedy="Change the learning rate, of this parameter or of all: updates of some 1e-3 of a parameter are usual.",
    ),
    AlarmRule(
        name="vanishing",
        sentence="Gradients get ever smaller from the last layer to the first.",
        formula="slope of log10(rms) of activation gradients over the depth, up to the last layer with weights, times "
        "the depth: a factor of 1e3 down, and of 1e2 more than at the first 5 recorded steps, at 3 in a row",
        families=(naming.ACTIVATION_GRAD,),
        remedy="Look at the layer from which on gradients are small, in the dump of such a step; use residual "
        "connections and normalisations.",
    ),
    AlarmRule(
        name="exploding",
        sentence="Gradients get ever larger from the last layer to the first.",
        formula="as for vanishing, upwards",
        families=(naming.ACTIVATION_GRAD,),
        remedy="Clip the gradients by their global norm, lower the learning rate, and scale residual branches "
        "down.",
    ),
)  # fmt: skip

#: The same by name.
BY_NAME: Final[Mapping[str, AlarmRule]] = MappingProxyType({rule.name: rule for rule in RULES})


def forward_most(deviations: Mapping[str, float]) -> str | None:
    """Returns the first of those that deviate about as much as the one that deviates most; None where none does."""
    largest = max(deviations.values(), default=0.0)
    return next((key for key, each in deviations.items() if each >= _ALIKE * largest and each > 0), None)


def command_at(alarm: Alarm, run: str) -> str:
    """Returns the command that shows the step of an alarm, as its dump has it; "" where the step was not saved.

    Args:
        alarm: The alarm.
        run: The folder of the run, as the user named it.
    """
    # The name comes from the history, which may be untrusted, and leads nowhere out of the run's folder.
    if alarm.folder is None or not is_alarm_name(alarm.folder):
        return ""
    # What is observed is what is made of a batch, and not the batch: a wrong target is in no tensor.
    part = " --families input" if suspects_batch(alarm) else ""
    return f"gradscope show {shlex.quote(str(Path(run) / alarm.folder))}{part}"


def suspects_batch(alarm: Alarm) -> bool:
    """Returns whether an alarm is about a step that was saved, and in which none of the tensors deviates enough."""
    rule = BY_NAME.get(alarm.rule)
    return rule is not None and rule.least_deviation > 0 and alarm.key is None and alarm.folder is not None
