"""Sources: everything that can be read as a dump: our files, foreign arrays, memory."""
