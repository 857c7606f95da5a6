"""Accumulation over K micro-batches equals the big batch.

A loop that does not divide by K trains at K times the rate; one that divides by K gives the samples of a short last
micro-batch, and the tokens of a short sequence, more weight than the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueloop.core.formatting import format_float, format_percent
from trueloop.verification.batch_tree import to_double, split_batch, batch_size, select_samples
from trueloop.verification.evidence import Bars, Evidence, NotApplicable, NotJudged, Verdict
from trueloop.verification.freeze_mode import BatchNorm, layers_in_train_mode, freeze_mode, disable_dropout
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext, TrainingCopy

EXACT, ROUGH = 1e-9, 1e-4
RATE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How a step is tried."""

    batch: Any
    double: bool
    pinned: bool
    """Batch statistics are held still."""


def accumulation_exact(context: ProofContext, *, k: int = 4) -> Evidence:
    """Makes one update from K micro-batches and one from the same samples in one batch, and compares the parameters.

    With equal micro-batches and with a short last one, by plain gradient descent, whose update is the gradient; without
    dropout and with BatchNorm's statistics held still, which no accumulation can repair.

    Args:
        context: of a target with a ``step(model, optimizer, batches)``.
        k: micro-batches.
    """
    if context.target.step is None:
        raise NotApplicable("There is no step: give step(model, optimizer, batches), which makes one update.")
    batch = context.first_samples(8 * k, least=4)
    k = min(k, batch_size(batch) // 2)
    samples = batch_size(batch) // k * k
    batch = select_samples(batch, slice(0, samples))
    trial = Trial(batch=batch, double=_takes_double(context, batch), pinned=True)
    tolerance = EXACT if trial.double else ROUGH
    even, ragged = [samples // k] * k, _ragged(samples, samples // k + 1)
    whole = _update(context, trial, [samples])
    if not float(_size(whole)):
        raise NotJudged("The step does not change the model that it is given: nothing can be compared.")
    if _apart(whole, _update(context, trial, [samples])) > tolerance:
        raise NotJudged("The step is random: the same batch and seed give another update.")
    off = {
        "equal": _apart(whole, _update(context, trial, even)),
        "short last": _apart(whole, _update(context, trial, ragged)),
    }
    numbers = {"equal": off["equal"], "short_last": off["short last"]}
    picture = Bars(title="How far the update is from that of the big batch", values=off, unit="of its size")
    if max(off.values()) > tolerance:
        scale = _scale(whole, _update(context, trial, even))
        return Evidence(
            verdict=Verdict.BROKEN,
            message=_told(off, tolerance, scale, (even, ragged)),
            cause="short last micro-batch" if off["equal"] <= tolerance else "equal micro-batches",
            fix="Add up the loss as a sum and a count per micro-batch, backward on the sums, and divide the "
            "gradient once "
            "by the total count.",
            numbers={**numbers, "times": scale},
            charts=(picture,),
        )
    return Evidence(
        verdict=Verdict.HOLDS,
        message=f"The update from {k} micro-batches is that of the big batch to {format_float(max(off.values()))} "
        "of its size, "
        f"also where the last one is short ({' + '.join(map(str, ragged))}).",
        notes=_live_statistics(context, batch, even, double=trial.double),
        numbers=numbers,
        charts=(picture,),
    )


def _told(off: dict[str, float], tolerance: float, scale: float, sizes: tuple[list[int], list[int]]) -> str:
    even, ragged = (" + ".join(map(str, each)) for each in sizes)
    if off["equal"] <= tolerance:
        return (
            f"Equal micro-batches ({even}) give the big batch's update, but with a short last one ({ragged}) it is off "
            f"by {format_percent(off['short last'])}: each micro-batch weighs the same, whatever it holds."
        )
    told = f"The update from {len(sizes[0])} equal micro-batches ({even}) is off by {format_percent(off['equal'])}"
    return f"{told}: it is {format_float(scale)} times as long as the big batch's." if abs(scale - 1) > 0.01 else f"{told}."


def _ragged(samples: int, size: int) -> list[int]:
    return [min(size, samples - start) for start in range(0, samples, size)]


def _takes_double(context: ProofContext, batch: Any) -> bool:
    try:
        _update(context, Trial(batch=batch, double=True, pinned=True), [batch_size(batch)])
    except (RuntimeError, TypeError, ValueError, AssertionError):  # written for one precision only
        return False
    return True


def _update(context: ProofContext, trial: Trial, sizes: list[int]) -> list[Tensor]:
    """Return by how much each parameter moves in one update."""
    training = _prepared(context, trial)
    batches = split_batch(to_double(trial.batch) if trial.double else trial.batch, sizes)
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    torch.manual_seed(context.target.seed)
    training.update(batches)
    return [(now.detach() - old).double() for now, old in zip(training.model.parameters(), before, strict=True)]


def _prepared(context: ProofContext, trial: Trial) -> TrainingCopy:
    training = context.training_copy()
    groups = [{"params": group["params"]} for group in training.optimizer.param_groups]  # a step may speak of its groups
    training.optimizer = torch.optim.SGD(groups, lr=RATE)
    disable_dropout(training.model)
    if trial.pinned:
        freeze_mode(training.model, BatchNorm)
    if trial.double:
        training.model.double()
        if isinstance(training.loss, nn.Module):
            training.loss.double()
    return training


def _size(update: list[Tensor]) -> Tensor:
    return torch.stack([part.square().sum() for part in update]).sum().sqrt()


def _apart(whole: list[Tensor], parts: list[Tensor]) -> float:
    gap = _size([a - b for a, b in zip(whole, parts, strict=True)])
    return float(gap / (_size(whole) or 1.0))


def _scale(whole: list[Tensor], parts: list[Tensor]) -> float:
    return float(_size(parts) / (_size(whole) or 1.0))


def _live_statistics(context: ProofContext, batch: Any, even: list[int], *, double: bool) -> tuple[str, ...]:
    names = layers_in_train_mode(context.training_copy().model, BatchNorm)
    if not names:
        return ()
    trial = Trial(batch=batch, double=double, pinned=False)
    off = _apart(_update(context, trial, [batch_size(batch)]), _update(context, trial, even))
    told = (
        f"BatchNorm ({', '.join(names[:3])}) was held still: with live statistics, which are those of the micro-batch, "
        f"the update is {format_percent(off)} off, and no loop can help that."
    )
    return (told,)


PROOF = Proof(title="Accumulation equals the big batch", group="training", prove=accumulation_exact)
