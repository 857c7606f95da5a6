"""The weights of several models are added and loaded, without a division by their number.

What you see
    The averaged model is far worse than each of the models, and its loss grows from one average to the next, to
    infinity or NaN: with n models all weights are n times too large.

Why it happens
    An average of state dictionaries is made by hand, and a sum has the right keys and shapes, so ``load_state_dict``
    accepts it. Normalisation layers hide the scale of the layers before them for a while.

Fix
    Divide by the number of models, or weight each of them by its share.

        for key in total:
            total[key] = torch.stack([state[key].float() for state in states]).mean(0)

When this is fine
    - The weights of the sum add up to one: ``total[key] += share * state[key]``.
    - Differences are added to a model: task vectors, updates of clients, noise. The linter knows them by such names.

How it is detected
    Only the linter finds it, from the source code. Either a loop or a sum over models adds up their state dictionaries,
    and ``load_state_dict`` gets the result; or a loop adds the parameters of several models to those of one. What is
    added has no factor, and the program neither divides nor multiplies the total, nor takes a
    mean.

References
    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017,
    https://arxiv.org/abs/1602.05629
    Wortsman et al., "Model soups", 2022, https://arxiv.org/abs/2203.05482
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.possible_values import computed_from, enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_DIFFERENCES: Final = re.compile(
    r"delta|diff|update|vector|noise|pert|grad|weighted|scaled|momentum|residual|correction|share|velocity|lora|adapter",
    re.IGNORECASE,
)
_SCALING: Final = frozenset((
    "div", "div_", "mul", "mul_", "mean", "average", "true_divide", "divide", "lerp", "lerp_", "addcmul_",
    "floor_divide", "multiply", "avg", "nanmean", "_foreach_div_", "_foreach_mul_", "median",
))  # fmt: skip
_SUMS: Final = frozenset(("sum", "reduce"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each sum of the weights of several models that is loaded without a division."""
    if any(map(_is_scaled_item, source.nodes_of(ast.AugAssign, ast.DictComp))):
        return
    for node in source.nodes_of(ast.AugAssign, ast.Assign, ast.Call):
        added = _addition(node)
        if added is None:
            continue
        total, item, value = added
        if _is_over_models(source, node, item, value) and not _is_scaled(source, value):
            yield from _loaded(source, node, total)
    for node in source.nodes_of(ast.DictComp):
        parent = source.parents.get(id(node))
        is_sum = _is_sum_over_models(node.value) and not _is_scaled(source, node.value)
        if is_sum and isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name | ast.Attribute):
            yield from _loaded(source, node, parent.targets[0])
        elif is_sum and isinstance(parent, ast.Call) and last_name(parent.func) == "load_state_dict":
            yield _hit(node, parent)
        elif is_sum and isinstance(parent, ast.Return):
            yield from _loaded(source, node, None)
    yield from _summed_items(source)


def _is_scaled_item(node: ast.AugAssign | ast.DictComp) -> bool:
    """Return True for ``state[key] *= share`` and ``{key: value * share for ...}``: the states may have factors."""
    if isinstance(node, ast.DictComp):
        return any(isinstance(each.op, ast.Mult | ast.Div) for each in nodes_in(node.value, ast.BinOp))
    is_item = isinstance(node.target, ast.Subscript) and isinstance(node.target.slice, ast.Name)
    return is_item and isinstance(node.op, ast.Mult | ast.Div)


def _addition(node: ast.AST) -> tuple[ast.expr, str, ast.expr] | None:
    """Return the total of ``total[key] += state[key]``, its key, and what is added."""
    target: Any = None
    value: Any = None
    match node:
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            pass
        case (
            ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Add(), right=value))
            | ast.Assign(
                targets=[target],
                value=ast.IfExp(orelse=ast.BinOp(left=left, op=ast.Add(), right=value))
                | ast.IfExp(body=ast.BinOp(left=left, op=ast.Add(), right=value)),
            )
        ) if _is_same_item(target, left):
            pass
        case ast.Assign(targets=[target], value=ast.Call(func=func, args=[left, value], keywords=[])) if last_name(
            func
        ) == "add" and _is_same_item(target, left):
            pass
        case ast.Call(func=ast.Attribute(attr="add_", value=target), args=[value], keywords=[]):
            pass
        case _:
            return None
    match target:
        case ast.Subscript(slice=ast.Name(id=key), value=total):
            return total, key, value
        case ast.Attribute(attr="data", value=ast.Name(id=name) as total):
            return total, name, value
        case _:
            return None


def _is_same_item(target: ast.expr, node: ast.expr) -> bool:
    """Return True for ``total[key]`` and ``total[key]``, or ``total.get(key, 0)``."""
    match target, node:
        case (
            ast.Subscript(value=total, slice=key),
            ast.Call(func=ast.Attribute(attr="get", value=other), args=[other_key, *_]),
        ):
            return ast.unparse(total) == ast.unparse(other) and ast.unparse(key) == ast.unparse(other_key)
        case _:
            return ast.unparse(target) == ast.unparse(node)


def _is_over_models(source: SourceFile, node: ast.AST, item: str, value: ast.expr) -> bool:
    """Return True if loops around an addition run over models, and over the keys or parameters of each.

    Args:
        source: the file.
        node: the addition.
        item: the variable of the loop over keys or parameters.
        value: what is added.
    """
    loops = [each for each in enclosing_nodes(source, node) if isinstance(each, ast.For)]
    names = _followed(loops, {each.id for each in nodes_in(value, ast.Name)})
    over_items = [each for each in loops if item in _targets(each)]
    over_models = [each for each in loops if each not in over_items and _targets(each) & names]
    texts = [ast.unparse(node), *(ast.unparse(each.iter) for each in loops)]
    return bool(over_items and over_models) and not any(_DIFFERENCES.search(each) for each in texts)


def _followed(loops: list[ast.For], names: set[str]) -> set[str]:
    """Return names, and those from which loops and assignments in them take their values."""
    found = set(names)
    for _ in range(3):
        for loop in loops:
            for each in nodes_in(loop, ast.Assign):
                for target, value in assigned_pairs(each):
                    if last_name(target) in found:
                        found |= {name.id for name in nodes_in(value, ast.Name)}
            if _targets(loop) & found:
                found |= {name.id for name in nodes_in(loop.iter, ast.Name)}
    return found


def _targets(loop: ast.For) -> set[str]:
    return _names_in(loop.target)


def _is_scaled(source: SourceFile, value: ast.expr) -> bool:
    """Return True if a factor or divisor is part of what is added."""
    for each in computed_from(source, value, 3):
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult | ast.Div | ast.Sub):
            return True
        if isinstance(each, ast.Call) and last_name(each.func) in _SCALING:
            return True
    return False


def _is_sum_over_models(node: ast.expr) -> bool:
    """Return True for ``sum(state[key] for state in states)`` or ``torch.stack([...]).sum(0)``."""
    if not isinstance(node, ast.Call) or last_name(node.func) not in _SUMS:
        return False
    over = [
        each
        for each in nodes_in(node, ast.GeneratorExp, ast.ListComp)
        if any(isinstance(item.slice, ast.Name) for item in nodes_in(each.elt, ast.Subscript))
    ]
    return len(over) == 1 and not _DIFFERENCES.search(ast.unparse(node))


def _summed_items(source: SourceFile) -> Iterator[Hit]:
    """Yield ``total[key] = sum(state[key] for state in states)``."""
    for node in source.nodes_of(ast.Assign):
        match node:
            case ast.Assign(targets=[ast.Subscript(slice=ast.Name(), value=total)], value=value) if _is_sum_over_models(
                value
            ) and not _is_scaled(source, value):
                yield from _loaded(source, node, total)
            case _:
                pass


def _loaded(source: SourceFile, node: Any, total: ast.expr | None) -> Iterator[Hit]:
    """Yield a hit for a sum that is loaded, or part of a model, if nothing scales it."""
    names = _aliases(source, node, total)
    if not names or any(_scales(each, names) for each in source.nodes_of(ast.BinOp, ast.AugAssign, ast.Call)):
        return
    if total is not None and _is_parameter(source, node, total):
        yield _hit(node, None)
        return
    for call in source.all_calls:
        if last_name(call.func) == "load_state_dict" and call.args and _base(call.args[0]) in names:
            yield _hit(node, call)
            return


def _hit(node: Any, call: ast.Call | None) -> Hit:
    return Hit(
        message=f"`{ast.unparse(node)}` adds the weights of several models, and nothing divides the sum by their "
        "number.",
        node=node,
        related=((call, "the sum is loaded"),) if call is not None else (),
    )


def _is_parameter(source: SourceFile, node: ast.AST, total: ast.expr) -> bool:
    """Return True for a variable of a loop over parameters."""
    loops = [each for each in enclosing_nodes(source, node) if isinstance(each, ast.For)]
    return any(last_name(total) in _targets(each) and "parameters(" in ast.unparse(each.iter) for each in loops)


def _base(node: ast.expr) -> str:
    """Return the variable of ``OrderedDict(total)`` or ``average(states)``."""
    if not isinstance(node, ast.Call):
        return last_name(node)
    if last_name(node.func) in ("dict", "OrderedDict", "deepcopy"):
        return next((found for each in node.args if (found := _base(each))), "")
    return f"{last_name(node.func)}()"


def _aliases(source: SourceFile, node: ast.AST, total: ast.expr | None) -> set[str]:
    """Return the names of a sum, and of its items, with those that get it from a function or a loop."""
    names = {last_name(total)} if total is not None else set[str]()
    function = function_of(source, node)
    returned = [each.value for each in nodes_in(function, ast.Return)] if isinstance(function, ast.FunctionDef) else []
    if total is None or any(each is not None and _base(each) in names for each in returned):
        names.add(f"{getattr(function, 'name', '')}()")
    for loop in enclosing_nodes(source, node):
        if isinstance(loop, ast.For):
            names |= {_owner(iterated) for target, iterated in _pairs(loop) if names & _names_in(target)}
    for _ in range(3):
        for each in source.nodes_of(ast.Assign):
            for target, value in assigned_pairs(each):
                is_item = isinstance(value, ast.Subscript) and last_name(value) in names
                names |= {last_name(target)} if _base(value) in names or is_item else set()
        for loop in source.nodes_of(ast.For, ast.comprehension):
            for target, iterated in _pairs(loop):
                names |= _names_in(target) if _owner(iterated) in names else set()
    return names - {"", "()"}


def _pairs(loop: ast.For | ast.comprehension) -> list[tuple[ast.expr, ast.expr]]:
    """Return the target of a loop with what it runs over; for a ``zip`` each of them."""
    match loop:
        case ast.For(target=ast.Tuple(elts=targets), iter=ast.Call(func=ast.Name(id="zip"), args=args)) if len(
            targets
        ) == len(args):
            return [*zip(targets, args, strict=True)]
        case _:
            return [(loop.target, loop.iter)]


def _owner(node: ast.expr) -> str:
    """Return the variable of ``total.items()`` or ``model.parameters()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return _base(node)


def _names_in(node: ast.expr) -> set[str]:
    return {each.id for each in nodes_in(node, ast.Name)}


def _scales(node: ast.AST, names: set[str]) -> bool:
    """Return True for a division, a multiplication or a mean that reads one of some names."""
    match node:
        case ast.BinOp(op=ast.Mult() | ast.Div()) | ast.AugAssign(op=ast.Mult() | ast.Div()):
            pass
        case ast.Call(func=func) if last_name(func) in _SCALING:
            pass
        case _:
            return False
    return any(isinstance(each, ast.Name | ast.Attribute) and last_name(each) in names for each in walk(node))


RULE = Rule(
    required_words=("load_state_dict|parameters()", "+=|sum(|add(|add_(|] + |.get(", "state_dict", "torch"), find=find
)

BAD = """
import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
clients = [(torch.randn(32, 4), torch.randint(2, (32,))) for _ in range(3)]
for turn in range(3):
    states = []
    for x, y in clients:
        local = copy.deepcopy(model)
        optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
        for step in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(local(x), y).backward()
            optimizer.step()
        states.append(local.state_dict())
    total = copy.deepcopy(states[0])
    for key in total:
        for state in states[1:]:
            total[key] += state[key]
    model.load_state_dict(total)
"""

FAILURE = Failure(
    code="OPT020",
    title="Weights of several models are added, not averaged",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"total[key] += state[key]\n": "total[key] += state[key]\n        total[key] /= len(states)\n"}),
    fix="Divide the sum by the number of models.",
    rule=RULE,
)
