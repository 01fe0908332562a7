"""Comparisons are the commands that judge a program by another run of it, or make what it is judged by.

- `compare` judges whether two dumps are the same.
- `calibrate` writes a reference with its own noise.
- `mesh` compares a run on one device with those on several.
"""
