"""A `MeshComparison` compares the runs of a model on several numbers of devices with that on the fewest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gradscope.comparison.compare_dumps import compare
from gradscope.comparison.follow_ups.mesh_fault import MeshFault
from gradscope.comparison.follow_ups.mesh_faults import loss_differs, mesh_fault
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.rows import ComparisonRow, Verdict
from gradscope.comparison.pairing.matching import Dumps
from gradscope.comparison.result import EXIT_CODES, Comparison
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.reader import open_dump
from gradscope.dump.record import Json
from gradscope.naming import AUX, INPUT_GRAD, PARAM_GRAD
from gradscope.naming.wording import counted

#: Version of the JSON that `to_json` returns; its keys are stable within one version.
SCHEMA: Final = 1

#: What two runs on different numbers of devices do not have in common.
_EXPECTED: Final = frozenset({"argv", "device_count", "trace_fingerprint"})

#: The families of what a program returns, and of the gradients of its arguments.
_RETURNED: Final = frozenset({AUX, PARAM_GRAD, INPUT_GRAD})

_WORST_FIRST: Final[tuple[Verdict, ...]] = ("different", "nothing compared", "same")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshRun:
    """A `MeshRun` is the run of a model on a number of devices.

    Attributes:
        devices: The number.
        axes: The axes of the meshes that the program is run on, each with its number of devices.
        dump: The path of its dump.
        loss: The loss; None where it is not known.
    """

    devices: int
    axes: Mapping[str, int]
    dump: str
    loss: float | None

    @property
    def used(self) -> int:
        """The number of devices that the program is run on."""
        return math.prod(self.axes.values())

    def to_json(self) -> dict[str, Json]:
        """Returns the run as JSON."""
        known: dict[str, Json] = {
            "devices": self.devices,
            "axes": dict(self.axes),
            "dump": self.dump,
            "loss": self.loss,
        }
        return {key: value for key, value in known.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshMember:
    """A `MeshMember` is the comparison of a run with that on the fewest devices.

    Attributes:
        devices: The number of devices.
        comparison: The comparison.
        arranged: How many values differ although the loss and all gradients of parameters and inputs agree: what the
            devices have of them is arranged otherwise, as in a ring.
        fault: What differs, and by which relation; None where nothing does.
    """

    devices: int
    comparison: Comparison
    arranged: int = 0
    fault: MeshFault | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict: that of the comparison, but that what is arranged otherwise is the same, and a loss counts."""
        if self.arranged:
            return "same"
        return "different" if loss_differs(self.comparison) else self.comparison.verdict

    @property
    def judged(self) -> list[ComparisonRow]:
        """The rows that the verdict follows from: how far others are from each other says nothing."""
        return [row for row in self.comparison.rows if row.status == "same" or not self.arranged]

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        if self.arranged:
            return f"Same: the loss and all gradients of parameters agree; {self.arrangement}."
        return self.comparison.sentence

    @property
    def arrangement(self) -> str:
        """What is arranged otherwise, in words; "" for nothing."""
        values = counted(self.arranged, "value is", "values are")
        return f"{values} arranged otherwise on {counted(self.devices, 'device')}" if self.arranged else ""

    def to_json(self) -> dict[str, Json]:
        """Returns the comparison as JSON, with its number of devices and its fault."""
        own: dict[str, Json] = {**self.comparison.to_json(), "verdict": self.verdict, "sentence": self.sentence}
        fault: dict[str, Json] = {} if self.fault is None else {"fault": self.fault.to_json()}
        return {"devices": self.devices, **{key: own[key] for key in own if key not in ("schema", "command")}, **fault}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshComparison:
    """A `MeshComparison` stores the runs and the comparisons.

    Attributes:
        runs: The runs, the reference first.
        members: The comparisons of the others with it, in order.
    """

    runs: tuple[MeshRun, ...]
    members: tuple[MeshMember, ...]

    @property
    def verdict(self) -> Verdict:
        """`same` where all comparisons are, `different` where one is."""
        verdicts: set[Verdict] = {member.verdict for member in self.members}
        return next(each for each in _WORST_FIRST if each in verdicts)

    @property
    def exit_code(self) -> int:
        """The exit status of a command: 0 same, 1 different, 2 nothing compared."""
        return EXIT_CODES[self.verdict]

    @property
    def first_different(self) -> MeshMember | None:
        """The comparison with the fewest devices that differ; None where all agree."""
        return next((member for member in self.members if member.verdict != "same"), None)

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        first = self.first_different
        reference = counted(self.runs[0].devices, "device")
        if first is None:
            several = " and ".join(str(member.devices) for member in self.members)
            moved = "".join(f"; {member.arrangement}" for member in self.members if member.arranged)
            what = "Loss and gradients" if moved else "Values and gradients"
            return f"{what} on {several} devices are those on {reference}{moved}."
        if first.fault is None:
            return f"{first.devices} devices differ from {reference}: {first.sentence}"
        return f"{first.devices} devices differ from {reference}: {first.fault.sentence}."

    def to_json(self) -> dict[str, Json]:
        """Returns the runs and the comparisons as JSON."""
        return {
            "schema": SCHEMA,
            "command": "mesh",
            "verdict": self.verdict,
            "sentence": self.sentence,
            "runs": [run.to_json() for run in self.runs],
            "comparisons": [member.to_json() for member in self.members],
        }


def compared_meshes(paths: Mapping[int, Path], options: CompareOptions) -> MeshComparison:
    """Returns the comparison of runs on several numbers of devices.

    Args:
        paths: Their dumps by number of devices, the reference first.
        options: Which names are compared, and how strictly.

    Raises:
        UsageError: A pattern selects nothing.
        DumpError: A dump is damaged.
    """
    runs: list[MeshRun] = []
    members: list[MeshMember] = []
    agreed: list[Mapping[str, int]] = []
    reference, *_ = paths
    with open_dump(paths[reference], histograms=False) as ref:
        for devices, path in paths.items():
            with open_dump(path, histograms=False) as cand:
                manifest = cand.manifest
                runs.append(MeshRun(devices=devices, axes=manifest.mesh, dump=str(path), loss=manifest.loss))
                if devices != reference:
                    members.append(mesh_member(devices, ref, cand, options, agreed))
                    agreed += [manifest.mesh] if members[-1].verdict == "same" else []
    return MeshComparison(runs=tuple(runs), members=tuple(members))


def mesh_member(
    devices: int, ref: DumpSource, cand: DumpSource, options: CompareOptions, agreed: Sequence[Mapping[str, int]] = ()
) -> MeshMember:
    """Returns the comparison of a run on several devices with that on the fewest.

    Args:
        devices: The number of devices.
        ref: The dump of the fewest devices.
        cand: The dump of several.
        options: Which names are compared, and how strictly.
        agreed: The numbers of devices along each axis of meshes that were compared before, and are the same.

    Raises:
        UsageError: A pattern selects nothing.
        DumpError: A dump is damaged.
    """
    found = compare(ref, cand, options=options)
    others = tuple(each for each in found.provenance_differences if each["field"] not in _EXPECTED)
    found = replace(found, provenance_differences=others)
    different = [row for row in found.rows if row.counts and row.status != "same"]
    if different and _agree(found):
        return MeshMember(devices=devices, comparison=found, arranged=len(different))
    fault = mesh_fault(found, Dumps(ref=ref, cand=cand), agreed) if different or loss_differs(found) else None
    return MeshMember(devices=devices, comparison=found, fault=fault)


def _agree(found: Comparison) -> bool:
    """Returns whether the loss agrees, and whatever else a program returns, with all gradients of its arguments."""
    returned = [row for row in found.rows if row.family in _RETURNED and row.counts]
    gradients = any(row.family == PARAM_GRAD and row.compared for row in returned)
    return not loss_differs(found) and gradients and all(row.status == "same" for row in returned)
