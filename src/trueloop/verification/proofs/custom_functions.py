"""Every custom autograd Function of the model has a correct gradient, checked in double precision.

A handwritten backward is rarely compared with its forward. If a factor is missing, the model still trains, but worse.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from trueloop.core.formatting import format_count, format_float
from trueloop.verification.batch_tree import tensors
from trueloop.verification.evidence import Evidence, NotApplicable, broken, holds
from trueloop.verification.model_call import graph_nodes
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext

Function = type[torch.autograd.Function]
MAX_FULL_CHECK = 64
"""Up to this number of inputs, every derivative is compared; for more inputs, random projections are compared."""
STEP, TOLERANCE = 1e-6, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCheck:
    """Result of the check of one Function."""

    name: str
    is_correct: bool
    deliberate: str = ""
    """Why the gradient deliberately differs from the derivative; "" = the two should be equal."""
    problem: str = ""
    """How the gradient differs from the derivative; "" if ``is_correct``."""


def custom_functions(context: ProofContext) -> Evidence:
    """Find the Functions in the graph of the loss, and check each on its inputs with ``torch.autograd.gradcheck``.

    If the forward of a Function is the identity or a staircase (gradient reversal, straight-through rounding), its
    gradient is a deliberate choice that cannot be checked: a note reports it.
    """
    batch = context.first_samples(4)
    training = context.training_copy()
    nodes = graph_nodes(training.mean_loss(batch))
    functions = list(dict.fromkeys(node._forward_cls for node in nodes if hasattr(node, "_forward_cls")))  # noqa: SLF001
    if not functions:
        raise NotApplicable("The graph of the loss contains no custom autograd Function.")
    with _record_calls(functions) as calls:
        training.mean_loss(batch)
    checks = [_check(function, *calls[function]) for function in functions if function in calls]
    failed = [check for check in checks if not check.is_correct and not check.deliberate]
    remarks = tuple(f"{check.name}: {check.deliberate}." for check in checks if check.deliberate)
    compared = [check.name for check in checks if not check.deliberate]
    if failed:
        return broken(
            " ".join(f"The gradient of {check.name} does not match its forward: {check.problem}." for check in failed),
            cause=failed[0].name,
            fix="Derive backward again; return one gradient per input of forward, or None for inputs without gradient.",
            notes=remarks,
        )
    if not compared:
        raise NotApplicable(" ".join(remarks) or "No custom Function is called in a repeatable way.")
    return holds(
        f"{format_count(len(compared), 'custom Function')} ({', '.join(compared)}) pass gradcheck in double precision.",
        notes=remarks,
    )


@contextmanager
def _record_calls(functions: list[Function]) -> Generator[dict[Function, tuple[Any, ...]]]:
    """Record the arguments of the first call of each Function, by replacing its ``forward``."""
    calls: dict[Function, tuple[Any, ...]] = {}
    originals = {function: vars(function).get("forward") for function in functions}

    def make_recorder(function: Function, forward: Any) -> Any:
        takes_context = function.setup_context is torch.autograd.Function.setup_context

        def record(*args: Any) -> Any:
            inputs = args[1:] if takes_context else args
            calls.setdefault(function, tuple(_detach(value) for value in inputs))
            return forward(*args)

        return staticmethod(record)

    try:
        for function in functions:
            function.forward = make_recorder(function, function.forward)
        yield calls
    finally:
        for function, forward in originals.items():
            if forward is None:
                del function.forward
            else:
                function.forward = forward


def _detach(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _check(function: Function, *inputs: Any) -> FunctionCheck:
    name = function.__name__
    floats = [index for index, value in enumerate(inputs) if isinstance(value, Tensor) and value.is_floating_point()]
    args = [value.double() if index in floats else value for index, value in enumerate(inputs)]

    def apply(*values: Tensor) -> tuple[Tensor, ...]:
        full_args = list(args)
        for index, value in zip(floats, values, strict=True):
            full_args[index] = value
        return tuple(out for out in tensors(function.apply(*full_args)) if out.is_floating_point())

    values = [args[index].requires_grad_() for index in floats]
    if deliberate := _deliberate_reason(apply, values):
        return FunctionCheck(name=name, is_correct=False, deliberate=deliberate)
    fast = sum(value.numel() for value in values) > MAX_FULL_CHECK
    try:
        torch.autograd.gradcheck(apply, tuple(values), fast_mode=fast)
    except GradcheckError as error:
        return FunctionCheck(name=name, is_correct=False, problem=_describe_mismatch(apply, values, str(error)))
    return FunctionCheck(name=name, is_correct=True)


def _deliberate_reason(apply: Any, values: list[Tensor]) -> str:
    with torch.no_grad():
        outputs = apply(*[value.detach() for value in values])
        moved = apply(*[value + STEP * torch.ones_like(value) for value in values])
    if all(torch.equal(a, b) for a, b in zip(outputs, moved, strict=True)):
        return "its forward is a staircase, so its gradient is a deliberate choice (straight-through?)"
    if any(torch.equal(outputs[0], value) for value in values if outputs and outputs[0].shape == value.shape):
        return "its forward is the identity, so its backward is a deliberate choice (reversal, scaling?)"
    return ""


def _describe_mismatch(apply: Any, values: list[Tensor], error: str) -> str:
    """Describe the error of the gradient along one random direction."""
    generator = torch.Generator().manual_seed(0)

    def random(like: Tensor) -> Tensor:
        return torch.rand(like.shape, generator=generator, dtype=torch.float64).to(like.device)

    outputs = apply(*values)
    weights = [random(out) for out in outputs]
    total = torch.stack([(out * weight).sum() for out, weight in zip(outputs, weights, strict=True)]).sum()
    grads = cast("tuple[Tensor | None, ...]", torch.autograd.grad(total, values, allow_unused=True))
    for number, (value, grad) in enumerate(zip(values, grads, strict=True)):
        direction = random(value)
        totals: list[Tensor] = []
        for sign in (1, -1):
            shifted = [tensor.detach() + (sign * STEP * direction if tensor is value else 0) for tensor in values]
            with torch.no_grad():
                parts = [(out * weight).sum() for out, weight in zip(apply(*shifted), weights, strict=True)]
            totals.append(torch.stack(parts).sum())
        numerical = float(totals[0] - totals[1]) / (2 * STEP)
        analytical = 0.0 if grad is None else float((grad * direction).sum())
        if abs(numerical - analytical) > TOLERANCE * max(abs(numerical), abs(analytical)):
            ratio = f"{format_float(analytical / numerical)} times" if numerical else "not"
            derivative = f"{ratio} the derivative of forward, {format_float(numerical)}"
            return f"along a random direction of input {number} it is {format_float(analytical)}, {derivative}"
    return " ".join(error.split())[:200]


PROOF = Proof(title="Custom Functions pass gradcheck", group="gradients", prove=custom_functions)
