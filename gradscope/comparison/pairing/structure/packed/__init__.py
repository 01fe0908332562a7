"""Packed layers pair what one program has as one layer or value, and the other as several.

- `packed_layers`: outputs of layers of which the other program has several as one.
- `shuffled_layers`: the same, of layers that are packed block by block in another order.
- `joined_values`: values that are two of the other program, joined.
- `stacked_parts`: parameters that are stacked in one program, and packed in other ones of the other.
"""
