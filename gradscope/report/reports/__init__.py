"""Reports: one module for each kind of result that a command shows."""
