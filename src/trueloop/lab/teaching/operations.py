"""Trace the six operations of training: every tensor after every line, and the formula of each number.

The program of `worked_programs` runs once; the variables after each marked line are recorded, so that a page can step
forwards and backwards.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from trueloop.lab.teaching import graph
from trueloop.lab.teaching.cell_arithmetic import Calculations, format_cell
from trueloop.lab.teaching.formulas import Formula, Read, formulas
from trueloop.lab.teaching.tracing import MarkedLine, run_marked
from trueloop.lab.teaching.worked_programs import MARKS, SixOperations, program

Role = Literal["data", "parameter", "result", "gradient", "state", "rate"]
_ORDER: Final[tuple[Role, ...]] = ("data", "parameter", "result", "rate", "gradient", "state")

DATA: Final = ("inputs", "targets")
RESULTS: Final = ("before", "hidden", "outputs", "loss", "again", "loss_again")
LAYERS: Final = ("model", "first", "second")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorState:
    """State of one tensor after a line."""

    name: str
    """Name in the program, such as ``model.weight.grad``."""
    role: Role
    owner: str
    """Name of the tensor whose gradient or optimizer state this is; empty for other tensors."""
    shape: tuple[int, ...]
    cells: tuple[tuple[str, ...], ...] | None
    """Rows of numbers; a vector is one row. None = no tensor, as for a gradient before the first backward pass."""
    replaces: bool
    """True if a tensor of this name existed before the line."""
    moved: tuple[tuple[int, int], ...]
    """Cells (row, column) whose value the line has changed."""
    rule: str
    """Formula of the new value; empty if the line has not changed the tensor."""
    calculations: tuple[tuple[str, ...], ...]
    """The formula of each cell, with numbers."""
    reads: tuple[Read, ...]
    """The cells of other tensors from which each cell is calculated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineState:
    """All changes made by one line."""

    operation: str
    line: int
    update: int
    """Number of the update; 0 = before training."""
    code: str
    description: str
    changes: tuple[TensorState, ...]
    """Tensors that the line created, replaced, changed or set to None."""
    removed: tuple[str, ...]
    """Names that no longer exist, such as the gradient of a replaced output."""
    graph: int | None
    """Index in `Trace.graphs` of the graph of the latest result; None without a graph."""
    nodes_alive: int
    """Number of graph nodes alive, over all graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """A tensor with its gradient and optimizer state."""

    name: str
    role: Role
    parts: tuple[str, ...]
    """Names of the tensor's gradient and optimizer states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A complete run of the program."""

    text: str
    printed: str
    groups: tuple[TensorGroup, ...]
    states: tuple[LineState, ...]
    graphs: tuple[graph.Graph, ...]
    """The graphs in the order in which they were built; an unchanged graph is listed once."""
    refused: str
    """PyTorch's error message for a second backward pass."""


Values = dict[str, Tensor | None]


def trace(settings: SixOperations) -> Trace:
    """Run the program and record its variables after each operation.

    Cost: about 1 ms per line.
    """
    text = program(settings)
    recorder = _Recorder(settings)
    printed = run_marked(text, MARKS, recorder.record_line)
    return Trace(
        text=text,
        printed=printed,
        groups=tuple(_tensor_groups(recorder.states)),
        states=tuple(recorder.states),
        graphs=tuple(recorder.graphs),
        refused=recorder.refused,
    )


class _Recorder:
    """Records the changes of each line."""

    def __init__(self, settings: SixOperations) -> None:
        self._settings = settings
        self.states: list[LineState] = []
        self.graphs: list[graph.Graph] = []
        self.refused = ""
        self._before: Values = {}
        self._live = graph.LiveGraphs()
        self._root = ""
        self._update = 0

    def record_line(self, marked: MarkedLine, program: Mapping[str, Any]) -> None:
        """Record the variables after a line."""
        # The first line of an update starts it: the next batch, or the forward pass if there is only one batch.
        self._update += marked.mark == ("batch" if self._settings.example == "irises" else "forward")
        self.refused = str(program.get("refused", ""))
        named = _named_tensors(program)
        self._read_graph(marked, named)
        values = _values(program, named)
        changes = tuple(self._changes(marked, values))
        self.states.append(
            LineState(
                operation=marked.mark,
                line=marked.line,
                update=self._update,
                code=marked.text,
                description=self._describe(marked, values),
                changes=changes,
                removed=tuple(name for name in self._before if name not in values),
                graph=len(self.graphs) - 1 if self.graphs else None,
                nodes_alive=self._live.count,
            )
        )
        self._before = values

    def _read_graph(self, marked: MarkedLine, named: Mapping[str, Tensor]) -> None:
        """Read the graph of the latest result that has one."""
        result = next((name for name in marked.assigns if name in named and named[name].grad_fn is not None), None)
        if result is not None:
            self._root = result
            self._live.mark(named[result])
        if self._root:
            latest = graph.read_graph(self._root, named)
            if not self.graphs or self.graphs[-1] != latest:
                self.graphs.append(latest)

    def _describe(self, marked: MarkedLine, values: Values) -> str:
        saved_b = self.graphs[-1].saved_b if self.graphs else 0
        return _DESCRIPTIONS[marked.mark].format(alive=self._live.count, saved=saved_b, **_numbers(values))

    def _changes(self, marked: MarkedLine, values: Values) -> Iterator[TensorState]:
        formulas_by_name = formulas(self._settings, marked, self._before, values, self._update)
        for name, value in values.items():
            before = self._before.get(name)
            if name in self._before and name not in marked.assigns and _same(before, value):
                continue
            formula = formulas_by_name.get(name, _NO_FORMULA)
            yield TensorState(
                name=name,
                role=_role(name),
                owner=_owner(name),
                shape=() if value is None else tuple(value.shape),
                cells=None if value is None else _cells(value),
                replaces=before is not None,
                moved=tuple(_changed_cells(before, value)),
                rule=formula.text,
                calculations=_format_calculations(formula.calculations, value),
                reads=formula.reads,
            )


def _tensor_groups(states: Sequence[LineState]) -> Iterator[TensorGroup]:
    """Yield every tensor of the run with its gradient and optimizer state."""
    roles: dict[str, Role] = {tensor.name: tensor.role for state in states for tensor in state.changes}
    owners = {tensor.name: tensor.owner for state in states for tensor in state.changes}
    for name, role in sorted(roles.items(), key=lambda item: (_ORDER.index(item[1]), item[0] == "targets")):
        if not owners[name]:
            parts = sorted((part for part, owner in owners.items() if owner == name), key=lambda item: roles[item])
            yield TensorGroup(name=name, role=role, parts=tuple(parts))


def _named_tensors(program: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return data, parameters and results of the program by name."""
    named = {name: program[name] for name in DATA if name in program}
    layers = [name for name in LAYERS if isinstance(program.get(name), nn.Linear)]
    for layer in layers:
        named |= {f"{layer}.{name}": parameter for name, parameter in program[layer].named_parameters()}
    return named | {name: program[name] for name in RESULTS if name in program}


def _values(program: Mapping[str, Any], named: Mapping[str, Tensor]) -> Values:
    """Return a copy of every tensor, with its gradient and optimizer state."""
    values: Values = {}
    for name, tensor in named.items():
        values[name] = tensor.detach().clone()
        if tensor.requires_grad and (tensor.is_leaf or tensor.retains_grad):
            values[f"{name}.grad"] = None if tensor.grad is None else tensor.grad.clone()
        for key, state in program["optimizer"].state.get(tensor, {}).items() if tensor.is_leaf else ():
            values[f"{name}.{key}"] = None if state is None else torch.as_tensor(state).clone()
    values["lr"] = torch.tensor(program["optimizer"].param_groups[0]["lr"], dtype=torch.float64)
    return values


def _same(before: Tensor | None, after: Tensor | None) -> bool:
    if before is None or after is None:
        return before is after
    return before.shape == after.shape and torch.equal(before, after)


def _changed_cells(before: Tensor | None, after: Tensor | None) -> Iterator[tuple[int, int]]:
    """Yield the cells that differ; all cells if there was no such tensor."""
    if after is None:
        return
    differs = _rows(after != before if before is not None and before.shape == after.shape else torch.ones_like(after))
    yield from ((row, column) for row, column in differs.nonzero().tolist())


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(1, -1) if tensor.dim() < 2 else tensor


def _cells(tensor: Tensor) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(map(format_cell, row)) for row in _rows(tensor).tolist())


def _format_calculations(calculations: Calculations, value: Tensor | None) -> tuple[tuple[str, ...], ...]:
    if value is None:
        return ()
    return tuple(
        tuple(f"{cell} = {each.text}" for cell, each in zip(*rows, strict=True))
        for rows in zip(_cells(value), calculations, strict=False)
    )


def _owner(name: str) -> str:
    owner, _, last = name.rpartition(".")
    return owner if last in _STATE or last == "grad" else ""


def _role(name: str) -> Role:
    last = name.rpartition(".")[2]
    if last == "grad":
        return "gradient"
    if last in _STATE:
        return "state"
    if name == "lr":
        return "rate"
    return "data" if name in DATA else "result" if name in RESULTS else "parameter"


def _numbers(values: Values) -> dict[str, str]:
    numbers = {name: values.get(name) for name in ("loss", "loss_again", "lr")}
    return {name: "" if value is None else format_cell(value.item()) for name, value in numbers.items()}


_NO_FORMULA: Final = Formula(text="", calculations=[])
_STATE: Final = {"momentum_buffer", "exp_avg", "exp_avg_sq", "step"}

_DESCRIPTIONS: Final = {
    "built": "Model, loss, optimizer and schedule exist. There is no gradient and no graph yet.",
    "batch": "The next batch is drawn; nothing else changes.",
    "forward": "Inputs become outputs. Autograd records each operation as a node of a graph: {alive} nodes are alive, "
    "and this graph keeps {saved} bytes for backward.",
    "loss": "One number measures how wrong the outputs are: {loss}. It is the root of the graph.",
    "backward": "Backward runs from the loss to the leaves: every parameter gets its gradient. The graph frees its "
    "saved tensors. No weight has changed.",
    "update": "The optimizer moves each weight against its gradient, at learning rate {lr}. The gradients stay in "
    ".grad.",
    "zero grad": "The gradients are cleared (set to None); otherwise the next backward would add to them.",
    "schedule": "The learning rate for the next update is {lr}.",
    "second backward": "A second backward through the same graph raises an error: its saved tensors are freed.",
    "forward again": "The same inputs pass through the new weights, without a graph.",
    "loss again": "The loss was {loss} before the last update and is {loss_again} after it.",
}
