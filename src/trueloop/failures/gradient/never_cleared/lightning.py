"""Finds Lightning modules that call ``optimizer.step()`` by hand in a file that never clears gradients."""

import ast
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.request_handlers import imported_names, qualified_name
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import nodes_in, walk

Function = ast.FunctionDef | ast.AsyncFunctionDef

_BASES: Final = ("lightning.LightningModule", "lightning.pytorch.LightningModule", "pytorch_lightning.LightningModule")
_OPTIMIZER_METHODS: Final = frozenset(("toggle_optimizer", "untoggle_optimizer", "toggled_optimizer", "clip_gradients"))
"""Methods that take an optimizer and do not clear gradients."""
_MANUAL_METHODS: Final = frozenset(("manual_backward", "optimizers"))
"""Methods whose override in a module may clear gradients."""


class UnclearedStep(NamedTuple):
    """A step whose gradients are never cleared."""

    step: ast.Call
    statement: ast.stmt | None
    """The statement that consists only of the step; None if the statement does more."""
    backward: ast.Call


def uncleared_steps(source: SourceFile) -> Iterator[UnclearedStep]:
    """Yield the steps of modules with ``automatic_optimization = False`` in a file that never clears gradients."""
    names = imported_names(source.tree) if "automatic_optimization" in source.text.source else {}
    for cls in source.nodes_of(ast.ClassDef) if names else ():
        if cls.decorator_list or len(cls.bases) != 1:
            continue
        methods = {each.name: each for each in cls.body if isinstance(each, Function)}
        if (
            qualified_name(cls.bases[0], names) not in _BASES
            or methods.keys() & _MANUAL_METHODS
            or not _optimizes_manually(cls, methods)
        ):
            continue
        other_methods = [each for name, each in methods.items() if name not in ("__init__", "configure_optimizers")]
        if (
            _has_only_torch_optimizers(methods.get("configure_optimizers"), names)
            and not any(_passes_optimizer_out(each, names) for each in other_methods)
            and not any(map(_clears, source.nodes))
        ):
            yield from _steps_in(methods)


def _clears(node: ast.AST) -> bool:
    """Return True for a node that names gradients, their clearing, step hooks, or DeepSpeed, which clears by itself."""
    words = (getattr(node, field, None) for field in ("id", "attr", "arg", "name", "module", "value"))
    return any(
        isinstance(word, str)
        and (word == "grad" or "zero_" in word or "deepspeed" in word.lower() or word.startswith("register_step_"))
        for word in words
    )


def _optimizes_manually(cls: ast.ClassDef, methods: dict[str, Function]) -> bool:
    """Return True if only ``__init__`` sets automatic optimization, and always switches it off."""
    uses = [
        each
        for each in walk(cls)
        if "automatic_optimization" in (getattr(each, "attr", ""), getattr(each, "id", ""), getattr(each, "name", ""))
    ]
    body = methods["__init__"].body if "__init__" in methods else []
    settings = [
        each
        for each in body
        if isinstance(each, ast.Assign) and _is_constant(each.value, False) and len(each.targets) == 1
    ]
    return len(uses) == 1 and any(each.targets[0] is uses[0] and _self_attribute(uses[0]) for each in settings)


def _has_only_torch_optimizers(function: Function | None, names: dict[str, str]) -> bool:
    """Return True if ``configure_optimizers`` calls only PyTorch's optimizers and ``parameters()``."""
    calls = list(nodes_in(function, ast.Call)) if function else []
    created = [each for each in calls if qualified_name(each, names).startswith("torch.optim.")]
    others = [each.func for each in calls if each not in created]
    return bool(created) and all(isinstance(each, ast.Attribute) and each.attr == "parameters" for each in others)


def _passes_optimizer_out(method: Function, names: dict[str, str]) -> bool:
    """Return True if code outside this file may receive an optimizer, the module or a part of it."""
    parents = {id(part): each for each in walk(method) for part in ast.iter_child_nodes(each)}
    optimizers = _optimizer_names(method)
    for node in walk(method):
        parent: Any = parents.get(id(node))
        is_self = isinstance(node, ast.Name) and node.id == "self" and isinstance(node.ctx, ast.Load)
        if is_self and not isinstance(parent, ast.Attribute):
            return True
        if _is_optimizer(node, optimizers) and not _stays_local(parent):
            return True
        passed = isinstance(parent, ast.Call | ast.keyword | ast.Starred) and node is not getattr(parent, "func", None)
        if passed and _self_attribute(node) and not _is_known_call(_enclosing_call(node, parents), names):
            return True
    return False


def _stays_local(parent: Any) -> bool:
    """Return True if the parent of an optimizer expression only uses or renames it."""
    if isinstance(parent, ast.Call):
        return _self_attribute(parent.func) in _OPTIMIZER_METHODS
    return isinstance(parent, ast.Attribute | ast.Subscript | ast.Assign | ast.For | ast.comprehension)


def _is_known_call(call: ast.Call, names: dict[str, str]) -> bool:
    """Return True for a call of a PyTorch function or of a method of the module."""
    return qualified_name(call, names).startswith("torch.") or bool(_self_attribute(call.func))


def _enclosing_call(node: Any, parents: dict[int, Any]) -> ast.Call:
    while not isinstance(node, ast.Call):
        node = parents[id(node)]
    return node


def _optimizer_names(method: Function) -> set[str]:
    """Return the names in a method that are bound to optimizers or to lists of them."""
    names = set[str]()
    for node in walk(method):
        value = getattr(node, "value", None) or getattr(node, "iter", None)
        value = value.value if isinstance(value, ast.Subscript) else value
        if isinstance(node, ast.Assign | ast.For | ast.comprehension) and _is_optimizer(value, names):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {each.id for target in targets for each in nodes_in(target, ast.Name)}
    return names


def _is_optimizer(node: Any, optimizers: Iterable[str]) -> bool:
    """Return True for ``self.optimizers()`` and for a name bound to its result."""
    if isinstance(node, ast.Call):
        return _self_attribute(node.func) == "optimizers"
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in optimizers


def _steps_in(methods: dict[str, Function]) -> Iterator[UnclearedStep]:
    """Yield the steps in ``training_step`` and in the methods it calls, if one of them calls ``manual_backward``."""
    first = methods.get("training_step")
    if first is None:
        return
    called = {_self_attribute(each.func) for each in nodes_in(first, ast.Call)}
    reached = [first, *(each for name, each in methods.items() if name in called and each is not first)]
    statements = {id(each.value): each for method in reached for each in nodes_in(method, ast.Expr)}
    calls = [(method, each) for method in reached for each in nodes_in(method, ast.Call)]
    backward = next((each for _, each in calls if _self_attribute(each.func) == "manual_backward"), None)
    for method, call in calls:
        receiver = call.func if isinstance(call.func, ast.Attribute) and not call.args and not call.keywords else None
        is_step = (
            receiver is not None and receiver.attr == "step" and _is_optimizer(receiver.value, _optimizer_names(method))
        )
        if backward is not None and is_step:
            yield UnclearedStep(call, statements.get(id(call)), backward)


def _self_attribute(node: Any) -> str:
    """Return the name of the attribute in ``self.name``; "" for any other node."""
    on_self = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if on_self else ""


def _is_constant(node: Any, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
