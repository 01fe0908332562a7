"""Keras models are run by `keras_adapter`; `weight_files` reads `.keras` and `.weights.h5` files."""
