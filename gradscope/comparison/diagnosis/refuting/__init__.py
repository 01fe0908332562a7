"""Refuting takes back the pairs that only their places suggest, where nothing computed from them bears them out.

- `refuted_guesses`: goes over all guesses, from the loss to the inputs.
- `applied_functions`: pairs by name of which one value is a function of the other that both programs apply.
- `hidden_biases`: pairs that differ by a bias of one program alone, which a norm takes out again.
- `behind`: what the values that are compared next behind a value say of it.
- `gradient_traces`: what gradients show of a value that leaves no trace among those, as before a factor of zero.
- `apart`: pairs of two steps of one computation, which both programs take, and of which one is refuted.
- `traceless_gradients`: pairs of gradients that differ although nothing that is computed from them does.
- `kernel_products`: whether a value is the product of a kernel, and of what.
- `float_tensors`: the floating-point tensors of one dump.
- `activation_functions`: functions of single elements, by name.
"""
