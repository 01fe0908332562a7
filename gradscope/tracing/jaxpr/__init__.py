"""Jaxprs: what JAX's traced programs contain, version by version, and the tree of *frames*: a sub-jaxpr in its place.

Why control flow is a table (2026-11): what loops, branches and calls do with values was asked in 70 comparisons with a
frame's kind, in 22 modules, and nothing said which of them a new higher-order primitive had to be added to. Now each
kind of frame has one `Transfer`, which the analyses read, and one interpreter rule; a test fails until both exist, and
a law evaluates programs by the table alone and compares with JAX.
"""
