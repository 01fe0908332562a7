"""Causes are the known ways in which an operation makes what is not finite, and how to mend them.

- `forward_causes` and `backward_causes` say what went wrong in an operation.
- `repairs` says how to mend it, `repairs_of_patterns` where operations around it tell.
- `lost_epsilons` finds the epsilon that the program has already, where its type makes it zero.
"""
