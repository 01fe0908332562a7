"""Keras models as models: `keras_adapter` calls them, and `weight_files` reads `.keras` and `.weights.h5` files."""
