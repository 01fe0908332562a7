"""Frameworks without an adapter: what to do with their modules, which are recognised by the package of their class.

Imports none of them.
"""

from __future__ import annotations

from typing import Any, Final

_HINTS: Final = {
    "penzai": "a Penzai model holds its parameters as variables: in init return their values, {each.label: each.value "
    "for each in pz.unbind_params(model)[1]}, and in loss bind them again, with pz.bind_variables"
}


def unsupported_hint(value: Any) -> str | None:
    """Returns what to do with an object of a framework that has no adapter; None for any other object."""
    packages = (each.__module__.partition(".")[0] for each in type(value).__mro__)
    return next((_HINTS[package] for package in packages if package in _HINTS), None)
