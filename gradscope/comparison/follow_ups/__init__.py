"""Follow-ups build on a comparison.

- `isolation` stores which layers are wrong when each runs on the reference's inputs.
- `tensor_diff` shows where in one tensor the difference is.
- `mesh_fault` defines what differs on a mesh, by a kind.
- `mesh_values` has what the devices along an axis of a mesh have of a value, beside what there is on fewer.
- `mesh_relations` says how the one is made of the other.
- `mesh_paths` tells what differs and leads to the loss from what is only arranged otherwise.
- `repeated_terms` finds what is in a value once for each device.
- `mesh_faults` says by what kind of fault a mesh differs, and which collective is next to it.
- `mesh_comparison` compares runs on several numbers of devices with that on the fewest.
"""
