"""Commands have one module each, with the command's name.

`runs` has those about training runs, and `files` those about the file of a dump and not what it says.
"""
