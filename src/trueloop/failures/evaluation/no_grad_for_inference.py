"""Inference runs under ``no_grad`` although the faster ``inference_mode`` is possible.

What you see
    Small models answer a little more slowly than they could.

Why it happens
    ``torch.no_grad()`` is correct, but PyTorch still prepares each tensor for a later use with gradients: it counts
    in-place changes and records views. ``torch.inference_mode()``, new in PyTorch 1.9, switches this off too.

Fix
    Replace the context manager:

        with torch.no_grad():  # slower
        with torch.inference_mode():  # faster

When this is fine
    - You use the results with gradients later, for example as targets: tensors of ``inference_mode`` raise an error.
    - A module stores the results.

How it is detected
    Only the linter finds it, from the source code, and only if you select this rule. It reports a ``no_grad`` block or
    function that calls models whose code is in the same file and gives other code only numbers, no tensors.

References
    Autograd mechanics, inference mode, https://docs.pytorch.org/docs/stable/notes/autograd.html
    torch.autograd.grad_mode.inference_mode,
    https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode.inference_mode.html
"""

import ast
from collections.abc import Iterator, Sequence
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.loop_invariance import assigned_names
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

NUMBERS: Final = frozenset(("item", "tolist", "float", "int", "len", "round", "print", "format", "range"))
PURE: Final = frozenset((OpKind.MODEL_CALL, OpKind.LOSS, OpKind.TORCH_CALL, OpKind.ITERATE, OpKind.SET_MODE))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``no_grad`` block and decorator around code that only computes numbers."""
    for node in source.nodes:
        contexts = [each.context_expr for each in node.items] if isinstance(node, ast.With) else []
        calls = node.decorator_list if isinstance(node, Function) else contexts
        call = next((each for each in calls if isinstance(each, ast.Call) and _is_no_grad(source, each)), None)
        if call is None or not isinstance(node, ast.With | Function):
            continue
        scope = _enclosing_scope(source, node) if isinstance(node, ast.With) else node
        if _computes_only_numbers(source, node.body, scope):
            function: Any = call.func
            edit = source.text.replace(function, f"{source.text.segment(function.value)}.inference_mode")
            fix = Fix((edit,), safe=False, description="Use inference_mode")
            message = "`torch.inference_mode()` works here too and is faster than `torch.no_grad()`."
            yield Hit(message=message, node=call, fix=fix)


def _is_no_grad(source: SourceFile, call: ast.Call) -> bool:
    return (
        source.qualified_name(call.func) == "torch.no_grad" and not call.args and isinstance(call.func, ast.Attribute)
    )


def _enclosing_scope(source: SourceFile, node: ast.With) -> ast.AST:
    """Return the innermost function around a statement, or the module."""
    functions = (each for each in source.nodes if isinstance(each, Function))
    enclosing = [each for each in functions if any(inner is node for inner in walk(each))]
    return enclosing[-1] if enclosing else source.tree


def _computes_only_numbers(source: SourceFile, body: Sequence[ast.stmt], scope: ast.AST) -> bool:
    walked = (each for statement in body for each in walk(statement))
    nodes = {id(each) for each in walked if isinstance(each, ast.stmt | ast.expr)}  # Python shares the others
    inside = [
        each for each in source.operations if id(each.node) in nodes or any(id(call) in nodes for call in each.calls)
    ]
    trains = bool(source.ops(OpKind.BACKWARD, OpKind.STEP))
    models = [each.subject for each in inside if each.kind is OpKind.MODEL_CALL]
    read_out = any(isinstance(each, ast.Call) and _is_number(each) for one in body for each in walk(one))
    if (
        not models
        or not read_out
        or not all(_has_visible_code(each) or not trains for each in models)
        or not all(map(_stores_nothing, inside))
    ):
        return False
    names: set[str] = set()
    for statement in (each for one in body for each in walk(one)):
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign) and not _is_number(statement.value):
            names |= assigned_names(statement)
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.withitem | ast.NamedExpr):
            target = getattr(statement, "target", getattr(statement, "optional_vars", None))
            names |= assigned_names(target or ast.Pass())
    read_later = _names_read_outside(scope, nodes)
    returned = [each.value for one in body for each in nodes_in(one, ast.Return, ast.Yield)]
    return not names & read_later and all(_is_number(each, names) for each in returned)


def _names_read_outside(scope: ast.AST, nodes: set[int]) -> set[str]:
    """Return the names that are read outside of a block, except those bound by a loop there."""
    names: set[str] = set()
    queue: list[tuple[ast.AST, frozenset[str]]] = [(scope, frozenset())]
    while queue:
        node, bound = queue.pop()
        if isinstance(node, ast.For) and not any(id(each) in nodes for each in walk(node)):
            bound |= assigned_names(node.target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in bound:
            names.add(node.id)
        queue += [(each, bound) for each in ast.iter_child_nodes(node) if id(each) not in nodes]
    return names


def _stores_nothing(operation: Op) -> bool:
    """Return True for an operation that stores no computed tensor."""
    if operation.kind in (OpKind.STORE_ITEM, OpKind.ESCAPE):
        tensors = (ValueKind.TENSOR, ValueKind.MODEL, ValueKind.UNKNOWN)
        return not any(each.kind in tensors and not _is_python_number(each) for each in operation.inputs)
    return operation.kind in PURE and not operation.name.endswith("_")


def _is_python_number(value: AbstractValue) -> bool:
    return value.name in ("item", "tolist", "builtins.len", "builtins.float", "builtins.int") or (
        all(_is_python_number(each) or each.kind is ValueKind.CONSTANT for each in value.sources)
        and bool(value.sources)
        and value.kind is ValueKind.UNKNOWN
    )


def _has_visible_code(model: AbstractValue) -> bool:
    """Return True for a model of PyTorch layers or of this file: all tensors that it stores are known."""
    return all(
        each.name.startswith("torch.nn.") or isinstance(each.scope, AbstractValue) for each in model.alternatives()
    )


def _is_number(node: ast.expr | None, tensors: set[str] | None = None) -> bool:
    """Return True if an expression is certainly a number or text, or consists only of these."""
    parts: list[ast.expr | None]
    match node:
        case None | ast.Constant() | ast.JoinedStr():
            parts = []
        case ast.Call():
            return getattr(node.func, "attr", getattr(node.func, "id", "")) in NUMBERS
        case ast.Name():
            return tensors is not None and node.id not in tensors
        case ast.BinOp():
            parts = [node.left, node.right]
        case ast.Tuple() | ast.List():
            parts = [*node.elts]
        case ast.Dict():
            parts = [*node.values]
        case _:
            return False
    return all(_is_number(each, tensors) for each in parts)


RULE = Rule(required_words=("torch", "no_grad"), find=find, opt_in=True)

BAD = """
import torch
from torch import nn

x, y = torch.randn(64, 8), torch.randint(0, 3, (64,))
model = nn.Linear(8, 3).eval()
with torch.no_grad():
    right = (model(x).argmax(1) == y).sum().item()
print(right / len(y))
"""

FAILURE = Failure(
    code="EVL007",
    title="Inference uses no_grad() instead of inference_mode()",
    severity=Severity.NOTE,
    bad=BAD,
    good=changed(BAD, {"with torch.no_grad():": "with torch.inference_mode():"}),
    fix="Use torch.inference_mode() if no result is needed with gradients.",
    rule=RULE,
)
