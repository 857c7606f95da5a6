"""Returns the formula behind each tensor that a line of the six operations changes."""
# ruff: noqa: RUF001 - formulas use × and −

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from torch import Tensor

from trueloop.lab.teaching import cell_arithmetic
from trueloop.lab.teaching.cell_arithmetic import Grid, Sums
from trueloop.lab.teaching.tracing import MarkedLine
from trueloop.lab.teaching.worked_programs import Six

Values = Mapping[str, Tensor | None]
Index = Literal["row", "column", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Which cells of another tensor go into one cell."""

    name: str
    row: Index = ""
    """Theirs is the cell's own row or column; empty = all rows."""
    column: Index = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """How a tensor came about."""

    words: str
    sums: Sums
    """In numbers, for each of its cells."""
    reads: tuple[Read, ...] = ()


Formulas = dict[str, Formula]
"""By the name of the tensor."""

LAYERS: Final = {
    "worked_example": (("model", "inputs", "outputs"),),
    "irises": (("first", "inputs", "before"), ("second", "hidden", "outputs")),
}
"""Of each example's linear layers: name, what goes in, what comes out."""


def formulas(six: Six, marked: MarkedLine, before: Values, after: Values, update: int) -> Formulas:
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
        "schedule": lambda: {
            "lr": Formula(words="lr × gamma", sums=cell_arithmetic.decayed(values.number("lr"), six.gamma))
        },
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


def _cell(*names: str) -> tuple[Read, ...]:
    """Return that the same cell of others is read."""
    return tuple(Read(name=name, row="row", column="column") for name in names)


def _forward(six: Six, values: _Values, made: str) -> Formulas:
    if made == "hidden":
        return {
            made: Formula(
                words="max(0, before)", sums=cell_arithmetic.relu(values.was("before")), reads=_cell("before")
            )
        }
    if made == "again" and six.example == "irises":
        first = cell_arithmetic.linear(values.was("inputs"), values.was("first.weight"), values.was("first.bias"))
        hidden: Grid = [[max(0.0, each.value) for each in row] for row in first]
        # What lies between is not kept: the page still shows the hidden units of the forward before.
        return {made: _linear(values, hidden, "hidden", "second", seen=False)}
    out = "outputs" if made == "again" else made
    layer, name = next((layer, given) for layer, given, made_ in LAYERS[six.example] if made_ == out)
    return {made: _linear(values, values.was(name), name, layer)}


def _linear(values: _Values, given: Grid, name: str, layer: str, *, seen: bool = True) -> Formula:
    return Formula(
        words=f"{name} @ {layer}.weightᵀ + {layer}.bias",
        sums=cell_arithmetic.linear(given, values.was(f"{layer}.weight"), values.was(f"{layer}.bias")),
        reads=(
            *((Read(name=name, row="row"),) if seen else ()),
            Read(name=f"{layer}.weight", row="column"),
            Read(name=f"{layer}.bias", column="column"),
        ),
    )


def _loss(six: Six, values: _Values, made: str) -> Formulas:
    name = "again" if made == "loss_again" else "outputs"
    outputs, reads = values.was(name), (Read(name=name), Read(name="targets"))
    if six.example == "worked_example":
        words, cells = f"the mean of ({name} − targets)²", cell_arithmetic.mse(outputs, values.was("targets"))
    else:
        words, cells = "the mean of −log p(right class)", cell_arithmetic.cross_entropy(outputs, values.classes())
    return {made: Formula(words=words, sums=cells, reads=reads)}


def _backward(six: Six, values: _Values) -> Formulas:
    found: Formulas = {"outputs.grad": _top(six, values)}
    for layer, given, out in LAYERS[six.example]:
        above = values.now(f"{out}.grad")
        found[f"{layer}.weight.grad"] = Formula(
            words=f"{out}.gradᵀ @ {given}",
            sums=cell_arithmetic.weight_gradient(above, values.was(given)),
            reads=(Read(name=f"{out}.grad", column="row"), Read(name=given, column="column")),
        )
        found[f"{layer}.bias.grad"] = Formula(
            words=f"{out}.grad, added up over the batch",
            sums=cell_arithmetic.bias_gradient(above),
            reads=(Read(name=f"{out}.grad", column="column"),),
        )
    if six.example == "irises":
        found["hidden.grad"] = Formula(
            words="outputs.grad @ second.weight",
            sums=cell_arithmetic.input_gradient(values.now("outputs.grad"), values.was("second.weight")),
            reads=(Read(name="outputs.grad", row="row"), Read(name="second.weight", column="column")),
        )
        found["before.grad"] = Formula(
            words="hidden.grad where before > 0",
            sums=cell_arithmetic.relu_gradient(values.now("hidden.grad"), values.was("before")),
            reads=_cell("hidden.grad", "before"),
        )
    return found


def _top(six: Six, values: _Values) -> Formula:
    """Return how the loss's own gradient comes about."""
    outputs = values.was("outputs")
    if six.example == "worked_example":
        return Formula(
            words="2 (outputs − targets) / n",
            sums=cell_arithmetic.mse_gradient(outputs, values.was("targets")),
            reads=_cell("outputs", "targets"),
        )
    return Formula(
        words="(softmax(outputs) − one-hot targets) / N",
        sums=cell_arithmetic.cross_entropy_gradient(outputs, values.classes()),
        reads=(Read(name="outputs", row="row"), Read(name="targets", column="row")),
    )


def _update(six: Six, values: _Values, update: int) -> Formulas:
    found: Formulas = {}
    for layer, _, _ in LAYERS[six.example]:
        for name in (f"{layer}.weight", f"{layer}.bias"):
            found |= _OPTIMIZERS[six.optimizer](values, name, update)
    return found


def _sgd(values: _Values, name: str, update: int) -> Formulas:
    return {
        name: Formula(
            words=f"{name} − lr × {name}.grad",
            sums=cell_arithmetic.step(values.was(name), values.number("lr"), values.was(f"{name}.grad")),
            reads=(*_cell(f"{name}.grad"), Read(name="lr")),
        )
    }


def _momentum(values: _Values, name: str, update: int) -> Formulas:
    buffer = f"{name}.momentum_buffer"
    return {
        buffer: Formula(
            words=f"{cell_arithmetic.MOMENTUM} × momentum_buffer + grad",
            sums=cell_arithmetic.momentum(values.earlier(buffer), values.was(f"{name}.grad")),
            reads=_cell(f"{name}.grad"),
        ),
        name: Formula(
            words=f"{name} − lr × momentum_buffer",
            sums=cell_arithmetic.step(values.was(name), values.number("lr"), values.now(buffer)),
            reads=(*_cell(buffer), Read(name="lr")),
        ),
    }


def _adam(values: _Values, name: str, update: int) -> Formulas:
    gradient, found = values.was(f"{name}.grad"), Formulas()
    for power, kind in ((1, "exp_avg"), (2, "exp_avg_sq")):
        beta, square = cell_arithmetic.BETAS[power - 1], "²" if power == 2 else ""
        found[f"{name}.{kind}"] = Formula(
            words=f"{beta} × {kind} + {round(1 - beta, 3)} × grad{square}",
            sums=cell_arithmetic.average(values.earlier(f"{name}.{kind}"), gradient, power=power),
            reads=_cell(f"{name}.grad"),
        )
    means = (values.now(f"{name}.exp_avg"), values.now(f"{name}.exp_avg_sq"))
    first, second = cell_arithmetic.BETAS
    found[name] = Formula(
        words=f"{name} − lr × m̂ / (√v̂ + ε), m̂ = exp_avg / (1 − {first}ᵗ), v̂ = exp_avg_sq / (1 − {second}ᵗ), t = step",
        sums=cell_arithmetic.adam(values.was(name), values.number("lr"), *means, update),
        reads=(*_cell(f"{name}.exp_avg", f"{name}.exp_avg_sq"), Read(name="lr"), Read(name=f"{name}.step")),
    )
    counted = cell_arithmetic.Sum(text=f"{update - 1} + 1", value=float(update))
    found[f"{name}.step"] = Formula(words="updates so far", sums=[[counted]])
    return found


_OPTIMIZERS: Final = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}
