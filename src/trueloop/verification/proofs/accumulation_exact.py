"""Accumulation over K micro-batches equals the big batch.

A loop that does not divide by K trains with K times the learning rate. A loop that divides by K gives more weight to
the samples of a short last micro-batch, and to the tokens of short sequences, than to other samples and tokens.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueloop.core.formatting import first_few, format_float, format_percent
from trueloop.verification.batch_tree import batch_size, select_samples, split_batch, to_double
from trueloop.verification.evidence import Bars, Evidence, NotApplicable, NotJudged, broken, holds
from trueloop.verification.freeze_mode import BatchNorm, disable_dropout, freeze_mode, layers_in_train_mode
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext, TrainingCopy

FLOAT64_TOLERANCE, FLOAT32_TOLERANCE = 1e-9, 1e-4
LEARNING_RATE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Conditions of one test update."""

    batch: Any
    double: bool
    """True = compute in float64."""
    batchnorm_frozen: bool
    """True = keep BatchNorm layers in eval mode."""


def accumulation_exact(context: ProofContext, *, k: int = 4) -> Evidence:
    """Make one update from K micro-batches and one from the same samples in one batch, and compare the parameters.

    The test uses equal micro-batches, and micro-batches with a short last one. It uses plain gradient descent, whose
    update is the gradient, no dropout, and BatchNorm in eval mode: accumulation cannot reproduce batch statistics.

    Args:
        context: context of a target with a function ``step(model, optimizer, batches)``.
        k: number of micro-batches.
    """
    if context.target.step is None:
        raise NotApplicable("There is no step: pass step(model, optimizer, batches), which makes one update.")
    batch = context.first_samples(8 * k, minimum=4)
    k = min(k, batch_size(batch) // 2)
    samples = batch_size(batch) // k * k
    batch = select_samples(batch, slice(0, samples))
    trial = Trial(batch=batch, double=_supports_float64(context, batch), batchnorm_frozen=True)
    tolerance = FLOAT64_TOLERANCE if trial.double else FLOAT32_TOLERANCE
    even, larger = [samples // k] * k, samples // k + 1
    ragged = [min(larger, samples - start) for start in range(0, samples, larger)]
    reference = _update(context, trial, [samples])
    if not float(_norm(reference)):
        raise NotJudged("The step does not change the model that it receives, so nothing can be compared.")
    if _relative_difference(reference, _update(context, trial, [samples])) > tolerance:
        raise NotJudged("The step is random: the same batch and seed give different updates.")
    differences = {
        "equal": _relative_difference(reference, _update(context, trial, even)),
        "short last": _relative_difference(reference, _update(context, trial, ragged)),
    }
    numbers = {"equal": differences["equal"], "short_last": differences["short last"]}
    chart = Bars(title="Difference from the update of the big batch", values=differences, unit="of its size")
    if max(differences.values()) > tolerance:
        scale = float(_norm(_update(context, trial, even)) / _norm(reference))
        return broken(
            _difference_message(differences, tolerance, scale, (even, ragged)),
            cause="short last micro-batch" if differences["equal"] <= tolerance else "equal micro-batches",
            fix="Compute the loss as a sum and a count per micro-batch, call backward on the sums, and divide the "
            "gradient once by the total count.",
            numbers={**numbers, "times": scale},
            charts=(chart,),
        )
    return holds(
        f"The update from {k} micro-batches differs from that of the big batch by at most "
        f"{format_float(max(differences.values()))} of its size, also with a short last micro-batch "
        f"({' + '.join(map(str, ragged))}).",
        notes=_batchnorm_note(context, batch, even, double=trial.double),
        numbers=numbers,
        charts=(chart,),
    )


def _difference_message(
    differences: dict[str, float], tolerance: float, scale: float, sizes: tuple[list[int], list[int]]
) -> str:
    even, ragged = (" + ".join(map(str, split)) for split in sizes)
    if differences["equal"] <= tolerance:
        return (
            f"Equal micro-batches ({even}) give the big batch's update, but with a short last one ({ragged}) the "
            f"update is off by {format_percent(differences['short last'])}: every micro-batch has the same weight, "
            "whatever its size."
        )
    difference = format_percent(differences["equal"])
    message = f"The update from {len(sizes[0])} equal micro-batches ({even}) is off by {difference}"
    return (
        f"{message}: its norm is {format_float(scale)} times that of the big batch's update."
        if abs(scale - 1) > 0.01
        else f"{message}."
    )


def _supports_float64(context: ProofContext, batch: Any) -> bool:
    try:
        _update(context, Trial(batch=batch, double=True, batchnorm_frozen=True), [batch_size(batch)])
    except (RuntimeError, TypeError, ValueError, AssertionError):  # the model or loss supports only one precision
        return False
    return True


def _update(context: ProofContext, trial: Trial, sizes: list[int]) -> list[Tensor]:
    """Make one update from micro-batches of the given sizes, and return the change of each parameter."""
    training = _prepare_training(context, trial)
    batches = split_batch(to_double(trial.batch) if trial.double else trial.batch, sizes)
    initial = [parameter.detach().clone() for parameter in training.model.parameters()]
    torch.manual_seed(context.target.seed)
    training.update(batches)
    parameters = training.model.parameters()
    return [(parameter.detach() - before).double() for parameter, before in zip(parameters, initial, strict=True)]


def _prepare_training(context: ProofContext, trial: Trial) -> TrainingCopy:
    training = context.training_copy()
    training.use_optimizer(torch.optim.SGD, LEARNING_RATE)
    disable_dropout(training.model)
    if trial.batchnorm_frozen:
        freeze_mode(training.model, BatchNorm)
    if trial.double:
        training.model.double()
        if isinstance(training.loss, nn.Module):
            training.loss.double()
    return training


def _norm(update: list[Tensor]) -> Tensor:
    return torch.stack([part.square().sum() for part in update]).sum().sqrt()


def _relative_difference(reference: list[Tensor], update: list[Tensor]) -> float:
    difference = _norm([a - b for a, b in zip(reference, update, strict=True)])
    return float(difference / (_norm(reference) or 1.0))


def _batchnorm_note(context: ProofContext, batch: Any, even: list[int], *, double: bool) -> tuple[str, ...]:
    names = layers_in_train_mode(context.training_copy().model, BatchNorm)
    if not names:
        return ()
    trial = Trial(batch=batch, double=double, batchnorm_frozen=False)
    difference = _relative_difference(_update(context, trial, [batch_size(batch)]), _update(context, trial, even))
    note = (
        f"BatchNorm ({first_few(names)}) was in eval mode: with the statistics of each micro-batch, the update is "
        f"off by {format_percent(difference)}, which no training loop can avoid."
    )
    return (note,)


PROOF = Proof(title="Accumulation equals the big batch", group="training", prove=accumulation_exact)
