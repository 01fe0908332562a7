"""A dump is an `.npz` file that `numpy.load` opens, with a JSON manifest inside it.

This package writes, reads, verifies and recovers dumps. It needs NumPy and never imports JAX.

Entry points:

- `writer.DumpWriter` writes a dump, one record at a time.
- `reader.open_dump` opens a dump: a file, the folder of several processes, or a foreign file.
- `verify.verify` reads every byte of a dump and compares every CRC-32.
- `recover.recover` copies the complete tensors of an unfinished dump into a new one.

Data types:

- `record` defines a *record*: one tensor to be written, or the reason why it is absent.
- `manifest/` defines the *manifest* and its JSON. An *entry* is its description of one record. The *facts* of a run
  (loss, layers, ledger, provenance) are everything else in it.
- `interfaces` declares a *source*, from which tensors are read by key, and a *sink*, to which records are added.

Sub-packages, each importing only those below it:

- `distributed/` writes and reads the dumps of several processes.
- `sources/` opens dump files, foreign files, and dumps in memory.
- `zip/` reads and writes zip archives.
- `storage/` reads, writes and checksums single files.

Where things happen:

- The crash-safe write: `storage/writing/partial_file.py`, whose `PartialFile.publish` syncs and renames.
- CRC-32: `zip/zip_writer.py` computes it, `storage/streams.py` checks it.
- Dtypes that NumPy files cannot name (bfloat16, int4, PRNG keys): `arrays.dtypes` and `storage/member_facts.py`.
- Limits on untrusted input: `storage/npy_header.py`, `zip/directory.py`, `zip/end_record.py`, `manifest/json_text.py`.

Vocabulary:

- The *key* of a tensor is `<family>/<name>`. A *member* is the file inside the zip that holds its bytes.
- The *ledger* is the manifest's list of values that are missing, with the reasons.
- A *partial* is a dump that is being written: a locked file next to its target.
- A *shard* is the box of a global array that one process stores. The *index* lists the files of all processes.
- A *foreign* file is an `.npz`, `.npy` or `.safetensors` that another program wrote. It opens as a dump without
  statistics.

Two guarantees decide the design:

- A path holds the old dump or the complete new one, whatever kills the process. So bytes are written into a partial,
  and `fsync` comes before the rename and before success is reported.
- Reading an untrusted file runs no code, follows no name out of the file, and allocates no memory for bytes that the
  file does not have. So this package has its own small and strict parsers, and every problem is a `DumpError` that
  states what is wrong and where.

Why not `numpy.savez` and `numpy.load` (2026-11): killed while replacing a dump, `savez` lost the old one every time.
Flipped bits made `load` raise eleven kinds of exception, and sometimes lose members silently.
"""
