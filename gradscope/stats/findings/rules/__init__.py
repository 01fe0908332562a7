"""Rules are pure functions from evidence and thresholds to suspects, by what they are about.

- `weight_rules`, `unit_rules`, `saturation_rules`, `value_rules`, `gradient_rules` and `batch_rules` are about one kind
  of tensor each; `trends` has the rules about depth.
- `harmless_zeros` tells which gradients are zero without a fault.
- `kernels` finds the layers with a kernel, and the gain of their weights. `softmax_values` says what the statistics of
  a value say of it as a softmax. `window_medians` are those of signals around each layer.
"""
