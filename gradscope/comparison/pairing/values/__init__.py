"""Values: tensors are found by what they hold, whatever they are called.

- `by_values`: equal values in any layout.
- `by_parts`: parts of packed tensors, such as the query, key and value of one kernel, or the gates of an LSTM.
"""
