"""Records: what a run observed, measured and turned into the records of a dump."""
