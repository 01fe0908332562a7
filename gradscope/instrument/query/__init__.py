"""Queries: what is to be captured or differentiated, resolved to a plan."""
