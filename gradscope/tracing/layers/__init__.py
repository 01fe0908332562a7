"""Layers group a trace's equations, and sites are the values that can be observed.

1. `fallback_scopes` returns the scopes of equations, which it infers in a model that has none.
2. `layers` finds the layers. A *layer* is a maximal run of equations under one entry into one scope.
3. `root_names` finds the roots whose names are left out of those of the layers inside them.
4. `parameter_views` finds the values that are parameters, converted or sliced.
5. `parameter_uses` finds the parameters that mix signals, as matrices do.
6. `convolution_kernels` finds the parameters that are kernels of convolutions, and what each of their axes is.
7. `sites` finds the sites. A *site* is a value that a layer returns or reads, and that can therefore be observed.
8. `narrow_layers` finds the dtypes of fewer digits than float32 in which layers compute.
9. `uses` finds the uses. A *use* is one operand at which an operation reads a value.
"""
