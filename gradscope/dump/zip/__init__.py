"""Zip reads and writes the archive format of a dump: strictly when reading, member by member when writing.

Write side:

- `zip_writer` writes members one after the other, computes each one's CRC-32, and writes the directory behind them.

Read side, in the order in which a file is read:

- `end_record` finds the record at the end of the file, with the offset of the directory and the number of members.
- `directory` parses the directory: one record per member. It refuses all that a lenient reader would guess at.
- `members` compares a member's local header with its record, and opens a stream of its bytes.

Both sides:

- `structures` defines the binary records. `extra_fields` parses the variable fields of a record.
- `member_names` maps the key of a tensor to the name of its member, and back.

Vocabulary: a *member* is one file inside the zip: the `.npy` of one tensor, or the manifest. A *local header* precedes
each member's data; the *directory*, at the end of the file, repeats all headers with their offsets.
"""
