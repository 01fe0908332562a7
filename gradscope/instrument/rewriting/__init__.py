"""Rewriting: the interpreter that runs a traced loss again with taps in place."""
