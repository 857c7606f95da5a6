"""Who acts on whom: change one part of the input and look which part of the output moves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trueloop.verification.batch_tree import to_double, describe_batch, replace_tensors, batch_size, tensors
from trueloop.verification.evidence import NotApplicable
from trueloop.verification.model_call import ModelCall, model_outputs

FLOAT64_TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-9, 1e-4
"""Relative differences below which numbers count as equal: in double precision, and where a model insists on less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreciseModel:
    """A model and a call in the best precision that the model takes."""

    model: nn.Module
    call: ModelCall
    seed: int
    tolerance: float
    """Relative to the greatest output."""
    baseline: list[Tensor]
    """What the model gives for the call."""

    def run(self, call: ModelCall) -> list[Tensor]:
        """Return what the model gives for another call."""
        return model_outputs(self.model, call, self.seed)

    def difference(self, a: Tensor, b: Tensor) -> float:
        """Return the greatest relative difference of two outputs, 0 where it is within the tolerance."""
        return max_difference(a, b, self.tolerance)


def to_best_precision(model: nn.Module, call: ModelCall, seed: int) -> PreciseModel:
    """Return the model in double precision, where differences are facts; as it is where it does not take that.

    Args:
        model: a copy already; its parameters that are all zero become small random ones.
        call: what it is called with.
        seed: of its dropout.
    """
    _randomize_zero_parameters(model)
    try:
        double = copy.deepcopy(model).double()
        exact = ModelCall.from_tree(to_double(call.tree))
        before = model_outputs(double, exact, seed)
    except (RuntimeError, TypeError, ValueError, AssertionError):  # written for one precision only
        before = model_outputs(model, call, seed)
        return PreciseModel(model=model, call=call, seed=seed, tolerance=LOW_PRECISION_TOLERANCE, baseline=before)
    real = [leaf for leaf in before if leaf.is_floating_point()]
    tolerance = FLOAT64_TOLERANCE if all(leaf.dtype is torch.float64 for leaf in real) else LOW_PRECISION_TOLERANCE
    return PreciseModel(model=double, call=exact, seed=seed, tolerance=tolerance, baseline=before)


def _randomize_zero_parameters(model: nn.Module) -> None:
    """A layer that begins with zeros (a residual branch, a last layer) lets nothing through before its first update."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and not bool(parameter.any()):
                noise = torch.randn(parameter.shape, generator=generator) * 0.02  # as GPT-2 begins
                parameter.copy_(noise)


def max_difference(a: Tensor, b: Tensor, tolerance: float) -> float:
    """Return the greatest difference relative to the greatest number in ``a``, 0 where it is within the tolerance."""
    return float(relative_differences(a, b, 0, tolerance)) if a.shape == b.shape else float("inf")


def relative_differences(a: Tensor, b: Tensor, keep: int, tolerance: float) -> Tensor:
    """Return how far two tensors of one shape are apart, for each place along their first ``keep`` dimensions.

    Returns:
        Differences relative to the greatest number in ``a``: 0 within the tolerance, inf where only one is a number.
    """
    shape = a.shape[:keep]
    if not a.numel():
        return torch.zeros(shape)
    if not a.is_floating_point() and not a.is_complex():
        return (a != b).reshape(*shape, -1).any(-1).double().cpu()
    lost = a.isnan() != b.isnan()
    size = a.abs()
    scale = float(size[size.isfinite()].max()) if bool(size.isfinite().any()) else 1.0
    gap = torch.where(a == b, torch.zeros_like(size), (a - b).abs()).nan_to_num(0.0)
    gap = torch.where(lost, torch.full_like(size, torch.inf), gap)
    found = gap.reshape(*shape, -1).amax(-1).double().cpu() / (scale or 1.0)
    return torch.where(found > tolerance, found, torch.zeros_like(found))


def perturb(tensor: Tensor, where: Tensor) -> Tensor:
    """Return a tensor whose elements at ``where`` are others that could have been there too.

    Args:
        tensor: real numbers get noise of their own size; whole numbers become another number of the same tensor.
        where: bool, of a shape that broadcasts from the left.

    Raises:
        NotApplicable: all its whole numbers are one, so that nothing else is known to be allowed.
    """
    where = where.reshape(*where.shape, *[1] * (tensor.dim() - where.dim())).expand_as(tensor)
    if tensor.is_floating_point() or tensor.is_complex():
        values = tensor.detach()
        finite = values[values.isfinite()] if tensor.is_floating_point() else values.abs()
        spread = float(finite.std()) if finite.numel() > 1 else 0.0
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        moved = values + (noise.to(tensor.device) * (spread or 1.0) + (spread or 1.0)).to(tensor.dtype)
        return torch.where(where, moved, values)
    if tensor.dtype is torch.bool:
        return tensor
    known, number = torch.unique(tensor, return_inverse=True)
    if len(known) < 2:
        raise NotApplicable(f"Every number of the input is {known.tolist()}, so there is nothing to change it to.")
    return torch.where(where, known[(number + 1) % len(known)], tensor)


def content_tensors(call: ModelCall, fits: Callable[[Tensor], bool]) -> list[int]:
    """Return which tensors of a call carry its content: the real ones, or else the largest of whole numbers.

    Masks and lengths among whole numbers are left out: another length is another question.

    Raises:
        NotApplicable: there is none of a shape that fits.
    """
    found = [(index, leaf) for index, leaf in enumerate(tensors(call.tree)) if leaf.numel() and fits(leaf)]
    real = [index for index, leaf in found if leaf.is_floating_point()]
    whole = [(leaf.numel(), -index) for index, leaf in found if leaf.dtype is not torch.bool]
    if not real and not whole:
        raise NotApplicable(f"The model is called with {describe_batch(call.tree)}, in which there is nothing to change.")
    return real or [-max(whole)[1]]


def perturb_call(call: ModelCall, which: list[int], change: Callable[[Tensor], Tensor]) -> ModelCall:
    """Return a call in which some tensors are changed.

    Raises:
        NotApplicable: none of them could be changed to anything else.
    """
    leaves = tensors(call.tree)
    new = {index: change(leaves[index]) for index in which}
    if all(torch.equal(new[index], leaves[index]) for index in which):
        raise NotApplicable("The input could not be changed to anything else.")
    return ModelCall.from_tree(replace_tensors(call.tree, new))


def per_sample_outputs(outputs_: list[Tensor], samples: int) -> list[Tensor]:
    """Return the outputs that have one row per sample.

    Raises:
        NotApplicable: there is none.
    """
    found = [leaf for leaf in outputs_ if leaf.dim() and leaf.shape[0] == samples]
    if not found:
        raise NotApplicable(f"The output {describe_batch(outputs_)} has no row per sample ({samples} of them).")
    return found


def call_batch_size(call: ModelCall) -> int:
    """Return how many samples the model is called with."""
    return batch_size(call.tree)
