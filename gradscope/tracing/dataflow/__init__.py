"""Dataflow: what depends on what, forwards and backwards, through every frame of a trace."""
