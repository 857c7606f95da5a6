"""Measure influence: change one part of the input and compare the outputs."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trueloop.verification.batch_tree import describe_batch, replace_tensors, tensors, to_double
from trueloop.verification.evidence import NotApplicable
from trueloop.verification.model_call import ModelCall, model_outputs

FLOAT64_TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-9, 1e-4
"""Relative differences below which numbers count as equal, in float64 and in lower precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreciseModel:
    """A model and a call in the highest precision that the model supports."""

    model: nn.Module
    call: ModelCall
    seed: int
    tolerance: float
    """Difference, relative to the largest output, up to which outputs count as equal."""
    baseline: list[Tensor]
    """Outputs of the model for the call."""

    def run(self, call: ModelCall) -> list[Tensor]:
        """Return the model's outputs for another call."""
        return model_outputs(self.model, call, self.seed)

    def difference(self, a: Tensor, b: Tensor) -> float:
        """Return the largest relative difference of two outputs; 0 if it is within the tolerance."""
        return max_difference(a, b, self.tolerance)


def to_best_precision(model: nn.Module, call: ModelCall, seed: int) -> PreciseModel:
    """Convert the model to float64, or leave it unchanged if it does not support float64.

    Args:
        model: a copy of the user's model; parameters that are all zero are set to small random values.
        call: arguments of the model.
        seed: seed of all random generators, which dropout uses.
    """
    _randomize_zero_parameters(model)
    try:
        double = copy.deepcopy(model).double()
        exact = ModelCall.from_tree(to_double(call.tree))
        baseline = model_outputs(double, exact, seed)
    except (RuntimeError, TypeError, ValueError, AssertionError):  # the model supports only one precision
        baseline = model_outputs(model, call, seed)
        return PreciseModel(model=model, call=call, seed=seed, tolerance=LOW_PRECISION_TOLERANCE, baseline=baseline)
    floats = [leaf for leaf in baseline if leaf.is_floating_point()]
    tolerance = FLOAT64_TOLERANCE if all(leaf.dtype is torch.float64 for leaf in floats) else LOW_PRECISION_TOLERANCE
    return PreciseModel(model=double, call=exact, seed=seed, tolerance=tolerance, baseline=baseline)


def _randomize_zero_parameters(model: nn.Module) -> None:
    """Replace all-zero parameters (of a residual branch, of a last layer) by noise: they block all influence."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and not bool(parameter.any()):
                noise = torch.randn(parameter.shape, generator=generator) * 0.02  # the initialisation of GPT-2
                parameter.copy_(noise)


def max_difference(a: Tensor, b: Tensor, tolerance: float) -> float:
    """Return the largest difference relative to the largest number in ``a``; 0 if it is within the tolerance."""
    return float(relative_differences(a, b, 0, tolerance)) if a.shape == b.shape else float("inf")


def relative_differences(a: Tensor, b: Tensor, dims: int, tolerance: float) -> Tensor:
    """Return the largest differences of two tensors of equal shape, one per index in the first ``dims`` dimensions.

    Returns:
        Differences relative to the largest number in ``a``: 0 within the tolerance, inf where only one value is NaN.
    """
    shape = a.shape[:dims]
    if not a.numel():
        return torch.zeros(shape)
    if not a.is_floating_point() and not a.is_complex():
        return (a != b).reshape(*shape, -1).any(-1).double().cpu()
    one_is_nan = a.isnan() != b.isnan()
    magnitude = a.abs()
    scale = float(magnitude[magnitude.isfinite()].max()) if bool(magnitude.isfinite().any()) else 1.0
    difference = torch.where(a == b, torch.zeros_like(magnitude), (a - b).abs()).nan_to_num(0.0)
    difference = torch.where(one_is_nan, torch.full_like(magnitude, torch.inf), difference)
    relative = difference.reshape(*shape, -1).amax(-1).double().cpu() / (scale or 1.0)
    return torch.where(relative > tolerance, relative, torch.zeros_like(relative))


def perturb(tensor: Tensor, mask: Tensor) -> Tensor:
    """Return a tensor with other plausible values where ``mask`` is True.

    Args:
        tensor: floats get noise of the tensor's scale; each integer becomes another integer of the same tensor.
        mask: bool mask whose dimensions are the first dimensions of the tensor.

    Raises:
        NotApplicable: all integers of the tensor are equal, so no other valid value is known.
    """
    mask = mask.reshape(*mask.shape, *[1] * (tensor.dim() - mask.dim())).expand_as(tensor)
    if tensor.is_floating_point() or tensor.is_complex():
        values = tensor.detach()
        finite = values[values.isfinite()] if tensor.is_floating_point() else values.abs()
        spread = float(finite.std()) if finite.numel() > 1 else 0.0
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        noisy = values + (noise.to(tensor.device) * (spread or 1.0) + (spread or 1.0)).to(tensor.dtype)
        return torch.where(mask, noisy, values)
    if tensor.dtype is torch.bool:
        return tensor
    distinct, inverse = torch.unique(tensor, return_inverse=True)
    if len(distinct) < 2:
        raise NotApplicable(f"Every number of the input is {distinct.tolist()}, so no other valid value is known.")
    return torch.where(mask, distinct[(inverse + 1) % len(distinct)], tensor)


def content_tensors(call: ModelCall, fits: Callable[[Tensor], bool]) -> list[int]:
    """Return the indices of the content tensors of a call: all float tensors or, without any, the largest integer one.

    Integer masks and lengths are not content, and must not be changed.

    Args:
        call: the model's call.
        fits: function that returns True for a tensor of the right shape.

    Raises:
        NotApplicable: no tensor has a fitting shape.
    """
    fitting = [(index, leaf) for index, leaf in enumerate(tensors(call.tree)) if leaf.numel() and fits(leaf)]
    floats = [index for index, leaf in fitting if leaf.is_floating_point()]
    integers = [(leaf.numel(), -index) for index, leaf in fitting if leaf.dtype is not torch.bool]
    if not floats and not integers:
        raise NotApplicable(f"The model is called with {describe_batch(call.tree)}, which has no tensor to change.")
    return floats or [-max(integers)[1]]


def perturb_call(call: ModelCall, indices: list[int], change: Callable[[Tensor], Tensor]) -> ModelCall:
    """Return a call in which the tensors at ``indices`` are changed.

    Raises:
        NotApplicable: ``change`` left all these tensors unchanged.
    """
    leaves = tensors(call.tree)
    changed = {index: change(leaves[index]) for index in indices}
    if all(torch.equal(changed[index], leaves[index]) for index in indices):
        raise NotApplicable("The input could not be changed.")
    return ModelCall.from_tree(replace_tensors(call.tree, changed))


def per_sample_outputs(outputs: list[Tensor], samples: int) -> list[Tensor]:
    """Return the outputs that have one row per sample.

    Raises:
        NotApplicable: no output has one row per sample.
    """
    rows = [leaf for leaf in outputs if leaf.dim() and leaf.shape[0] == samples]
    if not rows:
        raise NotApplicable(
            f"The output {describe_batch(outputs)} does not have one row per sample ({samples} samples)."
        )
    return rows
