"""The zoo: models in plain JAX, each one file to read from top to bottom, importing nothing of gradscope."""
