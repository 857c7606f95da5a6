"""Every trainable parameter moves after an update.

A layer that is never called, whose output is detached, or that the optimizer does not hold keeps its initial weights
without any error.
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
    """Make one update and find the parameters that did not change; retry with more updates.

    A parameter behind one that starts at zero (LoRA, zero-initialised branches) has no gradient in the first update, so
    unchanged parameters get two more updates. A change by weight decay alone does not count.

    Args:
        updates: number of updates after which every parameter must have changed.
    """
    training = context.training_copy()
    names = [name for name, parameter in training.model.named_parameters() if parameter.requires_grad]
    if not names:
        raise NotApplicable("No parameter is trainable.")
    batches = context.batches(updates)
    if unknown := _unregistered(training, batches[0]):
        return broken(
            f"{format_count(len(unknown), 'parameter')} in use {'is' if len(unknown) == 1 else 'are'} not among "
            f"model.parameters(), so no optimizer gets them: {', '.join(unknown[:4])}"
            f"{', ...' if len(unknown) > 4 else ''}.",
            cause=unknown[0],
            fix="Keep layers in an nn.ModuleList or nn.ModuleDict, not in a plain list or dict.",
            numbers={"unregistered": len(unknown), "trainable": len(names)},
        )
    late: list[str] = []
    left = set(names)
    reasons: dict[str, str] = {}
    for number in range(updates):
        reasons = _update(training, batches[number % len(batches)], left)
        left = set(reasons)
        if not left:
            break
        late = late if number else [name for name in names if name in left]
    stuck = [name for name in names if name in left]
    if stuck:
        examples = ", ".join(f"{name} ({reasons[name]})" for name in stuck[:4])
        return broken(
            f"{format_count(len(stuck), 'parameter')} of {len(names)} did not move in "
            f"{format_count(updates, 'update')}: "
            f"{examples}{', ...' if len(stuck) > 4 else ''}.",
            cause=stuck[0],
            fix="Call the layer and use its output without detach; build the optimizer over model.parameters(); "
            "or freeze it deliberately with requires_grad_(False).",
            numbers={"unmoved": len(stuck), "trainable": len(names)},
        )
    remarks = (
        (f"Changed only after the first update, where their gradient is 0: {', '.join(late[:4])}.",) if late else ()
    )
    return holds(
        f"All {format_count(len(names), 'trainable parameter')} moved"
        f"{' after one update' if not late else f' within {updates} updates'}.",
        notes=remarks,
        numbers={"trainable": len(names), "late": len(late)},
    )


def _unregistered(training: TrainingCopy, batch: object) -> list[str]:
    """Return the names of used parameters in plain lists and dicts of the model's modules."""
    if training.loss is None:
        return []
    held = {id(p) for group in training.optimizer.param_groups for p in group["params"]}
    held |= {id(p) for p in training.model.parameters()}
    found: dict[int, str] = {}
    for name, module in training.model.named_modules():
        for attribute, value in vars(module).items():
            if not attribute.startswith("_"):
                for place, parameter in _parameters_in(value, f"{name}.{attribute}".lstrip(".")):
                    found.setdefault(id(parameter), place)
    found = {key: place for key, place in found.items() if key not in held}
    if not found:
        return []
    used = {id(node.variable) for node in graph_nodes(training.mean_loss(batch)) if hasattr(node, "variable")}
    return [place for key, place in found.items() if key in used]


def _parameters_in(value: Any, place: str) -> Iterator[tuple[str, nn.Parameter]]:
    if isinstance(value, nn.Parameter):
        yield place, value
    elif isinstance(value, nn.Module):
        yield from ((f"{place}.{name}", parameter) for name, parameter in value.named_parameters())
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(cast("list[Any]", value)):
            yield from _parameters_in(part, f"{place}[{number}]")
    elif isinstance(value, dict):
        for key, part in cast("dict[Any, Any]", value).items():
            yield from _parameters_in(part, f"{place}[{key!r}]")


def _update(training: TrainingCopy, batch: object, watched: set[str]) -> dict[str, str]:
    """Make one update and return the watched parameters that did not change, with the reason."""
    own = {name: parameter for name, parameter in training.model.named_parameters() if name in watched}
    before = {name: parameter.detach().clone() for name, parameter in own.items()}
    largest = dict.fromkeys(own, -1.0)

    def recorder(name: str):
        def record(grad: torch.Tensor) -> None:
            values = grad.detach().coalesce().values() if grad.is_sparse else grad.detach()
            largest[name] = max(largest[name], float(values.abs().max()) if values.numel() else 0.0)

        return record

    handles = [parameter.register_hook(recorder(name)) for name, parameter in own.items()]
    try:
        training.update([batch])
    finally:
        for handle in handles:
            handle.remove()
    held = {id(p): float(group["lr"]) for group in training.optimizer.param_groups for p in group["params"]}
    now = dict(training.model.named_parameters())
    reasons: dict[str, str] = {}
    for name in own:
        moved = not torch.equal(now[name].detach(), before[name])
        if moved and (largest[name] != 0.0):
            continue
        reasons[name] = _reason(largest[name], held.get(id(now[name])), now[name].dtype, moved=moved)
    return reasons


def _reason(gradient: float, rate: float | None, dtype: torch.dtype, *, moved: bool) -> str:
    kind = str(dtype).removeprefix("torch.")
    rounding = f"its steps at rate {rate:g} are lost in the rounding of {kind}: keep weights in float32" if rate else ""
    reasons = (
        (moved, "its gradient is exactly 0; only weight decay changes it"),
        (gradient < 0, "never received a gradient"),
        (gradient == 0, "its gradient is exactly 0"),
        (rate is None, "received a gradient, but the optimizer does not hold it"),
        (rate == 0, "the learning rate is 0"),
        (dtype in (torch.bfloat16, torch.float16), rounding),
        (True, "received a gradient, but was not updated"),
    )
    return next(words for is_so, words in reasons if is_so)


PROOF = Proof(title="Every parameter moves", group="gradients", prove=every_parameter_moves)
