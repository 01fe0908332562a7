"""The terms of gradients in a dump, by the values that they belong to."""

from __future__ import annotations

import numpy as np

from gradscope.api.reading import Dump

#: What may be left of a sum, in units of the last place of its largest term.
_ROUNDING = 64


def terms_of(dump: Dump) -> dict[str, dict[str, np.ndarray]]:
    """The terms of a dump by name, by the key of the value that they are terms of."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for entry in dump.manifest.entries:
        if entry.family == "term" and entry.absent is None and entry.site.of is not None:
            found.setdefault(entry.site.of, {})[entry.name] = dump[f"term/{entry.name}"]
    return found


def assert_sums(dump: Dump) -> None:
    """The law: the terms of a value sum to its gradient, to rounding."""
    for key, parts in terms_of(dump).items():
        family, _, name = key.partition("/")
        gradient, several = dump[f"{family}_grad/{name}"], np.stack(list(parts.values()))
        allowed = _ROUNDING * np.finfo(gradient.dtype).eps * np.abs(several).max(initial=0.0)
        assert several.shape[1:] == gradient.shape, key
        np.testing.assert_allclose(several.sum(axis=0), gradient, rtol=0, atol=allowed, err_msg=key)
