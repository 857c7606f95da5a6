"""Inference runs under no_grad, where inference_mode would do the same for less.

What you see
    None. Small models answer a little slower than they could: every tensor still counts its versions and views.

Why it happens
    ``torch.no_grad()`` is right. ``torch.inference_mode()`` came later, in PyTorch 1.9, and promises more: what is
    computed under it never takes part in autograd, so that nothing has to be kept track of.

Fix
    ``with torch.inference_mode():``

When this is fine
    Whatever is used with gradients afterwards: targets for a loss, weights that are averaged or changed, tensors that a
    module keeps. They need ``no_grad``, and inference tensors would raise. So it is said only of a block or function
    that calls models of which the file shows all, keeps and hands on nothing of what they compute, and leaves numbers
    at most. It is a note, given only if it is selected, and in the text only.

References
    Autograd mechanics, inference mode, https://docs.pytorch.org/docs/stable/notes/autograd.html
    torch.autograd.grad_mode.inference_mode,
    https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode.inference_mode.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, Kind
from trueloop.analysis.loop_invariance import stored
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Failure, Rule, Severity

NUMBERS: Final = frozenset(("item", "tolist", "float", "int", "len", "round", "print", "format", "range"))
PURE: Final = frozenset((OpKind.CALLED, OpKind.LOSS, OpKind.TORCH, OpKind.ITERATED, OpKind.MODE))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def find(source: Source) -> Iterator[Hit]:
    """Yield ``with torch.no_grad()`` and the decorator around what only computes numbers."""
    for node in source.nodes:
        within = [each.context_expr for each in node.items] if isinstance(node, ast.With) else []
        calls = node.decorator_list if isinstance(node, Function) else within
        call = next((each for each in calls if isinstance(each, ast.Call) and _switches_off(source, each)), None)
        if call is None or not isinstance(node, ast.With | Function):
            continue
        scope = _around(source, node) if isinstance(node, ast.With) else node
        if _only_numbers(source, node.body, scope):
            function: Any = call.func
            edit = source.text.replace(function, f"{source.text.of(function.value)}.inference_mode")
            fix = Fix((edit,), safe=False, words="Use inference_mode")
            yield Hit(message="torch.inference_mode() would serve here, and costs less.", node=call, fix=fix)


def _switches_off(source: Source, call: ast.Call) -> bool:
    return source.name(call.func) == "torch.no_grad" and not call.args and isinstance(call.func, ast.Attribute)


def _around(source: Source, node: ast.With) -> ast.AST:
    """Return the innermost function around a statement, or the whole module."""
    functions = (each for each in source.nodes if isinstance(each, Function))
    found = [each for each in functions if any(one is node for one in ast.walk(each))]
    return found[-1] if found else source.tree


def _only_numbers(source: Source, body: Sequence[ast.stmt], scope: ast.AST) -> bool:
    walked = (each for statement in body for each in ast.walk(statement))
    nodes = {id(each) for each in walked if isinstance(each, ast.stmt | ast.expr)}  # Python shares the others
    inside = [
        each for each in source.operations if id(each.node) in nodes or any(id(call) in nodes for call in each.calls)
    ]
    trains = bool(source.acts(OpKind.BACKWARD, OpKind.STEPPED))
    models = [each.subject for each in inside if each.act is OpKind.CALLED]
    read_out = any(isinstance(each, ast.Call) and _number(each) for one in body for each in ast.walk(one))
    if (
        not models
        or not read_out
        or not all(_known(each) or not trains for each in models)
        or not all(map(_pure, inside))
    ):
        return False
    names: set[str] = set()
    for statement in (each for one in body for each in ast.walk(one)):
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign) and not _number(statement.value):
            names |= stored(statement)
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.withitem | ast.NamedExpr):
            names |= stored(getattr(statement, "target", getattr(statement, "optional_vars", None)) or ast.Pass())
    left = _loaded_elsewhere(scope, nodes)
    given = [each.value for one in body for each in ast.walk(one) if isinstance(each, ast.Return | ast.Yield)]
    return not names & left and all(_number(each, names) for each in given)


def _loaded_elsewhere(scope: ast.AST, nodes: set[int]) -> set[str]:
    """Return the names that are read outside of a block, where no loop of their own binds them."""
    found: set[str] = set()
    queue: list[tuple[ast.AST, frozenset[str]]] = [(scope, frozenset())]
    while queue:
        node, bound = queue.pop()
        if isinstance(node, ast.For) and not any(id(each) in nodes for each in ast.walk(node)):
            bound |= stored(node.target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in bound:
            found.add(node.id)
        queue += [(each, bound) for each in ast.iter_child_nodes(node) if id(each) not in nodes]
    return found


def _pure(operation: Op) -> bool:
    """Return True for what keeps nothing of what is computed."""
    if operation.act in (OpKind.KEPT, OpKind.ESCAPED):
        return not any(
            each.kind in (Kind.TENSOR, Kind.MODEL, Kind.UNKNOWN) and not _read_out(each) for each in operation.things
        )
    return operation.act in PURE and not operation.word.endswith("_")


def _read_out(thing: AbstractValue) -> bool:
    return thing.name in ("item", "tolist", "builtins.len", "builtins.float", "builtins.int") or (
        all(_read_out(each) or each.kind is Kind.CONSTANT for each in thing.of)
        and bool(thing.of)
        and thing.kind is Kind.UNKNOWN
    )


def _known(model: AbstractValue) -> bool:
    """Return True for a model of torch's layers or of this file: it keeps nothing that the text does not show."""
    return all(
        each.name.startswith("torch.nn.") or isinstance(each.scope, AbstractValue) for each in model.alternatives()
    )


def _number(node: ast.expr | None, tensors: set[str] | None = None) -> bool:
    """Return True where an expression surely is a number or text, or is made of nothing but such."""
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
    return all(_number(each, tensors) for each in parts)


RULE = Rule(words=("torch", "no_grad"), find=find, asked=True)

FAILURE = Failure(
    code="EVL007",
    title="Inference runs under no_grad where inference_mode would serve",
    severity=Severity.NOTE,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x, y = torch.randn(64, 8), torch.randint(0, 3, (64,))
model = nn.Linear(8, 3).eval()
with torch.no_grad():
    right = (model(x).argmax(1) == y).sum().item()
print(right / len(y))
""",
    good="""
import torch
from torch import nn

x, y = torch.randn(64, 8), torch.randint(0, 3, (64,))
model = nn.Linear(8, 3).eval()
with torch.inference_mode():
    right = (model(x).argmax(1) == y).sum().item()
print(right / len(y))
""",
    fix="Use torch.inference_mode() where nothing that is computed is needed with gradients.",
    rule=RULE,
)
