"""The dump: an `.npz` that `numpy.load` opens, its manifest, a crash-safe writer, a reader that trusts no file.

Vocabulary:

- A *record* is one tensor on its way into a dump, or the reason why there is none; an *entry* is what the dump
  remembers of it. Its *key* is `<family>/<name>`; a *member* is the file inside the zip that holds its bytes.
- The *manifest* is the JSON inside the file that says everything but the bytes: entries with their statistics, the
  layer tree, the *ledger* of what is missing and why, provenance.
- A *sink* takes records (`writer` into a file, `memory` into none); a *source* gives them back.
- A *partial* is a dump that is being written: a locked file beside its target, renamed onto it when it is whole.
- Several processes write one dump into a folder: each the *shards* that it holds, boxes of *whole* tensors, into a file
  of its own; the first an *index* at last, without which the dump reads as incomplete.
- A *foreign* file is an `.npz`, `.npy` or `.safetensors` that somebody else wrote; it opens as a dump that knows less.

Two promises decide the design. A path holds the old dump or the whole new one, whatever kills the process; so bytes go
into a partial, and `fsync` comes before the rename and before anybody is told. And reading never runs code, never
follows a name out of the file, never allocates by a header's word alone; so the reader has its own parsers for what it
reads, small ones that refuse, and whatever is wrong is one `DumpError` that says what and where.

Why not `numpy.savez` and `numpy.load` (2026-11): killed while replacing a dump, `savez` lost the old one every time;
flipped bits made `load` raise eleven kinds of exception, and now and then lose members without a word.
"""
