"""Renaming makes the names of a checkpoint those of a model, by the user's rules.

`key_map` has the rules (`--map-keys`), `renaming_hints` proposes lines of them where names do not fit, `proposed_names`
the pairs of names that these lines are made of, and `name_likeness` measures how much says that two are a pair.
`unstacking` proposes rules of `--map` for layers in one stack, `rival_homes` lines that choose one of several places.
`file_hints` says of files that no renaming helps what to do, and `replicas` tells copies for each device.
`checkpoint_request` has a checkpoint with what is done to its tensors, and `renamed_counts` tells of counts that
another library reads otherwise.
"""
