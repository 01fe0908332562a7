"""Commands: one module for each command of the program, with the command's name."""
