"""Dumps of several processes: a folder with the shards of each, and an index."""
