"""`why_of_parametrization` says why a parameter of a parametrization needs no counterpart.

A parametrization, such as a weight norm, computes a parameter from others. A program may have what is computed alone,
or what it is computed from, and another program both: one of them tells all that the other would.
"""

from __future__ import annotations

from gradscope.comparison.judging.unpaired.paired_dumps import PairedDump
from gradscope.naming import PARAM, PARAM_GRAD, key_of, split_key


def why_of_parametrization(owner: str, own: PairedDump) -> str:
    """Returns why a parameter, or its gradient, needs no counterpart beside those that are compared; "" where it does.

    Args:
        owner: The key of a tensor without a counterpart, which is no alias.
        own: The dump that has it.
    """
    family, name = split_key(owner)
    if family not in (PARAM, PARAM_GRAD):
        return ""
    param = key_of(PARAM, name)
    effective = own.source.entry(param).site.of if param in own.keys else None
    if effective is not None:
        return f"{effective}, which is computed from it, is compared" if _is_compared(effective, family, own) else ""
    originals = own.originals.get(param, ())
    if not originals or not all(_is_compared(each, family, own) for each in originals):
        return ""
    return f"computed from {', '.join(originals)}, which {'is' if len(originals) == 1 else 'are'} compared"


def _is_compared(param: str, family: str, own: PairedDump) -> bool:
    """Returns whether a parameter is compared; of a gradient, whether that with respect to it is, if there is one."""
    keys = [param] if family == PARAM else [param, key_of(family, split_key(param)[1])]
    known = [own.source.resolve(each) for each in keys if each in own.keys]
    return all(each in own.compared or own.source.entry(each).absent for each in known) and bool(known)
