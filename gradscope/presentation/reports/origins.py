"""Origins, where a NaN or an infinity began, are written as notes, as annotations and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from gradscope import naming
from gradscope.dump.manifest.json_text import from_float
from gradscope.dump.manifest.operation_facts import Origin
from gradscope.dump.record import Json
from gradscope.naming.wording import place_behind
from gradscope.presentation.render.document import Note
from gradscope.presentation.render.for_ci.github import Annotation
from gradscope.presentation.render.screen import style_of_words

#: The label of what to do.
REPAIR: Final = "repair"
#: The rules that origins explain.
OF_ORIGINS: Final = frozenset({"nonfinite", "overflow"})


def origin_notes(origins: Sequence[Origin]) -> tuple[Note, ...]:
    """Returns notes on where NaNs and infinities began, but for an origin without words, and how to repair them."""
    return tuple(
        Note(label=label, text=text, style=style_of_words("nonfinite"))
        for origin in origins
        for label, text in (("origin", origin_sentence(origin)), (REPAIR, origin.repair))
        if text
    )


def origin_sentence(origin: Origin) -> str:
    """Returns where an origin is, and why, in words; "" of one without words."""
    place = place_behind(origin.why, origin.source)
    return f"{naming.printable(origin.name)}{place} {origin.why}" if origin.why else ""


def origin_annotation(origin: Origin, level: Literal["error", "warning", "notice"], more: str) -> Annotation:
    """Returns the annotation of an origin.

    Args:
        origin: The origin.
        level: How severe it is.
        more: What is said behind the reason, as its repair; "" for nothing.
    """
    message = f"{origin.name} {origin.why}" + (f"; {more}" if more else "")
    return Annotation(level=level, title="gradscope: where it began", message=message, source=origin.source)


def origin_json(origin: Origin) -> dict[str, Json]:
    """Returns an origin as the command line's JSON has it."""
    found: dict[str, Json] = {
        "direction": origin.direction,
        "name": origin.name,
        "layer": origin.layer,
        "primitive": origin.primitive,
        "source": origin.source,
        "iteration": list(origin.iteration) or None,
        "index": list(origin.index) or None,
        "operands": [from_float(operand) for operand in origin.operands] or None,
        "why": origin.why,
        "repair": origin.repair or None,
    }
    return {name: fact for name, fact in found.items() if fact is not None}
