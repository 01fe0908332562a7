"""The adapters share these modules, and the model that is made of a framework's module.

- `request` is the user's options for a module; a *spec* (`input_spec`) describes one of its inputs:
  `tokens=int32[8,128]:0..30522`. `random_inputs` makes arrays of specs.
- `adapter` is the interface of all adapters, and of checkpoints that only a framework and the user's module can read;
  `calling` matches inputs to the parameters of a module's call.
- `outputs` names what a module returns, `losses` computes a loss of an output, and an `objective` says which losses of
  which outputs count.
- `module_model` puts these together to the functions of a model.
- `module_scopes` names modules of frameworks that open no scopes, and replaces their calls by ones that do.
"""
