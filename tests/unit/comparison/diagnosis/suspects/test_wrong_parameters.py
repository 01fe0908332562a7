"""Of a packed parameter that differs, the candidate's parts are wrong that differ from theirs."""

from __future__ import annotations

import numpy as np

from gradscope.comparison.compare_dumps import judged, paired
from gradscope.comparison.diagnosis.suspects.wrong_parameters import wrong_parameters
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.limits.noise import DefaultLimits
from gradscope.comparison.pairing.matching import Dumps
from tests.support.dumps import dump_of

PARTS = {name: np.random.default_rng(n).normal(size=(4, 6)) for n, name in enumerate(("query", "key", "value"))}
BIASES = {name: np.random.default_rng(9 + n).normal(size=4) for n, name in enumerate(PARTS)}


def test_a_part_is_wrong_where_it_differs() -> None:
    packed = {"param/attn/qkv/kernel": np.concatenate([*PARTS.values()]),
              "param/attn/qkv/bias": np.concatenate([*BIASES.values()])}  # fmt: skip
    for wrong in PARTS:
        changed = PARTS | {wrong: PARTS[wrong][::-1]}
        apart = {f"param/{name}/kernel": np.ascontiguousarray(part.T) for name, part in changed.items()}
        apart |= {f"param/{name}/bias": bias for name, bias in BIASES.items()}
        dumps = Dumps(ref=dump_of(packed), cand=dump_of(apart))
        pairing = paired(dumps, CompareOptions())
        rows = judged(dumps, pairing.matched, CompareOptions(), DefaultLimits.of_whole(dumps, None))
        assert wrong_parameters(dumps, pairing, [*rows.values()]) == {"attn/qkv/kernel", f"{wrong}/kernel"}
