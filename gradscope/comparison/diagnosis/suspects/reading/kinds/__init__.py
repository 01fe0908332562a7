"""Kinds are what a layer may read in both programs, each of which the values show in a way of their own.

- `joined_reads`: as which of its channels a layer reads a value that is joined with others.
- `looked_up_rows`: which rows of its table an embedding looks up.
- `odd_parts`: a value whose parts are in another order than those of the values like it.
- `read_powers`: which function of a value a layer reads, by the root mean square of that.
- `read_proofs`: layers that are right in both programs, and so read other values.
- `read_sums`: by what numbers the terms are multiplied of a sum that a layer is.
- `token_sequences`: which sequence of tokens a norm reads, as of an image.
"""
