"""Judging: tolerances, noise floors, and one row with a status for each pair."""
