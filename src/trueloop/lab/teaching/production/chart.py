"""The flow chart of a program: its boxes, each with the lines it stands for, and the ways between them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from trueloop.lab.teaching.production.program import Program
from trueloop.lab.teaching.production.selection import Selection

Kind = Literal["do", "ask", "end"]
Way = Literal["down", "back", "skip"]
About = Literal["", "data", "gradient", "update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One box, in the order from top to bottom."""

    name: str
    words: str
    kind: Kind
    depth: int
    """0 outside the loops, 1 in the one over epochs, 2 in the one over batches."""
    about: About
    """What it handles: data and activations, gradients, or the weights."""
    lines: tuple[tuple[int, int], ...]
    """First and last line of each piece of the text it stands for, from 1."""


class Edge(NamedTuple):
    """One way from a box to another, by their places from the top."""

    start: int
    end: int
    way: Way
    """Down to the next box, back to an earlier one, or past some to a later one."""
    lane: int
    """How far out a way that does not go down runs, from 0: no two on one lane of one side cross."""
    words: str = ""
    """The answer that leads this way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """All boxes and ways."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


class _Plan(NamedTuple):
    name: str
    words: Callable[[Selection], str]
    pieces: tuple[str, ...]
    """The box is there where one of these is."""
    depth: int = 0
    kind: Kind = "do"


def _always(words: str) -> Callable[[Selection], str]:
    return lambda on: words


def _forward(on: Selection) -> str:
    kind = {"off": "", "bf16": " in bfloat16", "fp16": " in float16"}[on.precision]
    return f"Forward pass and {'summed ' if on.sums else ''}loss{kind}"


def _backward(on: Selection) -> str:
    adds = "Backward pass, added to what is there" if on.accumulation else "Backward pass"
    return f"{adds}, of the scaled loss" if on.scaled else adds


def _update(on: Selection) -> str:
    return "Update, if the gradients are finite" if on.scaled else "Update"


def _end(on: Selection) -> str:
    return "Restore the best weights" if on.early_stopping else "Trained"


SETUP: Final = ("device", "data", "split", "loaders", "model", "criterion", "optimizer", "schedule", "scaler", "best")
ABOUT: Final[Mapping[str, About]] = {
    "forward": "data", "look": "data", "backward": "gradient", "unscale": "gradient", "divide": "gradient",
    "clip": "gradient", "clear": "gradient", "update": "update", "advance": "update",
}  # fmt: skip
_PLANS: Final = (
    _Plan("seed", _always("Seed the random numbers"), ("seed",)),
    _Plan("setup", _always("Data, model, loss, optimizer"), SETUP),
    _Plan("resume", _always("Take up the checkpoint, if there is one"), ("resume",)),
    _Plan("epochs", _always("Another epoch?"), ("epochs",), 0, "ask"),
    _Plan("stop", _always("Better within 3 epochs?"), ("stop",), 1, "ask"),
    _Plan("batches", _always("Another batch?"), ("batches",), 1, "ask"),
    _Plan("forward", _forward, ("move", "forward"), 2),
    _Plan("backward", _backward, ("backward",), 2),
    _Plan("total", _always("Add up the loss"), ("total",), 2),
    _Plan("draw", _always("Draw the progress, if it is time"), ("draw",), 2),
    _Plan("window", _always("Window full, or epoch over?"), ("window",), 2, "ask"),
    _Plan("unscale", _always("Take the scale off the gradients"), ("unscale",), 2),
    _Plan("divide", _always("Divide by the examples in the window"), ("divide",), 2),
    _Plan("clip", _always("Clip the gradients' norm"), ("clip",), 2),
    _Plan("update", _update, ("update",), 2),
    _Plan("advance", _always("Next learning rate"), ("advance",), 2),
    _Plan("clear", _always("Clear the gradients"), ("clear",), 2),
    _Plan("look", _always("Evaluate on held-out data"), ("look", "evaluate"), 1),
    _Plan("judge", _always("Keep the weights, if they are the best"), ("judge",), 1),
    _Plan("record", _always("Write a record"), ("record", "train loss"), 1),
    _Plan("keep", _always("Save to a temporary file, then rename"), ("keep", "save"), 1),
    _Plan("print", _always("Print"), ("print",), 1),
    _Plan("end", _end, ("restore",), 0, "end"),
)


def chart(selection: Selection, program: Program) -> Chart:
    """Draw the chart of a selection's program.

    Args:
        selection: what is on; completed by what that needs.
        program: what `write` made of it.
    """
    on = selection.completed()
    boxes = tuple(_boxes(on, program))
    return Chart(boxes=boxes, edges=tuple(_edges({box.name: place for place, box in enumerate(boxes)}, boxes)))


def _boxes(on: Selection, program: Program) -> Iterator[Box]:
    for plan in _PLANS:
        spans = [span for span in program.spans if span.name in plan.pieces]
        if spans or plan.kind == "end":
            lines = tuple((span.first, span.last) for span in spans)
            about: About = ABOUT.get(plan.name) or ""
            yield Box(name=plan.name, words=plan.words(on), kind=plan.kind, depth=plan.depth, about=about, lines=lines)


def _edges(place: dict[str, int], boxes: tuple[Box, ...]) -> Iterator[Edge]:
    turns = place["clear"], place["print"]
    for start in range(len(boxes) - 1):
        if start not in turns:
            yield Edge(start, start + 1, "down", 0, "yes" if boxes[start].kind == "ask" else "")
    yield Edge(place["clear"], place["batches"], "back", 1)
    yield Edge(place["print"], place["epochs"], "back", 2)
    yield Edge(place["batches"], place["clear"] + 1, "skip", 0, "no")
    yield Edge(place["epochs"], place["end"], "skip", 2, "no")
    if "window" in place:
        yield Edge(place["window"], place["batches"], "back", 0, "no")
    if "stop" in place:
        yield Edge(place["stop"], place["end"], "skip", 1, "no")
