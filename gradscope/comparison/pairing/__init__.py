"""Pairing: which tensor of the candidate is the counterpart of which tensor of the reference."""
