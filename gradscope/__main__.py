"""`python -m gradscope` is the same as the `gradscope` command."""

import sys

from gradscope.cli.main import main

# A program that runs this module in itself, as a profiler does, goes on behind it.
main(own_process=vars(sys.modules["__main__"]) is globals())
