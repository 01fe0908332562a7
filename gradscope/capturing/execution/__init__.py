"""Execution: arguments made, the observing program compiled and run, at once or in segments."""
