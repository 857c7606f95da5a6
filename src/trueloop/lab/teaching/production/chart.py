"""The flow chart of a program: its boxes, each with the lines of code that it represents, and the edges."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from trueloop.lab.teaching.production.program import Program
from trueloop.lab.teaching.production.selection import Selection

Kind = Literal["do", "ask", "end"]
Direction = Literal["down", "back", "skip"]
Subject = Literal["", "data", "gradient", "update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One box of the chart."""

    name: str
    text: str
    kind: Kind
    depth: int
    """0 outside the loops, 1 in the loop over epochs, 2 in the loop over batches."""
    subject: Subject
    """What the box handles: data and activations, gradients, or weights."""
    lines: tuple[tuple[int, int], ...]
    """First and last line, from 1, of each snippet of the program that the box represents."""


class Edge(NamedTuple):
    """One edge between two boxes, given by their indices from the top."""

    start: int
    end: int
    direction: Direction
    """Down to the next box, back to an earlier box, or past some boxes to a later one."""
    lane: int
    """Distance from the boxes, from 0, of an edge that does not go down; edges on one lane and side never cross."""
    label: str = ""
    """The answer, "yes" or "no", that follows this edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A flow chart."""

    boxes: tuple[Box, ...]
    """Boxes from top to bottom."""
    edges: tuple[Edge, ...]


class _BoxTemplate(NamedTuple):
    name: str
    text: Callable[[Selection], str]
    snippets: tuple[str, ...]
    """Names of snippets; the box exists if the program has one of them."""
    depth: int = 0
    kind: Kind = "do"


def _always(text: str) -> Callable[[Selection], str]:
    return lambda chosen: text


def _forward(chosen: Selection) -> str:
    kind = {"off": "", "bf16": " in bfloat16", "fp16": " in float16"}[chosen.precision]
    return f"Forward pass and {'summed ' if chosen.sums_losses else ''}loss{kind}"


def _backward(chosen: Selection) -> str:
    text = "Backward pass, adds to .grad" if chosen.accumulation else "Backward pass"
    return f"{text}, of the scaled loss" if chosen.uses_scaler else text


def _update(chosen: Selection) -> str:
    return "Update, if the gradients are finite" if chosen.uses_scaler else "Update"


def _end(chosen: Selection) -> str:
    return "Restore the best weights" if chosen.early_stopping else "Trained"


SETUP: Final = ("device", "data", "split", "loaders", "model", "criterion", "optimizer", "schedule", "scaler", "best")
SUBJECTS: Final[Mapping[str, Subject]] = {
    "forward": "data", "look": "data", "backward": "gradient", "unscale": "gradient", "divide": "gradient",
    "clip": "gradient", "clear": "gradient", "update": "update", "advance": "update",
}  # fmt: skip
_BOXES: Final = (
    _BoxTemplate("seed", _always("Seed the random numbers"), ("seed",)),
    _BoxTemplate("setup", _always("Data, model, loss, optimizer"), SETUP),
    _BoxTemplate("resume", _always("Resume from the checkpoint, if there is one"), ("resume",)),
    _BoxTemplate("epochs", _always("Another epoch?"), ("epochs",), 0, "ask"),
    _BoxTemplate("stop", _always("Improved within 3 epochs?"), ("stop",), 1, "ask"),
    _BoxTemplate("batches", _always("Another batch?"), ("batches",), 1, "ask"),
    _BoxTemplate("forward", _forward, ("move", "forward"), 2),
    _BoxTemplate("backward", _backward, ("backward",), 2),
    _BoxTemplate("total", _always("Add up the loss"), ("total",), 2),
    _BoxTemplate("draw", _always("Print the progress, if it is time"), ("draw",), 2),
    _BoxTemplate("window", _always("Window full, or epoch over?"), ("window",), 2, "ask"),
    _BoxTemplate("unscale", _always("Unscale the gradients"), ("unscale",), 2),
    _BoxTemplate("divide", _always("Divide by the examples in the window"), ("divide",), 2),
    _BoxTemplate("clip", _always("Clip the gradients' norm"), ("clip",), 2),
    _BoxTemplate("update", _update, ("update",), 2),
    _BoxTemplate("advance", _always("Next learning rate"), ("advance",), 2),
    _BoxTemplate("clear", _always("Clear the gradients"), ("clear",), 2),
    _BoxTemplate("look", _always("Evaluate on held-out data"), ("look", "evaluate"), 1),
    _BoxTemplate("judge", _always("Keep the weights, if they are the best"), ("judge",), 1),
    _BoxTemplate("record", _always("Write a record"), ("record", "train loss"), 1),
    _BoxTemplate("keep", _always("Save to a temporary file, then rename"), ("keep", "save"), 1),
    _BoxTemplate("print", _always("Print"), ("print",), 1),
    _BoxTemplate("end", _end, ("restore",), 0, "end"),
)


def chart(selection: Selection, program: Program) -> Chart:
    """Draw the chart of a selection's program.

    Args:
        selection: the components; those that they require are added.
        program: result of `production_program` for this selection.
    """
    chosen = selection.with_required()
    boxes = tuple(_boxes(chosen, program))
    return Chart(boxes=boxes, edges=tuple(_edges({box.name: index for index, box in enumerate(boxes)}, boxes)))


def _boxes(chosen: Selection, program: Program) -> Iterator[Box]:
    for box in _BOXES:
        spans = [span for span in program.spans if span.name in box.snippets]
        if spans or box.kind == "end":
            lines = tuple((span.first, span.last) for span in spans)
            subject: Subject = SUBJECTS.get(box.name) or ""
            yield Box(
                name=box.name, text=box.text(chosen), kind=box.kind, depth=box.depth, subject=subject, lines=lines
            )


def _edges(index: dict[str, int], boxes: tuple[Box, ...]) -> Iterator[Edge]:
    loop_ends = index["clear"], index["print"]
    for start in range(len(boxes) - 1):
        if start not in loop_ends:
            yield Edge(start, start + 1, "down", 0, "yes" if boxes[start].kind == "ask" else "")
    yield Edge(index["clear"], index["batches"], "back", 1)
    yield Edge(index["print"], index["epochs"], "back", 2)
    yield Edge(index["batches"], index["clear"] + 1, "skip", 0, "no")
    yield Edge(index["epochs"], index["end"], "skip", 2, "no")
    if "window" in index:
        yield Edge(index["window"], index["batches"], "back", 0, "no")
    if "stop" in index:
        yield Edge(index["stop"], index["end"], "skip", 1, "no")
