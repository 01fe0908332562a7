"""Storage: files, checksums, `.npy` headers and errors of the machine, below any notion of a dump."""
