"""Facts about operations are read from the JSON objects of a manifest, each by a function with its field's name."""

from __future__ import annotations

from typing import Final, Literal

from gradscope.dump.manifest.json_fields import Fields
from gradscope.dump.manifest.operation_facts import (
    BatchBroadcast,
    Clip,
    Collective,
    Origin,
    OutOfBounds,
    RandomMask,
    RectifiedLogits,
    Saturation,
    SoftmaxUse,
    StepFunction,
)
from gradscope.dump.manifest.operation_facts.out_of_bounds import LOOKED_UP
from gradscope.dump.manifest.operation_facts.rectified import LOGITS_MAKERS
from gradscope.dump.manifest.operation_facts.saturation import BOUNDED_NAMES
from gradscope.dump.record import Json

_DIRECTIONS: Final[tuple[Literal["forward", "backward"], ...]] = ("forward", "backward")


def origin(value: Json, position: int) -> Origin:
    """Returns an origin; `position` is its place in the list."""
    origin = Fields.of(value, f"origin {position}", Origin)
    return Origin(
        direction=origin.choice("direction", _DIRECTIONS, "forward"),
        name=origin.text("name"),
        why=origin.text("why"),
        layer=origin.optional_text("layer"),
        repair=origin.text("repair"),
        primitive=origin.optional_text("primitive"),
        source=origin.optional_text("source"),
        iteration=origin.counts("iteration"),
        index=origin.counts("index"),
        operands=origin.floats("operands"),
    )


def broadcast(value: Json, position: int) -> BatchBroadcast:
    """Returns a broadcast; `position` is its place in the list."""
    broadcast = Fields.of(value, f"broadcast {position}", BatchBroadcast)
    return BatchBroadcast(
        input=broadcast.text("input"),
        size=broadcast.count("size"),
        column=broadcast.boolean("column", default=False),
        primitive=broadcast.text("primitive"),
        source=broadcast.optional_text("source"),
    )


def step_function(value: Json, position: int) -> StepFunction:
    """Returns a step function; `position` is its place in the list."""
    found = Fields.of(value, f"step_function {position}", StepFunction)
    return StepFunction(
        family=found.text("family"),
        name=found.text("name"),
        primitive=found.text("primitive"),
        beside=found.texts("beside"),
        source=found.optional_text("source"),
    )


def clip(value: Json, position: int) -> Clip:
    """Returns a clip; `position` is its place in the list."""
    clip = Fields.of(value, f"clip {position}", Clip)
    return Clip(
        low=clip.number("low"), high=clip.number("high"), share=clip.number("share"), index=clip.count("index"),
        source=clip.optional_text("source"),
    )  # fmt: skip


def collective(value: Json, position: int) -> Collective:
    """Returns a collective operation; `position` is its place in the list."""
    found = Fields.of(value, f"collective {position}", Collective)
    return Collective(
        function=found.text("function"), axes=found.texts("axes"), index=found.count("index"),
        layer=found.optional_text("layer"), source=found.optional_text("source"),
    )  # fmt: skip


def random_mask(value: Json, position: int) -> RandomMask:
    """Returns a random mask; `position` is its place in the list."""
    mask = Fields.of(value, f"random mask {position}", RandomMask)
    return RandomMask(
        share=mask.number("share"), elements=mask.count("elements"), index=mask.count("index"),
        names=mask.texts("names"), source=mask.optional_text("source"),
    )  # fmt: skip


def rectified(value: Json, position: int) -> RectifiedLogits:
    """Returns a rectifier of logits; `position` is its place in the list."""
    found = Fields.of(value, f"rectifier {position}", RectifiedLogits)
    return RectifiedLogits(
        function=found.choice("function", BOUNDED_NAMES, "softmax"), source=found.optional_text("source"),
        by=found.choice("by", LOGITS_MAKERS, "rectifier"),
    )  # fmt: skip


def softmax_use(value: Json, position: int) -> SoftmaxUse:
    """Returns a use of a softmax; `position` is its place in the list."""
    found = Fields.of(value, f"softmax {position}", SoftmaxUse)
    return SoftmaxUse(
        shape=found.counts("shape"), over=found.counts("over"), summed=found.counts("summed"),
        reads=found.floats("reads"),
        source=found.optional_text("source"),
    )  # fmt: skip


def out_of_bounds(value: Json, position: int) -> OutOfBounds:
    """Returns a look-up of what is not there; `position` is its place in the list."""
    found = Fields.of(value, f"out_of_bounds {position}", OutOfBounds)
    return OutOfBounds(
        looked_up=found.choice("looked_up", LOOKED_UP, "rows"),
        input=found.text("input"),
        table=found.optional_text("table"),
        rows=found.count("rows"),
        index=found.integer("index"),
        beyond=found.count("beyond"),
        indices=found.count("indices"),
        source=found.optional_text("source"),
    )


def saturation(value: Json, position: int) -> Saturation:
    """Returns a saturation; `position` is its place in the list."""
    saturation = Fields.of(value, f"saturation {position}", Saturation)
    return Saturation(
        function=saturation.choice("function", BOUNDED_NAMES, "softmax"),
        index=saturation.count("index"),
        saturated=saturation.number("saturated"),
        layer=saturation.optional_text("layer"),
        inputs=saturation.texts("inputs"),
        source=saturation.optional_text("source"),
        iteration=saturation.counts("iteration"),
        names=saturation.texts("names"),
        noise=saturation.optional_number("noise") or 0.0,
        again=saturation.boolean("again", default=False),
    )
