"""Takes snapshots of a few values of parameters, to detect later whether they have changed."""

import sys
from collections.abc import Container, Set
from typing import Any, Final

from trueloop.tracing.events import ModelCalled

MAX_INPUTS: Final = 64


def snapshot_parameters(model: Any, names: Set[str]) -> dict[str, tuple[Any, ...]]:
    """Return the version of each named parameter, followed by its first values if it is on the CPU."""
    own = dict(model.named_parameters())
    found: dict[str, tuple[Any, ...]] = {}
    for name in filter(None, (local_name(own, each) for each in names)):
        first = own[name].detach().flatten()[:4].tolist() if own[name].device.type == "cpu" else ()
        found[name] = (own[name]._version, *first)  # noqa: SLF001 - a tensor has no public version counter
    return found


def local_name(own: Container[str], name: str) -> str:
    """Return the name that a parameter of the model has in a submodule: "0.weight" for "body.0.weight"; "" = none."""
    while name not in own:
        name = name.partition(".")[2]
        if not name:
            return ""
    return name


def first_values(parameter: Any, count: int = 6) -> tuple[float, ...]:
    """Return the first values of a tensor of real numbers; () if reading them needs a conversion or a synchronisation.

    Cost: 3 us.
    """
    torch: Any = sys.modules["torch"]  # quicker than an import
    is_plain = type(parameter) in (torch.Tensor, torch.nn.Parameter) and parameter.layout is torch.strided
    if not is_plain or parameter.is_complex() or not parameter.is_cpu:
        return ()
    if not parameter.data_ptr():  # FSDP frees the memory of a shard between two uses
        return ()
    values = parameter.detach()
    while values.ndim > 1 and not values.is_contiguous() and values[0].numel() >= count:
        values = values[0]  # as flattening all of it would copy it
    return tuple(values.flatten()[:count].float().tolist())


def first_inputs(call: ModelCalled) -> tuple[float, ...]:
    """Return the first 64 values of the input of a model call, which are read once per call, as by `first_values`."""
    if call.input_values is None:
        call.input_values = first_values(call.inputs, MAX_INPUTS)
    return call.input_values
