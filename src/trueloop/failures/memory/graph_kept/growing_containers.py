"""Decides from the source code whether a container or sum grows in every iteration, and whether it holds graphs."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from trueloop.analysis.abstract_value import NO_GRAPH, AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.possible_values import known_integer
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, encloses, nodes_in
from trueloop.failures.memory.graph_kept.mixed_values import is_after_first, is_first, keeps_old_value

GRAPH_PRESERVING_OPERATIONS: Final = frozenset((
    "binary Add", "binary Sub", "binary Mult", "binary Div", "binary Pow", "unary USub", "torch.Tensor.mean",
    "torch.Tensor.sum", "torch.Tensor.clone", "torch.Tensor.sqrt", "torch.Tensor.exp", "torch.Tensor.log",
    "torch.Tensor.view", "torch.Tensor.reshape", "torch.Tensor.squeeze", "torch.Tensor.unsqueeze", "torch.mean",
    "torch.sum", "torch.stack", "torch.cat", "torch.sqrt", "torch.exp", "torch.abs", "torch.log", "torch.clamp",
    "torch.Tensor.abs", "torch.Tensor.pow", "torch.Tensor.square", "torch.Tensor.norm", "torch.Tensor.clamp",
    "torch.Tensor.flatten", "torch.Tensor.sigmoid", "torch.Tensor.tanh", "torch.Tensor.softmax", "torch.Tensor.relu",
    "torch.Tensor.log_softmax", "torch.Tensor.transpose", "torch.Tensor.permute", "torch.Tensor.std",
    "torch.Tensor.var", "torch.lerp", "torch.add", "torch.mul", "torch.sub", "torch.div", "torch.Tensor.lerp",
    "torch.Tensor.add", "torch.Tensor.mul", "torch.Tensor.sub", "torch.Tensor.div", "builtins.sum",
))  # fmt: skip
"""Operations whose result has a graph if an input has one; others may return indices, which have no graph."""

_FEW: Final = 10
_OF_UPDATE: Final = re.compile(r"(\w+_)?(batch_?size|(n_?|num_?)?(tasks|critics?|inner_steps|agents))", re.IGNORECASE)
"""Names of the number of parts of one update."""
_OPTIMIZER: Final = re.compile(r"_?opt(im(izer)?)?(_|\d|$)")


def holds_graph(stored: AbstractValue, graphs: set[int], depth: int = 12) -> bool:
    """Return True if a value certainly keeps one of some graphs in memory.

    Args:
        stored: the value.
        graphs: ids of the values whose graphs count.
        depth: number of nested values to search.
    """
    if NO_GRAPH in stored.facts or not depth:
        return False
    if id(stored) in graphs:
        return True
    if stored.union:  # without the 0 that a running total starts with
        parts = [each for each in stored.union if each.constant() != 0]
        return bool(parts) and all(holds_graph(each, graphs, depth - 1) for each in parts)
    is_sum = stored.kind is ValueKind.UNKNOWN and isinstance(stored.node, ast.BinOp)
    if (
        stored.kind is ValueKind.SEQUENCE
        or is_sum
        or (stored.kind is ValueKind.TENSOR and stored.name in GRAPH_PRESERVING_OPERATIONS)
    ):
        return any(holds_graph(each, graphs, depth - 1) for each in stored.sources)
    return False


def is_within_update(loop: Loop, around: Sequence[Loop], steps: list[Op]) -> bool:
    """Return True for a loop over the parts of an update: an outer loop contains optimizer steps, and it does not."""
    outer = [each for each in around if each.node is not loop.node]
    if any(each.is_inside(loop) for each in steps) or _steps_of_unknown(loop.node):
        return False
    return any(each.is_inside(other) for each in steps for other in outer) or any(
        encloses(other.node, loop.node) and _steps_of_unknown(other.node) for other in outer
    )


def has_few_iterations(source: SourceFile, loop: ast.AST) -> bool:
    """Return True for a loop over the tasks of one meta-batch, a fixed small number or a list that is written out."""
    match getattr(loop, "iter", None):
        case ast.List() | ast.Tuple():
            return True
        case ast.Call(func=ast.Name(id="range"), args=[*_, stop]):
            number = known_integer(source, stop)
            return number <= _FEW if number is not None else bool(_OF_UPDATE.fullmatch(last_name(stop)))
        case _:
            return False


def goes_over_networks(loop: ast.AST) -> bool:
    """Return True for a loop that calls its variable, as over the members of an ensemble: each keeps one graph."""
    targets = {each.id for each in nodes_in(loop.target, ast.Name)} if isinstance(loop, ast.For) else set[str]()
    return any(isinstance(each.func, ast.Name) and each.func.id in targets for each in nodes_in(loop, ast.Call))


def _steps_of_unknown(node: ast.AST) -> bool:
    """Return True if a loop contains the step of an optimizer of another object: ``manager.optimizer.step()``."""
    return any(
        call.func.attr == "step" and _OPTIMIZER.match(call.func.value.attr)
        for call in nodes_in(node, ast.Call)
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Attribute)
    )


def is_growing(source: SourceFile, store: Op, loop: Loop) -> bool:
    """Return True if every iteration adds to a container that nothing empties and no iteration creates."""
    container = _container(source, store, loop)
    if container is None or not last_name(container):
        return False
    is_item = isinstance(container, ast.Subscript) and container is store.node
    path = ast.unparse(store.node.value if is_item else container)
    for each in store.conditions(loop):
        if not _is_periodic(each.node, container) and not is_after_first(source, store, each, loop, path):
            return False
    if (
        last_name(container) in source.emptied_containers
        or _is_created_in_iteration(source, store, loop)
        or _is_rebound_in_iteration(source, container, loop, store)
    ):
        return False
    first = [each.node for each in _other_stores(source, store, container, loop) if is_first(each, loop, path)]
    if len(first) < len(_other_stores(source, store, container, loop)):
        return False
    assigned = source.assigned_in(loop).get(ast.unparse(container), ())
    return all(encloses(target, store.node) or any(encloses(target, each) for each in first) for target in assigned)


def _other_stores(source: SourceFile, store: Op, container: ast.expr, loop: Loop) -> list[Op]:
    """Return the other operations of a loop that may assign a container."""
    found: list[Op] = []
    for each in source.ops_in_loop(loop, OpKind.SET_ATTRIBUTE, OpKind.STORE_ITEM, root=store.entry_point):
        if each.kind is OpKind.SET_ATTRIBUTE:
            other = store.kind is OpKind.SET_ATTRIBUTE and each.subject.kind is ValueKind.INSTANCE
            is_same = each.name == last_name(container) and not (other and not each.subject.may_alias(store.subject))
        else:
            is_same = isinstance(each.node, ast.Subscript) and ast.unparse(each.node) == ast.unparse(container)
        is_initial = getattr(each.function, "name", "") == "__init__" and not _is_created_by_loop(each.subject, loop)
        if is_same and each.statement is not store.statement and not is_initial:
            found.append(each)
    return found


def _container(source: SourceFile, store: Op, loop: Loop) -> ast.expr | None:
    """Return the expression of the container that grows; None if no container grows in every iteration."""
    node = store.node
    match node:
        case ast.AugAssign(op=ast.Add()) if store.grad is True:
            local = isinstance(node.target, ast.Name)
            return node.target if not local or encloses(loop.node, node) else None
        case ast.Call(func=ast.Attribute()) if (
            store.subject.kind is ValueKind.SEQUENCE and store.kind is OpKind.STORE_ITEM
        ):
            return store.node.func.value if store.name in ("append", "insert", "appendleft", "add", "extend") else None
        case ast.Attribute() | ast.Subscript() if store.grad is True and keeps_old_value(source, store):
            return node
        case ast.Subscript() if store.subject.kind is ValueKind.SEQUENCE and not isinstance(
            store.statement, ast.AugAssign
        ):
            loop_names = {each.id for each in nodes_in(getattr(loop.node, "target", node), ast.Name)}
            keys = {each.id for each in nodes_in(node.slice, ast.Name)}
            return node.value if loop_names & keys and encloses(loop.node, node) else None
        case _:
            return None


def _added_value(store: Op) -> ast.expr | None:
    """Return the added value of ``self.sum = self.sum + value``."""
    statement = store.statement
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.BinOp):
        return None
    path, sum_ = ast.unparse(store.node), statement.value
    if not isinstance(sum_.op, ast.Add):
        return None
    if ast.unparse(sum_.left) == path:
        return sum_.right
    return sum_.left if ast.unparse(sum_.right) == path else None


def _is_periodic(node: Any, container: ast.expr) -> bool:
    """Return True for a condition that holds periodically, such as one on a remainder."""
    test = node.test if isinstance(node, ast.If) else None
    has_remainder = test is not None and bool(nodes_in(test, ast.Mod))
    return has_remainder and test is not None and last_name(container) not in ast.unparse(test)


def _functions_of_iteration(store: Op, loop: Loop) -> list[Any]:
    """Return the functions that an iteration calls, directly or through others, to reach an operation."""
    inside = [encloses(loop.node, call) for call in store.calls]
    return list(store.functions[inside.index(True) :]) if True in inside else []


def _is_created_in_iteration(source: SourceFile, store: Op, loop: Loop) -> bool:
    """Return True if the container, or the object that owns it, may be created in the same iteration."""
    if not isinstance(store.subject.node, ast.AST):
        return True
    owners = [
        each.subject
        for each in source.ops_of_run(store)
        if each.kind is OpKind.SET_ATTRIBUTE and each.statement is store.statement
    ]
    if any(_is_created_by_loop(each, loop) for each in (store.subject, *owners)):
        return True
    scopes = (loop.node, *_functions_of_iteration(store, loop))
    is_sequence = store.kind is OpKind.STORE_ITEM and store.subject.kind is ValueKind.SEQUENCE
    return is_sequence and any(encloses(each, store.subject.node) for each in scopes)


def _is_created_by_loop(stored: AbstractValue, loop: Loop) -> bool:
    """Return True if one of the alternatives of a value is created by an iteration of the loop."""
    return any(node is loop.node for alternative in stored.alternatives() for node in alternative.loops or ())


def _is_rebound_in_iteration(source: SourceFile, container: ast.expr, loop: Loop, store: Op) -> bool:
    """Return True if a function that the iteration calls assigns a new value to the name."""
    while isinstance(container, ast.Subscript):
        container = container.value
    if not isinstance(container, ast.Name):
        return False
    functions = [each for each in _functions_of_iteration(store, loop) if encloses(each, store.node)]
    if any(_rebinds(each, container.id) for each in functions):
        return True
    outer = (each.names for each in source.nodes_of(ast.Global, ast.Nonlocal))
    return any(container.id in names for names in outer) and any(
        not encloses(each, loop.node) and _rebinds_outer_name(each, container.id)
        for each in source.nodes_of(ast.FunctionDef)
    )


def _rebinds(function: ast.AST, name: str) -> bool:
    """Return True if a function assigns a new value, not just another name or attribute, to a name."""
    for each in nodes_in(function, ast.Assign, ast.AnnAssign, ast.NamedExpr):
        if each.value is not None:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            is_name = isinstance(each.value, ast.Name | ast.Attribute)
            if not is_name and any(isinstance(t, ast.Name) and t.id == name for t in targets):
                return True
    return False


def _rebinds_outer_name(function: ast.FunctionDef, name: str) -> bool:
    """Return True if a function assigns to a name that it declares global or nonlocal."""
    outer = any(name in each.names for each in nodes_in(function, ast.Global, ast.Nonlocal))
    return outer and _rebinds(function, name)


def detach_fix(source: SourceFile, store: Op, graphs: set[int]) -> Fix | None:
    """Return the fix that detaches the stored value."""
    statement, node = store.statement, store.node
    value: ast.expr | None = None
    if isinstance(node, ast.AugAssign):
        value = node.value
    elif isinstance(node, ast.Call):
        value = node.args[0] if store.name in ("append", "appendleft", "add") and len(node.args) == 1 else None
    elif store.kind is OpKind.SET_ATTRIBUTE:
        value = _added_value(store)
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        value = statement.value
    stored = store.inputs[0] if store.inputs else None
    if store.kind is OpKind.SET_ATTRIBUTE and stored is not None:
        stored = next((each for each in stored.sources if holds_graph(each, graphs)), None)
    if value is None or stored is None:
        return None
    edits = list(_detach_edits(source, value, stored, graphs))
    return Fix(tuple(edits), safe=False, description="Detach the stored value") if edits else None


def _detach_edits(source: SourceFile, node: ast.expr, stored: AbstractValue, graphs: set[int]) -> Iterator[Edit]:
    if stored.kind is ValueKind.SEQUENCE:
        if isinstance(node, ast.List | ast.Tuple | ast.Dict):
            parts = node.values if isinstance(node, ast.Dict) else node.elts
            if len(parts) == len(stored.sources):
                for each, inner in zip(parts, stored.sources, strict=True):
                    if holds_graph(inner, graphs):
                        yield from _detach_edits(source, each, inner, graphs)
        return
    text = source.text.segment(node)
    is_plain = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    yield source.text.replace(node, f"{text if is_plain else f'({text})'}.detach()")
