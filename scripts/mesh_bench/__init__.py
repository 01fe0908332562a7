"""The bench of meshes: right and faulty programs on devices, and what `gradscope mesh` says of each.

- `networks` has the parts that programs are made of.
- `examples_divided`, `features_divided` and `positions_divided` have programs, by what they divide among devices, and
  `otherwise_arranged` such whose values are in another arrangement on several.
- `judging` runs them on one device and on several, and counts what is said rightly.
"""
