"""Metrics: what the elements of a pair of tensors, or their statistics, say about the difference."""
