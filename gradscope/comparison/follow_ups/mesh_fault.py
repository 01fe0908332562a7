"""A `MeshFault` is what differs on a mesh, by a kind of relation to what there is on fewer devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

from gradscope.dump.manifest.operation_facts import Collective
from gradscope.dump.record import Json
from gradscope.naming import is_gradient, printable

#: By what relation the values of a mesh are other ones than those of fewer devices.
FaultKind: TypeAlias = Literal[
    "factor", "terms", "summed", "statistics", "weights", "zeros", "order", "first device", "added again",
    "not reduced", "arguments", "not finite", "values",
]  # fmt: skip


class FaultWords(NamedTuple):
    """`FaultWords` say a kind of fault in words.

    Attributes:
        what: What differs: a sentence about a tensor (`name`) and an `axis`, perhaps with a `number`, a `detail`, and
            where it differs from (`on`).
        likely: What is likely then, or mends it; "" where nothing is known.
        detail: What the detail is, where nothing was measured.
    """

    what: str
    likely: str
    detail: str = ""


KINDS: Final[Mapping[FaultKind, FaultWords]] = MappingProxyType(
    {
        "factor": FaultWords(
            "{name} is {number} times what it is {on}, by the number of devices along {axis}",
            "a `psum` in place of a `pmean` or the reverse, one too many, or one left out",
        ),
        "terms": FaultWords(
            "the devices along {axis} have terms of {name}, and nothing adds them up", "a `psum` or `pmean` is missing"
        ),
        "summed": FaultWords(
            "each device along {axis} has the sum of {name} over all of them",
            "a `psum` too many, as of a gradient that belongs to one device",
        ),
        "statistics": FaultWords(
            "each device along {axis} normalises {name} by the statistics of its own part",
            "take what it is normalised by over the axis: means, sums or maxima (`pmean`, or the layer's `axis_name`)",
        ),
        "weights": FaultWords(
            "along {axis}, {name} is {detail} times what it is {on}",
            "a mean of means over unequal parts; `psum` the numerator and the denominator, and divide then",
            "on each device another number of",
        ),
        "zeros": FaultWords(
            "other elements of {name} are zero than {on}{detail}, and all else is equal",
            "a random mask is drawn on each device (compare with --eval, or draw it for the whole batch), or something "
            "ends at the edge of each slice",
        ),
        "order": FaultWords(
            "the devices along {axis} have slices of each other in {name}{detail}",
            "`ppermute`, `all_gather` or `all_to_all` over another axis or in another order",
        ),
        "first device": FaultWords(
            "along {axis}, only the first device has {name} as it is {on}",
            "places along a divided axis, or random numbers, begin anew on each device; `axis_index` has its number",
        ),
        "added again": FaultWords(
            "{name} has {detail} times in it",
            "it is added on each device along {axis}, before what adds them up",
            "a parameter, or what a residual connection adds, several",
        ),
        "not reduced": FaultWords(
            "values and gradients agree, and {name} is that of one part",
            "nothing reduces it over {axis}, as `check_vma=True` would say",
        ),
        "arguments": FaultWords(
            "{name}, which the program is given, is another one than {on}",
            "`init` or `batch` depends on the number of devices, as random numbers do that are drawn on each",
        ),
        "not finite": FaultWords(
            "{name} has NaNs or infinities where it has none {on}, or the reverse",
            "a function is given another number than on one device, as an empty part's sum or a size of the mesh",
        ),
        "values": FaultWords("{name} is in no simple relation to what it is {on}", ""),
    }
)


def _on(devices: int) -> str:
    return "on one device" if devices == 1 else f"on {devices} devices"


#: What each kind of fault is.
FAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        kind: words.what.format(name="a tensor", axis="an axis of the mesh", number="N", detail=words.detail, on=_on(1))
        + (f"; likely: {words.likely.format(axis='that axis')}" if words.likely else "")
        for kind, words in KINDS.items()
    }
)

#: The kinds of fault that the collective which a value has passed last may have made.
_PASSED: Final = frozenset({"factor", "weights", "order", "summed"})

#: How the loss is named as the place of a fault.
LOSS: Final = "the loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshFault:
    """A `MeshFault` is what differs on a mesh, where, and by which relation.

    Attributes:
        kind: The kind.
        name: The first tensor that differs, or "the loss".
        family: Its family; "" for the loss.
        axis: The axis of the mesh, or several joined by commas; "" where that is not known.
        factor: How many times what it is on fewer devices; None where it is no multiple.
        detail: A clause with the numbers of the relation; "" for none.
        collective: The collective that is nearest to it over that axis; None where there is none.
        source: `file:line` of the collective, or else of the tensor; None where unknown.
        devices: The number of the fewer devices.
    """

    kind: FaultKind
    name: str
    family: str = ""
    axis: str = ""
    factor: float | None = None
    detail: str = ""
    collective: Collective | None = None
    source: str | None = None
    devices: int = 1

    @property
    def sentence(self) -> str:
        """What differs, in words."""
        nearest = f"; it last passes {self.collective}" if self.collective is not None and self.kind in _PASSED else ""
        return f"{self._filled(KINDS[self.kind].what)}{nearest}"

    @property
    def advice(self) -> str:
        """What is likely then, or mends it; "" where nothing is known."""
        return self._filled(KINDS[self.kind].likely)

    def _filled(self, text: str) -> str:
        name = self.name if self.name == LOSS else f"`{printable(self.name)}`"
        return text.format(
            name=f"the gradient of {name}" if is_gradient(self.family) else name,
            axis=_quoted(self.axis) if self.axis else "an axis of the mesh",
            number="" if self.factor is None else f"{self.factor:.4g}",
            detail=self.detail,
            on=_on(self.devices),
        )

    def to_json(self) -> dict[str, Json]:
        """Returns the fault as JSON, without what is not known."""
        known: dict[str, Json] = {
            "kind": self.kind,
            "name": self.name,
            "family": self.family or None,
            "axis": self.axis or None,
            "factor": self.factor,
            "collective": None if self.collective is None else self.collective.function,
            "source": self.source,
            "why": self.sentence,
            "likely": self.advice or None,
        }
        return {key: value for key, value in known.items() if value is not None}


def _quoted(axes: str) -> str:
    return " and ".join(f"`{printable(axis)}`" for axis in axes.split(","))
