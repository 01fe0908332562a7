"""`joint_sources` returns what the tensors of a comparison are computed from, as far as either program tells.

Without gradients, a capture from PyTorch knows the inputs of its modules, and not what becomes of an output between
them: of the last layer in a residual block, nothing says that the block's output is made of it. The other program may
tell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from gradscope.comparison.judging.limits.measured_pairs import MeasuredPair
from gradscope.comparison.pairing.matching import Dumps
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import NearestKeys, Sources, sources_of
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT_GRAD, PARAM, PARAM_GRAD, STATE, key_of, split_key

#: The families of what a program computes and its layers tell the sources of.
_COMPUTED: Final = (ACTIVATION, ACTIVATION_GRAD, INPUT_GRAD, PARAM_GRAD)


def joint_sources(dumps: Dumps, pairs: Sequence[MeasuredPair]) -> Sources:
    """Returns the sources of tensors, by the keys of the reference's owners, and those of the candidate where it ends.

    What a module of PyTorch reads is not known behind what is detached: its parameters are left then.

    Args:
        dumps: The dumps.
        pairs: The pairs of their tensors.
    """
    own = _with_state(dumps, pairs, sources_of(dumps.ref.manifest.layers))
    lacking = [each for each in pairs if _ends(each.owner, own.get(each.owner, ()))]
    if not lacking or not dumps.cand.manifest.layers:
        return own
    owners = {dumps.cand.resolve(key): pair.owner for pair in pairs for key in pair.match.recipe.keys}
    sources = NearestKeys(sources_of(dumps.cand.manifest.layers), owners)
    return {**own, **{pair.owner: _joined(own, _behind(dumps, pair, sources, owners), pair) for pair in lacking}}


def _with_state(dumps: Dumps, pairs: Sequence[MeasuredPair], sources: Sources) -> Sources:
    """Returns sources, and of the outputs of layers those of their state that differ, which no layer states.

    A batch norm that is evaluated reads running statistics. Where these differ, it makes no error by itself.
    """
    state = [pair.owner for pair in pairs if split_key(pair.owner)[0] == STATE]
    differing = {each.owner for each in pairs if as_float(each.evidence.metrics.get("rel_l2", 0.0)) > each.limit}
    places = {key: split_key(key)[1].rpartition("/")[0] for key in state if key in differing}
    read: defaultdict[str, list[str]] = defaultdict(list)
    for layer in dumps.ref.manifest.layers if places else ():
        kept = [key for key, place in places.items() if f"/{place}".endswith(f"/{layer.path}")]
        for output in layer.outputs if kept else ():
            read[key_of(ACTIVATION, output)] += kept
    return {**sources, **{key: [*sources.get(key, ()), *kept] for key, kept in read.items()}}


def _ends(owner: str, sources: Sequence[str]) -> bool:
    """Returns whether nothing is known that a computed tensor is made of; of a value, beside parameters."""
    family = split_key(owner)[0]
    return family in _COMPUTED and not (
        any(split_key(each)[0] != PARAM for each in sources) if family == ACTIVATION else sources
    )


def _joined(own: Sources, others: Sequence[str], pair: MeasuredPair) -> list[str]:
    return list(dict.fromkeys((*own.get(pair.owner, ()), *others)))


def _behind(dumps: Dumps, pair: MeasuredPair, sources: NearestKeys, owners: dict[str, str]) -> list[str]:
    found = (owners[each] for key in pair.match.recipe.keys for each in sources.behind(dumps.cand.resolve(key)))
    return [each for each in dict.fromkeys(found) if each != pair.owner]
