"""Renaming makes the names of a checkpoint those of a model, by the user's rules.

`key_map` has the rules (`--map-keys`), `renaming_hints` proposes lines of them where names do not fit, and
`proposed_names` the pairs of names that these lines are made of.
"""
