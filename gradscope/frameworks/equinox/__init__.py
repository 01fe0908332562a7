"""Equinox modules as models."""
