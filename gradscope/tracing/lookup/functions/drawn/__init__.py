"""Random numbers that a program draws, and what it does with them to each example.

1. `random_masks` finds masks, as of a dropout.
2. `random_noise` finds noise that is added to values, or multiplies them.
3. `repeated_draws` finds those of both that are the same at every step, and what decides the others.
"""
