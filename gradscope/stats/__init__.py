"""Statistics: numbers about tensors, layers and parameters, and the rules that read them. Never imports JAX.

- `COLUMNS` is the table of all columns. `TensorStats` holds those of one tensor; `tensor_stats`, `activation_stats` and
  `stats_of_chunks` measure it, `stats_from_core` takes it from a compiled step; statistics of parts add up. `measured`
  completes a dump's manifest, `merged_manifest` makes that of several processes' common one.
- `layer_gains` and `gradient_ratios` relate tensors to each other.
- `find` runs the table of `RULES` over a dump's manifest; each `Finding` says what is wrong where, with the number.

Why NumPy in blocks and not a compiled extension: it installs everywhere, and walking blocks that fit into cache brings
the core tier to 4 GB/s and the full tier, without its hash, to 1.4 (float32, one core), about the speed of the hash.
"""

from gradscope.dump.manifest.manifest import Tier
from gradscope.stats.chunks import stats_of_chunks
from gradscope.stats.columns import COLUMNS, ColumnSpec
from gradscope.stats.core_tier import CoreNumbers, stats_from_core
from gradscope.stats.fill_missing import measured
from gradscope.stats.findings.find import RULES, Rule, find
from gradscope.stats.findings.rule_evidence import Finding, Thresholds
from gradscope.stats.gains import LayerGains, gradient_ratios, layer_gains
from gradscope.stats.merging import merged_manifest
from gradscope.stats.tensor_stats import TensorStats, tensor_stats
from gradscope.stats.units import activation_stats

__all__ = [
    "COLUMNS",
    "RULES",
    "ColumnSpec",
    "CoreNumbers",
    "Finding",
    "LayerGains",
    "Rule",
    "TensorStats",
    "Thresholds",
    "Tier",
    "activation_stats",
    "find",
    "gradient_ratios",
    "layer_gains",
    "measured",
    "merged_manifest",
    "stats_from_core",
    "stats_of_chunks",
    "tensor_stats",
]
