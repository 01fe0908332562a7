"""Attentions tell which attention of the values before it a layer reads in both programs.

- `attention_reads`: the attentions that make the outputs of a layer in both programs.
- `attention_parts`: the values that an attention may be of, and what its scores may have added.
- `reading_layers`: the layers that may read an attention.
- `attention`: one way in which an attention is computed.
- `masks`: what its scores may be masked by.
- `rotary`: one way in which its queries and keys are rotated by their positions.
"""
