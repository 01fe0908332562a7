"""Functions of elements or of shares inside a model are found by what they compute, and not by a name.

1. `bounded_functions` finds softmaxes, sigmoids and the like inside layers.
2. `softmax_neighbours` finds the noise that is added to what these receive.
3. `softmax_products` finds softmaxes whose shares weight along another axis than theirs.
4. `clips` finds clips by two numbers.
5. `drawn` finds masks and noise that a program draws, and those of them that are the same at every step.
6. `running_averages` finds the averages that a loss returns to be given them again.
7. `rectified_logits` finds rectifiers, sigmoids and tanhs whose results a loss takes for logits.
8. `given_statistics` finds norms of a mean and a variance that a loss is given.
9. `classes_over_examples` finds the softmax of a loss that is over the examples.
10. `model_values` finds which values pass a signal on, on which the others rest.
"""
