"""Placing rates how much speaks for two values being in the same place of two programs.

- `place_rating`: the evidence for a pair of values, or of parameters, altogether.
- `value_places`: with which parameters a value is computed and read.
- `paired_inputs`: whether two values are computed from values that are paired with each other.
- `learnt_names`: whether two names are those of a pair, with the numbers of another layer.
- `identities`: values of layers that return what they read, in whose place what they read is paired.
- `named_parts`: names that are those of a layer in one program, and of a part of it in the other.
- `joined_parameters`: layers of which one uses a whole parameter, and the other one a part of it.
- `norm_steps`: what a norm reads, and what is computed of that before it is scaled.
- `steps_of_layers`: values of which one is a step of a layer, and the other one what the layer returns.
- `numbered_outputs`: the order of the numbered outputs of a layer in which those of its counterpart are nearest.
"""
