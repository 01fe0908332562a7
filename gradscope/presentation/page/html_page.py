"""A page is one file: a document of HTML with its styles, scripts and data, which requests nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files
from itertools import chain
from typing import Final

from gradscope.presentation.page.content.streamed_json import encoded
from gradscope.presentation.page.page_parts import Page, PageMaker, PageNotes
from gradscope.presentation.page.static_html import summary_html, text_html
from gradscope.presentation.render.document import Note
from gradscope.presentation.tables.table import Table

#: The largest page in bytes; what is larger is made again with less in it.
LARGEST_PAGE_BYTES: Final = 25_000_000
#: The levels of detail, from everything to the summary alone.
LEVELS: Final = range(6)
#: Levels from which on scripts have nothing to show.
_SUMMARY_ONLY: Final = LEVELS[-1]

#: The page's own modules, each after those that it imports.
_MODULES: Final = (
    "parts/text", "data/content", "parts/address", "parts/elements", "parts/saving", "tables/facts_table",
    "tables/virtual_table", "charts/line_chart", "views/depth_view", "charts/heat_map", "views/block_tree",
    "views/tensor_view", "data/run_data", "views/run_heat", "views/run_view", "page",
)  # fmt: skip
_IMPORT: Final = re.compile(r'^import (\{.*\}) from "\.[./\w]*/(\w+)\.js";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


def page_html(make: PageMaker, largest_bytes: int = LARGEST_PAGE_BYTES) -> str:
    """Returns the file of a page; see `html_parts`."""
    return "".join(html_parts(make, largest_bytes))


def html_parts(make: PageMaker, largest_bytes: int = LARGEST_PAGE_BYTES) -> list[str]:
    """Returns the file of a page, with as much detail as its size allows.

    Args:
        make: Returns the page at a level of detail.
        largest_bytes: The largest size.

    Returns:
        The parts of the document, which are not joined because they may be a tenth of the memory of a command; a
            summary that is itself larger is not cut.
    """
    document: list[str] = []
    for level in LEVELS:
        document = [*_document(make(level), scripted=level != _SUMMARY_ONLY)]
        if sum(len(part.encode()) for part in document) <= largest_bytes:
            break
    return document


def _document(page: Page, *, scripted: bool) -> Iterator[str]:
    style, library, own = (
        _text("uplot/uPlot.min.css") + _text("script/page.css"),
        _text("uplot/uPlot.iife.min.js"),
        _own(),
    )
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(library)} {_hash(own)}",
            f"style-src {_hash(style)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    left_out = PageNotes(notes=[Note(label="left out", text=text) for text in page.left_out])
    tables = next((at for at, each in enumerate(page.summary) if isinstance(each, Table)), len(page.summary))
    yield from (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{text_html(page.title)} - gradscope</title><style>{style}</style></head>",
        f"<body><header><h1>{text_html(page.title)}</h1></header>",
        f'<main><section id="summary">{summary_html([*page.summary[:tables], left_out])}</section>',
        # Scripts put the charts between the two.
        f'<section id="overview">{summary_html(page.summary[tables:])}</section>',
        '<noscript><p class="note">Charts, the complete tables and each tensor need JavaScript.</p></noscript>',
        "</main>",
    )
    if scripted:
        yield from _scripts(page, library, own)
    yield "</body></html>\n"


def _scripts(page: Page, library: str, own: str) -> Iterator[str]:
    # In base64 no text can end the element, whatever names it has.
    yield '<script type="application/octet-stream" id="content">'
    yield from encoded(chain([("kind", page.kind)], page.content), page.packed)
    yield "</script>"
    yield f"<script>{library}</script><script>{own}</script>"


def _own() -> str:
    """Returns the page's modules as one script."""
    return "'use strict';\n" + "".join(map(_module, _MODULES))


def _module(path: str) -> str:
    """Returns a module as a function that is called at once, whose result has what the module exports."""
    name, text = path.rpartition("/")[2], _text(f"script/{path}.js")
    exported = ", ".join(found[1] for found in _EXPORT.findall(text))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = \2_module;", text))
    return f"const {name}_module = (() => {{\n{body}return {{ {exported} }};\n}})();\n"


def _text(name: str) -> str:
    return (files("gradscope.presentation.page") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
