"""The attacks of `scripts/torture`.

- `kills` kills commands at random moments.
- `faults` makes every system call of a write fail, or kills there, one run for each call and error.
- `damage` damages the files of a run, and looks at how the commands that read it end.
- `large` reads and damages large files and very many tensors.
- `fuzzing` feeds the readers of files and of expressions with what a coverage-guided fuzzer makes of good ones.
- `signals` sends commands the signals of terminals, shells and schedulers.
- `writers` lists the commands that write, and `commands` runs the command line.
"""
