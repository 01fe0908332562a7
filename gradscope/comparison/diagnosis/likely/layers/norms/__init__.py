"""Norms differ in what they read, and in what they add to a variance, divide by, subtract or multiply by.

- `norm_differences`: norms that read the same.
- `evaluated_norms`: batch norms in evaluation, with what they add to running variances.
- `norm_factors`: by what norms multiply, and what that is made of.
- `summed_reads`: norms that read a sum for which a program has no entry.
- `named_sums`: that sum, in words.
- `terms_before`: the values that may be added up in it.
"""
