"""Pairing finds the *counterpart* in the candidate of each tensor of the reference.

Pairing runs in *passes*. Each pass considers only the tensors that earlier passes left unmatched (`matching`,
`passes`):

    map          `by_rules`       the rules of a map file (`map_file`)
    name         `matching`       equal keys; nothing where the values of parameters refute the names, or one program
                                  has a loop where the other calls a layer again
    path         `by_path`        equal normal forms of the names (`normal_forms`); `[L, ...]` with L numbered tensors;
                                  nothing where the values of parameters refute the names
    fingerprint  `values`         equal values in any layout, found by statistics and verified element by element, and
                                  parts of packed tensors; by statistics alone where there are no elements
    order        `structure`      the same place of two programs, by parameters, operations and order, whatever the
                                  values; of dumps without layers, the same position among tensors of one operation
                                  and shape (`matching`), and the layer of the same parameters
    iterations   `loops`          outputs of a scanned loop with the iterations of an unrolled one; before names,
                                  the values of a batch with those of its parts

Names of values that are uncertain (`structure.uncertain_names`) count behind equal values.

A gradient is matched as its value is. A `Match` stores a key of the reference and the recipe of its counterpart;
`inference` then adds transposes, reshapes, flips and sums to recipes. A match is *inverse* where the candidate has the
loop, or a value that the reference repeats, and the recipe is over the reference's tensors. `reverse` reads a pairing
backwards: it makes the tensors of the candidate from those of the reference.
"""
