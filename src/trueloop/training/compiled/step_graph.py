"""One update as a pure program over tensors: what `whole` hands to torch.compile as a single region.

Forward under autocast, loss as sum and count, gradient, norm, division, clipping, optimizer, and the guard's decision:
the same operations in the same order as `loop` and `update` have them. Clearing is not needed: gradients are results
here and never lie in ``.grad``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from types import FunctionType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidModel
from trueloop.training.compiled.optimizer_formulas import Formula
from trueloop.training.objective import Loss, Objective
from trueloop.training.optimizers.foreach import norm, precise

_NUMBERS = count()

Region = Callable[[Any, Tensor], Tensor]
"""(batch, settings of the groups) -> loss, norm before clipping, skipped and divisor, in float64; the weights, the
optimizer's state and the buffers are changed in place, or left as they were where skipped is 1."""


class Stepping(NamedTuple):
    """One group of the optimizer's, and how it is stepped."""

    formula: Formula
    parameters: Sequence[Tensor]
    states: Sequence[Mapping[str, Tensor]]
    """The optimizer's own tensors, one mapping per parameter; all have taken equally many updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingredients:
    """What a region is made of."""

    model: nn.Module
    objective: Objective
    clip: float | None
    """Upper bound of the joint gradient norm."""
    guarded: bool
    """What is not finite is not stepped, and the buffers are put back."""
    autocast: torch.dtype | None


def make_region(made_of: Ingredients, steppings: Sequence[Stepping]) -> Region:
    """Return one update as a function, not compiled yet; each time another one to torch, which compiles by code."""
    model, objective = made_of.model, made_of.objective
    parameters = [parameter for each in steppings for parameter in each.parameters]
    device = parameters[0].device.type
    bound = math.inf if made_of.clip is None else made_of.clip
    guarded, dtype = made_of.guarded, made_of.autocast
    places = [(module, name) for module in model.modules() for name, _ in module.named_buffers(recurse=False)]
    places = places if guarded else []

    def update(batch: Any, settings: Tensor) -> Tensor:
        known = [getattr(module, name) for module, name in places]
        kept = [buffer.clone() for buffer in known]
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            terms = objective(model, batch)
        root, loss, divisor = _total(terms)
        gradients = torch.autograd.grad(root, parameters)
        with torch.no_grad():
            norm = torch.where(divisor == 0, math.nan, _norm(gradients) / divisor)
            finite = torch.isfinite(norm)
            taken = finite & (divisor != 0) if guarded else divisor != 0
            by = torch.where(finite, (norm / bound).clamp(min=1.0), 1.0) * divisor
            _step(steppings, gradients, by, taken, settings)
            for (module, name), before, copy in zip(places, known, kept, strict=True):
                now = getattr(module, name)
                right = torch.where(taken, now, copy)
                if now is before:
                    now.copy_(right)
                else:
                    setattr(module, name, right)
            return torch.stack([loss.detach().double(), norm.double(), 1.0 - taken.double(), divisor.double()])

    return cast("Region", _apart(update))


GradientRegion = Callable[[Any], "tuple[Tensor, Tensor | None, *tuple[Tensor, ...]]"]
"""A micro-batch -> its weighted sum, its count (None for a plain sum), and the gradient of the sum for each parameter;
the buffers are changed as a forward pass changes them, and nothing is divided, clipped or stepped."""


def make_gradient_region(made_of: Ingredients, parameters: Sequence[Tensor]) -> GradientRegion:
    """Return forward, loss and backward of one micro-batch as a function, for windows of several.

    Raises (while it runs):
        InvalidModel: several terms, whose weights are known at the end of the window only.
    """
    model, objective, dtype = made_of.model, made_of.objective, made_of.autocast
    device = parameters[0].device.type

    def gradients(batch: Any) -> Any:
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            terms = objective(model, batch)
        if len(terms) != 1:
            raise InvalidModel("Several terms over several micro-batches.")
        (term,) = terms
        root = term.sum if term.weight == 1.0 else term.sum * term.weight
        count = None if term.count is None else _number(term.count, root)
        return root.detach(), count, *torch.autograd.grad(root, parameters)

    return cast("GradientRegion", _apart(gradients))


def _apart(function: Any) -> FunctionType:
    """The same function with a code of its own.

    torch keeps what it has compiled by code object, and which sizes it has seen to vary by the name of the code: with
    the same ones for all, a run's sizes would count as other sizes of the run before it in this process.
    """
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_NUMBERS)}")
    return FunctionType(code, function.__globals__, code.co_name, None, function.__closure__)


def _step(
    steppings: Sequence[Stepping], gradients: Sequence[Tensor], by: Tensor, taken: Tensor, settings: Tensor
) -> None:
    """Divide and step every parameter, or leave all as they are where ``taken`` is false.

    What is one number for many weights is worked out first and stacked: Inductor would otherwise put it into the loop
    over the weights, and work out a power and two roots for every sixteen of them.
    """
    formula = steppings[0].formula
    steps = torch.stack([each.states[0]["step"] for each in steppings]).double() + 1 if formula.counts else None
    shared = (by.expand(len(steppings)), taken.double().expand(len(steppings)))
    numbers = torch.stack([*shared, *formula.numbers(settings.unbind(1), steps)], dim=1)
    left = iter(gradients)
    for group, each in enumerate(steppings):
        after = None if steps is None else steps[group]
        for parameter, state in zip(each.parameters, each.states, strict=True):
            work = torch.float64 if parameter.dtype == torch.float64 else torch.float32
            divisor, go, *own = numbers[group].to(work).unbind()
            value, stepped = each.formula.step(parameter, next(left) / divisor, state, own)
            if after is not None:
                stepped["step"] = after.to(state["step"].dtype)
            parameter.copy_(torch.where(go != 0, value, parameter))
            for name, new in stepped.items():
                state[name].copy_(torch.where(go != 0, new, state[name]))


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack([precise(norm(each)) for each in gradients]))


def _total(terms: Sequence[Loss]) -> tuple[Tensor, Tensor, Tensor]:
    """What backward is called on, the window's loss, and what the gradient is divided by: `window.Window` for one."""
    if len(terms) == 1:
        (term,) = terms
        root = term.sum if term.weight == 1.0 else term.sum * term.weight
        if term.count is None:
            return root, root, torch.ones((), dtype=torch.float64, device=root.device)
        count = _number(term.count, root)
        return root, torch.where(count == 0, math.nan, root.detach() / count), count
    counts = [torch.ones((), device=terms[0].sum.device) if t.count is None else _number(t.count, t.sum) for t in terms]
    shares = [torch.where(count == 0, 0.0, 1 / count) for count in counts]
    root = torch.stack([t.sum * (share * t.weight) for t, share in zip(terms, shares, strict=True)]).sum()
    some = torch.stack([count != 0 for count in counts]).any()
    return root, torch.where(some, root.detach(), math.nan), some.double()


def _number(count: Tensor | float, beside: Tensor) -> Tensor:
    if isinstance(count, Tensor):
        return count.double()
    return torch.full((), count, dtype=torch.float64, device=beside.device)
