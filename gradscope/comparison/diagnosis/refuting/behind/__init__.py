"""Behind tells what the values that are computed from a pair say of it.

- `errors_behind`: the largest errors behind values, and the errors that they inherit.
- `values_behind`: whether what is computed next from both values of a pair agrees.
- `scaled_groups`: whether two values differ by one number for each group, as norms of the same do.
- `norm_pairs`: whether both values are of one norm, of which the next norm undoes what differs.
"""
