"""Gradient inspection for JAX."""
