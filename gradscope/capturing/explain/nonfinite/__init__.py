"""This search finds the operation in which a NaN or an infinity began.

- `nonfinite_flags` observes which values and gradients are not finite, and `replay` runs single operations again, in
  which `failures` are found.
- `origin_search` goes back from what is not finite to the operation that made it of finite operands; `births` does so
  for one value.
- `discards` finds the `where` that throws away what it makes.
- `causes` says what went wrong in it, and how to mend it.

Why (2026-11): forward, the search compiles a program with a flag for every value; backward, one with flags only of the
gradients that the dump's statistics leave open; and one with the tensors of the few operations that matter. Bisection
over ever shorter parts of the model needs fewer flags, and a compilation for every step, which is what takes the time.
"""
