"""`python -m gradscope` is the same as the `gradscope` command."""

import os
import sys

# Python puts the current folder there, for which the command has no use: a `rich.py` in it is not the library, nor is a
# `pathlib.py`.
if not sys.flags.safe_path and os.path.isdir(sys.path[0]) and os.path.samefile(sys.path[0], "."):  # noqa: PTH112, PTH121
    del sys.path[0]

from gradscope.cli.main import main

# A program that runs this module in itself, as a profiler does, goes on behind it.
main(own_process=vars(sys.modules["__main__"]) is globals())
