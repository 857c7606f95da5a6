"""Read the gradient norm of each layer from time to time, for the journal."""

import math
from collections.abc import Mapping
from time import perf_counter
from typing import Final

import torch
from torch import Tensor, nn

MIN_INTERVAL_S: Final = 0.25
MIN_COST_RATIO: Final = 500  # smallest interval / cost: after a reading of 1 ms, the next one is half a second later
READINGS_PER_AGE: Final = 200  # number of readings while the age of a run grows by the factor e: about 2,500 in a day
MAX_LAYERS: Final = 256  # largest number of layers to read; more would make the journal too large


class LayerNorms:
    """Reads the norms at most every `MIN_INTERVAL_S`, and less often as the run gets older.

    Args:
        model: the trained model, without wrapper.

    Cost: one read of every gradient and one wait for the GPU; together at most 0.2 % of the time.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers: dict[str, list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self._layers.setdefault(name.rpartition(".")[0] or name, []).append(parameter)
        self._layers = dict(list(self._layers.items())[:MAX_LAYERS])
        self._started_s = self._due_s = perf_counter()
        self._scale = 1.0  # full gradient's norm / norm of the gradients read; of the last reading with a finite norm

    def read_if_due(self, norm: float) -> Mapping[str, float] | None:
        """Return the norms by layer; None if they are not due, or the gradients are missing or sharded.

        Args:
            norm: norm of the full gradient before clipping, to which the norms of the layers are scaled: the gradients
                may still be multiplied by the window's count, or be clipped.
        """
        start_s = perf_counter()
        if start_s < self._due_s:
            return None
        norms = self._read()
        now_s = perf_counter()
        cost_s, age_s = now_s - start_s, now_s - self._started_s
        self._due_s = now_s + max(MIN_INTERVAL_S, MIN_COST_RATIO * cost_s, age_s / READINGS_PER_AGE)
        if not norms:
            return None
        total = math.hypot(*norms.values())
        if 0 < total < math.inf and math.isfinite(norm):
            self._scale = norm / total
        return {layer: each * self._scale for layer, each in norms.items()}

    def _read(self) -> dict[str, float]:
        gradients = {
            layer: [parameter.grad for parameter in parameters if parameter.grad is not None]
            for layer, parameters in self._layers.items()
        }
        flat = [gradient for layer_gradients in gradients.values() for gradient in layer_gradients]
        dense = all(type(each) is Tensor and each.layout is torch.strided for each in flat)
        if not flat or not dense or len({gradient.device for gradient in flat}) > 1:
            return {}  # sharded gradients would need a collective
        values = torch.stack([norm.float() for norm in torch._foreach_norm(flat)]).tolist()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        start = 0
        norms: dict[str, float] = {}
        for layer, layer_gradients in gradients.items():
            if layer_gradients:
                norms[layer] = math.hypot(*values[start : start + len(layer_gradients)])
                start += len(layer_gradients)
        return norms
