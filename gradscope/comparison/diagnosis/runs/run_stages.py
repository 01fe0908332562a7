"""A step of a training run has stages, whose tensors are compared one by one between two runs.

The *stages* of a step, in order: its batch, the parameters and collections that it starts from, its activations, its
loss, the gradients, the gradients as the optimizer gets them, the optimizer's variables, the learning rate and the
updates, the moving averages. Within a stage tensors are in the order of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gradscope import naming
from gradscope.comparison.judging.rows import Status
from gradscope.dump.record import Json

#: The family of the numbers of a step that belong to no tensor.
STEP: Final = "step"

_STAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "batch": (naming.INPUT,),
    "parameters": (naming.PARAM, naming.STATE),
    "activations": (naming.ACTIVATION, naming.AUX),
    "loss": ("step/loss",),
    "gradients": (naming.ACTIVATION_GRAD, naming.INPUT_GRAD, naming.TERM, naming.PARAM_GRAD, naming.EXAMPLE_GRAD),
    "clipped gradients": (naming.CLIPPED_GRAD,),
    "slots": (naming.SLOT_PREFIX,),
    "updates": ("step/learning_rate", naming.UPDATE),
    "averages": (naming.AVERAGE,),
}
_ORDER: Final = {family: number for number, family in enumerate(each for stage in _STAGES.values() for each in stage)}
_STAGE_OF: Final = {family: stage for stage, families in _STAGES.items() for family in families}


#: The families of what layers make.
OF_LAYERS: Final = (naming.ACTIVATION, naming.ACTIVATION_GRAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """RunRow stores the result for one tensor, or one number, of a step.

    Attributes:
        name: Its name.
        family: Its family; `step` for a number of the step.
        status: `same` as far as statistics tell, `different`, `missing` (in the reference only), or `extra`.
        counts: Whether it counts in the verdict; False where it may be missing.
        bound: The least `rel_l2` that it can have; None for one that only one run has.
        tolerance: What it was judged by, the largest `rel_l2` or the rule as written; None where everything has to be
            equal.
        ref: The reference's l2 norm, or the number; None where there is none.
        cand: The candidate's, likewise.
        statistic: The statistic that shows the bound; "" for a number, and where none differs.
        ref_statistic: The reference's value of it; None where it has none.
        cand_statistic: The candidate's, likewise.
        rounding: The parameter whose gradient is zero but for rounding, which makes all the difference; "" for none.
        counterpart: The candidate's name of it; "" where that has none.
    """

    name: str
    family: str
    status: Status
    counts: bool = True
    bound: float | None = None
    tolerance: float | str | None = None
    ref: float | None = None
    cand: float | None = None
    statistic: str = ""
    ref_statistic: float | None = None
    cand_statistic: float | None = None
    rounding: str = ""
    counterpart: str = ""

    @property
    def key(self) -> str:
        """The tensor's key; "" of a number of the step."""
        return "" if self.family == STEP else naming.key_of(self.family, self.name)

    @property
    def stage(self) -> str:
        """The stage of the step that it belongs to."""
        return _STAGE_OF.get(_stage_key(self.family, self.name), "activations")

    @property
    def differs(self) -> bool:
        """Whether it makes the runs different."""
        return self.counts and self.status != "same"

    def to_json(self) -> dict[str, Json]:
        """Returns its fields; those that do not apply are left out."""
        facts: dict[str, Json] = {
            "name": self.name, "family": self.family, "stage": self.stage, "status": self.status,
            "rel_l2_at_least": self.bound, "tolerance": self.tolerance, "ref": self.ref, "cand": self.cand,
            "statistic": self.statistic or None, "ref_statistic": self.ref_statistic,
            "cand_statistic": self.cand_statistic,
            "rounding": self.rounding or None,
            "counterpart": self.counterpart if self.counterpart not in ("", self.name) else None,
        }  # fmt: skip
        return {name: fact for name, fact in facts.items() if fact is not None}


def without_other_layers(rows: Sequence[RunRow]) -> list[RunRow]:
    """Returns the rows of a step; those of layers that one program alone has do not count where the others tell.

    Both programs have such layers then, as where one of them runs in shards or over parts of the batch. They are no
    difference where the loss and all gradients of parameters agree, and not the one to tell where anything differs.
    """
    others = [row for row in rows if row.status in ("missing", "extra") and row.family in OF_LAYERS]
    rest = [row for row in rows if row not in others]
    agreeing = {row.family for row in rest if row.status == "same"}
    tell = any(row.differs for row in rest) or {STEP, naming.PARAM_GRAD} <= agreeing
    if not tell or {row.status for row in others} != {"missing", "extra"}:
        return list(rows)
    return [replace(row, counts=False) if row in others else row for row in rows]


def place_in_step(family: str, name: str) -> int:
    """Returns the place of a tensor among the stages of a step; equal for all of one family."""
    return _ORDER.get(_stage_key(family, name), 0)


def follows_the_loss(family: str) -> bool:
    """Returns whether the tensors of a family are computed from gradients, or are gradients."""
    return _ORDER.get(family.partition("/")[0], 0) > _ORDER[f"{STEP}/loss"]


def _stage_key(family: str, name: str) -> str:
    return f"{family}/{name}" if family == STEP else family.partition("/")[0]
