"""Returns the formula behind each tensor that a line of the six operations changes."""
# ruff: noqa: RUF001 - formulas use × and −

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from torch import Tensor

from trueloop.lab.teaching import cell_arithmetic
from trueloop.lab.teaching.cell_arithmetic import Calculations, Grid
from trueloop.lab.teaching.tracing import MarkedLine
from trueloop.lab.teaching.worked_programs import SixOperations

Values = Mapping[str, Tensor | None]
Index = Literal["row", "column", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The cells of another tensor that one cell is calculated from."""

    name: str
    row: Index = ""
    """Rows that are read: the index of the cell's own row or column; empty = all rows."""
    column: Index = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """The formula of a tensor."""

    text: str
    calculations: Calculations
    """The formula in numbers, for each cell."""
    reads: tuple[Read, ...] = ()


Formulas = dict[str, Formula]
"""Name of a tensor -> its formula."""

LAYERS: Final = {
    "worked_example": (("model", "inputs", "outputs"),),
    "irises": (("first", "inputs", "before"), ("second", "hidden", "outputs")),
}
"""Example -> its linear layers: layer name, input name, output name."""


def formulas(settings: SixOperations, marked: MarkedLine, before: Values, after: Values, update: int) -> Formulas:
    """Return the formulas of one line.

    Args:
        settings: settings of the program.
        marked: the line.
        before: all tensors before the line ran.
        after: all tensors after the line.
        update: number of the update, from 1.
    """
    values = _Values(before, after)
    if marked.mark in ("forward", "forward again"):
        return _forward(settings, values, marked.assigns[0])
    if marked.mark in ("loss", "loss again"):
        return _loss(settings, values, marked.assigns[0])
    formulas_of_mark: dict[str, Callable[[], Formulas]] = {
        "backward": lambda: _backward(settings, values),
        "update": lambda: _update(settings, values, update),
        "schedule": lambda: {
            "lr": Formula(
                text="lr × gamma", calculations=cell_arithmetic.learning_rate_decay(values.number("lr"), settings.gamma)
            )
        },
    }
    return formulas_of_mark[marked.mark]() if marked.mark in formulas_of_mark else {}


class _Values:
    """Tensors before and after a line, as rows of numbers."""

    def __init__(self, before: Values, after: Values) -> None:
        self._before, self._after = before, after

    def before(self, name: str) -> Grid:
        return _grid(self._before[name])

    def after(self, name: str) -> Grid:
        return _grid(self._after[name])

    def before_if_set(self, name: str) -> Grid | None:
        """Return an optimizer state before the line; None before the first update."""
        return None if self._before.get(name) is None else self.before(name)

    def number(self, name: str) -> float:
        return self.before(name)[0][0]

    def classes(self) -> list[int]:
        return [int(each) for each in self.before("targets")[0]]


def _grid(tensor: Tensor | None) -> Grid:
    assert tensor is not None
    rows: list[list[float]] = (tensor.reshape(1, -1) if tensor.dim() < 2 else tensor).tolist()
    return rows


def _cell(*names: str) -> tuple[Read, ...]:
    """Return reads of the same cell of other tensors."""
    return tuple(Read(name=name, row="row", column="column") for name in names)


def _forward(settings: SixOperations, values: _Values, target: str) -> Formulas:
    if target == "hidden":
        return {
            target: Formula(
                text="max(0, before)", calculations=cell_arithmetic.relu(values.before("before")), reads=_cell("before")
            )
        }
    if target == "again" and settings.example == "irises":
        first = cell_arithmetic.linear(
            values.before("inputs"), values.before("first.weight"), values.before("first.bias")
        )
        hidden: Grid = [[max(0.0, each.value) for each in row] for row in first]
        # The program has no variable for these hidden units: the page still shows those of the previous forward pass.
        return {target: _linear(values, hidden, "hidden", "second", on_page=False)}
    output_name = "outputs" if target == "again" else target
    layer, inputs = next((layer, inputs) for layer, inputs, output in LAYERS[settings.example] if output == output_name)
    return {target: _linear(values, values.before(inputs), inputs, layer)}


def _linear(values: _Values, inputs: Grid, name: str, layer: str, *, on_page: bool = True) -> Formula:
    return Formula(
        text=f"{name} @ {layer}.weightᵀ + {layer}.bias",
        calculations=cell_arithmetic.linear(inputs, values.before(f"{layer}.weight"), values.before(f"{layer}.bias")),
        reads=(
            *((Read(name=name, row="row"),) if on_page else ()),
            Read(name=f"{layer}.weight", row="column"),
            Read(name=f"{layer}.bias", column="column"),
        ),
    )


def _loss(settings: SixOperations, values: _Values, target: str) -> Formulas:
    outputs_name = "again" if target == "loss_again" else "outputs"
    outputs, reads = values.before(outputs_name), (Read(name=outputs_name), Read(name="targets"))
    if settings.example == "worked_example":
        text, cells = f"the mean of ({outputs_name} − targets)²", cell_arithmetic.mse(outputs, values.before("targets"))
    else:
        text, cells = "the mean of −log p(right class)", cell_arithmetic.cross_entropy(outputs, values.classes())
    return {target: Formula(text=text, calculations=cells, reads=reads)}


def _backward(settings: SixOperations, values: _Values) -> Formulas:
    result: Formulas = {"outputs.grad": _loss_gradient(settings, values)}
    for layer, input_name, output_name in LAYERS[settings.example]:
        output_gradient = values.after(f"{output_name}.grad")
        result[f"{layer}.weight.grad"] = Formula(
            text=f"{output_name}.gradᵀ @ {input_name}",
            calculations=cell_arithmetic.weight_gradient(output_gradient, values.before(input_name)),
            reads=(Read(name=f"{output_name}.grad", column="row"), Read(name=input_name, column="column")),
        )
        result[f"{layer}.bias.grad"] = Formula(
            text=f"{output_name}.grad, summed over the batch",
            calculations=cell_arithmetic.bias_gradient(output_gradient),
            reads=(Read(name=f"{output_name}.grad", column="column"),),
        )
    if settings.example == "irises":
        result["hidden.grad"] = Formula(
            text="outputs.grad @ second.weight",
            calculations=cell_arithmetic.input_gradient(values.after("outputs.grad"), values.before("second.weight")),
            reads=(Read(name="outputs.grad", row="row"), Read(name="second.weight", column="column")),
        )
        result["before.grad"] = Formula(
            text="hidden.grad where before > 0",
            calculations=cell_arithmetic.relu_gradient(values.after("hidden.grad"), values.before("before")),
            reads=_cell("hidden.grad", "before"),
        )
    return result


def _loss_gradient(settings: SixOperations, values: _Values) -> Formula:
    """Return the formula of the gradient of the loss with respect to the outputs."""
    outputs = values.before("outputs")
    if settings.example == "worked_example":
        return Formula(
            text="2 (outputs − targets) / n",
            calculations=cell_arithmetic.mse_gradient(outputs, values.before("targets")),
            reads=_cell("outputs", "targets"),
        )
    return Formula(
        text="(softmax(outputs) − one-hot targets) / N",
        calculations=cell_arithmetic.cross_entropy_gradient(outputs, values.classes()),
        reads=(Read(name="outputs", row="row"), Read(name="targets", column="row")),
    )


def _update(settings: SixOperations, values: _Values, update: int) -> Formulas:
    result: Formulas = {}
    for layer, _, _ in LAYERS[settings.example]:
        for name in (f"{layer}.weight", f"{layer}.bias"):
            result |= _OPTIMIZERS[settings.optimizer](values, name, update)
    return result


def _sgd(values: _Values, name: str, update: int) -> Formulas:
    return {
        name: Formula(
            text=f"{name} − lr × {name}.grad",
            calculations=cell_arithmetic.step(values.before(name), values.number("lr"), values.before(f"{name}.grad")),
            reads=(*_cell(f"{name}.grad"), Read(name="lr")),
        )
    }


def _momentum(values: _Values, name: str, update: int) -> Formulas:
    buffer = f"{name}.momentum_buffer"
    return {
        buffer: Formula(
            text=f"{cell_arithmetic.MOMENTUM} × momentum_buffer + grad",
            calculations=cell_arithmetic.momentum(values.before_if_set(buffer), values.before(f"{name}.grad")),
            reads=_cell(f"{name}.grad"),
        ),
        name: Formula(
            text=f"{name} − lr × momentum_buffer",
            calculations=cell_arithmetic.step(values.before(name), values.number("lr"), values.after(buffer)),
            reads=(*_cell(buffer), Read(name="lr")),
        ),
    }


def _adam(values: _Values, name: str, update: int) -> Formulas:
    gradient, result = values.before(f"{name}.grad"), Formulas()
    for power, average_name in ((1, "exp_avg"), (2, "exp_avg_sq")):
        beta, square = cell_arithmetic.BETAS[power - 1], "²" if power == 2 else ""
        result[f"{name}.{average_name}"] = Formula(
            text=f"{beta} × {average_name} + {round(1 - beta, 3)} × grad{square}",
            calculations=cell_arithmetic.average(values.before_if_set(f"{name}.{average_name}"), gradient, power=power),
            reads=_cell(f"{name}.grad"),
        )
    means = (values.after(f"{name}.exp_avg"), values.after(f"{name}.exp_avg_sq"))
    first, second = cell_arithmetic.BETAS
    result[name] = Formula(
        text=f"{name} − lr × m̂ / (√v̂ + ε), m̂ = exp_avg / (1 − {first}ᵗ), v̂ = exp_avg_sq / (1 − {second}ᵗ), t = step",
        calculations=cell_arithmetic.adam(values.before(name), values.number("lr"), *means, update),
        reads=(*_cell(f"{name}.exp_avg", f"{name}.exp_avg_sq"), Read(name="lr"), Read(name=f"{name}.step")),
    )
    count = cell_arithmetic.Calculation(text=f"{update - 1} + 1", value=float(update))
    result[f"{name}.step"] = Formula(text="number of updates so far", calculations=[[count]])
    return result


_OPTIMIZERS: Final = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}
