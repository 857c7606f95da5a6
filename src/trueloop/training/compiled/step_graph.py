"""Build one update as a function of tensors, which `compiled_step` passes to torch.compile.

The function has the operations of `loop` and `update` in the same order: forward under autocast, loss as sum and count,
gradient, norm, division, clipping, optimizer, and the guard's decision. Gradients need not be cleared, because they are
local values and not stored in ``.grad``.
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
"""Function of (batch, settings of the groups) that returns loss, norm before clipping, skipped and divisor, in float64.
It updates the weights, the optimizer's state and the buffers in place, unless skipped is 1."""


class ParamGroupStep(NamedTuple):
    """One parameter group of the optimizer, and its formula."""

    formula: Formula
    parameters: Sequence[Tensor]
    states: Sequence[Mapping[str, Tensor]]
    """The optimizer's state tensors, one mapping per parameter; all have had the same number of updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """Model, objective and settings of a compiled update."""

    model: nn.Module
    objective: Objective
    clip: float | None
    """Upper bound of the gradient norm over all parameters."""
    skip_nonfinite: bool
    """Whether to skip updates with non-finite gradients, and then restore the buffers."""
    autocast: torch.dtype | None


def make_step_function(spec: StepSpec, group_steps: Sequence[ParamGroupStep]) -> StepFunction:
    """Return one update as a function to be compiled, with a code object of its own."""
    model, objective = spec.model, spec.objective
    parameters = [parameter for each in group_steps for parameter in each.parameters]
    device = parameters[0].device.type
    bound = math.inf if spec.clip is None else spec.clip
    skip_nonfinite, dtype = spec.skip_nonfinite, spec.autocast
    buffer_owners = [(module, name) for module in model.modules() for name, _ in module.named_buffers(recurse=False)]
    buffer_owners = buffer_owners if skip_nonfinite else []

    def update(batch: Any, settings: Tensor) -> Tensor:
        old_buffers = [getattr(module, name) for module, name in buffer_owners]
        saved = [buffer.clone() for buffer in old_buffers]
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            terms = objective(model, batch)
        root, loss, divisor = _root_loss_divisor(terms)
        gradients = torch.autograd.grad(root, parameters)
        with torch.no_grad():
            norm = torch.where(divisor == 0, math.nan, _norm(gradients) / divisor)
            finite = torch.isfinite(norm)
            applied = finite & (divisor != 0) if skip_nonfinite else divisor != 0
            total_divisor = torch.where(finite, (norm / bound).clamp(min=1.0), 1.0) * divisor
            _step(group_steps, gradients, total_divisor, applied, settings)
            for (module, name), buffer, copy in zip(buffer_owners, old_buffers, saved, strict=True):
                current = getattr(module, name)
                value = torch.where(applied, current, copy)
                if current is buffer:
                    current.copy_(value)
                else:
                    setattr(module, name, value)
            return torch.stack([loss.detach().double(), norm.double(), 1.0 - applied.double(), divisor.double()])

    return cast("StepFunction", _with_own_code(update))


GradientFunction = Callable[[Any], "tuple[Tensor, Tensor | None, *tuple[Tensor, ...]]"]
"""Function of a micro-batch that returns its weighted sum, its count (None for a plain sum), and the gradient of the
sum for each parameter. It updates buffers like a forward pass, and does not divide, clip or step."""


def make_gradient_function(spec: StepSpec, parameters: Sequence[Tensor]) -> GradientFunction:
    """Return forward, loss and backward of one micro-batch as a function, for windows of several micro-batches.

    The function raises InvalidModel for several terms, whose divisors are only known at the end of the window.
    """
    model, objective, dtype = spec.model, spec.objective, spec.autocast
    device = parameters[0].device.type

    def gradients(batch: Any) -> Any:
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            terms = objective(model, batch)
        if len(terms) != 1:
            raise InvalidModel("The objective has several terms, and the window several micro-batches.")
        (term,) = terms
        root = _weighted_sum(term)
        count = None if term.count is None else _as_count_tensor(term.count, root)
        return root.detach(), count, *torch.autograd.grad(root, parameters)

    return cast("GradientFunction", _with_own_code(gradients))


def _with_own_code(function: Any) -> FunctionType:
    """Return the same function with a code object and a name of its own.

    torch caches compiled code by code object, and records by the code's name which sizes vary: with a shared one, the
    sizes of a second run in this process would count as varying sizes of the first run.
    """
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_CODE_NUMBERS)}")
    return FunctionType(code, function.__globals__, code.co_name, None, function.__closure__)


def _step(
    groups: Sequence[ParamGroupStep], gradients: Sequence[Tensor], divisor: Tensor, applied: Tensor, settings: Tensor
) -> None:
    """Divide and step every parameter; change none if ``applied`` is false.

    Numbers that many weights share are computed first and stacked: otherwise Inductor would move them into the loop
    over the weights, and compute a power and two roots for every sixteen weights.
    """
    formula = groups[0].formula
    steps = torch.stack([group.states[0]["step"] for group in groups]).double() + 1 if formula.counts_steps else None
    shared = (divisor.expand(len(groups)), applied.double().expand(len(groups)))
    all_coefficients = torch.stack([*shared, *formula.coefficients(settings.unbind(1), steps)], dim=1)
    remaining = iter(gradients)
    for index, group in enumerate(groups):
        step_count = None if steps is None else steps[index]
        for parameter, state in zip(group.parameters, group.states, strict=True):
            dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
            group_divisor, is_applied, *coefficients = all_coefficients[index].to(dtype).unbind()
            updated, new_state = group.formula.step(parameter, next(remaining) / group_divisor, state, coefficients)
            if step_count is not None:
                new_state["step"] = step_count.to(state["step"].dtype)
            parameter.copy_(torch.where(is_applied != 0, updated, parameter))
            for name, new_value in new_state.items():
                state[name].copy_(torch.where(is_applied != 0, new_value, state[name]))


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack([to_double(norm(each)) for each in gradients]))


def _root_loss_divisor(terms: Sequence[Loss]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the root of backward, the window's loss and the gradient's divisor, like `window.Window` for one batch."""
    if len(terms) == 1:
        (term,) = terms
        root = _weighted_sum(term)
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
    has_count = torch.stack([count != 0 for count in counts]).any()
    return root, torch.where(has_count, root.detach(), math.nan), has_count.double()


def _weighted_sum(term: Loss) -> Tensor:
    return term.sum if term.weight == 1.0 else term.sum * term.weight


def _as_count_tensor(count: Tensor | float, like: Tensor) -> Tensor:
    if isinstance(count, Tensor):
        return count.double()
    return torch.full((), count, dtype=torch.float64, device=like.device)
