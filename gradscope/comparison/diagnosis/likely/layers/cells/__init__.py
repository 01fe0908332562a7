"""Recurrent layers differ in a gate, a function, a bias, a direction or a state.

- `cell_differences`: in what the layers of two programs differ.
- `forms`: how recurrent layers compute their states.
- `recurrent_cells`: what they make of a sequence.
"""
