"""Pairing finds the *counterpart* in the candidate of each tensor of the reference.

Pairing runs in *passes*. Each pass considers only the tensors that earlier passes left unmatched (`matching`,
`passes`):

    map          `by_rules`        the rules of a map file (`map_file`)
    name         `matching`        equal keys
    path         `by_path`         equal normal forms of the names (`normal_forms`); `[L, ...]` with L numbered tensors
    order        `matching`        the same position in execution order among tensors of one operation and shape
    fingerprint  `by_values`       equal values in any layout: found by statistics, verified element by element
    iterations   `by_iterations`   outputs of a scanned loop with the iterations of an unrolled one (`unrolled_loops`)

A `Match` stores a key of the reference and the recipe of its counterpart; `layout_inference` then adds transposes and
reshapes to recipes. A match is *inverse* where the candidate has the loop and the recipe is over the reference's
tensors. `reverse` reads a pairing backwards: it makes the tensors of the candidate from those of the reference.
"""
