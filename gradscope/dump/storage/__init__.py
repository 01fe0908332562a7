"""Storage opens, writes and checksums single files. Nothing here knows the manifest's contents or the zip directory.

Write side:

- `writing/` is the crash-safe write of a file, past the system's cache where that is faster.

Read side:

- `input_file` reads bytes of a regular file at any offset, from any thread.
- `bounded_text` reads a text file that a user writes.
- `streams` reads the bytes of one tensor in order, inflates them where needed, and checks their CRC-32.
- `stored_tensor` reads one tensor of a file: the full array, a range of its elements, or chunk by chunk.

Both sides:

- `checksum` computes CRC-32. `npy_header` writes and parses `.npy` headers. `member_facts` stores the logical dtype of
  a zip member whose `.npy` header cannot name it (bfloat16, int4, ...).
- `storage_errors` turns errors of the operating system into `MachineError`, and adds locations to error messages.

Vocabulary: a *partial* is a dump that is being written, a locked file next to its *target*. A *chunk* is the number of
bytes or elements that is read or written at a time; memory is bounded by it.
"""
