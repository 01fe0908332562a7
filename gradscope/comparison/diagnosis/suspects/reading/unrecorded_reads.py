"""`unrecorded_read` tells that a layer reads another value than its counterpart, where neither program has one for it.

Programs without a scope around an attention, or around an activation function, have nothing between two layers. Then
what the layer behind reads shows where the difference is made: it is recovered of both programs (`recovered_values`),
or it is a function of what both programs have before, which the gradient of the kernel shows (`correlations`), or the
root mean square of what the layer reads (`read_powers`), or a sum of multiples of such values, or an attention of them
(`attentions`). Where the layer is the same in both programs, or is right in both (`read_proofs`), that alone shows that
it reads another value.
"""

from __future__ import annotations

from gradscope.comparison.diagnosis.suspects.reading.attentions.attention_reads import attention_read
from gradscope.comparison.diagnosis.suspects.reading.kinds.looked_up_rows import rows_read
from gradscope.comparison.diagnosis.suspects.reading.kinds.odd_parts import odd_parts
from gradscope.comparison.diagnosis.suspects.reading.kinds.token_sequences import sequence_read
from gradscope.comparison.diagnosis.suspects.reading.layer_reads import NO_ENTRY, LayerReads
from gradscope.comparison.diagnosis.suspects.reading.other_sources import other_source
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing


def unrecorded_read(dumps: Dumps, pairing: Pairing, key: str) -> str:
    """Returns what a layer reads of which no program has an entry, in words; "" where that is not known to differ.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        key: The key of the output of the layer in the reference, which differs.
    """
    match = _match_of(pairing, key)
    if match is None:
        return ""
    if words := other_source(dumps, pairing, match):
        return words
    own, its = LayerReads.of_both(dumps, pairing, match)
    found = own.functions() or its.functions() or own.turned() or own.terms() or own.powers(its)
    found = found or attention_read(dumps, pairing, key) or sequence_read(dumps, pairing, match)
    found = found or rows_read(dumps, pairing, match)
    if found or own.looks_up() or its.looks_up():
        return found
    found = own.joined() or its.joined()
    found = found or own.recovered() or its.recovered() or own.stated(its)
    found = found or own.shown() or its.shown()
    in_a_step = found.endswith(NO_ENTRY)
    odd = odd_parts(dumps, pairing, own.read) if not found or in_a_step else ""
    digits = (own.digits(its) or its.digits(own)) if in_a_step else ""
    return ", ".join(filter(None, (found, digits, f"or in {odd}" if odd else "")))


def functions_read(dumps: Dumps, pairing: Pairing, key: str) -> str:
    """Returns which functions of values that agree a layer reads in both programs, in words; "" if not others.

    Steps of one program alone are right then that lie between those values and the layer.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        key: The key of the output of the layer in the reference, which differs.
    """
    match = _match_of(pairing, key)
    if match is None:
        return ""
    own, its = LayerReads.of_both(dumps, pairing, match)
    # A capture of PyTorch does not state what a layer reads: the other program may.
    return own.functions() or its.functions()


def _match_of(pairing: Pairing, key: str) -> Match | None:
    return next((each for each in pairing.matched if each.ref == key), None)
