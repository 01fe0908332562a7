"""Names that gradscope prints are of several kinds, such as columns, findings and words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class KindOfName(NamedTuple):
    """A `KindOfName` has what is written after a name of the kind, and above a list of all of them."""

    title: str
    plural: str


KINDS_OF_NAMES: Final[Mapping[str, KindOfName]] = MappingProxyType(
    {
        "column": KindOfName("a column of statistics", "Columns of statistics"),
        "metric": KindOfName("a metric of comparisons", "Metrics of comparisons"),
        "finding": KindOfName("a finding", "Findings"),
        "alarm": KindOfName("an alarm of a training run", "Alarms of training runs"),
        "series": KindOfName("a number that a training run records", "Numbers that a training run records"),
        "trend": KindOfName("a column of the trends of a training run", "Columns of the trends of a training run"),
        "reason": KindOfName("a reason of the ledger", "Reasons of the ledger"),
        "zero": KindOfName("a reason why a gradient is zero or cut off", "Reasons why a gradient is zero or cut off"),
        "family": KindOfName("a family of tensors", "Families of tensors"),
        "status": KindOfName("a status of a compared tensor", "Statuses of compared tensors"),
        "pass": KindOfName("how a tensor's counterpart was found", "How counterparts are found"),
        "verdict": KindOfName("a verdict of compare", "Verdicts of compare"),
        "fault": KindOfName("a kind of fault that mesh finds", "Kinds of faults that mesh finds"),
        "proof": KindOfName("a verdict of check", "Verdicts of check"),
        "outcome": KindOfName("an outcome of one claim of check", "Outcomes of claims of check"),
        "word": KindOfName("a word in reports", "Words in reports"),
        "key": KindOfName("a key of JSON, or a column of that name", "Keys of JSON"),
    }
)
