"""The initial loss is that of an uninformed guess: ln C for C classes, the variance of the target for a number.

If the loss is far above that, the last layer starts confidently wrong, and the first epochs are spent unlearning it. If
the loss is far below, the input contains the target.

Source: A. Karpathy, A Recipe for Training Neural Networks, 2019.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueloop.core.formatting import format_float
from trueloop.verification.batch_tree import tensors
from trueloop.verification.evidence import Bars, Evidence, NotApplicable, broken, holds
from trueloop.verification.model_call import is_criterion, model_outputs, split_pair
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext, TrainingCopy

ABOVE, BELOW = 1.5, 0.5
"""Limits as multiples of the expected loss: initialisation adds a few percent; below 0.5 the model has information."""
NEAR = (0.8, 1.3)
"""Narrower limits, for a number of classes that was inferred from the output's shape."""
WIDE = 10.0
"""Upper limit for regression, in variances: the loss of a model that starts at 0 includes the square of the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected loss of an uninformed guess."""

    value: float
    formula: str
    """Formula of the expected loss: "ln 10"."""
    certain: bool = True
    """False if the number of classes was inferred from the output's shape."""
    above: float = ABOVE
    """Upper limit of the loss, as a multiple of ``value``."""
    remark: str = ""


def initial_loss(context: ProofContext, *, expected: float | None = None) -> Evidence:
    """Measure the loss before any update, and compare it with the loss of an uninformed guess.

    Args:
        expected: expected initial loss, for a custom loss.
    """
    training = context.training_copy()
    batch = context.batch
    loss = training.measure_loss(batch)
    should = (
        Expected(value=expected, formula="the expected loss")
        if expected is not None
        else _expected(context, training, batch)
    )
    ratio = loss / should.value if should.value else math.inf
    numbers = {"loss": loss, "expected": should.value}
    picture = Bars(title="Loss before training", values={"measured": loss, should.formula: should.value}, unit="")
    message = f"The initial loss is {format_float(loss)}; {should.formula} is {format_float(should.value)}"
    low_end, high_end = (BELOW, should.above) if should.certain else NEAR
    if math.isfinite(loss) and low_end <= ratio <= high_end:
        remarks = (should.remark,) if should.remark else ()
        return holds(f"{message}.", numbers=numbers, charts=(picture,), notes=remarks)
    if math.isfinite(loss) and not should.certain:
        raise NotApplicable(f"{message}, which may not apply to this loss: pass expected=.")
    if ratio < BELOW and isinstance(context.target.model, nn.Module):
        raise NotApplicable(f"{message}: the model seems to be trained already.")
    low = ratio < BELOW
    return broken(
        f"{message}. The ratio is {format_float(ratio)}.",
        cause="the input" if low else "the last layer",
        fix="Check whether the inputs contain the target."
        if low
        else "Initialise the last layer smaller, normalise targets to mean 0 and variance 1, and check if the loss "
        "expects logits or probabilities.",
        numbers=numbers,
        charts=(picture,),
    )


def _expected(context: ProofContext, training: TrainingCopy, batch: Any) -> Expected:
    if context.target.classes is not None:
        return _classes(context.target.classes, certain=True)
    loss = context.target.loss
    if loss is None:
        raise NotApplicable("There is no loss.")
    if not is_criterion(loss):
        return _infer_classes(context, training, batch)
    output, target = (
        model_outputs(training.model, context.call(training.model, batch), context.target.seed)[0],
        split_pair(batch)[1],
    )
    if getattr(loss, "reduction", "mean") != "mean":
        raise NotApplicable(f"The reduction of the loss is {loss.reduction!r}, not 'mean'.")
    if isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)) or loss in (F.cross_entropy, F.nll_loss):
        return _classes(output.shape[1] if output.dim() > 1 else output.shape[0], certain=True)
    if isinstance(loss, (nn.BCEWithLogitsLoss, nn.BCELoss)) or loss in (
        F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits,
    ):
        return Expected(value=math.log(2), formula="ln 2")
    if isinstance(loss, nn.MSELoss) or loss is F.mse_loss:
        return Expected(
            value=_variance(target), formula="the target's variance", above=WIDE, remark=_off_centre(target)
        )
    if isinstance(loss, nn.L1Loss) or loss is F.l1_loss:
        numbers = target.double()
        return Expected(
            value=float((numbers - numbers.median()).abs().mean()), formula="the target's mean deviation", above=WIDE
        )
    raise NotApplicable(
        f"The expected initial value of {getattr(loss, '__name__', type(loss).__name__)} is unknown: pass expected=."
    )


def _classes(count: int, *, certain: bool) -> Expected:
    if count < 2:
        raise NotApplicable(f"The output has {count} class, whose loss is always 0.")
    return Expected(value=math.log(count), formula=f"ln {count}", certain=certain)


def _infer_classes(context: ProofContext, training: TrainingCopy, batch: Any) -> Expected:
    outputs = [
        each
        for each in model_outputs(training.model, context.call(training.model, batch), context.target.seed)
        if each.dim() > 1
    ]
    has_integers = any(not leaf.is_floating_point() and leaf.dtype is not torch.bool for leaf in tensors(batch))
    if not has_integers or not outputs or not outputs[0].is_floating_point() or outputs[0].shape[-1] < 2:
        raise NotApplicable("The expected initial value of this loss is unknown: pass classes= or expected=.")
    return _classes(outputs[0].shape[-1], certain=False)


def _variance(target: Tensor) -> float:
    variance = float(target.double().var(unbiased=False))
    if not variance or not torch.isfinite(torch.tensor(variance)):
        raise NotApplicable("All targets of the batch are equal.")
    return variance


def _off_centre(target: Tensor) -> str:
    mean, deviation = float(target.double().mean()), float(target.double().std())
    if abs(mean) < deviation:
        return ""
    spread = f"mean {format_float(mean)} and deviation {format_float(deviation)}"
    return f"The target has {spread}: a model whose output starts at 0 learns the mean first."


PROOF = Proof(title="The initial loss is that of an uninformed guess", group="training", prove=initial_loss)
