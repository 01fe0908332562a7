"""Two training runs differ at a first step, and at a first tensor in it, as far as statistics tell.

- `run_divergence`: that step and that tensor.
- `run_tensors`: which tensors of the runs are pairs.
- `run_pairs`: which are, by their values, where the programs call them otherwise.
- `packed_in_runs`: the parameters of one run that hold several of the other one.
- `run_tolerances`: how far they may be apart, by the types that the runs compute in.
- `run_rounding`: what differs by rounding alone.
- `run_stages`: the order of what a step computes.
- `differing_rows`: the first row that differs, in words.
- `run_differences`: how the captures and the runs themselves differ (versions, devices, families recorded).
"""
