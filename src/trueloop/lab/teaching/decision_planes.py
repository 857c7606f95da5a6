"""Evaluate a network over the plane: its decision and the output of each hidden neuron, as pictures in bytes."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

SIDE: Final = 64  # width and height of the decision, in pixels
COARSE: Final = 3  # a neuron's map has every third pixel of the decision, in both directions
NOT_FINITE: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """A picture in bytes: rows from top (highest y) to bottom, each from left to right.

    The decision has the name "boundary": a byte is ``class * steps + certainty``, with certainty from 0 (all classes
    equally likely) to ``steps - 1`` (certain) and ``steps = 255 // classes``; 255 = the logits are not finite.
    A neuron's map has the name "layer:neuron": ``128 + 127 * output / scale``; 255 = not finite, and ``scale`` is 0.
    """

    name: str
    width: int
    height: int
    data: bytes
    steps: int = 0
    scale: float = 0.0


def build_planes(model: nn.Module, span: float, *, neurons: bool) -> list[Plane]:
    """Evaluate a copy of the network on the plane in eval mode; the network and all generators stay unchanged.

    Args:
        model: maps points [N, 2] to logits [N, classes]; the outputs of ``model.activation`` are its hidden neurons.
        span: both axes go from ``-span`` to ``span``.
        neurons: True to return the maps of the hidden neurons as well.

    Cost: one forward pass of 4,096 points, and a copy of the network.
    """
    activations: list[Tensor] = []

    def record(module: nn.Module, inputs: Any, output: Tensor) -> None:
        activations.append(output)

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        duplicate = copy.deepcopy(model).eval()
        activation: Any = getattr(duplicate, "activation", None)
        if neurons and activation is not None:
            activation.register_forward_hook(record)
        logits = duplicate(_grid(span, next(duplicate.parameters()).dtype))
        planes = [_boundary(logits)]
        for layer, output in enumerate(activations):
            planes += _maps(layer, output)
    return planes


def _grid(span: float, dtype: torch.dtype) -> Tensor:
    """Return the centre of each pixel: [SIDE * SIDE, 2]."""
    centres = ((torch.arange(SIDE, dtype=dtype) + 0.5) / SIDE * 2 - 1) * span
    y, x = torch.meshgrid(-centres, centres, indexing="ij")
    return torch.stack([x, y], dim=-1).reshape(-1, 2)


def _boundary(logits: Tensor) -> Plane:
    classes = logits.shape[1]
    steps = NOT_FINITE // classes
    finite = logits.isfinite().all(1)
    highest, best = logits.softmax(1).nan_to_num().max(1)
    certainty = ((highest - 1 / classes) / (1 - 1 / classes) * steps).long().clamp(0, steps - 1)
    values = torch.where(finite, best * steps + certainty, NOT_FINITE)
    return Plane(name="boundary", width=SIDE, height=SIDE, data=_bytes(values), steps=steps)


def _maps(layer: int, output: Tensor) -> list[Plane]:
    """Return a plane for each neuron of a layer, from its output [SIDE * SIDE, neurons]."""
    maps = output.T.reshape(-1, SIDE, SIDE)[:, ::COARSE, ::COARSE]
    scales = maps.abs().amax((1, 2))
    usable = scales.isfinite() & (scales > 0)
    values = (128 + 127 * (maps / scales.where(usable, 1.0)[:, None, None])).nan_to_num(NOT_FINITE, NOT_FINITE, 0)
    values = values.where(scales.isfinite()[:, None, None], NOT_FINITE).clamp(0, NOT_FINITE)
    side = maps.shape[1]
    data = _bytes(values)
    return [
        Plane(
            name=f"{layer}:{neuron}", width=side, height=side, scale=scale,
            data=data[neuron * side * side : (neuron + 1) * side * side],
        )
        for neuron, scale in enumerate(scales.where(usable, 0.0).tolist())
    ]  # fmt: skip


def _bytes(values: Tensor) -> bytes:
    return values.to(torch.uint8).contiguous().numpy().tobytes()


def layers(widths: Sequence[int], classes: int) -> list[dict[str, Any]]:
    """Return name, parameters and size of each layer of the network, the head last."""
    sizes = [2, *widths, classes]
    names = [f"layers.{index}" for index in range(len(widths))] + ["head"]
    return [
        {"name": name, "weight": f"{name}.weight", "bias": f"{name}.bias", "inputs": before, "neurons": after}
        for name, before, after in zip(names, sizes, sizes[1:], strict=False)
    ]
