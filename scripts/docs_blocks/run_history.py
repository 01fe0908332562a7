"""Tables of the history of a run: its statements and the meaning of their columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gradscope.history.alarms.alarm_rules import RULES
from gradscope.history.database.schema import NOISE, STATS, STEPS, TABLES
from scripts.docs_blocks.markdown import code, table


def history() -> str:
    statements = "\n".join(f"{statement};" for statement in TABLES.values())
    return "\n\n".join(
        [f"```sql\n{statements}\n```", _columns("steps", STEPS), _columns("stats", STATS), _columns("noise", NOISE)]
    )


def _columns(name: str, columns: dict[str, tuple[str, str]]) -> str:
    rows = [(code(column), unit, meaning) for column, (unit, meaning) in columns.items()]
    return f"{table([f'column of `{name}`', 'unit', 'meaning'], rows)}"


def alarms() -> str:
    """Returns the table of the rules that raise alarms."""
    return table(
        ("alarm", "what is wrong", "rule"), [(f"`{each.name}`", each.sentence, each.formula) for each in RULES]
    )


BLOCKS: Final[dict[str, Callable[[], str]]] = {"history": history, "alarms": alarms}
