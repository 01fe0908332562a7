"""The bench of findings: healthy models, in which nothing may be found, and planted faults, each with what is expected.

- `cases` defines `Healthy` and `Fault`, runs one, and judges its findings.
- `nets` has the small networks that the cases vary.
- `healthy_plain` and `healthy_frameworks` list the healthy models, `faults_values` and `faults_paths` the faults.
- `inner_functions` lists both of models whose softmaxes, sigmoids and tanhs have no scope of their own, `stopped_parts`
  of those with parts behind a `stop_gradient`, `margins` of those whose loss is a margin, `choices` of those that
  choose by noise. `recent_models` lists healthy models of kinds that are trained today.
- `held_out_healthy` and `held_out_faults` list those on which no threshold was set, of models some of which are in
  `held_out_models`.
- `outcomes` runs all of them, and goes on where an earlier run of the same program ended.
- `table` writes the page `docs/reference/findings-bench.md`.

The faults were written with their expectations before any threshold was chosen. An expectation is the rules that name
the cause, and the layers in which it is; a fault counts as found where the first finding has one of the rules and is in
one of the layers.
"""
