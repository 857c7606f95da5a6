"""A generator is read in each update, but only the first update finds something in it.

What you see
    A penalty on the weights, a check of the gradients or an update of some parameters has an effect in the first
    update, and none in all others. The penalty is printed as 0.

Why it happens
    ``model.parameters()``, ``map``, ``filter``, ``zip`` and ``(p for p in ...)`` are generators: they can be iterated
    once. A loop over one that is used up runs zero times, ``sum`` of it is 0, and Python raises no error.

Fix
    Store a list, which can be iterated again and again:

        weights = [p for p in model.parameters() if p.dim() > 1]

When this is fine
    - The generator is created in the loop that reads it.
    - The loop reads one item at a time, with ``next``, or leaves the generator early.
    - The generator is read once, as an optimizer does.

How it is detected
    Only the linter finds it, from the source code: a variable or attribute has a generator of parameters or
    modules as its only value. A comprehension, a loop or a function such as ``sum`` reads all of it, in a loop that
    does not create it, or in a function that such a loop calls. GRD011 checks gradient clipping, and DAT027 loops over
    batches.

References
    Python glossary, "generator iterator", https://docs.python.org/3/glossary.html#term-generator-iterator
    torch.nn.Module.parameters, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import enclosing_loops
from trueloop.analysis.queries.generators import bound_once, is_generator
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, dotted_name, encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ITERATORS: Final = frozenset(("zip", "named_parameters", "modules", "named_modules", "buffers", "children"))
_PARAMETERS: Final = re.compile(r"param|weight|grad|modules\(|children\(|buffers\(|layers", re.IGNORECASE)
_READING: Final = frozenset(("sum", "list", "tuple", "sorted", "max", "min", "any", "all", "dict", "set"))
_TRAINING: Final = frozenset(("backward", "step", "zero_grad"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the first place that reads a generator in a loop which does not create it."""
    reported = set[int]()
    for node in source.nodes_of(ast.Name, ast.Attribute):
        if not isinstance(node.ctx, ast.Load) or not _reads_all(source, node):
            continue
        name, value, loop = dotted_name(node), *_generator(source, node)
        if value is not None and loop is not None and id(value) not in reported:
            reported.add(id(value))
            yield Hit(
                message=f"`{name}` is a generator, which the first iteration of the loop uses up: after it, "
                f"`{ast.unparse(_reader(source, node))}` finds nothing.",
                node=node,
                related=((value, "the generator is created once, here"), (loop, "the loop that reads it again")),
                fix=_list_fix(source, value),
            )


def _generator(source: SourceFile, node: ast.Name | ast.Attribute) -> tuple[ast.expr | None, ast.AST | None]:
    """Return the generator that is the only value of a variable or parameter, and the loop that reads it again."""
    function = function_of(source, node)
    bound = bound_once(source.tree, dotted_name(node), None if isinstance(function, ast.Module) else function)
    if bound is not None:
        is_once = _is_iterated_once(source, bound.value)
        return (bound.value, _repeating_loop(source, node, bound)) if is_once else (None, None)
    if isinstance(function, ast.Module) or dotted_name(node) not in {each.arg for each in function.args.args}:
        return None, None
    values = possible_values(source, node)
    values = [inner for each in values for inner in possible_values(source, each) or [each]]
    loops = [each for each in nodes_in(function, ast.For, ast.While) if encloses(each, node) and not _runs_once(each)]
    outer = [each for each in loops if isinstance(each, ast.While) or not encloses(each.iter, node)]
    is_once = len(values) == 1 and _is_iterated_once(source, values[0])
    return (values[0], outer[0]) if is_once and outer else (None, None)


def _reads_all(source: SourceFile, node: ast.expr) -> bool:
    """Return True if a comprehension, a loop or a function reads all items of a variable."""
    parent: Any = source.parents.get(id(node))
    while (
        isinstance(parent, ast.Call) and node in parent.args and last_name(parent.func) in ("enumerate", "zip", "map")
    ):
        node, parent = parent, source.parents.get(id(parent))
    match parent:
        case ast.comprehension(iter=iterable):
            return iterable is node
        case ast.For(iter=iterable):
            called = {last_name(call.func) for call in nodes_in(parent, ast.Call)}
            stops = nodes_in(parent, ast.Break, ast.Return)
            return iterable is node and not called & _TRAINING and not stops
        case ast.Call(func=ast.Name(id=name), args=[first, *_]):
            return name in _READING and first is node
        case _:
            return False


def _is_iterated_once(source: SourceFile, value: ast.expr) -> bool:
    """Return True for a generator of parameters or modules."""
    if not _PARAMETERS.search(ast.unparse(value)):
        return False
    if is_generator(source, value):
        return True
    name = last_name(value.func) if isinstance(value, ast.Call) else ""
    is_method = name not in ("zip", "") and isinstance(getattr(value, "func", None), ast.Attribute)
    return name in _ITERATORS and (is_method or name == "zip")


def _repeating_loop(source: SourceFile, node: ast.AST, bound: ast.Assign) -> ast.AST | None:
    """Return a loop around a node, or around the call of its function, that does not create the generator."""
    owner = function_of(source, bound)
    is_local = not isinstance(owner, ast.Module) and owner is function_of(source, node)  # each call creates it again
    for loops in enclosing_loops(source, node):
        for loop in loops:
            if is_local and not encloses(owner, loop):
                continue
            if not _runs_once(loop) and not encloses(loop, bound) and not _calls(source, loop, owner):
                return loop
    return None


def _runs_once(loop: ast.AST) -> bool:
    """Return True for a loop over ``range(1)``."""
    iterable = loop.iter if isinstance(loop, ast.For) else None
    return isinstance(iterable, ast.Call) and [getattr(each, "value", None) for each in iterable.args] == [1]


def _calls(source: SourceFile, loop: ast.AST, owner: Any) -> bool:
    """Return True if a loop calls the function, or creates an instance of the class, that creates the generator."""
    if isinstance(owner, ast.Module):
        return False
    around = source.parents.get(id(owner))
    names = {owner.name, around.name if isinstance(around, ast.ClassDef) else owner.name}
    return any(last_name(call.func) in names for call in nodes_in(loop, ast.Call))


def _reader(source: SourceFile, node: ast.AST) -> ast.AST:
    """Return the expression or the head of the loop that reads a variable."""
    parent: Any = source.parents.get(id(node))
    while isinstance(parent, ast.expr | ast.comprehension):
        node, parent = parent, source.parents.get(id(parent))
    return node


def _list_fix(source: SourceFile, value: ast.expr) -> Fix:
    start, end = source.text.span(value)
    return Fix((Edit(start, start, "list("), Edit(end, end, ")")), safe=False, description="Store a list")


RULE = Rule(
    required_words=(
        "parameters(|modules(|filter(|map(|zip(|chain(| for ",
        "torch",
        ".backward(|.step(|lerp_|training_step",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 10)
y = x[:, :1] - x[:, 1:2]
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
weights = (p for p in model.parameters() if p.dim() > 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        penalty = 1e-3 * sum(p.abs().sum() for p in weights)
        loss = nn.functional.mse_loss(model(x[rows]), y[rows]) + penalty
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="GRD028",
    title="A generator is read again after it is used up",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD, {"(p for p in model.parameters() if p.dim() > 1)": "[p for p in model.parameters() if p.dim() > 1]"}
    ),
    fix="Store a list instead of the generator.",
    rule=RULE,
)
