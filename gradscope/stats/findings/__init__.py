"""Findings: the table of rules over a dump, and what they find."""
