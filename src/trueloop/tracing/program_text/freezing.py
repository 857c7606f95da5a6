"""Lists misspellings of ``requires_grad``, and finds code that reads such an attribute."""

import ast
from collections.abc import Iterator
from typing import Final, TypeGuard

REQUIRES_GRAD: Final = "requires_grad"
MISSPELLINGS: Final = frozenset((
    "require_grad", "requires_grads", "require_grads", "required_grad", "requires_grad_", "requires_gradient",
    "require_gradient", "requires_gradients", "requries_grad", "requres_grad", "reqires_grad", "requiers_grad",
    "requires_gard", "required_grads", "requiresGrad", "require_grad_",
))  # fmt: skip
"""Common misspellings, none of which PyTorch reads."""

_TENSORS: Final = ("parameters", "named_parameters", "buffers", "named_buffers")
_SAME_ITEMS: Final = ("list", "tuple", "enumerate", "reversed", "iter")
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def may_be_read(tree: ast.AST, attribute: str, *, of_modules: bool) -> bool:
    """Return True if source code may read an attribute of any object, or contains its name as a string.

    Args:
        tree: the syntax tree.
        attribute: name of the attribute; calls of a method of that name do not count.
        of_modules: whether the attribute is on modules, so that reading it on items of ``parameters()`` does not count.
    """
    nodes = list(ast.walk(tree))
    ignored = {id(each.func) for each in nodes if isinstance(each, ast.Call)}
    ignored |= {id(each.args[1]) for each in nodes if _is_setattr(each)}
    if of_modules:
        ignored |= {
            id(read)
            for each in nodes
            for name in loop_variables_of_parameters(each)
            for read in _attribute_accesses(each, name)
        }
    for each in nodes:
        if id(each) in ignored:
            continue
        if isinstance(each, ast.Attribute) and each.attr == attribute and isinstance(each.ctx, ast.Load):
            return True
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and attribute in each.value.split("."):
            return True
    return False


def _is_setattr(node: ast.AST) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr"
        and len(node.args) > 1
    )  # fmt: skip


def loop_variables_of_parameters(node: ast.AST) -> Iterator[str]:
    """Yield the variables to which a loop, a comprehension or a filter assigns parameters or buffers."""
    if isinstance(node, ast.For) and _yields_tensors(node.iter):
        yield from _names(node.target)
    elif isinstance(node, _COMPREHENSIONS):
        for each in node.generators:
            if _yields_tensors(each.iter):
                yield from _names(each.target)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "filter":
        function, *over = node.args
        if isinstance(function, ast.Lambda) and over and _yields_tensors(over[0]):
            yield from (each.arg for each in function.args.args)


def _yields_tensors(node: ast.expr) -> bool:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SAME_ITEMS and node.args:
        node = node.args[0]
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TENSORS


def _names(target: ast.expr) -> Iterator[str]:
    return (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def _attribute_accesses(scope: ast.AST, name: str) -> list[ast.Attribute]:
    """Return the attribute accesses on a variable; [] unless the scope binds the variable exactly once."""
    nodes = list(ast.walk(scope))
    stored = sum(
        isinstance(each, ast.Name) and each.id == name and not isinstance(each.ctx, ast.Load) for each in nodes
    )
    if stored + sum(isinstance(each, ast.arg) and each.arg == name for each in nodes) != 1:
        return []
    attributes = [each for each in nodes if isinstance(each, ast.Attribute)]
    return [each for each in attributes if isinstance(each.value, ast.Name) and each.value.id == name]
