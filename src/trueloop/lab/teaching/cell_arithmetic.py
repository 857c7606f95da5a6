"""Write out the calculation of each cell of a tensor: "0.511 = 0.5 − 0.01 × −1.1".

Each formula is evaluated here in float64, cell by cell, from the tensors before the line ran. The page shows PyTorch's
own result; tests compare both.
"""
# ruff: noqa: RUF001 - formulas use × and −

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

Grid = Sequence[Sequence[float]]
"""Rows of cells; a vector is one row, a scalar one cell."""

BETAS: Final = (0.9, 0.999)
EPS: Final = 1e-8
"""Defaults of torch.optim.Adam."""
MOMENTUM: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculation:
    """The calculation of one number."""

    text: str
    """The calculation with numbers of four digits, × and −."""
    value: float
    """Result in full precision."""


Calculations = list[list[Calculation]]


def format_cell(value: float, digits: int = 4) -> str:
    """Format a number with at most ``digits`` significant digits."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "∞" if value > 0 else "−∞"
    text = f"{value:.{digits}g}"
    mantissa, _, exponent = text.partition("e")
    return ("0" if float(text) == 0 else mantissa + (f"e{int(exponent)}" if exponent else "")).replace("-", "−")


def linear(inputs: Grid, weight: Grid, bias: Grid) -> Calculations:
    """Return outputs [N, out] of inputs [N, in], weight [out, in] and bias [1, out]."""
    return _grid(len(inputs), len(weight), lambda n, o: _products(inputs[n], weight[o], plus=bias[0][o]))


def relu(before: Grid) -> Calculations:
    """Return max(0, x)."""
    return _map_cells(before, lambda x: Calculation(text=f"max(0, {format_cell(x)})", value=max(0.0, x)))


def mse(outputs: Grid, targets: Grid) -> Calculations:
    """Return the mean of the squared differences, one cell."""
    pairs = [pair for row in zip(outputs, targets, strict=True) for pair in zip(*row, strict=True)]
    squares = " + ".join(f"({format_cell(y)} − {format_cell(t)})²" for y, t in pairs)
    value = sum((y - t) ** 2 for y, t in pairs) / len(pairs)
    return [[Calculation(text=f"({squares}) / {len(pairs)}", value=value)]]


def mse_gradient(outputs: Grid, targets: Grid) -> Calculations:
    """Return dL/dy = 2 (y − t) / n."""
    n = sum(map(len, outputs))

    def cell(row: int, column: int) -> Calculation:
        y, t = outputs[row][column], targets[row][column]
        return Calculation(text=f"2 × ({format_cell(y)} − {format_cell(t)}) / {n}", value=2 * (y - t) / n)

    return _grid(len(outputs), len(outputs[0]), cell)


def cross_entropy(outputs: Grid, classes: Sequence[int]) -> Calculations:
    """Return the mean of −log p(right class), one cell; ``classes`` holds the right class index of each row."""
    probabilities = [_softmax(scores)[right] for scores, right in zip(outputs, classes, strict=True)]
    logs, n = " + ".join(f"log({format_cell(p)})" for p in probabilities), len(probabilities)
    return [[Calculation(text=f"−({logs}) / {n}", value=-sum(map(_log, probabilities)) / n)]]


def cross_entropy_gradient(outputs: Grid, classes: Sequence[int]) -> Calculations:
    """Return dL/dy = (p − 1 for the right class, p for the others) / N."""
    n = len(outputs)

    def cell(row: int, column: int) -> Calculation:
        p, is_right = _softmax(outputs[row])[column], classes[row] == column
        text = f"({format_cell(p)} − 1) / {n}" if is_right else f"{format_cell(p)} / {n}"
        return Calculation(text=text, value=(p - is_right) / n)

    return _grid(n, len(outputs[0]), cell)


def weight_gradient(upstream: Grid, inputs: Grid) -> Calculations:
    """Return dL/dW [out, in]: the upstream gradient [N, out] times the inputs [N, in], summed over the batch."""
    return _grid(len(upstream[0]), len(inputs[0]), lambda o, i: _products(_column(upstream, o), _column(inputs, i)))


def bias_gradient(upstream: Grid) -> Calculations:
    """Return dL/db [1, out]: the upstream gradient [N, out], summed over the batch."""
    return _grid(1, len(upstream[0]), lambda _, o: _total(_column(upstream, o)))


def input_gradient(upstream: Grid, weight: Grid) -> Calculations:
    """Return dL/dx [N, in]: the upstream gradient [N, out] times the weights [out, in]."""
    return _grid(len(upstream), len(weight[0]), lambda n, i: _products(upstream[n], _column(weight, i)))


def relu_gradient(upstream: Grid, before: Grid) -> Calculations:
    """Return the upstream gradient where the input of ReLU was above 0, and 0 elsewhere."""

    def cell(row: int, column: int) -> Calculation:
        gradient, slope = upstream[row][column], int(before[row][column] > 0)
        return Calculation(text=f"{format_cell(gradient)} × {slope}", value=gradient * slope)

    return _grid(len(upstream), len(upstream[0]), cell)


def step(before: Grid, rate: float, direction: Grid) -> Calculations:
    """Return w − lr × direction, where the direction is the gradient or the momentum buffer."""
    return _map_pairs(
        before,
        direction,
        lambda w, g: Calculation(text=f"{format_cell(w)} − {format_cell(rate)} × {format_cell(g)}", value=w - rate * g),
    )


def momentum(before: Grid | None, gradient: Grid) -> Calculations:
    """Return the new momentum buffer: 0.9 times the old one plus the gradient."""
    if before is None:
        return _map_cells(gradient, lambda g: Calculation(text=f"{format_cell(g)} (the first gradient)", value=g))
    return _map_pairs(
        before,
        gradient,
        lambda b, g: Calculation(text=f"{MOMENTUM} × {format_cell(b)} + {format_cell(g)}", value=MOMENTUM * b + g),
    )


def average(before: Grid | None, gradient: Grid, *, power: int) -> Calculations:
    """Return Adam's running mean of the gradient (power 1), or of its square (power 2)."""
    beta = BETAS[power - 1]
    square = "²" if power == 2 else ""
    before = before or [[0.0] * len(row) for row in gradient]
    return _map_pairs(
        before,
        gradient,
        lambda m, g: Calculation(
            text=f"{beta} × {format_cell(m)} + {round(1 - beta, 3)} × {_with_exponent(g, square)}",
            value=beta * m + (1 - beta) * g**power,
        ),
    )


def adam(before: Grid, rate: float, first: Grid, second: Grid, count: int) -> Calculations:
    """Return w − lr × m̂ / (√v̂ + ε), where m̂ and v̂ are the bias-corrected running means.

    Args:
        before: the weights [out, in].
        rate: the learning rate.
        first: running mean of the gradient, after this update.
        second: running mean of the squared gradient, after this update.
        count: number of updates so far, including this one.
    """

    def cell(row: int, column: int) -> Calculation:
        w = before[row][column]
        m = first[row][column] / (1 - BETAS[0] ** count)
        v = second[row][column] / (1 - BETAS[1] ** count)
        value = w - rate * m / (math.sqrt(v) + EPS)
        return Calculation(
            text=f"{format_cell(w)} − {format_cell(rate)} × {format_cell(m)} / "
            f"(√{format_cell(v)} + {format_cell(EPS)})",
            value=value,
        )

    return _grid(len(before), len(before[0]), cell)


def learning_rate_decay(rate: float, gamma: float) -> Calculations:
    """Return the next learning rate, one cell."""
    return [[Calculation(text=f"{format_cell(rate)} × {format_cell(gamma)}", value=rate * gamma)]]


def _with_exponent(value: float, square: str) -> str:
    return f"({format_cell(value)}){square}" if square and value < 0 else f"{format_cell(value)}{square}"


def _products(left: Sequence[float], right: Sequence[float], *, plus: float | None = None) -> Calculation:
    text = " + ".join(f"{format_cell(a)} × {format_cell(b)}" for a, b in zip(left, right, strict=True))
    value = sum(a * b for a, b in zip(left, right, strict=True))
    return (
        Calculation(text=text, value=value)
        if plus is None
        else Calculation(text=f"{text} + {format_cell(plus)}", value=value + plus)
    )


def _total(values: Sequence[float]) -> Calculation:
    return Calculation(text=" + ".join(map(format_cell, values)), value=sum(values))


def _softmax(scores: Sequence[float]) -> list[float]:
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    return [power / sum(powers) for power in powers]


def _log(p: float) -> float:
    return -math.inf if p == 0 else math.log(p)


def _column(grid: Grid, column: int) -> list[float]:
    return [row[column] for row in grid]


def _grid(rows: int, columns: int, cell: Callable[[int, int], Calculation]) -> Calculations:
    return [[cell(row, column) for column in range(columns)] for row in range(rows)]


def _map_cells(grid: Grid, cell: Callable[[float], Calculation]) -> Calculations:
    return [[cell(value) for value in row] for row in grid]


def _map_pairs(left: Grid, right: Grid, cell: Callable[[float, float], Calculation]) -> Calculations:
    return [[cell(a, b) for a, b in zip(*rows, strict=True)] for rows in zip(left, right, strict=True)]
