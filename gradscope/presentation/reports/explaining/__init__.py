"""Explanations say what the names are that gradscope prints.

`explanation` finds a name in the tables of the program; `printed_words` has the words that reports print, and
`json_keys` and `comparison_keys` the keys of JSON, of which docs/reference/json.md is made, too.
"""
