"""Keras models as models."""
