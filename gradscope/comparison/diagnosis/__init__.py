"""Diagnosis finds where two runs first diverge and which layers cause it, and states the verdict in a sentence.

- `growth`: the error of a tensor relative to the largest error of its sources. Large *growth* means that a layer makes
  the error; growth near 1 means that it inherits the error.
- `divergence`: the *first divergence* is the first row over tolerance in execution order, and in the backward pass in
  reverse order. *Blame* is what is computed from it, and the layers that made it.
- `step_kinds`: what a step computes, and what could be in its place.
- `likely`: simple relations that explain a difference: transposed, a multiple, parts of another, a loss reduced
  otherwise.
- `refuting`: pairs that only their places suggest, and that nothing computed from them bears out.
- `unpaired_sources`: what one program alone has, and values are computed from: outside of their layer, or inside it.
- `suspects`: steps of one program only that may have made the first divergence.
- `runs`: the first step at which two training runs differ, and the first tensor in it, as far as statistics tell; how
  the captures themselves differ (versions, devices, families recorded).
- `sentence`: the verdict in words; `clauses` has what it says besides the first divergence.
"""
