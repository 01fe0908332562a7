"""Statistics describe tensors and layers, and rules make findings in them. This package never imports JAX.

Statistics of one tensor:

- `tensor_stats` defines `TensorStats`, whose attributes are the columns of a tensor (`mean`, `l2`, `nan`, ...), and
  computes it from an array. The reductions themselves are in `gradscope.arrays.passes.single_pass`.
- `units` adds the shares of dead units and of saturated elements for an activation.
- `chunks` computes the same statistics for a tensor that is read chunk by chunk, and finds where its extremes are.
- `core_tier` makes a `TensorStats` from the numbers that a compiled step has reduced on the device.
- `columns` is the table of all columns (`COLUMNS`): name, definition, unit and tier of each.
- `reduction_columns` reads the reductions back from the JSON of a manifest.

Statistics of a run:

- `fill_missing` adds statistics to a manifest that has none, such as that of a foreign file.
- `merging` merges the manifests of several processes; the statistics of a tensor are the sum of its shards'.
- `power` adds up squares, for the root mean square of several tensors.
- `gains` computes the gains of layers, and the ratio of each parameter's gradient to the parameter.

Findings:

- `findings/find` lists the rules (`RULES`) and applies them to a manifest; `findings/rule_evidence` defines the default
  thresholds (`Thresholds`); of `findings/rules`, `value_rules` decides whether what is not finite is thrown away, and
  `batch_rules` names the large inputs that are no finding.

Vocabulary: the *core tier* consists of the columns that a compiled step computes, the *full tier* of all columns. A
*finding* is a tensor that looks wrong, with the name of the rule and the number that triggered it.

Why NumPy in blocks, and compiled loops as an extra only: NumPy installs everywhere. With blocks that fit in the cache,
the core tier runs at 6 GB/s, and the full tier without its hash at 1.4 (float32, one core); compiled, at 19 and 5. The
hash, SHA-256, runs at 1.8 and has a thread of its own where a tensor is large.
"""

from gradscope.dump.manifest.manifest import Tier
from gradscope.stats.chunks import ExtremePlaces, extreme_places, stats_of_chunks
from gradscope.stats.columns import COLUMNS, ColumnSpec
from gradscope.stats.core_tier import CoreNumbers, stats_from_core
from gradscope.stats.fill_missing import measured
from gradscope.stats.findings.find import RULES, FindingRule, find
from gradscope.stats.findings.rule_evidence import Finding, Thresholds
from gradscope.stats.findings.rules.batch_rules import unscaled_inputs
from gradscope.stats.findings.rules.value_rules import is_thrown_away
from gradscope.stats.gains import LayerGains, gradient_ratios, layer_gains
from gradscope.stats.merging import merged_manifest
from gradscope.stats.tensor_stats import TensorStats, tensor_stats
from gradscope.stats.units import activation_stats

__all__ = [
    "COLUMNS",
    "RULES",
    "ColumnSpec",
    "CoreNumbers",
    "ExtremePlaces",
    "Finding",
    "FindingRule",
    "LayerGains",
    "TensorStats",
    "Thresholds",
    "Tier",
    "activation_stats",
    "extreme_places",
    "find",
    "gradient_ratios",
    "is_thrown_away",
    "layer_gains",
    "measured",
    "merged_manifest",
    "stats_from_core",
    "stats_of_chunks",
    "tensor_stats",
    "unscaled_inputs",
]
