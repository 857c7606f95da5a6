"""Finds the first module in which two forward passes of a model differ."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from trueloop.verification.batch_tree import tensors
from trueloop.verification.model_call import ModelCall, model_outputs


class ModuleRecord(NamedTuple):
    """Input or output of one module call."""

    name: str
    kind: str
    """Class of the module."""
    parent_kind: str
    """Class of the enclosing module."""
    is_output: bool
    """True for an output, False for an input."""
    values: list[Tensor]


def trace_modules(model: nn.Module, call: ModelCall, seed: int) -> list[ModuleRecord]:
    """Run a model and return the inputs and outputs of its modules, in order.

    Cost: a copy of all activations.
    """
    seen: list[ModuleRecord] = []
    with _recording(model, seen):
        model_outputs(model, call, seed)
    return seen


def first_divergence(
    before: list[ModuleRecord], after: list[ModuleRecord], same: Callable[[Tensor, Tensor], bool]
) -> str:
    """Describe where two passes first differ according to ``same``; empty where they do not."""
    for a, b in zip(before, after, strict=False):
        if a[:4] != b[:4]:
            return ""
        if all(same(x, y) for x, y in zip(a.values, b.values, strict=False)):
            continue
        if a.is_output:
            return f"in {a.name} ({a.kind})"
        return f"in the forward of {a.parent_kind}, before {a.name} ({a.kind})"
    return ""


@contextmanager
def _recording(model: nn.Module, seen: list[ModuleRecord]) -> Generator[None]:
    handles: list[Any] = []
    names = dict(model.named_modules())
    for name, module in names.items():
        if not name:
            continue
        within = type(names[name.rpartition(".")[0]]).__name__

        def came(each: nn.Module, args: Any, kwargs: Any, name: str = name, within: str = within) -> None:
            values = [leaf.detach().clone() for leaf in tensors((args, kwargs))]
            seen.append(ModuleRecord(name, type(each).__name__, within, False, values))

        def went(each: nn.Module, _args: Any, result: Any, name: str = name, within: str = within) -> None:
            values = [leaf.detach().clone() for leaf in tensors(result)]
            seen.append(ModuleRecord(name, type(each).__name__, within, True, values))

        handles += [module.register_forward_pre_hook(came, with_kwargs=True), module.register_forward_hook(went)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
