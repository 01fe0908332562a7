"""Equinox modules become models here.

`equinox_adapter` calls them, `partition` separates their arrays from the rest, `scoped_modules` opens a scope for each
of them, as `called_modules` does for those that the user's own step passes, and `saved_leaves` reads `.eqx` files.
"""
