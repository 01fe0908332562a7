"""Tables of the dump format: the objects in a manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from gradscope.dump import record
from gradscope.dump.manifest import manifest
from gradscope.dump.manifest.operation_facts import (
    batch_broadcast,
    clip_limits,
    collective,
    origin,
    out_of_bounds,
    random_mask,
    rectified,
    saturation,
    softmax_use,
    step_function,
)
from gradscope.dump.manifest.reasons import REASONS
from scripts.docs_blocks.markdown import attributes, code, table

#: The objects in a manifest, each with the classes whose fields it has.
OBJECTS: Final[dict[str, tuple[Any, ...]]] = {
    "manifest": (manifest.Manifest,),
    "entry": (manifest.Entry,),
    "site": (record.SiteFacts,),
    "stored": (manifest.Stored,),
    "shard": (record.Shard,),
    "layer": (manifest.Layer,),
    "origin": (origin.Origin,),
    "saturation": (saturation.Saturation,),
    "out-of-bounds": (out_of_bounds.OutOfBounds,),
    "step-function": (step_function.StepFunction,),
    "softmax": (softmax_use.SoftmaxUse,),
    "collective": (collective.Collective,),
    "clip": (clip_limits.Clip,),
    "rectified-logits": (rectified.RectifiedLogits,),
    "random-mask": (random_mask.RandomMask,),
    "broadcast": (batch_broadcast.BatchBroadcast,),
    "examples": (manifest.Examples,),
}


def fields_table(name: str) -> str:
    described = [attributes(base) for kind in OBJECTS[name] for base in kind.__mro__]
    rows = []
    for field in (field for kind in OBJECTS[name] for field in dataclasses.fields(kind)):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        meaning = next(each[field.name] for each in described if field.name in each)
        rows.append((code(field.name), "always" if required or field.name == "schema" else "", meaning))
    return table(["field", "present", "meaning"], rows)


def reasons_table() -> str:
    rows = ((code(each.name), each.sentence, each.remedy) for each in REASONS)
    return table(["reason", "why the tensor is not in the dump", "what to do"], rows)


BLOCKS: Final[dict[str, Callable[[], str]]] = {
    **{f"{name}-fields": partial(fields_table, name) for name in OBJECTS},
    "reasons": reasons_table,
}
