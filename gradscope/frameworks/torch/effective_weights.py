"""A parametrization computes a parameter from others, as weight norm, spectral norm, pruning or a user's own does.

The layer reads what is computed, its *effective* parameter, and a port may have that one alone. So it is a parameter of
the layer, beside the *originals* that are trained. Modules inside a parametrization are no layers of the model.

A parametrization is computed each time that its parameter is read. The gradient with respect to the effective parameter
is the sum of those that arrive at what was computed each time. Where the values change from time to time, as those of a
spectral norm in training do, the value is the first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from gradscope import naming
from gradscope.dump.record import SiteFacts
from gradscope.frameworks.torch.conversion import is_transformed
from gradscope.frameworks.torch.module_names import plain_name
from gradscope.frameworks.torch.torch_values import Value, Values

#: How the names of a parameter's originals end that a hook before each call computes it from.
_ORIGINALS: Final = ("_g", "_v", "_orig")


@dataclass(slots=True, kw_only=True, eq=False)
class _Effective:
    """`_Effective` is one effective parameter.

    Attributes:
        names: Its names, one for each name of the module that has it.
        originals: What it is computed from, by name.
        tensor: What was computed first; None before.
        value: Its value; None before it was computed.
        gradient: The sum of the gradients that have arrived; None before.
        observed: What was computed, by autograd node or identity: a parametrization may return an original as it is.
    """

    names: tuple[str, ...]
    originals: Mapping[str, nn.Parameter]
    tensor: Tensor | None = None
    value: Value | None = None
    gradient: Tensor | None = None
    observed: set[Any] = field(default_factory=set[Any])


class EffectiveWeights:
    """`EffectiveWeights` observe the parameters that the parametrizations of a module compute.

    Args:
        module: The module.
        values: Receives the values.
    """

    def __init__(self, module: nn.Module, values: Values) -> None:
        self._values = values
        self._lists: dict[ParametrizationList, _Effective] = {}
        self._hooked: dict[nn.Module, dict[str, _Effective]] = {}
        parts = (each for each in module.modules() if isinstance(each, ParametrizationList))
        self._of_module: dict[nn.Module, list[_Effective]] = {}
        self._inside = {part for each in parts for part in each.modules()}
        names = _names_of_modules(module)
        for owner in (each for each in module.modules() if each not in self._inside):
            for name, each in getattr(owner, "parametrizations", {}).items():
                if isinstance(each, ParametrizationList):
                    inside = f"parametrizations/{name}"
                    own = {f"{inside}/{plain_name(at)}": of for at, of in each.named_parameters()}
                    self._lists[each] = _effective(names[owner], name, own)
                    self._of_module.setdefault(owner, []).append(self._lists[each])
            for name in _hooked_names(owner):
                own = {at: of for at, of in owner.named_parameters(recurse=False) if _is_original(at, name)}
                found = self._hooked.setdefault(owner, {})
                found[name] = _effective(names[owner], name, own)
                self._of_module.setdefault(owner, []).append(found[name])
        self._all = [each for found in self._of_module.values() for each in found]
        self._of_original = {name: each for each in self._all for name in each.originals}

    @property
    def names(self) -> list[str]:
        """The names of the effective parameters."""
        return [each.names[0] for each in self._all]

    def read_by(self, module: nn.Module, path: str) -> tuple[str, ...]:
        """Returns the names of a module's own parameters as its calls read them, effective ones for their originals."""
        found = [each.names[0] for each in self._of_module.get(module, ())]
        own = (f"{path}/{name}" for name, _ in module.named_parameters(recurse=False))
        return (*found, *(name for name in own if name not in self._of_original))

    def computed_from(self, name: str) -> str:
        """Returns the name of the effective parameter that is computed from one; of another parameter its own."""
        each = self._of_original.get(name)
        return name if each is None else each.names[0]

    def has_inside(self, module: nn.Module) -> bool:
        """Returns whether a module is a part of a parametrization."""
        return module in self._inside

    @contextmanager
    def observing(self) -> Generator[None]:
        """Observes what is computed inside a `with` statement, in a backward pass, too."""
        with ExitStack() as hooks:

            def computed(each: _Effective, tensor: Tensor) -> None:
                if not is_transformed(tensor):
                    self._computed(each, tensor, hooks)

            for module, each in self._lists.items():
                hooks.callback(module.register_forward_hook(_of_output(each, computed)).remove)
            for module, found in self._hooked.items():
                hooks.callback(module.register_forward_pre_hook(_of_attributes(found, computed)).remove)
            yield

    def site(self, name: str, site: SiteFacts) -> SiteFacts:
        """Returns the site of a parameter, that of an original with the parameter that is computed from it."""
        each = self._of_original.get(name)
        computed = each is not None and each.value is not None
        return replace(site, of=naming.key_of(naming.PARAM, each.names[0])) if each and computed else site

    def write(self, user_of: Callable[[str], SiteFacts]) -> None:
        """Writes the effective parameters that were computed.

        Args:
            user_of: Returns the site of the first use of a parameter.
        """
        for each in self._all:
            if each.tensor is not None and each.value is not None:
                first, *others = each.names
                self._values.write_value(each.value, first, each.tensor, user_of(first))
                each.tensor = None
                for name in others:
                    self._values.add_name(each.value, name, user_of(name))

    def write_gradients(self) -> None:
        """Writes the gradients with respect to them."""
        for each in self._all:
            if each.value is not None and each.gradient is not None:
                self._values.write_gradient(each.value, each.gradient)
            elif each.value is not None:
                trained = any(original.requires_grad for original in each.originals.values())
                self._values.write_absent(each.value, frozen=not trained)

    def _computed(self, each: _Effective, tensor: Tensor, hooks: ExitStack) -> None:
        if each.value is None:
            each.value = self._values.named(naming.PARAM, each.names[0], tensor)
            each.tensor = tensor.detach().clone()
        self._values.place(each.value, tensor)
        identity = id(tensor) if tensor.grad_fn is None else (tensor.grad_fn, tensor.output_nr)
        if tensor.requires_grad and identity not in each.observed:
            each.observed.add(identity)
            hooks.callback(tensor.register_hook(lambda gradient: self._arrived(each, gradient)).remove)

    def _arrived(self, each: _Effective, gradient: Tensor | None) -> None:
        if self._values.differentiating and gradient is not None:
            each.gradient = gradient.detach() if each.gradient is None else each.gradient + gradient.detach()


def _of_output(each: _Effective, computed: Callable[[_Effective, Tensor], None]) -> Callable[..., None]:
    return lambda _module, _args, output: computed(each, output)


def _of_attributes(
    found: Mapping[str, _Effective], computed: Callable[[_Effective, Tensor], None]
) -> Callable[..., None]:
    def hook(module: nn.Module, _args: Any) -> None:
        for name, each in found.items():
            computed(each, getattr(module, name))

    return hook


def _names_of_modules(module: nn.Module) -> dict[nn.Module, list[str]]:
    """Returns what the names of each module's parameters begin with."""
    found: dict[nn.Module, list[str]] = {}
    for name, each in module.named_modules(remove_duplicate=False):
        found.setdefault(each, []).append(f"{plain_name(name)}/" if name else "")
    return found


def _effective(starts: list[str], name: str, originals: Mapping[str, nn.Parameter]) -> _Effective:
    names = tuple(f"{start}{name}" for start in starts)
    return _Effective(names=names, originals={f"{starts[0]}{own}": each for own, each in originals.items()})


def _hooked_names(module: nn.Module) -> Iterator[str]:
    """Yields the names of the parameters that hooks of PyTorch compute before each call of a module."""
    hooks = cast("Any", module)._forward_pre_hooks  # noqa: SLF001 - PyTorch has no public name for them
    for hook in hooks.values():
        if isinstance(hook, WeightNorm | SpectralNorm):
            yield hook.name
        elif isinstance(hook, BasePruningMethod):
            yield cast("Any", hook)._tensor_name  # noqa: SLF001 - PyTorch has no public name for it


def _is_original(own: str, name: str) -> bool:
    return own in [f"{name}{end}" for end in _ORIGINALS]
