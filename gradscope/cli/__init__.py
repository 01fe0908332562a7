"""The command line: one file per verb, which only reads options, calls, and prints.

Shared options stand in `options`, the program in `main`. `boundary` is the one place that turns errors into exit
statuses and `interrupts` the one that ends the process on a signal; nothing prints but `printing` and `progress`.
"""
