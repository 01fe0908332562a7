"""Options: groups of command-line options that several commands share."""
