"""The table of metrics, and that every row is made of metrics that it has."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.comparison import compare
from gradscope.comparison.judging.expression_parser import parse_expression
from gradscope.comparison.metrics.metrics import METRICS
from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.dump.record import SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.errors import UsageError
from gradscope.naming import split_key
from gradscope.stats import tensor_stats

TENSORS = {
    "input/x": np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4),
    "activation/layer": np.linspace(-3, 2, 12, dtype=np.float32).reshape(3, 4),
    "aux/logits": np.array([-1e9, 0.5, 1, -1e9, 0.25, 1, -1e9, 2], np.float32),
    "param/w": np.linspace(-1, 2, 6, dtype=np.float32),
    "param_grad/w": np.linspace(-2, 1, 6, dtype=np.float32),
    "activation_grad/layer": np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4),
    "example_grad/w": np.linspace(-7, 2, 30, dtype=np.float32).reshape(5, 6),
}


def dump(scale: float) -> MemoryDump:
    """A calibrated dump."""
    tensors = {key: (array * np.float32(scale)).astype(np.float32) for key, array in TENSORS.items()}
    entries: list[Entry] = []
    for key, array in tensors.items():
        family, name = split_key(key)
        stats = {**tensor_stats(array).to_json(), "noise": 1e-7}
        site = SiteFacts(index=0)
        entries.append(Entry(family=family, name=name, shape=array.shape, dtype="float32", stats=stats, site=site))
    layers = (Layer(path="layer", index=0, params=("w",), inputs=("x",), outputs=("layer",)),)
    return MemoryDump(Manifest(entries=tuple(entries), layers=layers), tensors)


def test_rows_have_every_metric_of_the_table_and_no_other_and_those_of_elements_in_its_order() -> None:
    rows = compare(dump(1.0), dump(1.5)).rows
    assert {name for row in rows for name in row.metrics} == {spec.name for spec in METRICS}
    names = [spec.name for spec in METRICS if spec.name != "masked"]
    assert [list(row.metrics) for row in rows if row.family == "input"] == [[*names[: names.index("growth")], "noise"]]


@pytest.mark.parametrize("spec", METRICS, ids=lambda spec: spec.name)
def test_an_expression_may_name_every_metric_that_has_an_order(spec: object) -> None:
    text = spec.name if spec.kind == "flag" else f"{spec.name} < 1"
    if spec.kind not in ("index", "element"):
        assert parse_expression(text).mentions(spec.name)
    else:
        with pytest.raises(UsageError, match="there is no metric"):
            parse_expression(text)
