"""The Python interface offers the functions of the command line to programs and notebooks.

`reading` and `comparing` open and compare dumps and never import JAX; `capture_function` and `observing` make them. All
of it is re-exported from `gradscope`, on first use, so that `import gradscope` costs nothing.
"""
