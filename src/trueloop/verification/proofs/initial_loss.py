"""The initial loss is the loss of an uninformed guess: ln C for C classes, the variance of the target for a number.

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

UPPER_LIMIT, LOWER_LIMIT = 1.5, 0.5
"""Limits as multiples of the expected loss: initialisation adds a few percent; below 0.5 the model knows the target."""
INFERRED_LIMITS = (0.8, 1.3)
"""Narrower limits, for a number of classes that was inferred from the output's shape."""
WIDE_LIMIT = 10.0
"""Upper limit for regression, in variances: the loss of a model that starts at 0 includes the square of the mean."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The loss of an uninformed guess."""

    value: float
    formula: str
    """Formula of the loss: "ln 10"."""
    certain: bool = True
    """False if the number of classes was inferred from the output's shape."""
    upper_limit: float = UPPER_LIMIT
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
    guess = _expected_loss(context, training, batch) if expected is None else Guess(expected, "the expected loss")
    ratio = loss / guess.value if guess.value else math.inf
    numbers = {"loss": loss, "expected": guess.value}
    picture = Bars(title="Loss before training", values={"measured": loss, guess.formula: guess.value}, unit="")
    message = f"The initial loss is {format_float(loss)}; {guess.formula} is {format_float(guess.value)}"
    low_end, high_end = (LOWER_LIMIT, guess.upper_limit) if guess.certain else INFERRED_LIMITS
    if math.isfinite(loss) and low_end <= ratio <= high_end:
        remarks = (guess.remark,) if guess.remark else ()
        return holds(f"{message}.", numbers=numbers, charts=(picture,), notes=remarks)
    if math.isfinite(loss) and not guess.certain:
        raise NotApplicable(f"{message}, which may not apply to this loss: pass expected=.")
    if ratio < LOWER_LIMIT and isinstance(context.target.model, nn.Module):
        raise NotApplicable(f"{message}: the model seems to be trained already.")
    is_low = ratio < LOWER_LIMIT
    return broken(
        f"{message}. The ratio is {format_float(ratio)}.",
        cause="the input" if is_low else "the last layer",
        fix="Check whether the inputs contain the target."
        if is_low
        else "Initialise the last layer smaller, normalise targets to mean 0 and variance 1, and check if the loss "
        "expects logits or probabilities.",
        numbers=numbers,
        charts=(picture,),
    )


def _expected_loss(context: ProofContext, training: TrainingCopy, batch: Any) -> Guess:
    if context.target.classes is not None:
        return _uniform_guess(context.target.classes, certain=True)
    loss = context.target.loss
    if loss is None:
        raise NotApplicable("There is no loss.")
    if not is_criterion(loss):
        return _infer_classes(context, training, batch)
    output = _outputs(context, training, batch)[0]
    target = split_pair(batch)[1]
    if getattr(loss, "reduction", "mean") != "mean":
        raise NotApplicable(f"The reduction of the loss is {loss.reduction!r}, not 'mean'.")
    if isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)) or loss in (F.cross_entropy, F.nll_loss):
        return _uniform_guess(output.shape[1] if output.dim() > 1 else output.shape[0], certain=True)
    if isinstance(loss, (nn.BCEWithLogitsLoss, nn.BCELoss)) or loss in (
        F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits,
    ):
        return Guess(math.log(2), "ln 2")
    if isinstance(loss, nn.MSELoss) or loss is F.mse_loss:
        return Guess(_variance(target), "the target's variance", upper_limit=WIDE_LIMIT, remark=_mean_remark(target))
    if isinstance(loss, nn.L1Loss) or loss is F.l1_loss:
        values = target.double()
        return Guess(float((values - values.median()).abs().mean()), "the mean deviation", upper_limit=WIDE_LIMIT)
    raise NotApplicable(
        f"The expected initial value of {getattr(loss, '__name__', type(loss).__name__)} is unknown: pass expected=."
    )


def _uniform_guess(count: int, *, certain: bool) -> Guess:
    if count < 2:
        raise NotApplicable(f"The output has {count} class, whose loss is always 0.")
    return Guess(math.log(count), f"ln {count}", certain=certain)


def _infer_classes(context: ProofContext, training: TrainingCopy, batch: Any) -> Guess:
    outputs = [output for output in _outputs(context, training, batch) if output.dim() > 1]
    has_integers = any(not leaf.is_floating_point() and leaf.dtype is not torch.bool for leaf in tensors(batch))
    if not has_integers or not outputs or not outputs[0].is_floating_point() or outputs[0].shape[-1] < 2:
        raise NotApplicable("The expected initial value of this loss is unknown: pass classes= or expected=.")
    return _uniform_guess(outputs[0].shape[-1], certain=False)


def _outputs(context: ProofContext, training: TrainingCopy, batch: Any) -> list[Tensor]:
    return model_outputs(training.model, context.call(training.model, batch), context.target.seed)


def _variance(target: Tensor) -> float:
    variance = float(target.double().var(unbiased=False))
    if not variance or not torch.isfinite(torch.tensor(variance)):
        raise NotApplicable("All targets of the batch are equal.")
    return variance


def _mean_remark(target: Tensor) -> str:
    mean, deviation = float(target.double().mean()), float(target.double().std())
    if abs(mean) < deviation:
        return ""
    spread = f"mean {format_float(mean)} and deviation {format_float(deviation)}"
    return f"The target has {spread}: a model whose output starts at 0 learns the mean first."


PROOF = Proof(title="The initial loss is that of an uninformed guess", group="training", prove=initial_loss)
