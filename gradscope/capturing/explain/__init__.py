"""Explanations: where a NaN began, why a gradient is zero, how much observing changed the gradients."""
