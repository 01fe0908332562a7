"""Jaxprs are JAX's traced programs, here independent of JAX's version, as a tree of frames.

1. `jaxcompat` reads equations and sub-jaxprs, and `sharding` the shardings in types, in every supported JAX version.
2. `transfers` has one `Transfer` per kind of higher-order primitive. A *transfer* states how values pass between an
   equation and a jaxpr that it runs.
3. `frames` builds the tree of frames. A *frame* is a jaxpr together with the equation that runs it.
4. `iterations` follows values from one iteration of a loop to another, and into and out of loops and branches.
5. `scopes` joins name scopes to layer paths. `module_loops` finds *lifts*, loops that a framework runs for one module.
6. `source_lines` and `fingerprint` describe source files and complete traces.
7. `derivatives` are those of single equations: custom rules, what JAX refuses, and a backward rule applied by itself.

Why control flow is a table (2026-11): the behaviour of loops, branches and calls was decided by 70 comparisons with a
frame's kind, in 22 modules, and nothing stated which of them a new higher-order primitive had to be added to. Now each
kind of frame has one `Transfer`, which the analyses read, and one interpreter rule. A test fails until both exist.
Another test evaluates programs by the table only and compares the results with JAX's.
"""
