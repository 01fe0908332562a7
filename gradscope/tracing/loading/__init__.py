"""Loading: from what the user typed to a model: three functions and their provenance."""
