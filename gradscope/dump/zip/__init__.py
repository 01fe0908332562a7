"""Zip: the archive format, read strictly and written in order."""
