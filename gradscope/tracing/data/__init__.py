"""Data: variables and batches read from files, and what is said where they do not fit."""
