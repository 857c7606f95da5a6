"""Similarities or logits are multiplied by a temperature below 1, which flattens the softmax.

What you see
    The loss hardly falls below that of guessing: with normalised embeddings and a temperature of 0.07, all
    similarities lie between -0.07 and 0.07, and no training makes the softmax sharp.

Why it happens
    A temperature is a divisor: a small one makes the softmax sharper. As a factor it does the opposite.

Fix
    Divide.

        logits = za @ zb.t() * temperature  # wrong
        logits = za @ zb.t() / temperature  # right

When this is fine
    - The factor is a scale above 1, the inverse of a temperature. Then call it ``scale``.
    - The loss, not its logits, is multiplied: by ``temperature ** 2`` in distillation.
    - You flatten a distribution on purpose, such as pseudo-labels.

How it is detected
    Only the linter finds it, from the source code: a product with a variable called ``temperature`` or ``tau`` that
    goes into a softmax, a cross-entropy or an exponential, where the file gives this variable a number below 1.

References
    Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", 2020, arXiv:2002.05709
    Hinton et al., "Distilling the Knowledge in a Neural Network", 2015, arXiv:1503.02531
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of, is_loss_call
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

NAMES: Final = frozenset(("temperature", "temp", "tau"))
NORMALISING: Final = frozenset(("softmax", "log_softmax", "cross_entropy", "logsumexp", "exp", "Softmax", "LogSoftmax"))
KEEPS_VALUES: Final = frozenset(("t", "T", "transpose", "permute", "view", "reshape", "float", "mT", "contiguous"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the products with a small temperature that are normalised."""
    bindings = source.nodes_of(ast.Assign, ast.AnnAssign, ast.keyword, ast.arguments)
    given = [pair for node in bindings for pair in _values(node)]
    small = {name for name in NAMES if _is_small([value for of, value in given if of == name])}
    for node in source.nodes_of(ast.BinOp, ast.AugAssign) if small else ():
        factor = _factor(node, small)
        if factor is None or not _is_normalised(source, node):
            continue
        edit = None
        if isinstance(node, ast.BinOp) and node.right is factor:
            value = source.text.segment(node.left)
            edit = source.text.replace(node, f"{value} / {source.text.segment(factor)}")
        yield Hit(
            message=f"The logits are multiplied by `{source.text.segment(factor)}`, which is below 1: a temperature "
            "is a divisor, and as a factor it flattens the softmax.",
            node=node,
            fix=None if edit is None else Fix((edit,), safe=False, description="Divide by the temperature"),
        )


def _factor(node: ast.AST, names: set[str]) -> ast.expr | None:
    """Return the temperature in ``logits * temperature`` or ``logits *= temperature``."""
    match node:
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            sides = [(left, right), (right, left)]
        case ast.AugAssign(op=ast.Mult(), target=target, value=value):
            sides = [(value, target)]
        case _:
            return None
    for factor, other in sides:
        is_factor = isinstance(factor, ast.Name | ast.Attribute) and last_name(factor) in names
        if is_factor and not any(last_name(each) in NAMES for each in nodes_in(other, ast.expr)):
            return factor
    return None


def _is_normalised(source: SourceFile, node: Any) -> bool:
    """Return True if the product, or the variable that it is assigned to, goes into a softmax or cross-entropy."""
    top, parent = node, source.parents.get(id(node))
    while isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is top):
        if isinstance(parent, ast.Attribute) and parent.attr not in KEEPS_VALUES:
            break
        top, parent = parent, source.parents.get(id(parent))
    if _takes(source, parent, top):
        return True
    target = node.target if isinstance(node, ast.AugAssign) else None
    if isinstance(parent, ast.Assign) and parent.value is top and len(parent.targets) == 1:
        target = parent.targets[0]
    name = "" if target is None else dotted_name(target)
    return bool(name) and any(
        dotted_name(each) == name and each.lineno >= node.lineno and _takes(source, source.parents.get(id(each)), each)
        for each in nodes_in(function_of(source, node), ast.Name, ast.Attribute)
        if isinstance(each.ctx, ast.Load)
    )


def _takes(source: SourceFile, parent: ast.AST | None, value: ast.AST) -> bool:
    """Return True if a value is the first argument of a softmax, or the object of its method."""
    if isinstance(parent, ast.Attribute):
        return parent.attr in NORMALISING and isinstance(source.parents.get(id(parent)), ast.Call)
    if not isinstance(parent, ast.Call) or not parent.args or parent.args[0] is not value:
        return False
    return last_name(parent.func) in NORMALISING or is_loss_call(source, parent)


def _is_small(values: list[ast.expr]) -> bool:
    """Return True if the values that a file gives to a variable are numbers below 1 only."""
    numbers = [each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, float | int)]
    return bool(numbers) and all(0 < each < 1 for each in numbers)


def _values(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield each temperature, a variable, parameter or setting, to which a node gives a value, with this value."""
    match node:
        case ast.Assign(targets=[target], value=value) if (name := last_name(target)) in NAMES:
            yield name, value
        case ast.AnnAssign(target=target, value=ast.expr() as value) if (name := last_name(target)) in NAMES:
            yield name, value
        case ast.keyword(arg=str() as name, value=value) if name in NAMES:
            yield name, value
        case ast.arguments(posonlyargs=first, args=rest, defaults=defaults, kwonlyargs=named, kw_defaults=others):
            arguments = [*first, *rest]
            with_default = arguments[len(arguments) - len(defaults) :]
            for argument, value in (*zip(with_default, defaults, strict=True), *zip(named, others, strict=True)):
                if argument.arg in NAMES and value is not None:
                    yield argument.arg, value
        case _:
            return


RULE = Rule(required_words=("torch", "temp|tau", "softmax|Softmax|cross|Cross|exp"), find=find)

BAD = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
inputs = torch.randn(256, 8)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
temperature = 0.07


def contrast(za, zb):
    logits = F.normalize(za, dim=1) @ F.normalize(zb, dim=1).t() * temperature
    return F.cross_entropy(logits, torch.arange(len(za)))


for step in range(20):
    x = inputs[torch.randperm(256)[:32]]
    loss = contrast(model(x + 0.1 * torch.randn(32, 8)), model(x + 0.1 * torch.randn(32, 8)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS023",
    title="Logits are multiplied by the temperature",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {".t() * temperature": ".t() / temperature"}),
    fix="Divide the logits by the temperature.",
    rule=RULE,
)
