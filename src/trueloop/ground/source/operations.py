"""What a program does, in the order in which it does it, as far as its text tells."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from trueloop.ground.source.things import Thing


class Act(StrEnum):
    """Kinds of operations, and what ``subject`` and ``things`` of each are."""

    MADE = "made"
    """subject: a model, optimizer, scheduler, scaler, loader, sampler or loss."""
    CALLED = "called"
    """subject: the model; things: its inputs; result: its output."""
    FORWARD = "forward"
    """The same through ``model.forward(x)``."""
    LOSS = "loss"
    """subject: the loss module or function; things: prediction and target; result: the loss."""
    BACKWARD = "backward"
    """subject: the root; things: the scaler whose ``scale`` it went through, or the accelerator, if any."""
    STEPPED = "stepped"
    """subject: the optimizer; things: the scaler that steps it, if any."""
    CLEARED = "cleared"
    """subject: an optimizer, a model, parameters, or unknown; gradients are set to None, zeroed or written by hand."""
    GRADIENTS = "gradients"
    """subject: parameters; their gradients are read or changed by hand."""
    CLIPPED = "clipped"
    """subject: parameters."""
    UNSCALED = "unscaled"
    """subject: the optimizer."""
    SCALED = "scaled"
    """subject: the scaler; things: what is scaled."""
    SCALER_UPDATED = "scaler updated"
    SCHEDULED = "scheduled"
    """subject: the scheduler."""
    MODE = "mode"
    """subject: the model; value: True = train mode, False = eval mode, None = the text does not tell."""
    FROZEN = "frozen"
    """subject: a model, parameters or a tensor; value: what ``requires_grad`` becomes."""
    STATE_TAKEN = "state taken"
    """subject: of whom; result: the state."""
    STATE_LOADED = "state loaded"
    """subject: into whom; things: the state."""
    SAVED = "saved"
    """things: what is written."""
    READ = "read"
    """result: what ``torch.load`` returned."""
    SEEDED = "seeded"
    """things: the seed."""
    EPOCH_SET = "epoch set"
    """subject: the sampler."""
    ITERATED = "iterated"
    """subject: what a loop goes through."""
    KEPT = "kept"
    """subject: the list, dictionary or total; things: what is put or added into it."""
    BOUND = "bound"
    """subject: an instance or module; things: what an attribute of it, ``word``, becomes."""
    TORCH = "torch"
    """Any other function of torch's: ``word`` is its qualified name."""
    ESCAPED = "escaped"
    """things: what was handed to code that this file does not show; it may do anything to them."""


class Loop(NamedTuple):
    """A loop around an operation."""

    node: Any
    """``ast.For``, ``ast.While`` or ``ast.comprehension``."""
    over: Thing | None


class Branch(NamedTuple):
    """A part of the program that runs on a condition only: one arm of it."""

    node: Any
    arm: int
    """0 = the test holds; of ``try``, 0 = the body and 1 ... the handlers."""


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """One operation."""

    act: Act
    node: Any
    """The expression or statement, for its place."""
    index: int
    """Its place in the order of the program."""
    root: int
    """What is reached from one starting point (the module, a function nobody calls) happens in one run."""
    subject: Thing
    things: tuple[Thing, ...] = ()
    result: Thing | None = None
    value: Any = None
    word: str = ""
    options: dict[str, Thing] = field(default_factory=dict[str, Thing])
    """Arguments, by keyword, or by "0", "1" ... for their positions."""
    loops: tuple[Loop, ...] = ()
    """Outermost first, through calls of functions in this file."""
    branches: tuple[Branch, ...] = ()
    calls: tuple[Any, ...] = ()
    """Calls of functions in this file that led here, outermost first."""
    function: Any = None
    """The definition it stands in; None at module level."""
    statement: ast.stmt | None = None
    grad: bool | None = True
    """Gradients are on; None = the text does not tell."""
    autocast: str | None = None
    """The type of the autocast around it: "torch.bfloat16"; "" = on, of a type the text does not tell."""
    contexts: tuple[str, ...] = ()
    """Qualified names of the context managers around it that are none of the above: "accelerator.accumulate"."""

    def within(self, loop: Loop) -> bool:
        """True where it happens in each or some turn of a loop."""
        return any(each.node is loop.node for each in self.loops)

    def always_in(self, loop: Loop | None) -> bool:
        """True where no condition within a loop, or None = within the run, stands before it."""
        if loop is None:
            return not self.branches
        inside = {id(each) for each in ast.walk(loop.node)}
        return not any(id(branch.node) in inside for branch in self.branches)
