"""Lookup: values and operations of a trace, found by the names that a user gives."""
