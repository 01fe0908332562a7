"""Inference finds in which layout each counterpart is stored, from values and never from shapes alone.

- `layout_search`: the layouts in which two tensors agree by far best, also flipped kernels and flattened images.
- `equal_parts`: the order of equal blocks of a tensor, such as the gates of an LSTM, and the blocks of packed tensors.
- `packed_parts`: which tensors are joined in one.
- `shuffled_blocks`: blocks of several tensors that make up another one in whatever order.
- `terms_of_sums`: which two tensors add up to another, and in which order its blocks are those of a sum.
- `zero_terms`: which parameters of zeros are added to others, as their gradients show.
- `layout_inference`: which pairs may have another layout, and how those decide whose values do not.
- `by_use`: the layouts that values alone do not settle, by what makes them and what reads them.
- `other_sizes`: values of which one program has more elements, and no more that is of use.
- `example_order`: whether the batch has its examples in another order, as the values of the inputs prove.
"""
