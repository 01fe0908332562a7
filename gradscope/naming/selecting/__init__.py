"""Selecting finds the names that a user means: by a pattern, and by likeness where there is no such name.

- `patterns` selects names by globs and regular expressions.
- `first_pattern` finds the first of many patterns that matches a name.
- `bounded_regex` bounds the time of a regular expression.
- `nearest_names` finds the names nearest to a requested one, and words the hint.
"""
