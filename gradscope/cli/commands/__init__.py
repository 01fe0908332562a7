"""Commands: one module for each verb, named like it."""
