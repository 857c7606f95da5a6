"""Operations of a program, in their order, as far as the source code shows them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from trueloop.analysis.abstract_value import AbstractValue


class OpKind(StrEnum):
    """Kinds of operations, with the meaning of their ``subject``, ``inputs``, ``result`` and ``value``."""

    CREATE = "create"
    """subject: a model, optimizer, scheduler, scaler, loader, sampler or loss."""
    MODEL_CALL = "model call"
    """subject: the model; inputs: its inputs; result: its output."""
    FORWARD_CALL = "forward call"
    """A call of ``model.forward(x)``; fields as for `MODEL_CALL`."""
    LOSS = "loss"
    """subject: the loss module or function; inputs: prediction and target; result: the loss."""
    BACKWARD = "backward"
    """subject: the root; inputs: the scaler that scaled it, or the accelerator, if any."""
    STEP = "step"
    """subject: the optimizer; inputs: the scaler that steps it, if any."""
    CLEAR_GRADIENTS = "clear gradients"
    """subject: an optimizer, a model, parameters, or unknown; gradients are set to None, zeroed or overwritten."""
    ACCESS_GRADIENTS = "access gradients"
    """subject: parameters whose gradients the program itself reads or changes."""
    CLIP_GRADIENTS = "clip gradients"
    """subject: parameters whose gradients are clipped."""
    UNSCALE = "unscale"
    """subject: the optimizer whose gradients are unscaled."""
    SCALE_LOSS = "scale loss"
    """subject: the scaler; inputs: the scaled value."""
    SCALER_UPDATE = "scaler update"
    SCHEDULER_STEP = "scheduler step"
    """subject: the scheduler."""
    SET_MODE = "set mode"
    """subject: the model; value: True = train mode, False = eval mode, None = unknown."""
    SET_REQUIRES_GRAD = "set requires_grad"
    """subject: a model, parameters or a tensor; value: the new ``requires_grad``."""
    STATE_DICT = "state_dict"
    """subject: the owner of the state; result: the state."""
    LOAD_STATE_DICT = "load_state_dict"
    """subject: the receiver of the state; inputs: the state."""
    SAVE = "save"
    """inputs: the saved values."""
    LOAD = "load"
    """result: the return value of ``torch.load``."""
    SEED = "seed"
    """inputs: the seed."""
    SET_EPOCH = "set epoch"
    """subject: the sampler."""
    ITERATE = "iterate"
    """subject: the iterable of a loop."""
    STORE_ITEM = "store item"
    """subject: the list, dictionary or running total; inputs: the stored or added values."""
    SET_ATTRIBUTE = "set attribute"
    """subject: an instance or module; inputs: the new value of its attribute ``name``."""
    TORCH_CALL = "torch call"
    """A call of any other PyTorch function; ``name`` is its qualified name."""
    ESCAPE = "escape"
    """inputs: values that are passed to code outside the file, which may change them in any way."""


class Loop(NamedTuple):
    """A loop around an operation."""

    node: Any
    """``ast.For``, ``ast.While`` or ``ast.comprehension``."""
    iterable: AbstractValue | None
    conditions_outside: int = 0
    """Number of conditions around the loop."""
    calls: tuple[Any, ...] = ()
    """Calls of functions in the file that lead to the loop, outermost first."""

    def trip_count(self) -> int | None:
        """Return the number of iterations of a loop over ``range(3)``; None if unknown."""
        call = self.iterable.node if self.iterable is not None else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "range":
            return None
        limits = [each.constant() for each in self.iterable.sources] if self.iterable is not None else []
        known = all(isinstance(each, int) and abs(each) < 2**31 for each in limits) and limits[2:] != [0]
        return len(range(*limits)) if 0 < len(limits) < 4 and known else None

    def runs_at_most_once(self) -> bool:
        """Return True if the loop certainly has at most one iteration, by its ``range`` or since its body leaves it."""
        body: list[ast.stmt] = getattr(self.node, "body", [])
        return self.trip_count() in (0, 1) or (_exits_loop(body) and not any(_may_continue(each) for each in body))


class Branch(NamedTuple):
    """A condition around an operation, and the arm that contains the operation."""

    node: Any
    arm: int
    """Index of the arm: for ``if`` 0 = the test is true; for ``try`` 0 = the body, 1 ... = the handlers."""
    test: AbstractValue | None = None
    """Value of the condition of an ``if``."""

    def condition_key(self) -> tuple[str, int]:
        """Return a key of condition and arm, which is equal for equal conditions; ``x is not None`` equals ``x``."""
        test = self.node.test if isinstance(self.node, ast.If) else None
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
            test = test.left
        return ast.dump(test) if test is not None else str(id(self.node)), self.arm


@dataclass(slots=True, kw_only=True, eq=False)
class Op:
    """One operation."""

    kind: OpKind
    node: Any
    """The expression or statement of the operation, which has a location."""
    index: int
    """Index in the order of all operations."""
    entry_point: int
    """Index of the entry point (0 = the module, others = functions that are not called) that leads to the operation."""
    subject: AbstractValue
    inputs: tuple[AbstractValue, ...] = ()
    result: AbstractValue | None = None
    value: Any = None
    name: str = ""
    arguments: dict[str, AbstractValue] = field(default_factory=dict[str, AbstractValue])
    """Arguments of the call by keyword, or by position as "0", "1" ..."""
    loops: tuple[Loop, ...] = ()
    """Loops around the operation, outermost first, including those around the calls that lead to it."""
    branches: tuple[Branch, ...] = ()
    calls: tuple[Any, ...] = ()
    """Calls of functions in the file that lead to the operation, outermost first."""
    function: Any = None
    """Definition of the function that contains the operation; None at module level."""
    functions: tuple[Any, ...] = ()
    """Definitions of the functions that ``calls`` call."""
    statement: ast.stmt | None = None
    grad: bool | None = True
    """Whether gradients are enabled; None = unknown."""
    autocast: str | None = None
    """Dtype of the autocast around the operation: "torch.bfloat16"; "" = on with unknown dtype."""
    autocasts: tuple[tuple[AbstractValue, int], ...] = ()
    """All autocasts around the operation, outermost first, each with the number of ``loops`` around the autocast."""
    contexts: tuple[str, ...] = ()
    """Qualified names of the other context managers around the operation: "accelerator.accumulate"."""

    def is_inside(self, loop: Loop) -> bool:
        """Return True if the operation runs in iterations of a loop."""
        return any(each.node is loop.node for each in self.loops)

    def is_in_same_run(self, loop: Loop) -> bool:
        """Return True if the operation runs in a loop, in the same call of the function that contains the loop."""
        return any(each.node is loop.node and each.calls == loop.calls for each in self.loops)

    def conditions(self, loop: Loop) -> tuple[Branch, ...]:
        """Return the conditions around the operation within a loop, also in functions that the loop calls."""
        outer = next((each.conditions_outside for each in self.loops if each.node is loop.node), 0)
        return self.branches[outer:]

    def is_unconditional_in(self, loop: Loop | None) -> bool:
        """Return True if the operation runs in every iteration of a loop; None = in every run of the program."""
        return not (self.branches if loop is None else self.conditions(loop))

    def same_iteration_as(self, other: Op) -> bool:
        """Return True if both operations run in the same iteration of the same loops, or both run outside of loops."""
        return (
            self.entry_point == other.entry_point
            and len(self.loops) == len(other.loops)
            and all(a.node is b.node for a, b in zip(self.loops, other.loops, strict=True))
        )

    def implied_by(self, other: Op) -> bool:
        """Return True if this operation runs whenever the other one does."""
        return {(id(each.node), each.arm) for each in self.branches} <= {
            (id(each.node), each.arm) for each in other.branches
        }

    def excludes(self, other: Op) -> bool:
        """Return True if the operations are in different arms of the same condition."""
        arms = {id(each.node): each.arm for each in other.branches}
        return any(arms.get(id(each.node), each.arm) != each.arm for each in self.branches)


def _exits_loop(block: list[ast.stmt]) -> bool:
    """Return True if a loop's body certainly leaves the loop at its end."""
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
    """Return True if a part of a loop's body may ``continue`` this loop, not only an inner one."""
    if isinstance(node, ast.For | ast.AsyncFor | ast.While):
        return any(_may_continue(each) for each in node.orelse)
    inner = () if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda) else ast.iter_child_nodes(node)
    return isinstance(node, ast.Continue) or any(_may_continue(each) for each in inner)
