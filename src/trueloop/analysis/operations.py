"""What a program does, in the order in which it does it, as far as its text tells."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from trueloop.analysis.abstract_value import AbstractValue


class OpKind(StrEnum):
    """Kinds of operations, and what ``subject`` and ``inputs`` of each are."""

    CREATE = "made"
    """subject: a model, optimizer, scheduler, scaler, loader, sampler or loss."""
    MODEL_CALL = "called"
    """subject: the model; things: its inputs; result: its output."""
    FORWARD_CALL = "forward"
    """The same through ``model.forward(x)``."""
    LOSS = "loss"
    """subject: the loss module or function; things: prediction and target; result: the loss."""
    BACKWARD = "backward"
    """subject: the root; things: the scaler whose ``scale`` it went through, or the accelerator, if any."""
    STEP = "stepped"
    """subject: the optimizer; things: the scaler that steps it, if any."""
    CLEAR_GRADIENTS = "cleared"
    """subject: an optimizer, a model, parameters, or unknown; gradients are set to None, zeroed or written by hand."""
    ACCESS_GRADIENTS = "gradients"
    """subject: parameters; their gradients are read or changed by hand."""
    CLIP_GRADIENTS = "clipped"
    """subject: parameters."""
    UNSCALE = "unscaled"
    """subject: the optimizer."""
    SCALE_LOSS = "scaled"
    """subject: the scaler; things: what is scaled."""
    SCALER_UPDATE = "scaler updated"
    SCHEDULER_STEP = "scheduled"
    """subject: the scheduler."""
    SET_MODE = "mode"
    """subject: the model; value: True = train mode, False = eval mode, None = the text does not tell."""
    SET_REQUIRES_GRAD = "frozen"
    """subject: a model, parameters or a tensor; value: what ``requires_grad`` becomes."""
    STATE_DICT = "state taken"
    """subject: of whom; result: the state."""
    LOAD_STATE_DICT = "state loaded"
    """subject: into whom; things: the state."""
    SAVE = "saved"
    """things: what is written."""
    LOAD = "read"
    """result: what ``torch.load`` returned."""
    SEED = "seeded"
    """things: the seed."""
    SET_EPOCH = "epoch set"
    """subject: the sampler."""
    ITERATE = "iterated"
    """subject: what a loop goes through."""
    STORE_ITEM = "kept"
    """subject: the list, dictionary or total; things: what is put or added into it."""
    SET_ATTRIBUTE = "bound"
    """subject: an instance or module; things: what an attribute of it, ``name``, becomes."""
    TORCH_CALL = "torch"
    """Any other function of torch's: ``name`` is its qualified name."""
    ESCAPE = "escaped"
    """things: what was handed to code that this file does not show; it may do anything to them."""


class Loop(NamedTuple):
    """A loop around an operation."""

    node: Any
    """``ast.For``, ``ast.While`` or ``ast.comprehension``."""
    iterable: AbstractValue | None
    conditions_outside: int = 0
    """How many conditions stand around it."""

    def trip_count(self) -> int | None:
        """Return how many it takes, where it goes through ``range(3)``; None where the text does not tell."""
        call = self.iterable.node if self.iterable is not None else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "range":
            return None
        limits = [each.constant() for each in self.iterable.sources] if self.iterable is not None else []
        known = all(isinstance(each, int) and abs(each) < 2**31 for each in limits) and limits[2:] != [0]
        return len(range(*limits)) if 0 < len(limits) < 4 and known else None

    def runs_at_most_once(self) -> bool:
        """True where the text tells that it takes one turn at most: by its ``range``, or its body ends by leaving."""
        body: list[ast.stmt] = getattr(self.node, "body", [])
        return self.trip_count() in (0, 1) or (_exits_loop(body) and not any(_may_continue(each) for each in body))


class Branch(NamedTuple):
    """A part of the program that runs on a condition only: one arm of it."""

    node: Any
    arm: int
    """0 = the test holds; of ``try``, 0 = the body and 1 ... the handlers."""
    test: AbstractValue | None = None
    """What the condition of an ``if`` was computed from."""

    def condition_key(self) -> tuple[str, int]:
        """Return its condition and arm, equal for two that ask the same; ``x is not None`` asks the same as ``x``."""
        test = self.node.test if isinstance(self.node, ast.If) else None
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
            test = test.left
        return ast.dump(test) if test is not None else str(id(self.node)), self.arm


@dataclass(slots=True, kw_only=True, eq=False)
class Op:
    """One operation."""

    kind: OpKind
    node: Any
    """The expression or statement, for its place."""
    index: int
    """Its place in the order of the program."""
    entry_point: int
    """What is reached from one starting point (the module, a function nobody calls) happens in one run."""
    subject: AbstractValue
    inputs: tuple[AbstractValue, ...] = ()
    result: AbstractValue | None = None
    value: Any = None
    name: str = ""
    options: dict[str, AbstractValue] = field(default_factory=dict[str, AbstractValue])
    """Arguments, by keyword, or by "0", "1" ... for their positions."""
    loops: tuple[Loop, ...] = ()
    """Outermost first, through calls of functions in this file."""
    branches: tuple[Branch, ...] = ()
    calls: tuple[Any, ...] = ()
    """Calls of functions in this file that led here, outermost first."""
    function: Any = None
    """The definition it stands in; None at module level."""
    functions: tuple[Any, ...] = ()
    """The definitions that ``calls`` call."""
    statement: ast.stmt | None = None
    grad: bool | None = True
    """Gradients are on; None = the text does not tell."""
    autocast: str | None = None
    """The type of the autocast around it: "torch.bfloat16"; "" = on, of a type the text does not tell."""
    autocasts: tuple[tuple[AbstractValue, int], ...] = ()
    """All autocasts around it, outermost first, each with the number of ``loops`` that stand around it."""
    contexts: tuple[str, ...] = ()
    """Qualified names of the context managers around it that are none of the above: "accelerator.accumulate"."""

    def is_inside(self, loop: Loop) -> bool:
        """True where it happens in each or some turn of a loop."""
        return any(each.node is loop.node for each in self.loops)

    def conditions(self, loop: Loop) -> tuple[Branch, ...]:
        """Return the conditions around it within a loop, those in functions called from the loop among them."""
        outer = next((each.conditions_outside for each in self.loops if each.node is loop.node), 0)
        return self.branches[outer:]

    def is_unconditional_in(self, loop: Loop | None) -> bool:
        """True where no condition within a loop, or None = within the run, stands before it."""
        return not (self.branches if loop is None else self.conditions(loop))

    def same_iteration_as(self, other: Op) -> bool:
        """True where both happen in the same turn of the same loops, or both in none."""
        return (
            self.entry_point == other.entry_point
            and len(self.loops) == len(other.loops)
            and all(one.node is two.node for one, two in zip(self.loops, other.loops, strict=True))
        )

    def implied_by(self, other: Op) -> bool:
        """True where no condition stands before it that does not stand before another one."""
        return {(id(each.node), each.arm) for each in self.branches} <= {
            (id(each.node), each.arm) for each in other.branches
        }

    def excludes(self, other: Op) -> bool:
        """True where both stand in different arms of one condition."""
        arms = {id(each.node): each.arm for each in other.branches}
        return any(arms.get(id(each.node), each.arm) != each.arm for each in self.branches)


def _exits_loop(block: list[ast.stmt]) -> bool:
    """True where a body of a loop surely ends by leaving the loop."""
    last = block[-1] if block else None
    match last:
        case ast.Break() | ast.Return() | ast.Raise():
            return True
        case ast.With() | ast.AsyncWith():
            return _exits_loop(last.body)
        case ast.If(test=ast.Constant(value=value)):
            return _exits_loop(last.body if value else last.orelse)
        case ast.If():
            return _exits_loop(last.body) and _exits_loop(last.orelse)
        case _:
            return False


def _may_continue(node: ast.AST) -> bool:
    """True where a part of a loop's body goes on with the loop's next turn; that of an inner loop is its own."""
    if isinstance(node, ast.For | ast.AsyncFor | ast.While):
        return any(_may_continue(each) for each in node.orelse)
    inner = () if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda) else ast.iter_child_nodes(node)
    return isinstance(node, ast.Continue) or any(_may_continue(each) for each in inner)
