"""Every trainable parameter moves after an update.

A layer keeps its initial weights without any error if it is never called, if its output is detached, or if the
optimizer does not hold its parameters.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from trueloop.core.formatting import format_count
from trueloop.verification.evidence import Evidence, NotApplicable, broken, holds
from trueloop.verification.model_call import graph_nodes
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext, TrainingCopy


def every_parameter_moves(context: ProofContext, *, updates: int = 3) -> Evidence:
    """Make one update and find the parameters that did not change; retry these with more updates.

    If a parameter that starts at zero (LoRA, a zero-initialised branch) blocks the gradient of another one in the first
    update, the other one changes in a later update. A change by weight decay alone does not count.

    Args:
        updates: number of updates after which every parameter must have changed.
    """
    training = context.training_copy()
    names = [name for name, parameter in training.model.named_parameters() if parameter.requires_grad]
    if not names:
        raise NotApplicable("No parameter is trainable.")
    batches = context.batches(updates)
    if missing := _unregistered(training, batches[0]):
        return broken(
            f"{format_count(len(missing), 'parameter')} in use {'is' if len(missing) == 1 else 'are'} not among "
            f"model.parameters(), so no optimizer gets them: {', '.join(missing[:4])}"
            f"{', ...' if len(missing) > 4 else ''}.",
            cause=missing[0],
            fix="Keep layers in an nn.ModuleList or nn.ModuleDict, not in a plain list or dict.",
            numbers={"unregistered": len(missing), "trainable": len(names)},
        )
    late_names: list[str] = []
    unmoved = set(names)
    reasons: dict[str, str] = {}
    for number in range(updates):
        reasons = _update(training, batches[number % len(batches)], unmoved)
        unmoved = set(reasons)
        if not unmoved:
            break
        late_names = late_names if number else [name for name in names if name in unmoved]
    unmoved_names = [name for name in names if name in unmoved]
    if unmoved_names:
        examples = ", ".join(f"{name} ({reasons[name]})" for name in unmoved_names[:4])
        return broken(
            f"{format_count(len(unmoved_names), 'parameter')} of {len(names)} did not move in "
            f"{format_count(updates, 'update')}: {examples}{', ...' if len(unmoved_names) > 4 else ''}.",
            cause=unmoved_names[0],
            fix="Call the layer and use its output without detach; build the optimizer over model.parameters(); "
            "or freeze it deliberately with requires_grad_(False).",
            numbers={"unmoved": len(unmoved_names), "trainable": len(names)},
        )
    remark = f"These changed only after the first update, in which their gradient is 0: {', '.join(late_names[:4])}."
    when = f"within {updates} updates" if late_names else "after one update"
    return holds(
        f"All {format_count(len(names), 'trainable parameter')} moved {when}.",
        notes=(remark,) if late_names else (),
        numbers={"trainable": len(names), "late": len(late_names)},
    )


def _unregistered(training: TrainingCopy, batch: object) -> list[str]:
    """Return the names of parameters that the loss uses, but that only plain lists and dicts of the modules contain."""
    if training.loss is None:
        return []
    registered = {id(p) for group in training.optimizer.param_groups for p in group["params"]}
    registered |= {id(p) for p in training.model.parameters()}
    names: dict[int, str] = {}
    for name, module in training.model.named_modules():
        for attribute, value in vars(module).items():
            if not attribute.startswith("_"):
                for path, parameter in _parameters_in(value, f"{name}.{attribute}".lstrip(".")):
                    names.setdefault(id(parameter), path)
    names = {key: path for key, path in names.items() if key not in registered}
    if not names:
        return []
    used = {id(node.variable) for node in graph_nodes(training.mean_loss(batch)) if hasattr(node, "variable")}
    return [path for key, path in names.items() if key in used]


def _parameters_in(value: Any, path: str) -> Iterator[tuple[str, nn.Parameter]]:
    if isinstance(value, nn.Parameter):
        yield path, value
    elif isinstance(value, nn.Module):
        yield from ((f"{path}.{name}", parameter) for name, parameter in value.named_parameters())
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(cast("list[Any]", value)):
            yield from _parameters_in(part, f"{path}[{number}]")
    elif isinstance(value, dict):
        for key, part in cast("dict[Any, Any]", value).items():
            yield from _parameters_in(part, f"{path}[{key!r}]")


def _update(training: TrainingCopy, batch: object, watched: set[str]) -> dict[str, str]:
    """Make one update and return the watched parameters that did not change, each with the reason."""
    parameters = {name: parameter for name, parameter in training.model.named_parameters() if name in watched}
    initial = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    largest = dict.fromkeys(parameters, -1.0)  # largest gradient of each parameter; -1 = no gradient

    def recorder(name: str):
        def record(grad: torch.Tensor) -> None:
            values = grad.detach().coalesce().values() if grad.is_sparse else grad.detach()
            largest[name] = max(largest[name], float(values.abs().max()) if values.numel() else 0.0)

        return record

    handles = [parameter.register_hook(recorder(name)) for name, parameter in parameters.items()]
    try:
        training.update([batch])
    finally:
        for handle in handles:
            handle.remove()
    rates = {id(p): float(group["lr"]) for group in training.optimizer.param_groups for p in group["params"]}
    updated = dict(training.model.named_parameters())
    reasons: dict[str, str] = {}
    for name in parameters:
        has_moved = not torch.equal(updated[name].detach(), initial[name])
        if has_moved and (largest[name] != 0.0):
            continue
        reasons[name] = _reason(largest[name], rates.get(id(updated[name])), updated[name].dtype, has_moved=has_moved)
    return reasons


def _reason(gradient: float, rate: float | None, dtype: torch.dtype, *, has_moved: bool) -> str:
    name = str(dtype).removeprefix("torch.")
    rounding = (
        f"its steps at learning rate {rate:g} are lost in the rounding of {name}: keep it in float32" if rate else ""
    )
    reasons = (
        (has_moved, "its gradient is exactly 0; only weight decay changes it"),
        (gradient < 0, "never received a gradient"),
        (gradient == 0, "its gradient is exactly 0"),
        (rate is None, "received a gradient, but the optimizer does not hold it"),
        (rate == 0, "the learning rate is 0"),
        (dtype in (torch.bfloat16, torch.float16), rounding),
        (True, "received a gradient, but was not updated"),
    )
    return next(reason for applies, reason in reasons if applies)


PROOF = Proof(title="Every parameter moves", group="gradients", prove=every_parameter_moves)
