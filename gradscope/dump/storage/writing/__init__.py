"""Writing is crash-safe: a path has the old file or the complete new one, whatever ends the process.

- `target_path` checks, before any work is done, that a file can be written to a path.
- `read_files` remembers which files a model's code has read, none of which is replaced.
- `partial_file` is the crash-safe write: a locked temporary file next to its target, `fsync`, then a rename.
- `unpublished` removes what a process was writing when a signal ends it.
- `atomic_file` writes a small file in one piece, by the same crash-safe write; `atomic_folder` a folder of some.
- `set_aside` moves files of a folder away, until there is what replaces them.
- `companions` writes files that belong together into a folder that exists.
- `direct_io` writes the pages of large tensors past the system's cache, where the disk is fast.
- `flushing` syncs what went through the cache to disk in a background thread, while the file is being written.
"""
