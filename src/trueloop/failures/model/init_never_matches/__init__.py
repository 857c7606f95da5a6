"""A function for ``model.apply`` compares a layer with a class, which is never equal, so it initialises nothing.

What you see
    ``model.apply(init_weights)`` changes nothing: training is the same with and without it.

Why it happens
    ``apply`` calls the function with each layer, an object. ``layer == nn.Linear`` compares the object with the class,
    and is always False. So are ``layer is nn.Linear``, ``layer in (nn.Linear, nn.Conv2d)`` and
    ``type(layer) == "Linear"``, which compares a class with a text. An initialiser
    that ``__init__`` applies before it assigns the layers visits none of them. The items of ``model.parameters()``
    are tensors, so ``isinstance(each, nn.Conv2d)`` is never true, and neither is it for the model itself in
    ``init_weights(model)``.

Fix
    Ask whether the layer is an instance of the class, and call ``self.apply(...)`` last:

        def init_weights(layer):
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)

When this is fine
    - ``type(layer) == nn.Linear`` and ``type(layer).__name__ == "Linear"`` compare what belongs together.
    - A layer is compared with another layer: ``layer is self.head``.
    - Layers that are created after ``self.apply(...)`` are initialised on their own, or loaded.

How it is detected
    Only the linter finds it, from the source code: such a comparison of the parameter of a function that is passed to
    ``apply``, or of the variable of a loop over ``modules()`` or ``children()``. It also finds ``self.apply(...)``, or
    a method that loops over ``self.modules()``, in an ``__init__`` that creates all layers of the classes that are
    initialised, or most of them, after that line, a test for a class of layers on the items of ``parameters()``, on
    pairs of ``named_modules()`` or on names, and a call with a whole model of a function that only initialises its
    argument if that is a layer.

References
    torch.nn.Module.apply, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed
from trueloop.failures.model.init_never_matches.applied_early import applied_early
from trueloop.failures.model.init_never_matches.other_objects import (
    initialisers_of_whole_models,
    tests_of_other_objects,
)

_LAYERS: Final = frozenset(("modules", "children", "named_modules", "named_children"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each comparison of a layer with a class, and each initialiser that is applied too early."""
    yield from applied_early(source)
    yield from tests_of_other_objects(source)
    yield from initialisers_of_whole_models(source)
    for name, code in _layers(source):
        for each in nodes_in(code, ast.Compare):
            other = _compared(each, name)
            if other is not None and _is_other_kind(each.left, other):
                yield Hit(
                    message=f"`{ast.unparse(each)}` is never true: it compares "
                    f"{'a layer' if isinstance(each.left, ast.Name) else 'a class'} with "
                    f"{'a class' if isinstance(each.left, ast.Name) else 'a text'}, so nothing is initialised.",
                    node=each,
                    fix=_isinstance(source, each, other) if isinstance(each.left, ast.Name) else None,
                )


def _layers(source: SourceFile) -> Iterator[tuple[str, Any]]:
    """Yield each variable that holds a layer, with the code in which it does."""
    functions = {each.name: each for each in source.nodes_of(ast.FunctionDef)}
    for call in source.all_calls:
        if last_name(call.func) == "apply" and len(call.args) == 1 and isinstance(call.func, ast.Attribute):
            argument = call.args[0]
            code: Any = argument if isinstance(argument, ast.Lambda) else functions.get(last_name(argument))
            names = [each.arg for each in code.args.args if each.arg != "self"] if code is not None else []
            if len(names) == 1:
                yield names[0], code
    for loop in source.nodes_of(ast.For):
        if isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) in _LAYERS:
            target = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) and loop.target.elts else loop.target
            if isinstance(target, ast.Name):
                yield target.id, loop


def _compared(compare: ast.Compare, name: str) -> ast.expr | None:
    """Return what a layer or its type is compared with; None for other comparisons."""
    if len(compare.ops) != 1 or not isinstance(compare.ops[0], ast.Eq | ast.Is | ast.In):
        return None
    match compare.left:
        case ast.Name(id=left) if left == name:
            return compare.comparators[0]
        case ast.Call(func=ast.Name(id="type"), args=[ast.Name(id=left)]) if left == name:
            return compare.comparators[0]
        case ast.Attribute(value=ast.Name(id=left), attr="__class__") if left == name:
            return compare.comparators[0]
        case _:
            return None


def _is_other_kind(left: ast.expr, other: ast.expr) -> bool:
    """Return True for a layer and a class, and for a class and a text."""
    parts = other.elts if isinstance(other, ast.Tuple | ast.List | ast.Set) else [other]
    if isinstance(left, ast.Name):
        return bool(parts) and all(_is_class(each) for each in parts)
    return bool(parts) and all(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in parts)


def _is_class(node: ast.expr) -> bool:
    owner, _, name = dotted_name(node).rpartition(".")
    return owner in ("nn", "torch.nn") and name[:1].isupper()


def _isinstance(source: SourceFile, compare: ast.Compare, other: ast.expr) -> Fix:
    text = f"isinstance({ast.unparse(compare.left)}, {source.text.segment(other)})"
    return Fix((source.text.replace(compare, text),), safe=False, description="Use isinstance")


RULE = Rule(
    required_words=("nn.", "apply(|modules()|children()|parameters()|_modules|isinstance(|__class__"),
    find=find,
    depends_on_users=True,
)

BAD = """
import torch
from torch import nn


def init_weights(layer):
    if layer == nn.Linear:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
model.apply(init_weights)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="MDL028",
    title="The function for apply() matches no layer",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"layer == nn.Linear": "isinstance(layer, nn.Linear)"}),
    fix="Write isinstance(layer, nn.Linear), and call self.apply(...) after the layers are assigned.",
    rule=RULE,
)
