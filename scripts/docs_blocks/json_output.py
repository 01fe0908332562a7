"""Tables of the keys of JSON output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gradscope.presentation.reports.explaining.json_keys import JSON_OBJECTS, JsonObject
from scripts.docs_blocks.markdown import code, table


def keys_table(described: JsonObject) -> str:
    rows = ((code(key), f"{meaning[0].lower()}{meaning[1:]}") for key, meaning in described.keys.items())
    return table(["key", "value"], rows)


BLOCKS: Final[dict[str, Callable[[], str]]] = {each.slug: partial(keys_table, each) for each in JSON_OBJECTS}
