"""Layers and sites: which equations belong to which layer, and which values can be observed."""
