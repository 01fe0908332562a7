"""Parts of several sizes are found where one program has axes of one element, as a convolution of width 1 has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradscope as gs
from tests.support.sampled import sampled

_draw = np.random.default_rng(5).normal
KERNEL, OUT = _draw(size=(6, 11)).astype(np.float32), _draw(size=(5, 4)).astype(np.float32)
X = _draw(size=(2, 3, 6)).astype(np.float32)

#: The packed kernel and its parts, of which each program reads the last two axes or, transposed, the first two.
STORED = {
    "dense": ("...io", lambda kernel: kernel),
    "torch": ("...oiw", lambda kernel: np.ascontiguousarray(kernel.T)[..., None]),
    "width": ("wio", lambda kernel: kernel[None]),
    "height and width": ("hwio", lambda kernel: kernel[None, None]),
}


def _dump(stored: str, *, packed: bool) -> Any:
    axes, store = STORED[stored]

    def dense(kernel: Any, x: Any) -> Any:
        return jnp.einsum(f"bti,{axes.removeprefix('...')}->bto", x, kernel)

    def loss(weights: Any, batch: Any) -> Any:
        if packed:
            with jax.named_scope("res_skip"):
                res, skip = jnp.split(dense(weights["res_skip"], batch["x"]), [6], -1)
        else:
            with jax.named_scope("res"):
                res = dense(weights["res"], batch["x"])
            with jax.named_scope("skip"):
                skip = dense(weights["skip"], batch["x"])
        with jax.named_scope("out"):
            return jnp.square((skip + res[..., :5]) @ weights["out"]).mean()

    parts = {"res_skip": KERNEL} if packed else {"res": KERNEL[:, :6], "skip": KERNEL[:, 6:]}
    weights = {"out": OUT, **{name: store(np.ascontiguousarray(part)) for name, part in parts.items()}}
    return gs.capture(loss, weights, {"x": X}, origins=False)


@sampled("packed_in", ["reference", "candidate"])
@sampled(("whole", "apart"), [(one, other) for one in STORED for other in STORED])
def test_parts_of_several_sizes_may_have_axes_of_one_element(packed_in: str, whole: str, apart: str) -> None:
    pair = _dump(whole, packed=True), _dump(apart, packed=False)
    found = gs.compare(*(pair if packed_in == "reference" else pair[::-1]))
    assert found.verdict == "same", found.sentence
    rows = [row for row in found.rows if row.family == "param"]
    assert {row.status for row in rows} == {"same"}, [(row.name, row.status) for row in rows]
