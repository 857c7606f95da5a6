"""Which formula a line of the six operations works by, for each tensor that it changes."""
# ruff: noqa: RUF001 - arithmetic is shown as it is written, with × and −

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from torch import Tensor

from trueloop.engines.teach import sums
from trueloop.engines.teach.sums import Grid, Sums
from trueloop.engines.teach.tracing import Marked
from trueloop.engines.teach.worked import Six

Values = Mapping[str, Tensor | None]
Formulas = dict[str, tuple[str, Sums]]
"""Name of a tensor -> the formula in words, and in numbers for each of its cells."""

LAYERS: Final = {
    "worked_example": (("model", "inputs", "outputs"),),
    "irises": (("first", "inputs", "before"), ("second", "hidden", "outputs")),
}
"""Of each example's linear layers: name, what goes in, what comes out."""


def formulas(six: Six, marked: Marked, before: Values, after: Values, update: int) -> Formulas:
    """Return the formulas of one line.

    Args:
        six: what is computed.
        marked: the line.
        before: every tensor before it ran.
        after: every tensor after it.
        update: its number, from 1.
    """
    values = _Values(before, after)
    if marked.mark in ("forward", "forward again"):
        return _forward(six, values, marked.assigns[0])
    if marked.mark in ("loss", "loss again"):
        return _loss(six, values, marked.assigns[0])
    made: dict[str, Callable[[], Formulas]] = {
        "backward": lambda: _backward(six, values),
        "update": lambda: _update(six, values, update),
        "schedule": lambda: {"lr": ("lr ← lr × gamma", sums.decayed(values.number("lr"), six.gamma))},
    }
    return made[marked.mark]() if marked.mark in made else {}


class _Values:
    """Tensors as rows of numbers: before the line, and after it."""

    def __init__(self, before: Values, after: Values) -> None:
        self._before, self._after = before, after

    def was(self, name: str) -> Grid:
        return _grid(self._before[name])

    def now(self, name: str) -> Grid:
        return _grid(self._after[name])

    def earlier(self, name: str) -> Grid | None:
        """Return what an optimizer kept, where it kept anything yet."""
        return None if self._before.get(name) is None else self.was(name)

    def number(self, name: str) -> float:
        return self.was(name)[0][0]

    def classes(self) -> list[int]:
        return [int(each) for each in self.was("targets")[0]]


def _grid(tensor: Tensor | None) -> Grid:
    assert tensor is not None
    rows: list[list[float]] = (tensor.reshape(1, -1) if tensor.dim() < 2 else tensor).tolist()
    return rows


def _forward(six: Six, values: _Values, made: str) -> Formulas:
    if made == "hidden":
        return {made: ("max(0, before)", sums.relu(values.was("before")))}
    if made == "again" and six.example == "irises":
        first = sums.linear(values.was("inputs"), values.was("first.weight"), values.was("first.bias"))
        hidden: Grid = [[max(0.0, each.value) for each in row] for row in first]
        layer, given = "second", hidden
        words = "hidden @ second.weightᵀ + second.bias"
    else:
        layer, name = next((layer, given) for layer, given, out in LAYERS[six.example] if out == _first(made))
        given, words = values.was(name), f"{name} @ {layer}.weightᵀ + {layer}.bias"
    return {made: (words, sums.linear(given, values.was(f"{layer}.weight"), values.was(f"{layer}.bias")))}


def _first(made: str) -> str:
    return "outputs" if made == "again" else made


def _loss(six: Six, values: _Values, made: str) -> Formulas:
    outputs = values.was("again" if made == "loss_again" else "outputs")
    if six.example == "worked_example":
        return {made: ("the mean of (outputs − targets)²", sums.mse(outputs, values.was("targets")))}
    return {made: ("the mean of −log p(right class)", sums.cross_entropy(outputs, values.classes()))}


def _backward(six: Six, values: _Values) -> Formulas:
    outputs = values.was("outputs")
    if six.example == "worked_example":
        top = ("2 (outputs − targets) / n", sums.mse_gradient(outputs, values.was("targets")))
    else:
        top = ("(softmax(outputs) − one-hot targets) / N", sums.cross_entropy_gradient(outputs, values.classes()))
    found: Formulas = {"outputs.grad": top}
    for layer, given, out in LAYERS[six.example]:
        above = values.now(f"{out}.grad")
        words = f"{out}.gradᵀ @ {given}"
        found[f"{layer}.weight.grad"] = (words, sums.weight_gradient(above, values.was(given)))
        found[f"{layer}.bias.grad"] = (f"{out}.grad, added up over the batch", sums.bias_gradient(above))
    if six.example == "irises":
        below = sums.input_gradient(values.now("outputs.grad"), values.was("second.weight"))
        found["hidden.grad"] = ("outputs.grad @ second.weight", below)
        through = sums.relu_gradient(values.now("hidden.grad"), values.was("before"))
        found["before.grad"] = ("hidden.grad where before > 0", through)
    return found


def _update(six: Six, values: _Values, update: int) -> Formulas:
    found: Formulas = {}
    for layer, _, _ in LAYERS[six.example]:
        for name in (f"{layer}.weight", f"{layer}.bias"):
            found |= _OPTIMIZERS[six.optimizer](values, name, update)
    return found


def _sgd(values: _Values, name: str, update: int) -> Formulas:
    words = f"{name} − lr × {name}.grad"
    return {name: (words, sums.step(values.was(name), values.number("lr"), values.was(f"{name}.grad")))}


def _momentum(values: _Values, name: str, update: int) -> Formulas:
    buffer = f"{name}.momentum_buffer"
    kept = sums.momentum(values.earlier(buffer), values.was(f"{name}.grad"))
    return {
        buffer: (f"{sums.MOMENTUM} × momentum_buffer + grad", kept),
        name: (
            f"{name} − lr × momentum_buffer",
            sums.step(values.was(name), values.number("lr"), values.now(buffer)),
        ),
    }


def _adam(values: _Values, name: str, update: int) -> Formulas:
    gradient, found = values.was(f"{name}.grad"), Formulas()
    for power, kind in ((1, "exp_avg"), (2, "exp_avg_sq")):
        beta, square = sums.BETAS[power - 1], "²" if power == 2 else ""
        words = f"{beta} × {kind} + {round(1 - beta, 3)} × grad{square}"
        found[f"{name}.{kind}"] = (
            words,
            sums.average(values.earlier(f"{name}.{kind}"), gradient, power=power),
        )
    means = (values.now(f"{name}.exp_avg"), values.now(f"{name}.exp_avg_sq"))
    moved = sums.adam(values.was(name), values.number("lr"), *means, update)
    words = f"{name} − lr × m̂ / (√v̂ + ε), m̂ = exp_avg / (1 − {sums.BETAS[0]}ᵗ), v̂ = exp_avg_sq / (1 − {sums.BETAS[1]}ᵗ)"
    counted = sums.Sum(text=f"{update - 1} + 1", value=float(update))
    return {**found, name: (words, moved), f"{name}.step": ("updates so far", [[counted]])}


_OPTIMIZERS: Final = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}
