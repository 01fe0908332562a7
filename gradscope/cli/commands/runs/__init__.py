"""The commands about training runs alone, one module for each."""
