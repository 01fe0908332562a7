"""Reproducing writes one layer, with its values from a dump, as a script of its own (`gradscope isolate`).

- `reproduction`: the layer with its inputs and the expected results.
- `expectation`: one array that the script must compute.
- `layer_functions`: the layer and its VJP as functions.
- `gradient_floors`: how far rounding alone can move the gradients that it returns.
- `paired_layers`: the layer of a port by the reference's name of it.
- `layer_values`: its values in the dump.
- `reproduction_script`: writes the script.
- `to_python`: writes a jaxpr as Python.
- `lax_calls`: writes one equation.
"""
