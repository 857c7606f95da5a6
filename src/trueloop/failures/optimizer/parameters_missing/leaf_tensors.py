"""Finds tensors that are created to be optimised, such as an image or a latent code, and that no optimizer holds."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in

_OTHER_USE: Final = re.compile(
    r"\.grad\b|autograd\.grad|(?<!utils)\.data\b|jacobian|hessian|jvp|vjp|checkpoint|_hook\(|create_graph|torch\.func\b"
    r"|functorch|gradcheck|retain_grad|grad_fn"
)
"""Code that may read gradients, or change tensors by hand."""
_READS: Final = frozenset(("shape", "size", "device", "dtype", "ndim", "dim", "numel", "requires_grad", "is_cuda"))
_LIBRARIES: Final = frozenset(("torch", "F", "functional", "nn", "np", "math", "th"))
_PLOTS: Final = frozenset(("plt", "ax", "pyplot", "axes", "sns"))
_LOSS: Final = re.compile(r"loss|criterion|crit|mse|bce|entropy", re.IGNORECASE)
_OPTIMISED: Final = re.compile(
    r"latent|prompt|delta|perturb|trigger|canvas|pastiche|(^|_)(adv|patch|z|w|code)(_|$)", re.IGNORECASE
)
_ALIASES: Final = (ast.List, ast.Set, ast.Dict, ast.Starred, ast.Assign, ast.NamedExpr, ast.Yield, ast.AnnAssign)


class LeftOutLeaf(NamedTuple):
    """A tensor that requires gradients, and a loop whose optimizer does not hold it."""

    name: str
    created: ast.stmt
    step: ast.Call


def leaves_left_out(source: SourceFile) -> Iterator[LeftOutLeaf]:
    """Yield each tensor outside of modules that gets gradients in a loop, but is only read."""
    created = list(_created(source))
    if not created or _OTHER_USE.search(source.text.source):
        return
    for name, statement in created:
        scope = function_of(source, statement)
        loads = [each for each in nodes_in(scope, ast.Name) if each.id == name and _is_of(source, each, scope)]
        stores = [each for each in loads if not isinstance(each.ctx, ast.Load)]
        loops = [each for each in nodes_in(scope, ast.For, ast.While) if not encloses(each, statement)]
        loops = [each for each in loops if _calls(each, "backward") and _calls(each, "step")]
        loop = next((each for each in loops if any(encloses(each, load) for load in loads)), None)
        if loop is None or len(stores) != 1 or stores[0].lineno > loop.lineno:
            continue
        uses = [each for each in loads if isinstance(each.ctx, ast.Load)]
        if all(_is_read(source, each, loop) for each in uses) and _is_optimised(source, name, statement, uses, loop):
            yield LeftOutLeaf(name, statement, _calls(loop, "step")[0])


def _created(source: SourceFile) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names of tensors that require gradients, each with the statement that says so."""
    for each in source.nodes_of(ast.Assign):
        match each:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if _requires_gradients(call):
                yield name, each
            case ast.Assign(
                targets=[ast.Attribute(attr="requires_grad", value=ast.Name(id=name))], value=ast.Constant(value=True)
            ):
                yield name, each
            case _:
                pass
    for each in source.nodes_of(ast.Expr):
        match each.value:
            case ast.Call(func=ast.Attribute(attr="requires_grad_", value=ast.Name(id=name)), args=arguments):
                if not arguments or getattr(arguments[0], "value", None) is True:
                    yield name, each
            case _:
                pass


def _requires_gradients(call: ast.Call) -> bool:
    if last_name(call.func) == "requires_grad_":
        return not call.args or getattr(call.args[0], "value", None) is True
    if last_name(call.func) == "Parameter":
        return True
    given = next((each.value for each in call.keywords if each.arg == "requires_grad"), None)
    return isinstance(given, ast.Constant) and given.value is True


def _is_of(source: SourceFile, node: ast.Name, scope: Any) -> bool:
    """Return False for a variable of an inner function that has a parameter or variable of this name."""
    function = function_of(source, node)
    if function is scope:
        return True
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    stored = [e for e in nodes_in(function, ast.Name) if e.id == node.id and isinstance(e.ctx, ast.Store)]
    return not stored and node.id not in [each.arg for each in parameters]


def _calls(node: ast.AST, method: str) -> list[ast.Call]:
    calls = nodes_in(node, ast.Call)
    return [each for each in calls if isinstance(each.func, ast.Attribute) and each.func.attr == method]


def _is_read(source: SourceFile, node: ast.Name, loop: ast.stmt) -> bool:
    """Return True if an expression certainly reads a tensor without storing, changing or passing it on."""
    parent = source.parents.get(id(node))
    match parent:
        case ast.Attribute(attr=attr):
            return not attr.endswith("_") or attr in ("requires_grad_", "clamp_")
        case ast.Subscript(ctx=ctx):
            return isinstance(ctx, ast.Load)
        case ast.Tuple():
            return isinstance(source.parents.get(id(parent)), ast.Return | ast.Subscript)
        case ast.keyword() | ast.Call():
            call = source.parents.get(id(parent)) if isinstance(parent, ast.keyword) else parent
            function = getattr(call, "func", None)
            is_library = bool({e.id for e in nodes_in(function, ast.Name)} & _LIBRARIES) if function else False
            is_optimizer = ".optim" in source.qualified_name(function) if function else False
            return not is_optimizer and (node.lineno > loop.lineno or is_library or last_name(function) == "print")
        case _:
            return not isinstance(parent, _ALIASES)


def _is_optimised(source: SourceFile, name: str, created: ast.stmt, uses: Sequence[ast.Name], loop: ast.stmt) -> bool:
    """Return True if the tensor is not just data that needlessly requires gradients."""
    is_parameter = isinstance(created, ast.Assign) and last_name(getattr(created.value, "func", None)) == "Parameter"
    if is_parameter or _OPTIMISED.search(name):
        return True
    inside = [
        each for each in uses if encloses(loop, each) or function_of(source, each) is not function_of(source, loop)
    ]
    after = [each for each in uses if each.lineno > (loop.end_lineno or loop.lineno)]
    if all(_is_data(source, each, losses=False) for each in inside):
        return any(not _is_data(source, each, losses=True) for each in after)
    is_given_to_model = any(_is_data(source, each, losses=False) for each in inside)
    return not all(_is_data(source, each, losses=is_given_to_model) for each in inside)


def _is_data(source: SourceFile, node: ast.Name, *, losses: bool) -> bool:
    """Return True where data are used: as the input of a model, in a plot, or for their shape.

    Args:
        losses: whether the argument of a loss, such as the target of an autoencoder, counts too.
    """
    parent: Any = source.parents.get(id(node))
    if isinstance(parent, ast.Attribute) and parent.attr in _READS:
        return True
    while isinstance(parent, ast.Subscript | ast.Attribute):
        parent = source.parents.get(id(parent))
    while isinstance(parent, ast.Call) and parent.args == [] and isinstance(parent.func, ast.Attribute):
        parent = source.parents.get(id(parent))  # x.detach().numpy()
        while isinstance(parent, ast.Attribute):
            parent = source.parents.get(id(parent))
    if not isinstance(parent, ast.Call):
        return False
    names = {each.id for each in nodes_in(parent.func, ast.Name)}
    if names & _PLOTS:
        return last_name(parent.func) != "imshow"
    if _LOSS.search(ast.unparse(parent.func)):
        return losses
    return not names & (_LIBRARIES | {"print"})
