"""Dataflow states which values depend on which, forwards and backwards, through every frame of a trace.

1. `backward` follows values from a function's outputs to the values that they are made from.
2. `liveness` finds the equations that the loss, or any output, depends on.
3. `reachability` finds the values at which a cotangent arrives in the backward pass.
4. `forward` follows values to everything that is made from them.
5. `constants_before_rules` finds the values that an observation must not differentiate.
6. `gradient_barriers` explains why no gradient arrives at a value.
7. `between_known_values` splits a trace into segments between known values.
8. `products` finds the values that lead to a product of matrices with weights.
9. `stopped_data` distinguishes a part that is a target on purpose from one that was cut off.
10. `affine_operands` finds what a loss is affine in, as in a dual variable.
"""
