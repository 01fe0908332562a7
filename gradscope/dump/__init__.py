"""The dump: an `.npz` that `numpy.load` opens, its manifest, a crash-safe writer, a reader that trusts no file."""
