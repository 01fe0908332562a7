"""Networks that are drawn at random, and their ports."""
