"""Finds tensors in attributes of modules that were computed from an ``nn.Parameter`` that no module registers."""

import dis
import weakref
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any, Final, NamedTuple

from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.tracing.graph_leaves import graph_users
from trueloop.tracing.parameter_snapshot import first_values

MAX_OPERATIONS: Final = 32  # between the parameter and the attribute; the graph of a forward pass has more
MAX_ITEMS: Final = 64  # of a list or dictionary in an attribute


class LostParameter(NamedTuple):
    """A tensor in an attribute, and the parameter that it was computed from."""

    module: "weakref.ref[nn.Module]"
    attribute: str
    tensor: "weakref.ref[Tensor]"
    values: tuple[float, ...]
    """The version of the parameter and its first values, at the first call of the model."""

    def parameter(self) -> Tensor | None:
        """Return the parameter; None if the attribute has another value by now."""
        module, tensor = self.module(), self.tensor()
        stored = () if module is None else _tensors(vars(module).get(self.attribute))
        return _parameter(tensor) if tensor is not None and any(each is tensor for each in stored) else None

    def is_unchanged(self, parameter: Tensor) -> bool:
        """Return False if the program has changed the parameter itself."""
        return _state(parameter) == self.values

    @property
    def name(self) -> str:
        """The class of the module and the attribute."""
        return f"{type(self.module()).__name__}.{self.attribute}"

    def assigned_at(self) -> CodePosition | None:
        """Return the line of a constructor that sets the attribute; None if it is set elsewhere."""
        for kind in type(self.module()).__mro__:
            code = getattr(vars(kind).get("__init__"), "__code__", None)
            if not isinstance(code, CodeType):
                continue
            for each in dis.get_instructions(code):
                if each.opname == "STORE_ATTR" and each.argval == self.attribute:
                    return CodePosition(code, each.offset)
        return None


def lost_parameters(model: nn.Module) -> list[LostParameter]:
    """Return the attributes of a model's modules that were computed from parameters that the model does not register.

    Cost: 2 us for each module.
    """
    found: list[tuple[nn.Module, str, Tensor, Tensor]] = []
    for module in model.modules():
        for name, value in vars(module).items():
            if name[0] != "_" or isinstance(value, Tensor):
                pairs = [(tensor, _parameter(tensor)) for tensor in _tensors(value)]
                found += [(module, name, tensor, leaf) for tensor, leaf in pairs if leaf is not None]
    own = set(map(id, model.parameters())) if found else set[int]()
    return [
        LostParameter(weakref.ref(module), name, weakref.ref(tensor), _state(leaf))
        for module, name, tensor, leaf in found
        if id(leaf) not in own
    ]


def _state(parameter: Tensor) -> tuple[float, ...]:
    return (parameter._version, *first_values(parameter))  # noqa: SLF001 - a tensor has no public version counter


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield a tensor, or those in a list or dictionary."""
    values: Any = value
    if isinstance(value, Mapping):
        values = list(value.values())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(values, list | tuple):
        yield from (each for each in values[:MAX_ITEMS] if isinstance(each, Tensor))  # pyright: ignore[reportUnknownVariableType]
    elif isinstance(values, Tensor):
        yield values


def _parameter(tensor: Tensor) -> Tensor | None:
    """Return the only leaf of a short graph if it is an ``nn.Parameter``; None for other tensors."""
    if tensor.grad_fn is None:
        return tensor if type(tensor) is nn.Parameter and tensor.requires_grad else None
    nodes = graph_users([tensor.grad_fn], MAX_OPERATIONS)
    leaves = [node.variable for node in nodes if hasattr(node, "variable")] if len(nodes) < MAX_OPERATIONS else []
    return leaves[0] if len(leaves) == 1 and isinstance(leaves[0], nn.Parameter) else None
