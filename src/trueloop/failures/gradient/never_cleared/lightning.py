"""Modules of Lightning's that step their optimizers themselves, in a text where nothing clears any gradient."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.request_handlers import imported, qualified
from trueloop.analysis.source_file import Source

Function = ast.FunctionDef | ast.AsyncFunctionDef

_BASES: Final = ("lightning.LightningModule", "lightning.pytorch.LightningModule", "pytorch_lightning.LightningModule")
_TAKING: Final = frozenset(("toggle_optimizer", "untoggle_optimizer", "toggled_optimizer", "clip_gradients"))
"""Methods that are given an optimizer and clear nothing."""
_OWN: Final = frozenset(("manual_backward", "optimizers"))
"""Methods that a module may replace by others."""


class Uncleared(NamedTuple):
    """A step that nothing clears before or after."""

    step: ast.Call
    statement: ast.stmt | None
    """Where it is nothing but this call."""
    backward: ast.Call


def uncleared(source: Source) -> Iterator[Uncleared]:
    """Yield the steps of modules with ``automatic_optimization = False``, where no gradient is cleared in the file."""
    if any(map(_clears, source.nodes)):
        return
    names = imported(source.tree)
    for kind in source.nodes:
        if not isinstance(kind, ast.ClassDef) or kind.decorator_list or len(kind.bases) != 1:
            continue
        methods = {each.name: each for each in kind.body if isinstance(each, Function)}
        if qualified(kind.bases[0], names) not in _BASES or methods.keys() & _OWN or not _by_hand(kind, methods):
            continue
        rest = [each for name, each in methods.items() if name not in ("__init__", "configure_optimizers")]
        if _torchs_own(methods.get("configure_optimizers"), names) and not any(
            _hands_out(each, names) for each in rest
        ):
            yield from _steps(methods)


def _clears(node: ast.AST) -> bool:
    """True for what names gradients or their clearing, or hooks around steps, or DeepSpeed, which clears by itself."""
    told = (getattr(node, field, None) for field in ("id", "attr", "arg", "name", "module", "value"))
    return any(
        isinstance(word, str)
        and (word == "grad" or "zero_" in word or "deepspeed" in word.lower() or word.startswith("register_step_"))
        for word in told
    )


def _by_hand(kind: ast.ClassDef, methods: dict[str, Function]) -> bool:
    """True where ``__init__`` switches automatic optimization off, whatever it is given, and nothing else says so."""
    written = [
        each
        for each in ast.walk(kind)
        if "automatic_optimization" in (getattr(each, "attr", ""), getattr(each, "id", ""), getattr(each, "name", ""))
    ]
    first = methods["__init__"].body if "__init__" in methods else []
    off = [each for each in first if isinstance(each, ast.Assign) and _is(each.value, False) and len(each.targets) == 1]
    return len(written) == 1 and any(each.targets[0] is written[0] and _own(written[0]) for each in off)


def _torchs_own(function: Function | None, names: dict[str, str]) -> bool:
    """True where all that is called in ``configure_optimizers`` are torch's optimizers, and methods of modules."""
    calls = [each for each in ast.walk(function) if isinstance(each, ast.Call)] if function else []
    made = [each for each in calls if qualified(each, names).startswith("torch.optim.")]
    others = [each.func for each in calls if each not in made]
    return bool(made) and all(isinstance(each, ast.Attribute) and each.attr == "parameters" for each in others)


def _hands_out(method: Function, names: dict[str, str]) -> bool:
    """True where code that this file does not show may get hold of an optimizer, of the module or of a part of it."""
    parents = {id(part): each for each in ast.walk(method) for part in ast.iter_child_nodes(each)}
    held = _optimizers(method)
    for node in ast.walk(method):
        parent: Any = parents.get(id(node))
        mine = isinstance(node, ast.Name) and node.id == "self" and isinstance(node.ctx, ast.Load)
        if mine and not isinstance(parent, ast.Attribute):
            return True
        if _is_one(node, held) and not _stays(parent):
            return True
        given = isinstance(parent, ast.Call | ast.keyword | ast.Starred) and node is not getattr(parent, "func", None)
        if given and _own(node) and not _known(_call(node, parents), names):
            return True
    return False


def _stays(parent: Any) -> bool:
    """True where what holds an optimizer just uses it, or gives it another name."""
    if isinstance(parent, ast.Call):
        return _own(parent.func) in _TAKING
    return isinstance(parent, ast.Attribute | ast.Subscript | ast.Assign | ast.For | ast.comprehension)


def _known(call: ast.Call, names: dict[str, str]) -> bool:
    """True for a call of torch's, or of a method of the module itself."""
    return qualified(call, names).startswith("torch.") or bool(_own(call.func))


def _call(node: Any, parents: dict[int, Any]) -> ast.Call:
    while not isinstance(node, ast.Call):
        node = parents[id(node)]
    return node


def _optimizers(method: Function) -> set[str]:
    """Return the names that stand for optimizers in a method, or for lists of them."""
    found = set[str]()
    for node in ast.walk(method):
        value = getattr(node, "value", None) or getattr(node, "iter", None)
        value = value.value if isinstance(value, ast.Subscript) else value
        if isinstance(node, ast.Assign | ast.For | ast.comprehension) and _is_one(value, found):
            into = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for target in into for each in ast.walk(target) if isinstance(each, ast.Name)}
    return found


def _is_one(node: Any, held: Iterable[str]) -> bool:
    """True for ``self.optimizers()`` and for a name that stands for what it returned."""
    if isinstance(node, ast.Call):
        return _own(node.func) == "optimizers"
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in held


def _steps(methods: dict[str, Function]) -> Iterator[Uncleared]:
    """Yield the steps in ``training_step`` and in what it calls of the module, where they go backward."""
    first = methods.get("training_step")
    if first is None:
        return
    called = {_own(each.func) for each in ast.walk(first) if isinstance(each, ast.Call)}
    reached = [first, *(each for name, each in methods.items() if name in called and each is not first)]
    statements = {id(each.value): each for way in reached for each in ast.walk(way) if isinstance(each, ast.Expr)}
    calls = [(way, each) for way in reached for each in ast.walk(way) if isinstance(each, ast.Call)]
    backward = next((each for _, each in calls if _own(each.func) == "manual_backward"), None)
    for way, call in calls:
        way_of = call.func if isinstance(call.func, ast.Attribute) and not call.args and not call.keywords else None
        stepped = way_of is not None and way_of.attr == "step" and _is_one(way_of.value, _optimizers(way))
        if backward is not None and stepped:
            yield Uncleared(call, statements.get(id(call)), backward)


def _own(node: Any) -> str:
    """Return the something of ``self.something``; "" for anything else."""
    mine = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if mine else ""


def _is(node: Any, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
