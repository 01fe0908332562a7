"""Loading makes a `Model` of the target that the user typed: three functions and their provenance.

- `loader` does all of it: `target` parses the text, `importing` imports the file or module (`zoo` for the models that
  come with gradscope), and `plain_functions` or `module_models` make the model.
- `own_formats` reads checkpoints that only a framework and the user's module can read; `random_keys` removes the keys
  that a module does not need.
- `batches` reads a batch from a file or an input pipeline, in place of the model's own.
"""
