"""Isolation: single layers run on pinned values, and written as scripts of their own."""
