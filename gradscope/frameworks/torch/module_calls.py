"""The calls of one run are recorded by hooks on every module, which write its outputs when it returns."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from gradscope import naming
from gradscope.dump.manifest.manifest import Layer
from gradscope.dump.record import SiteFacts
from gradscope.errors import ModelError
from gradscope.frameworks.torch.conversion import is_transformed, tensors_in
from gradscope.frameworks.torch.effective_weights import EffectiveWeights
from gradscope.frameworks.torch.module_names import as_written, plain_name
from gradscope.frameworks.torch.torch_values import Value, Values
from gradscope.naming import printable
from gradscope.stats.power import combined_power

#: The JAX primitive of an autograd node whose outputs are bounded; see `stats.units`.
_PRIMITIVES: Final = {"TanhBackward0": "tanh", "SigmoidBackward0": "logistic", "ErfBackward0": "erf"}

_NOT_THE_USERS: Final = (str(Path(torch.__file__).parent) + "/", str(Path(__file__).parent) + "/")


@dataclass(slots=True, kw_only=True)
class ModuleCall:
    """A `ModuleCall` is one call of a module.

    Attributes:
        path: Its layer path, occurrence included.
        index: Execution index of its beginning.
        parent: Path of the call around it; None at the top.
        source: The `file:line` of the call; None where no file of the user's is on the stack.
        params: Names of its own parameters, and of those that it uses of modules inside it which are not called.
        inputs: The values that it received.
        named_inputs: Those of them that had a name then: a value may have its first name of what returns it as it is.
        outputs: The values that it returned.
        output_names: Their names.
        sources: The keys of the nearest values and parameters that those are computed from which it has made itself.
    """

    path: str
    index: int
    parent: str | None
    source: str | None
    params: tuple[str, ...]
    inputs: list[Value]
    named_inputs: list[Value]
    outputs: list[Value] = field(default_factory=list[Value])
    output_names: list[str] = field(default_factory=list[str])
    sources: dict[str, None] = field(default_factory=dict[str, None])

    @property
    def read(self) -> dict[str, None]:
        """The keys of the named values and of the parameters that it is called with."""
        values = (naming.key_of(value.family, value.name) for value in self.named_inputs)
        return dict.fromkeys((*values, *(naming.key_of(naming.PARAM, name) for name in self.params)))

    def layer(self) -> Layer:
        """Returns the call as a layer of the manifest."""
        powers = {
            "in": combined_power(value.power for value in self.inputs),
            "out": combined_power(value.power for value in self.outputs),
            "grad_in": combined_power(value.gradient_power for value in self.inputs),
            "grad_out": combined_power(value.gradient_power for value in self.outputs),
        }
        known = {name: power for name, power in powers.items() if power is not None and power.elements}
        return Layer(
            path=self.path,
            index=self.index,
            parent=self.parent,
            source=self.source,
            params=self.params,
            inputs=tuple(value.name for value in self.named_inputs),
            outputs=tuple(self.output_names),
            sources=() if self.sources.keys() == self.read.keys() else tuple(self.sources),
            rms={name: power.rms for name, power in known.items()},
            elements={name: power.elements for name, power in known.items()},
        )


class ModuleCalls:
    """`ModuleCalls` record a module's calls by hooks; `recording` installs and removes them.

    Args:
        module: The module.
        values: Receives the values that it computes.
        weights: The parameters that its parametrizations compute.

    Raises:
        ModelError: A module is of TorchScript, which calls no hooks.
    """

    def __init__(self, module: nn.Module, values: Values, weights: EffectiveWeights) -> None:
        _require_python(module)
        self._module = module
        self._values = values
        self._weights = weights
        self._paths = {
            each: plain_name(name)
            for name, each in module.named_modules()
            if each is not module and as_written(each) is each and not weights.has_inside(each)
        }
        self._parameters = {parameter: plain_name(name) for name, parameter in module.named_parameters()}
        self._occurrences: Counter[str] = Counter()
        self._running: list[tuple[nn.Module, ModuleCall]] = []
        self._calls: list[ModuleCall] = []
        self._composites: set[str | None] = set()
        self._users: dict[str, ModuleCall] = {}
        self._clock = 0
        self._indices: dict[str, int] = {}

    @contextmanager
    def recording(self) -> Generator[None]:
        """Records the calls inside a `with` statement."""
        with ExitStack() as hooks:
            for each in self._paths:
                hooks.callback(each.register_forward_pre_hook(self._begin, with_kwargs=True).remove)
                hooks.callback(each.register_forward_hook(self._end, always_call=True).remove)
            yield

    @contextmanager
    def recomputing(self) -> Generator[None]:
        """Sees the calls that a checkpoint runs again in the backward pass, inside a `with` statement."""
        with ExitStack() as hooks:
            for each in self._paths:
                hooks.callback(each.register_forward_hook(self._again).remove)
            yield

    def add_root(self, output: Any) -> None:
        """Writes the outputs of the module itself that none of its modules has made, under the name of its class."""
        fresh = [(path, tensor) for path, tensor in tensors_in(output) if self._values.known(tensor) is None]
        call = self._call(type(self._module).__name__, (), ())
        self._write_outputs(call, fresh, place_of=self._end_of_sources)
        self._add_params_inside("", call)
        if call.outputs:
            self._calls.append(call)

    def user_of(self, parameter: str) -> SiteFacts:
        """Returns the site of the first use of a parameter: the first call of the module that has it."""
        call = self._users.get(self._weights.computed_from(parameter))
        if call is None:
            return SiteFacts(index=0)
        return SiteFacts(index=call.index, layer=call.path, source=call.source)

    def layers(self) -> tuple[Layer, ...]:
        """Returns the layer tree in execution order."""
        return tuple(call.layer() for call in sorted(self._calls, key=lambda call: call.index))

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        path = self._paths[module]
        self._occurrences[path] += 1
        occurrence = self._occurrences[path]
        inputs = [
            self._values.measure(tensor) for _, tensor in tensors_in((args, kwargs)) if not is_transformed(tensor)
        ]
        names = self._weights.read_by(module, path)
        call = self._call(path if occurrence == 1 else f"{path}#{occurrence}", inputs, names)
        for name in names:
            self._users.setdefault(name, call)
        self._running.append((module, call))
        self._calls.append(call)

    def _end(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        # A call that failed, of which the caller may try another module, ends without an output. It has not begun where
        # another hook failed before.
        if self._running and self._running[-1][0] is module:
            call = self._running.pop()[1]
            self._write_outputs(call, list(tensors_in(output)))
            self._add_params_inside(f"{self._paths[module]}/", call)

    def _add_params_inside(self, start: str, call: ModuleCall) -> None:
        """Adds the parameters that a call uses of modules which nothing calls, as an attention its last projection's.

        Args:
            start: What the names of the parameters in the module begin with.
            call: The call, which has ended.
        """
        for name in (*self._weights.names, *self._parameters.values()):
            used = name.startswith(start) and naming.key_of(naming.PARAM, name) in call.sources
            if used and self._users.setdefault(name, call) is call and name not in call.params:
                call.params = (*call.params, name)

    def _again(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        found = [tensor for _, tensor in tensors_in(output)]
        for number, tensor in enumerate(found):
            self._values.recomputed(_output_name(self._paths[module], number, len(found)), tensor)

    def _call(self, path: str, inputs: Any, params: tuple[str, ...]) -> ModuleCall:
        parent = self._running[-1][1].path if self._running else None
        self._composites.add(parent)
        return ModuleCall(
            path=path, index=self._tick(), parent=parent, source=_caller(), params=params, inputs=list(inputs),
            named_inputs=[value for value in inputs if value.names and value.family != naming.PARAM],
        )  # fmt: skip

    def _write_outputs(
        self,
        call: ModuleCall,
        found: list[tuple[tuple[str, ...], Tensor]],
        place_of: Callable[[Tensor], int | None] = lambda _: None,
    ) -> None:
        for number, (_, tensor) in enumerate(found):
            name = _output_name(call.path, number, len(found))
            if is_transformed(tensor):
                self._values.add_hidden(name)
                continue
            now, then = self._tick(), place_of(tensor)
            index = now if then is None else then
            site = SiteFacts(index=index, source=call.source, primitive=_primitive(tensor), layer=call.path)
            value = self._values.add(naming.ACTIVATION, name, tensor, site)
            self._indices[naming.key_of(naming.ACTIVATION, name)] = index
            call.outputs.append(value)
            call.output_names.append(name)
            if value.name == name:
                call.sources.update(dict.fromkeys(_named_sources(tensor, self._values, self._parameters)))
        # What it reads without gradients, it reads all the same; what its parts read, they state.
        if call.sources and call.path not in self._composites:
            call.sources.update(call.read)

    def _end_of_sources(self, tensor: Tensor) -> int | None:
        """Returns the execution index of the last value that a tensor is computed from; None where none is known.

        The module itself may compute what it returns long before it does, as the moments of a code that it decodes.
        """
        sources = _named_sources(tensor, self._values, self._parameters)
        return max((self._indices[key] for key in sources if key in self._indices), default=None)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock - 1


def _output_name(path: str, number: int, count: int) -> str:
    return f"{path}.{number}" if count > 1 else path


def _require_python(module: nn.Module) -> None:
    for name, each in module.named_modules():
        if isinstance(each, torch.jit.ScriptModule):
            what = "the module" if not name else f"the module {printable(plain_name(name))}"
            raise ModelError(
                f"{what} is of TorchScript, inside of which nothing can be captured",
                hint="capture the module that torch.jit.script or torch.jit.trace was given",
            )


def _primitive(tensor: Tensor) -> str | None:
    return None if tensor.grad_fn is None else _PRIMITIVES.get(tensor.grad_fn.name())


def _caller() -> str | None:
    """Returns the innermost location on the stack that is neither PyTorch's nor ours."""
    for frame, line in traceback.walk_stack(None):
        file_name = frame.f_code.co_filename
        if not file_name.startswith((*_NOT_THE_USERS, "<")):
            return f"{Path(file_name).name}:{line}"
    return None


def _named_sources(tensor: Tensor, values: Values, parameters: Mapping[nn.Parameter, str]) -> Iterator[str]:
    """Yields the keys of the nearest named values and parameters behind a tensor, itself not among them.

    A module may read what no module returned, such as a sum, and return what it computes from the outputs of its parts.
    What is computed without gradients, or detached, has no graph, and nothing is known to be behind it.

    Args:
        tensor: The tensor.
        values: The values that are known.
        parameters: The names of the module's parameters.
    """
    waiting: list[Any] = [tensor.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        for each, number in () if node is None else node.next_functions:
            value = values.at(each, number)
            parameter = getattr(each, "variable", None)  # of a leaf
            if value is not None and value.names:
                yield naming.key_of(value.family, value.name)
            elif isinstance(parameter, nn.Parameter) and parameter in parameters:
                yield naming.key_of(naming.PARAM, parameters[parameter])
            elif each not in seen:
                seen.add(each)
                waiting.append(each)
