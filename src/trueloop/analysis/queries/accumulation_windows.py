"""Finds accumulation windows: conditions that are true once every few iterations of a loop, and their sizes."""

import ast
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import MANAGED, AbstractValue, ValueKind
from trueloop.analysis.loop_invariance import names_in
from trueloop.analysis.operations import Branch, Loop, Op, OpKind
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import walk

CREATION_FUNCTIONS: Final = frozenset(("torch.randn", "torch.rand", "torch.zeros", "torch.ones"))


class Window(NamedTuple):
    """The condition at the end of a gradient accumulation window: ``(step + 1) % 4 == 0``."""

    branch: Branch
    counter: ast.expr
    """The dividend of the remainder: ``step + 1``."""
    size: ast.expr
    """The divisor of the remainder: ``4``."""
    iterations: Any
    """The value of the divisor; None if unknown."""
    remainder: Any
    """The value of the remainder at the end of a window; None if unknown."""
    is_only_condition: bool
    """Whether the remainder is the only term of the condition."""


def accumulation_window(operation: Op, loop: Loop) -> Window | None:
    """Return the window at whose end an operation in a loop runs; None if it depends on other ``if`` statements too."""
    conditions = operation.conditions(loop)
    if len(conditions) != 1 or not isinstance(conditions[0].node, ast.If):
        return None
    branch = conditions[0]
    test, parts = branch.node.test, list[Any]()
    if isinstance(test, ast.BoolOp):
        parts = test.values if branch.arm == 0 else []
    elif isinstance(test, ast.Name | ast.Attribute) and branch.test is not None:
        parts = [each.node for each in branch.test.alternatives()]
    else:
        parts = [test]
    found = _find_window(parts, branch)
    return found if found is not None and _is_counter(found.counter, operation, loop) else None


def _find_window(parts: list[Any], branch: Branch) -> Window | None:
    arm, is_only_condition = branch.arm, len(parts) == 1
    for part in parts:
        negated = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not)
        inner = part.operand if isinstance(part, ast.UnaryOp) and negated else part
        ends, remainder = arm ^ negated, 0
        if isinstance(inner, ast.Compare) and len(inner.ops) == 1:
            remainder = getattr(inner.comparators[0], "value", None)
            ends ^= 0 if isinstance(inner.ops[0], ast.Eq) else 1 if isinstance(inner.ops[0], ast.NotEq) else 2
            inner = inner.left
        else:
            ends ^= 1  # a remainder alone is true within the window, not at its end
        if ends == 0 and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mod):
            size = _divisor(branch.test, inner)
            return Window(branch, inner.left, inner.right, size, remainder, is_only_condition)
    return None


def _divisor(test: AbstractValue | None, remainder: ast.BinOp) -> Any:
    if isinstance(remainder.right, ast.Constant):
        return remainder.right.value
    for each in test.ancestors() if test is not None else ():
        if each.node is remainder and len(each.sources) > 1:
            return each.sources[1].constant()
    return None


def _is_counter(counter: ast.expr, operation: Op, loop: Loop) -> bool:
    """Return True if a counter certainly advances in every iteration of a loop."""
    names = names_in(counter)
    target = getattr(loop.node, "target", None)
    if target is not None and names & names_in(target):
        return True
    inside = {id(each) for each in walk(loop.node)}
    is_comprehension = isinstance(loop.node, ast.comprehension)  # which does not contain what it computes
    called = [
        f
        for call, f in zip(operation.calls, operation.functions, strict=True)
        if is_comprehension or id(call) in inside
    ]
    return any(
        isinstance(each, ast.AugAssign) and names_in(each.target) & names
        for node in (loop.node, *called)
        for each in walk(node)
    )


def divides_by(source: SourceFile, size: ast.expr) -> bool:
    """Return True if the file divides or multiplies some value by the size of a window."""
    name = _last_name(size)
    for each in source.nodes_of(ast.BinOp, ast.AugAssign):
        if isinstance(each.op, ast.Div | ast.Mult):
            parts = (each.left, each.right) if isinstance(each, ast.BinOp) else (each.value,)
            if any(_last_name(part) == name for expression in parts for part in walk(expression)):
                return True
    return any(
        isinstance(each.func, ast.Attribute) and each.func.attr.rstrip("_") in ("div", "mul", "true_divide", "divide")
        for each in source.all_calls
    )


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else repr(node.value) if isinstance(node, ast.Constant) else "?"


def accesses_grad(source: SourceFile) -> bool:
    """Return True if the file reads or writes a ``.grad``."""
    return any(
        each.attr == "grad"
        and not (isinstance(each.value, ast.Attribute) and each.value.attr == "autograd")
        and not (isinstance(each.value, ast.Name) and each.value.id in ("autograd", "torch"))
        for each in source.nodes_of(ast.Attribute)
    )


def batch_count(loader: AbstractValue) -> int | None:
    """Return the number of batches of a loader; None unless the file creates its data with constant sizes."""
    arguments = loader.arguments
    if (
        loader.kind is not ValueKind.LOADER
        or loader.union
        or {"sampler", "batch_sampler", "2", "3", "4"} & arguments.keys()
    ):
        return None
    size = arguments.get("batch_size") or arguments.get("1")
    drop = arguments.get("drop_last")
    dataset = loader.sources[0] if loader.sources else None
    if dataset is None or dataset.name != "torch.utils.data.TensorDataset" or not dataset.sources:
        return None
    rows = dataset.sources[0]
    first = rows.arguments.get("0") if rows.name in CREATION_FUNCTIONS and not rows.union else None
    if first is not None and first.kind is ValueKind.SEQUENCE and first.sources:
        first = first.sources[0]
    samples, batch = first.constant() if first is not None else None, size.constant() if size is not None else 1
    dropped = drop.constant() if drop is not None else False
    if not isinstance(samples, int) or not isinstance(batch, int) or batch < 1 or not isinstance(dropped, bool):
        return None
    return samples // batch if dropped else -(-samples // batch)


def repeat_count(source: SourceFile, loop: Loop) -> ast.expr | None:
    """Return ``k`` of ``for _ in range(k)``; None for another loop, or if ``k`` is at most 1."""
    call = getattr(loop.node, "iter", None)
    if not isinstance(call, ast.Call) or source.qualified_name(call.func) != "builtins.range" or len(call.args) != 1:
        return None
    return call.args[0] if loop.trip_count() is None or (loop.trip_count() or 0) > 1 else None


def is_batch_mean(source: SourceFile, backward: Op, loop: Loop, *, uses_next: bool = False) -> bool:
    """Return True if a backward pass starts from a PyTorch loss that is a mean over the batch of an iteration.

    Args:
        source: the file.
        backward: a backward pass in the loop.
        loop: a loop over batches.
        uses_next: whether each iteration gets its batch from ``next``.
    """
    root = backward.subject
    if {"0", "gradient", "grad_tensors", "create_graph"} & backward.arguments.keys() or MANAGED in root.facts:
        return False
    creation = source.created_by.get(id(root))
    if creation is None or creation.kind is not OpKind.LOSS or not creation.name.startswith("torch.nn."):
        return False
    arguments = {**creation.arguments, **creation.subject.arguments}
    reduction = arguments.get("reduction")
    legacy = {"size_average", "reduce"} & arguments.keys() or any(
        isinstance(e.constant(), bool) for e in arguments.values()
    )
    if legacy or (reduction is not None and reduction.constant() != "mean"):
        return False
    changed = source.ops_in_loop(loop, OpKind.TORCH_CALL, root=backward.entry_point)
    if any(each.subject is root and each.name.endswith("_") for each in changed):
        return False  # loss.div_(k)
    return any(_is_from_batch(source, each, loop, uses_next=uses_next) for each in root.ancestors(2000))


def _is_from_batch(source: SourceFile, value: AbstractValue, loop: Loop, *, uses_next: bool) -> bool:
    node = value.node
    if uses_next:
        return isinstance(node, ast.Call) and source.qualified_name(node.func) == "builtins.next"
    target = getattr(loop.node, "target", None)
    own = [loop.node, getattr(loop.node, "iter", None), *(walk(target) if target is not None else ())]
    return node is not None and any(node is each for each in own)
