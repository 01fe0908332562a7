"""`manifest_at` makes of one step of a history the manifest of a dump with statistics only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.record import Json, SiteFacts
from gradscope.errors import UsageError
from gradscope.history.database.schema import COUNTS, LARGEST, STATS
from gradscope.history.folder.run_files import is_alarm_name
from gradscope.history.history_reader import History
from gradscope.history.history_rows import TensorRow
from gradscope.naming import printable


def manifest_at(history: History, step: int) -> Manifest:
    """Returns the manifest of a dump with the statistics of one recorded step.

    Args:
        history: The history.
        step: The step.

    Raises:
        UsageError: The step was not recorded; the hint names the nearest that was.
        DumpError: The history is damaged.
    """
    known = history.step(step) if 0 <= step <= LARGEST else None  # a larger one is none of SQLite's
    if not known:
        raise not_recorded(history, step)
    entries = entries_of(history.tensors, history.stats_at(step))
    facts: dict[str, Json] = {name: value for name, value in known.items() if name != "time"}
    return Manifest(entries=entries, loss=known.get("loss"), tier="core", provenance=facts)


def entries_of(
    tensors: Mapping[int, TensorRow], stats: Mapping[int, Mapping[str, float | int]], families: Sequence[str] = ()
) -> tuple[Entry, ...]:
    """Returns the entries of a step's tensors.

    Args:
        tensors: The tensors of a run, by number.
        stats: Their statistics at the step, by number.
        families: The families that are wanted; all where empty.
    """
    chosen = ((number, tensors[number], each) for number, each in stats.items() if number in tensors)
    return tuple(
        _entry(tensor, number, each) for number, tensor, each in chosen if not families or tensor.family in families
    )


def not_recorded(history: History, step: int) -> UsageError:
    """Returns the error of a step that was not recorded, with the nearest that were, and what an alarm at it saved.

    Args:
        history: The history.
        step: The step.

    Raises:
        DumpError: The history is damaged.
    """
    recorded, losses = history.step_numbers().tolist(), history.losses()
    near = sorted(sorted(recorded, key=lambda each: (abs(each - step), each))[:2])
    hint = f"the nearest recorded {'is' if len(near) == 1 else 'are'} {' and '.join(map(str, near))}" if near else ""
    alarms = [alarm for alarm in history.alarms() if alarm.step == step]
    saved = next((alarm.folder for alarm in alarms if alarm.folder is not None and is_alarm_name(alarm.folder)), None)
    if saved is not None:
        folder = printable(str(history.folder / saved))
        hint = f"'gradscope show {folder}' shows what its alarm saved" + (f"; {hint}" if hint else "")
    elif alarms:
        hint = f"all that is known of it is its alarm, {alarms[0].rule}" + (f"; {hint}" if hint else "")
    loss = losses["loss"][losses["step"] == step]
    known = f" but for its loss, {float(loss[0]):.4g}" if len(loss) else ""
    return UsageError(f"step {step} was not recorded{known}", hint=hint or "no step was recorded yet")


def _entry(tensor: TensorRow, number: int, stats: Mapping[str, float | int]) -> Entry:
    shape, dtype = tensor.shape or (), tensor.dtype or "float32"
    columns: dict[str, Json] = {"shape": list(shape), "dtype": dtype, "size": math.prod(shape)}
    columns |= {name: int(stats[name]) if name in COUNTS else stats[name] for name in STATS if name in stats}
    return Entry(
        family=tensor.family,
        name=tensor.name,
        shape=shape,
        dtype=dtype,
        stats=columns,
        site=SiteFacts(index=number, source=tensor.source, layer=tensor.layer),
    )
