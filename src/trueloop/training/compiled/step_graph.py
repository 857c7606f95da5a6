"""Build one update as a pure function over tensors, which `compiled_step` passes to torch.compile.

Forward under autocast, loss as sum and count, gradient, norm, division, clipping, optimizer, and the guard's decision:
the same operations in the same order as in `loop` and `update`. Clearing is not needed: gradients are results of the
function and never stored in ``.grad``.
"""

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
from trueloop.training.optimizers.foreach import norm, to_double

_CODE_NUMBERS = count()

StepFunction = Callable[[Any, Tensor], Tensor]
"""(batch, settings of the groups) -> loss, norm before clipping, skipped and divisor, in float64; the weights, the
optimizer's state and the buffers are changed in place, or left unchanged where skipped is 1."""


class ParamGroupStep(NamedTuple):
    """One parameter group of the optimizer, and its formula."""

    formula: Formula
    parameters: Sequence[Tensor]
    states: Sequence[Mapping[str, Tensor]]
    """The optimizer's own tensors, one mapping per parameter; all have had equally many updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """Model, objective and settings of a compiled update."""

    model: nn.Module
    objective: Objective
    clip: float | None
    """Upper bound of the joint gradient norm."""
    guarded: bool
    """Non-finite gradients are not applied, and the buffers are restored."""
    autocast: torch.dtype | None


def make_step_function(spec: StepSpec, group_steps: Sequence[ParamGroupStep]) -> StepFunction:
    """Return one update as a function to be compiled; each call returns a new one, as torch caches by code object."""
    model, objective = spec.model, spec.objective
    parameters = [parameter for each in group_steps for parameter in each.parameters]
    device = parameters[0].device.type
    bound = math.inf if spec.clip is None else spec.clip
    guarded, dtype = spec.guarded, spec.autocast
    places = [(module, name) for module in model.modules() for name, _ in module.named_buffers(recurse=False)]
    places = places if guarded else []

    def update(batch: Any, settings: Tensor) -> Tensor:
        before = [getattr(module, name) for module, name in places]
        saved = [buffer.clone() for buffer in before]
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            terms = objective(model, batch)
        root, loss, divisor = _root_loss_divisor(terms)
        gradients = torch.autograd.grad(root, parameters)
        with torch.no_grad():
            norm = torch.where(divisor == 0, math.nan, _norm(gradients) / divisor)
            finite = torch.isfinite(norm)
            applied = finite & (divisor != 0) if guarded else divisor != 0
            by = torch.where(finite, (norm / bound).clamp(min=1.0), 1.0) * divisor
            _step(group_steps, gradients, by, applied, settings)
            for (module, name), buffer, copy in zip(places, before, saved, strict=True):
                now = getattr(module, name)
                value = torch.where(applied, now, copy)
                if now is buffer:
                    now.copy_(value)
                else:
                    setattr(module, name, value)
            return torch.stack([loss.detach().double(), norm.double(), 1.0 - applied.double(), divisor.double()])

    return cast("StepFunction", _with_own_code(update))


GradientFunction = Callable[[Any], "tuple[Tensor, Tensor | None, *tuple[Tensor, ...]]"]
"""A micro-batch -> its weighted sum, its count (None for a plain sum), and the gradient of the sum for each parameter;
the buffers are changed as a forward pass changes them, and nothing is divided, clipped or stepped."""


def make_gradient_function(spec: StepSpec, parameters: Sequence[Tensor]) -> GradientFunction:
    """Return forward, loss and backward of one micro-batch as a function, for windows of several micro-batches.

    Raises (while it runs):
        InvalidModel: several terms, whose weights are known at the end of the window only.
    """
    model, objective, dtype = spec.model, spec.objective, spec.autocast
    device = parameters[0].device.type

    def gradients(batch: Any) -> Any:
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            terms = objective(model, batch)
        if len(terms) != 1:
            raise InvalidModel("Several terms over several micro-batches.")
        (term,) = terms
        root = term.sum if term.weight == 1.0 else term.sum * term.weight
        count = None if term.count is None else _as_count_tensor(term.count, root)
        return root.detach(), count, *torch.autograd.grad(root, parameters)

    return cast("GradientFunction", _with_own_code(gradients))


def _with_own_code(function: Any) -> FunctionType:
    """Return the same function with a code object of its own.

    torch caches compiled code by code object, and the sizes it has seen vary by the code's name: with shared code, a
    run's sizes would count as varying sizes of an earlier run in this process.
    """
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_CODE_NUMBERS)}")
    return FunctionType(code, function.__globals__, code.co_name, None, function.__closure__)


def _step(
    group_steps: Sequence[ParamGroupStep], gradients: Sequence[Tensor], by: Tensor, applied: Tensor, settings: Tensor
) -> None:
    """Divide and step every parameter, or leave all unchanged where ``applied`` is false.

    Numbers that many weights share are computed first and stacked: Inductor would otherwise move them into the loop
    over the weights, and compute a power and two roots for every sixteen of them.
    """
    formula = group_steps[0].formula
    steps = torch.stack([each.states[0]["step"] for each in group_steps]).double() + 1 if formula.counts_steps else None
    shared = (by.expand(len(group_steps)), applied.double().expand(len(group_steps)))
    numbers = torch.stack([*shared, *formula.numbers(settings.unbind(1), steps)], dim=1)
    left = iter(gradients)
    for group, each in enumerate(group_steps):
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
    return torch.linalg.vector_norm(torch.stack([to_double(norm(each)) for each in gradients]))


def _root_loss_divisor(terms: Sequence[Loss]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the root of backward, the window's loss, and the gradient's divisor, as `window.Window` for one batch."""
    if len(terms) == 1:
        (term,) = terms
        root = term.sum if term.weight == 1.0 else term.sum * term.weight
        if term.count is None:
            return root, root, torch.ones((), dtype=torch.float64, device=root.device)
        count = _as_count_tensor(term.count, root)
        return root, torch.where(count == 0, math.nan, root.detach() / count), count
    counts = [
        torch.ones((), device=terms[0].sum.device) if t.count is None else _as_count_tensor(t.count, t.sum)
        for t in terms
    ]
    shares = [torch.where(count == 0, 0.0, 1 / count) for count in counts]
    root = torch.stack([t.sum * (share * t.weight) for t, share in zip(terms, shares, strict=True)]).sum()
    some = torch.stack([count != 0 for count in counts]).any()
    return root, torch.where(some, root.detach(), math.nan), some.double()


def _as_count_tensor(count: Tensor | float, like: Tensor) -> Tensor:
    if isinstance(count, Tensor):
        return count.double()
    return torch.full((), count, dtype=torch.float64, device=like.device)
