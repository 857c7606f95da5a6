"""Read the gradient norm of each layer from time to time, for the journal."""

import math
from collections.abc import Mapping
from time import perf_counter
from typing import Final

import torch
from torch import Tensor, nn

MIN_INTERVAL_S: Final = 0.25
MIN_COST_RATIO: Final = 500  # interval / cost: a reading that took 1 ms is followed by the next after half a second
READINGS_PER_AGE: Final = 200  # readings while a run becomes e times as old: some 2,500 in a day
MAX_LAYERS: Final = 256  # of a model; more would not fit in the journal


class LayerNorms:
    """Reads the norms at most every `MIN_INTERVAL_S`, and more rarely as the run gets older.

    Args:
        model: what is trained, unwrapped.

    Cost: one read of every gradient, and on an accelerator one synchronisation: together at most 0.2 % of the time.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers: dict[str, list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self._layers.setdefault(name.rpartition(".")[0] or name, []).append(parameter)
        self._layers = dict(list(self._layers.items())[:MAX_LAYERS])
        self._began_s = self._due_s = perf_counter()
        self._scale = 1.0

    def read_if_due(self, norm: float) -> Mapping[str, float] | None:
        """Return the norms by layer; None where they are not due, or the gradients are missing or sharded.

        Args:
            norm: of the whole gradient before clipping, which the norms of all layers together come to: the gradients
                themselves may still be multiplied by the window's count, or be clipped.
        """
        start_s = perf_counter()
        if start_s < self._due_s:
            return None
        norms = self._read()
        now_s = perf_counter()
        cost_s, age_s = now_s - start_s, now_s - self._began_s
        self._due_s = now_s + max(MIN_INTERVAL_S, MIN_COST_RATIO * cost_s, age_s / READINGS_PER_AGE)
        if not norms:
            return None
        joint = math.hypot(*norms.values())
        if 0 < joint < math.inf and math.isfinite(norm):
            self._scale = norm / joint
        return {layer: each * self._scale for layer, each in norms.items()}

    def _read(self) -> dict[str, float]:
        gradients = {
            layer: [parameter.grad for parameter in parameters if parameter.grad is not None]
            for layer, parameters in self._layers.items()
        }
        flat = [gradient for some in gradients.values() for gradient in some]
        plain = all(type(each) is Tensor and each.layout is torch.strided for each in flat)
        if not flat or not plain or len({gradient.device for gradient in flat}) > 1:
            return {}  # shards would need a collective
        values = torch.stack([norm.float() for norm in torch._foreach_norm(flat)]).tolist()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        place = 0
        norms: dict[str, float] = {}
        for layer, some in gradients.items():
            if some:
                norms[layer] = math.hypot(*values[place : place + len(some)])
                place += len(some)
        return norms
