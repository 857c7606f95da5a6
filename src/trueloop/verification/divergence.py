"""Find the first module in which two forward passes of a model differ."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from trueloop.verification.batch_tree import tensors
from trueloop.verification.model_call import ModelCall, model_outputs


class ModuleRecord(NamedTuple):
    """Input or output of one call of a module."""

    name: str
    class_name: str
    """Name of the module's class."""
    parent_class: str
    """Name of the enclosing module's class."""
    is_output: bool
    """True for an output, False for an input."""
    values: list[Tensor]


def trace_modules(model: nn.Module, call: ModelCall, seed: int) -> list[ModuleRecord]:
    """Run a model and return the inputs and outputs of its modules, in the order of their calls.

    Cost: a copy of all activations.
    """
    records: list[ModuleRecord] = []
    with _recorded_modules(model, records):
        model_outputs(model, call, seed)
    return records


def first_divergence(
    original: list[ModuleRecord], perturbed: list[ModuleRecord], same: Callable[[Tensor, Tensor], bool]
) -> str:
    """Describe where two forward passes first differ, with ``same`` comparing tensors; "" if they do not differ."""
    for a, b in zip(original, perturbed, strict=False):
        if a[:4] != b[:4]:
            return ""
        if all(same(x, y) for x, y in zip(a.values, b.values, strict=False)):
            continue
        if a.is_output:
            return f"in {a.name} ({a.class_name})"
        return f"in the forward of {a.parent_class}, before {a.name} ({a.class_name})"
    return ""


@contextmanager
def _recorded_modules(model: nn.Module, records: list[ModuleRecord]) -> Generator[None]:
    handles: list[Any] = []
    names = dict(model.named_modules())
    for name, module in names.items():
        if not name:
            continue
        parent = type(names[name.rpartition(".")[0]]).__name__

        def record_input(called: nn.Module, args: Any, kwargs: Any, name: str = name, parent: str = parent) -> None:
            values = [leaf.detach().clone() for leaf in tensors((args, kwargs))]
            records.append(ModuleRecord(name, type(called).__name__, parent, False, values))

        def record_output(called: nn.Module, _args: Any, result: Any, name: str = name, parent: str = parent) -> None:
            values = [leaf.detach().clone() for leaf in tensors(result)]
            records.append(ModuleRecord(name, type(called).__name__, parent, True, values))

        handles.append(module.register_forward_pre_hook(record_input, with_kwargs=True))
        handles.append(module.register_forward_hook(record_output))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
