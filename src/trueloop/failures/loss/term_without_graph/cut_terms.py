"""Finds the terms of a sum that is minimised which are numbers or detached, as with ``.item()``."""

import ast
import builtins
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of, is_label, is_loss_call
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.minimised_values import added_values
from trueloop.analysis.queries.possible_values import (
    computed_from,
    enclosing_nodes,
    is_without_gradients,
    possible_values,
    unpacked_call,
)
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

_CUTTING: Final = frozenset(("item", "detach", "tolist", "numpy"))
_KEEPING: Final = frozenset(("cpu", "to", "float", "double", "clone", "mean", "sum", "squeeze"))
_WEIGHT: Final = re.compile(
    r"^w$|^w_|weight|lambda|^lam|alpha|beta|gamma|coef|scale|^mu$|factor|strength|eta$|^c\d?$", re.IGNORECASE
)
_UNTRAINED: Final = re.compile(
    r"teacher|frozen|target|ema|prior|const|offset|entropy_of|previous|prev|old", re.IGNORECASE
)
_TERM: Final = re.compile(
    r"loss|penal|reg|term|kl|diverg|residual|smooth|constraint|consist|recon|energy|aux", re.IGNORECASE
)
_LOG_PROB: Final = re.compile(r"log_?prob|log_?pi|logp|entrop", re.IGNORECASE)
_CRITIC: Final = re.compile(r"critic|\b(min_?)?q(\d|_|f|\b)|_q\d?(_|\b)", re.IGNORECASE)
_REGULARISING: Final = frozenset(("parameters", "square", "abs", "norm", "pow"))
_MODULES: Final = frozenset(("F", "torch", "nn", "functional", "np", "math", "self"))
_BUILTIN: Final = frozenset(dir(builtins))
_DECISIONS: Final = frozenset(("argmax", "round", "sign", "gt", "ge", "lt", "le"))
_DECIDING: Final = re.compile(r"[<>]=? ?[\w.]+\) ?\.(float|double|to|type|int|long)|argmax|round\(|sign\(|\.(gt|ge)\(")
"""What makes zeros and ones, or whole numbers, of outputs."""
_MAX_TERMS: Final = 200
_MAX_DEPTH: Final = 8


def cut_terms(source: SourceFile) -> Iterator[Hit]:
    """Yield each term of a minimised sum whose graph is cut, while another term of the sum has a graph."""
    reported: set[int] = set()
    for call in definitions(source).calls.get("backward", []):
        root = call.func.value if isinstance(call.func, ast.Attribute) else None
        if root is None or is_without_gradients(source, call):
            continue
        terms = list(_terms(source, root, _MAX_DEPTH))[:_MAX_TERMS]
        cut = [each for each in terms if _cut(each) is not None]
        kept = [each for each in terms if _cut(each) is None and not isinstance(each, ast.Constant)]
        for term in kept if len(kept) > 1 and source.mentions(_DECIDING) else ():
            decisions = list[ast.expr]()
            is_last = len(kept) == len({id(each) for each in kept} & reported) + 1
            if id(term) in reported or is_last or _has_graph(source, term, decisions, _MAX_DEPTH) or not decisions:
                continue
            reported.add(id(term))
            yield Hit(
                message=f"`{ast.unparse(decisions[0])}` has no gradient, and `{ast.unparse(term)}`, which is added to "
                "the loss, depends on the outputs only through it: this term does not change what the model learns.",
                node=decisions[0],
                related=((term, "the term of the loss"), (call, "the backward pass starts here")),
            )
        names = {name for each in kept for name in _names(each)}
        balanced = {id(source.statement_of(each)) for each in cut if _is_balanced(source, each, names)}
        for term in cut:
            value = _cut(term)
            if id(term) in reported or value is None or not kept or not _is_trained(source, value):
                continue
            if id(source.statement_of(term)) in balanced:
                continue
            reported.add(id(term))
            yield Hit(
                message=f"`{ast.unparse(term)}` is added to the loss without a graph, so this term has no gradient and "
                "does not change what the model learns.",
                node=term,
                related=((call, "the backward pass starts here"),),
            )


def _terms(source: SourceFile, node: Any, depth: int) -> Iterator[ast.expr]:
    """Yield the terms of a sum, without their weights, also through variables, dictionaries and functions."""
    match _policy_objective(node) or node if depth else None:
        case None:
            return
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
            yield from _terms(source, left, depth - 1)
            yield from _terms(source, right, depth - 1)
        case ast.BinOp(op=ast.Mult() | ast.Div(), left=left, right=right) if _is_weight(source, right):
            yield from _terms(source, left, depth - 1)
        case ast.BinOp(op=ast.Mult(), left=left, right=right) if _is_weight(source, left):
            yield from _terms(source, right, depth - 1)
        case ast.UnaryOp(operand=operand):
            yield from _terms(source, operand, depth - 1)
        case ast.Call(func=ast.Name(id="sum"), args=[items, *_]):
            yield from _items(source, items, depth - 1)
        case ast.Name() | ast.Attribute() | ast.Call() | ast.Subscript() if _cut(node) is None:
            values = _values(source, node)
            for each in values:
                yield from _terms(source, each, depth - 1)
            if not values:
                yield node
        case _:
            yield node


def _policy_objective(call: Any) -> ast.expr | None:
    """Return the sum of ``(alpha * log_prob - q).mean()``, in which each term trains the policy; None for others."""
    match call:
        case ast.Call(func=ast.Attribute(attr="mean" | "sum", value=ast.BinOp() as inner)):
            pass
        case ast.Call(func=ast.Attribute(attr="mean" | "sum"), args=[ast.BinOp() as inner, *_]):
            pass
        case _:
            return None
    sides = (inner.left, inner.right) if isinstance(inner.op, ast.Add | ast.Sub) else ()
    texts = [text for each in sides if _LOG_PROB.search(text := ast.unparse(each))]
    return inner if len(texts) == 1 and "detach" not in texts[0] else None


def _values(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """Return what a variable, an entry of a dictionary or a call of the program has as its value."""
    if isinstance(node, ast.Subscript):
        return list(_entries(source, node))
    if isinstance(node, ast.Name | ast.Attribute) and unpacked_call(source, node) is None:
        own = [each for each in added_values(source, node) if each.lineno <= node.lineno]
        found = [each for each in possible_values(source, node) if not _is_optional(source, each)]
        return [*found, *(each for each in own if not _is_optional(source, each))]
    return [each for each in possible_values(source, node) if not _is_optional(source, each)]


def _is_optional(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a value that is assigned or returned under a condition, as in a warm-up."""
    return any(isinstance(each, ast.If) for each in enclosing_nodes(source, node))


def _entries(source: SourceFile, node: ast.Subscript) -> Iterator[ast.expr]:
    """Yield the values of ``terms["smooth"]`` in its function, and of the key in a dictionary that it holds."""
    function, text = function_of(source, node), ast.unparse(node)
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    for each in nodes_in(function, ast.Assign):
        if key is not None and any(ast.unparse(target) == text for target in each.targets):
            yield each.value
    for made in possible_values(source, node.value) if key is not None else ():
        match made:
            case ast.Dict(keys=keys, values=values):
                yield from (v for k, v in zip(keys, values, strict=True) if getattr(k, "value", None) == key)
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                yield from (each.value for each in keywords if each.arg == key)
            case _:
                pass


def _items(source: SourceFile, node: ast.expr, depth: int) -> Iterator[ast.expr]:
    """Yield the terms of ``sum(terms.values())``, of a list, and of a comprehension."""
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Dict(values=elements):
            for each in elements:
                yield from _terms(source, each, depth)
        case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element) | ast.DictComp(value=element):
            yield from _terms(source, element, depth)
        case ast.Call(func=ast.Attribute(attr="values", value=owner)):
            yield from _items(source, owner, depth)
        case ast.Name() | ast.Attribute() | ast.Call() if possible_values(source, node) or not isinstance(
            node, ast.Call
        ):
            for each in [*possible_values(source, node), *_stored(source, node)]:
                yield from _items(source, each, depth - 1) if depth else ()
        case _:
            yield from _terms(source, node, depth)


def _stored(source: SourceFile, node: ast.expr) -> Iterator[ast.expr]:
    """Yield what a function appends to a list, or stores under a key of a dictionary."""
    name = dotted_name(node)
    yield from added_values(source, node)
    for each in nodes_in(function_of(source, node), ast.Assign):
        target = each.targets[0]
        if isinstance(target, ast.Subscript) and dotted_name(target.value) == name:
            yield each.value


def _cut(node: ast.expr) -> ast.expr | None:
    """Return the tensor of ``tensor.item()``, ``float(tensor)``, ``tensor.detach()`` or ``tensor.data``."""
    match node:
        case ast.Call(func=ast.Attribute(attr=attr, value=owner)) if attr in _CUTTING:
            return owner
        case ast.Call(func=ast.Attribute(attr=attr, value=owner)) if attr in _KEEPING:
            return _cut(owner)
        case ast.Call(func=ast.Name(id="float"), args=[inner]):
            return inner
        case ast.Call(func=ast.Attribute(attr="tensor" | "as_tensor", value=ast.Name(id="torch")), args=[inner, *_]):
            return inner if isinstance(inner, ast.Name | ast.Call) else None
        case ast.Attribute(attr="data", value=owner):
            return owner
        case _:
            return None


def _has_graph(source: SourceFile, node: Any, decisions: list[ast.expr], depth: int) -> bool:
    """Return True if a value may have a graph; add comparisons and such of values with a graph to the decisions."""
    parts: list[Any] = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
    match node:
        case ast.Compare(left=inner) | ast.Call(func=ast.Attribute(attr=_, value=inner)) if _decides(node):
            given = [*getattr(node, "args", []), inner] if dotted_name(inner) in _MODULES else [inner]
            if any(_has_graph(source, each, decisions, depth) for each in given if dotted_name(each) not in _MODULES):
                decisions.append(node)
            return False
        case ast.Constant() | ast.Attribute(attr="shape" | "data"):
            return False
        case ast.Call(func=ast.Attribute(attr="size" | "numel" | "dim" | "detach" | "item") | ast.Name(id="len")):
            return False
        case ast.Name() | ast.Attribute():
            parts = [] if is_label(node) or not depth else possible_values(source, node)
            if not parts:
                return not is_label(node) and getattr(function_of(source, node), "name", "") != "__init__"
            depth -= 1
        case ast.Call(func=func, args=args, keywords=keywords):
            owner = func.value if isinstance(func, ast.Attribute) else func
            if last_name(func) == "Parameter" or dotted_name(owner) == "self" or isinstance(func, ast.Name):
                return True
            owners = [owner] if dotted_name(owner) not in _MODULES and not source.qualified_name(func) else []
            parts = [*owners, *args, *(each.value for each in keywords)]
        case _:
            pass
    found = [_has_graph(source, each, decisions, depth) for each in parts]  # all of them, for their decisions
    return any(found)


def _decides(node: ast.expr) -> bool:
    """Return True for ``x > 0.5``, ``x.argmax(1)`` and ``torch.round(x)``, which have no gradient."""
    return isinstance(node, ast.Compare) or last_name(getattr(node, "func", None)) in _DECISIONS


def _is_weight(source: SourceFile, node: ast.expr) -> bool:
    """Return True for the weight of a term: a number, or a variable with such a name or value."""
    match node:
        case ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
            return True
        case ast.Subscript(value=owner):
            return _is_weight(source, owner)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            values = assigned_in(source.tree, name)
            return bool(_WEIGHT.search(name)) or (bool(values) and all(isinstance(e, ast.Constant) for e in values))
        case ast.BinOp(left=left, right=right):
            return _is_weight(source, left) and _is_weight(source, right)
        case ast.Call(func=ast.Name(id="len" | "float" | "int")):
            return bool(_WEIGHT.search(ast.unparse(node))) or last_name(node.func) == "len"
        case _:
            return False


def _names(node: ast.AST) -> set[str]:
    """Return the variables and the entries ``terms["smooth"]`` that an expression reads, but not what it calls."""
    entries = [each for each in nodes_in(node, ast.Subscript) if isinstance(each.slice, ast.Constant)]
    inner = {id(part) for each in entries for part in nodes_in(each, ast.Name)}
    inner |= {id(part) for each in nodes_in(node, ast.Call) for part in _called_names(each)}
    names = {each.id for each in nodes_in(node, ast.Name) if id(each) not in inner}
    return names | {ast.unparse(each) for each in entries}


def _is_balanced(source: SourceFile, term: ast.expr, names: set[str]) -> bool:
    """Return True if the value that is cut also has a graph in its sum: ``x + (y - x).detach()``."""
    inside, value = {id(each) for each in nodes_in(term, ast.Name)}, _cut(term)
    uncut = {e.id for e in nodes_in(source.statement_of(term), ast.Name) if id(e) not in inside}
    is_also_uncut = isinstance(value, ast.Name) and value.id in uncut
    return is_also_uncut or bool(_names(term) & (names | _names_of_siblings(source, term)))


def _names_of_siblings(source: SourceFile, term: ast.expr) -> set[str]:
    """Return what the other terms of the same sum read."""
    names, child = set[str](), term
    parent = source.parents.get(id(term))
    while isinstance(parent, ast.BinOp):
        if isinstance(parent.op, ast.Add | ast.Sub):
            names |= _names(parent.left if child is parent.right else parent.right)
        child, parent = parent, source.parents.get(id(parent))
    return names


def _called_names(call: ast.Call) -> list[ast.Name]:
    """Return the names in the arguments of a call, which another term may use too, and that of a function's module."""
    owner = dotted_name(call.func).partition(".")[0]
    is_function = isinstance(call.func, ast.Name) or owner in _MODULES
    inner = [call] if is_function else [*call.args, *call.keywords]
    return [name for part in inner for name in nodes_in(part, ast.Name)]


def _is_trained(source: SourceFile, value: ast.expr) -> bool:
    """Return True for a term by its name, or that a function of the program or a loss function computes."""
    text = ast.unparse(value)
    if _UNTRAINED.search(text) or is_without_gradients(source, value):
        return False
    calls = [each for each in computed_from(source, value) if isinstance(each, ast.Call)]
    if any(is_without_gradients(source, each) or _UNTRAINED.search(ast.unparse(each.func)) for each in calls):
        return False
    is_computed = any(is_loss_call(source, each) or called_function(source, each) is not None for each in calls)
    is_computed |= any(last_name(each.func) in _REGULARISING for each in calls)
    is_computed |= any(isinstance(each.func, ast.Name) and each.func.id not in _BUILTIN for each in calls)
    return is_computed or bool(_TERM.search(text) or _CRITIC.search(text))
