"""The program computes new parameters from the gradients, but the model keeps the old ones.

What you see
    The loss does not move at all, whatever the learning rate. The gradients are right, and the update is in the code.

Why it happens
    ``p = p - lr * p.grad`` creates a new tensor and gives it the name ``p``. The parameter of the model, which had this
    name before, is unchanged. Only operations in place, such as ``p -= lr * p.grad``, change the parameter. The vector
    that ``parameters_to_vector`` returns is a copy, so a change of it has to be written back by
    ``vector_to_parameters``.

Fix
    Change the parameter in place, without recording the operation for the next backward pass.

        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad

When this is fine
    - The new tensors are used: as fast weights in meta-learning, or through ``functional_call``.
    - You only measure gradients, and compute no update.
    - The buffer is changed in place before, as in ``m.mul_(beta).add_(g)``, and then divided for the bias correction.

How it is detected
    The sanitizer reports a program in which 12 backward passes reached the parameters of a model, none of its values
    changed, no optimizer ever stepped, and a line of the program computes ``x - y`` from a gradient and gives the
    result the name of ``x``. The linter reports such a line in a loop over the parameters of a model, also for the
    mixture of two models, if the result is not used. It also reports a running state that was created as zeros, such
    as a momentum buffer, if its new value is given to a variable that was read from its list or dictionary, and is
    not stored there.

References
    PyTorch tutorial "Learning PyTorch with Examples",
    https://docs.pytorch.org/tutorials/beginner/pytorch_with_examples.html
"""

import ast
import re
import weakref
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.program_files import parse_files
from trueloop.analysis.queries.batch_loops import assigned_in, assigned_pairs, function_of
from trueloop.analysis.queries.possible_values import enclosing_expressions, enclosing_nodes, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import Fix, dotted_name, encloses, nodes_in, read_source
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import BackwardEnded, ModelCalled, Ref, StepSkipped, StepTaken
from trueloop.tracing.parameter_snapshot import first_values
from trueloop.tracing.running_code import user_modules

MIN_BACKWARDS: Final = 12
_TO_VECTOR: Final = "parameters_to_vector"
_READING: Final = re.compile(r"(?<!^copy)(?<!^set)_$|^(print|float|len|str|isinstance)$")  # do not store
_ZEROS: Final = re.compile(r"zeros|(?<![\w.])0\.0(?!\d)")


class Detector(BaseDetector):
    """Compares parameters over the first backward passes of a program that makes no updates."""

    def __init__(self) -> None:
        self._updated = False
        self._backwards = 0
        self._values: weakref.WeakKeyDictionary[Ref, tuple[float, ...]] = weakref.WeakKeyDictionary()
        self._calls = 0

    def on_model_called(self, event: ModelCalled) -> Evidence | None:
        """Return evidence at the twelfth call of models without an update, if a changed vector is not written back."""
        if self._updated or self._calls >= MIN_BACKWARDS or not event.has_graph:
            return None
        self._calls += 1
        if self._calls < MIN_BACKWARDS:
            return None
        location = event.location and event.location.source_location
        files = {*([location.path] if location else ()), *user_modules().values()}
        trees = parse_files(each for each in files if _TO_VECTOR in read_source(each)) or {}
        found = [(file, *each) for file, tree in trees.items() for each in _lost_vectors(tree)]
        for file, node, name in found[:1]:
            return Evidence(message=_describe(node, name), location=SourceLocation(file, node.lineno))
        return None

    def on_step_taken(self, event: StepTaken) -> None:
        """Record that something is updated."""
        self._updated = True
        self.ignore(ModelCalled, BackwardEnded, StepTaken)

    def on_step_skipped(self, event: StepSkipped) -> None:
        """Record that a GradScaler leaves out the update."""
        self._updated = True

    def on_backward_ended(self, event: BackwardEnded) -> Evidence | None:
        """Return evidence at the twelfth backward pass that left all values unchanged."""
        if self._updated or self._backwards >= MIN_BACKWARDS:
            return None
        reached = {ref: each for ref, each in event.live_parameters.items() if ref in event.reached_parameters}
        values = {ref: first_values(each) for ref, each in reached.items()}
        self._updated = any(self._values.get(ref, each) != each for ref, each in values.items())
        self._values.update(values)
        self._backwards += bool(reached)
        if self._updated or self._backwards < MIN_BACKWARDS:
            return None
        location = event.location and event.location.source_location
        files = [*([location.path] if location else ()), *user_modules().values()]
        found = next(_lost_updates(files), None)
        if found is None:
            return None
        where, text = found
        return Evidence(
            message=f"{MIN_BACKWARDS} backward passes did not change any of the {len(self._values)} parameters that "
            f"they reached: `{text}` creates a new tensor, and the model keeps the old parameter.",
            location=where,
        )

    def inconclusive(self) -> str:
        """Return a reason if there were few backward passes without an update."""
        return "" if self._updated or self._backwards >= MIN_BACKWARDS else f"{self._backwards} backward passes"


def _lost_updates(files: list[str]) -> Iterator[tuple[SourceLocation, str]]:
    """Yield each statement such as ``p = p - lr * p.grad``, with its text."""
    for file, tree in (parse_files(files) or {}).items():
        for node in nodes_in(tree, ast.Assign):
            if (
                isinstance(node.value, ast.BinOp)
                and isinstance(node.value.op, ast.Sub)
                and isinstance(node.targets[0], ast.Name)
                and ast.unparse(node.value.left) == node.targets[0].id
                and "grad" in ast.unparse(node.value.right)
            ):
                yield SourceLocation(file, node.lineno), ast.unparse(node)


def _lost_vectors(tree: ast.AST) -> Iterator[tuple[Any, str]]:
    """Yield each change of a variable from ``parameters_to_vector`` that is used for nothing else, with its name."""
    imported = [each for node in nodes_in(tree, ast.ImportFrom) for each in node.names if each.name == _TO_VECTOR]
    called = {_TO_VECTOR, *(each.asname or each.name for each in imported)}
    for function in nodes_in(tree, ast.FunctionDef, ast.For, ast.While):
        names = list(nodes_in(function if isinstance(function, ast.FunctionDef) else tree, ast.Name))
        for made in nodes_in(function, ast.Assign):
            match made:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=func)) if last_name(func) in called:
                    changes, own = [], {id(made.targets[0])}
                    for node in nodes_in(function, ast.Assign, ast.AugAssign, ast.Expr):
                        if node is not made and _changes(node, name):
                            changes.append(node)
                            own |= {id(each) for each in nodes_in(node, ast.Name)}
                    if changes and all(each.id != name or id(each) in own for each in names):
                        yield changes[-1], name
                case _:
                    pass


def _changes(node: ast.stmt, name: str) -> bool:
    """Return True for ``v -= ...``, ``v = v - ...`` and ``v.sub_(...)``, which do nothing else with a vector."""
    match node:
        case ast.AugAssign(target=ast.Name(id=target)):
            return target == name
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.BinOp() as value):
            return target == name and _reads(value, name)
        case ast.Expr(value=ast.Call(func=func)):
            while isinstance(func, ast.Attribute) and func.attr.endswith("_"):
                called = func.value
                func = called.func if isinstance(called, ast.Call) else called
            return isinstance(func, ast.Name) and func.id == name
        case _:
            return False


def _describe(node: ast.AST, name: str) -> str:
    return (
        f"`{ast.unparse(node)}` changes a copy: `{name}` comes from `parameters_to_vector`, and nothing writes it "
        "back, so the model keeps its parameters."
    )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each changed copy of a parameter, and each loop variable with a new state of an optimizer, that is lost."""
    if _TO_VECTOR in source.text.source:
        for node, name in {id(each[0]): each for each in _lost_vectors(source.tree)}.values():
            yield Hit(message=_describe(node, name), node=node)
    for loop in source.nodes_of(ast.For):
        pairs = dict(_loop_variables(loop.target, loop.iter))
        for node in nodes_in(loop, ast.Assign) if pairs else ():
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in pairs and _reads(value, name):
                    pass
                case _:
                    continue
            text, items, fix = ast.unparse(value), pairs[name], None
            if _is_descent(loop, value, name):
                what = "the parameter keeps its old value" if _is_last_use(loop, node, name) else ""
                what = "" if _is_passed_on(source, loop, name) else what
            elif "parameters(" in ast.unparse(items):
                is_lost = ("grad" in text or _is_mixture(value)) and _is_last_use(loop, node, name)
                what = "the model keeps the old parameter" if is_lost else ""
            else:
                is_state = not _is_passed_on(source, loop, name) and not _changes_in_place(loop, name)
                is_state = is_state and _starts_at_zero(source, items, None)
                what = f"`{ast.unparse(items)}` keeps its old value, so the next update starts from it again"
                what = what if is_state else ""
                edit = source.text.replace(node, f"{name}.copy_({text})")
                fix = Fix((edit,), safe=False, description="Change the state in place")
            if what:
                message = f"`{ast.unparse(node)}` gives a new tensor to the loop variable only: {what}."
                yield Hit(message=message, node=node, fix=fix)
    yield from _lost_states(source)


def _lost_states(source: SourceFile) -> Iterator[Hit]:
    """Yield each new value of a running state that is given to the variable which was read from its container only."""
    reads = [(read, *pair) for read in source.nodes_of(ast.Assign) for pair in assigned_pairs(read)]
    for read, target, value in reads:
        container, key = _item(value)
        if not isinstance(target, ast.Name) or container is None:
            continue
        name, function, loop = target.id, function_of(source, read), _loop_around(source, read)
        scope: Any = loop if isinstance(function, ast.Module) else function
        update = next(_updates(source, read, name, loop, scope), None) if scope is not None else None
        if scope is None or update is None or _is_passed_on(source, scope, name) or _changes_in_place(scope, name):
            continue
        if _starts_at_zero(source, container, key, value):
            yield Hit(
                message=f"`{ast.unparse(update)}` gives a new value to the variable `{name}` only: "
                f"`{ast.unparse(value)}` keeps its old value, so the next update starts from it again.",
                node=update,
                related=((read, "read here"),),
            )


def _item(value: ast.expr) -> tuple[ast.expr | None, ast.expr | None]:
    """Return the container and the key of ``state[key]`` and ``state.get(key, zeros)``; an attribute is its own key."""
    match value:
        case ast.Subscript(container, key) | ast.Call(ast.Attribute(container, "get" | "setdefault"), [key, _]):
            return container, key
        case _:
            return (value, value) if isinstance(value, ast.Attribute) else (None, None)


def _loop_around(source: SourceFile, node: ast.AST) -> ast.AST | None:
    return next((each for each in enclosing_nodes(source, node) if isinstance(each, ast.For | ast.While)), None)


def _updates(source: SourceFile, read: ast.Assign, name: str, loop: Any, scope: Any) -> Iterator[ast.Assign]:
    """Yield the assignments after a read, in the same loop, that compute the next value of a running state."""
    for node in nodes_in(loop or scope, ast.Assign):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                is_later = node.lineno > read.lineno and function_of(source, node) is function_of(source, read)
                if is_later and _loop_around(source, node) is loop and _is_running(value, name):
                    yield node
            case _:
                pass


def _is_running(value: ast.expr, name: str) -> bool:
    """Return True for the next value of a sum or moving average, such as ``mu * v + g`` or ``v.mul(mu).add(g)``."""
    match value:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            is_left = _is_share(left, name) and (isinstance(left, ast.Name) or not _reads(right, name))
            return is_left or (_is_share(right, name) and not _reads(left, name))
        case ast.Call(func=ast.Attribute(attr="add" | "lerp", value=receiver)):
            return _is_share(receiver, name)
        case _:
            return False


def _is_share(node: ast.expr, name: str) -> bool:
    """Return True for ``v``, ``mu * v`` and ``v.mul(mu)``."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
            return any(isinstance(each, ast.Name) and each.id == name for each in (left, right))
        case ast.Call(func=ast.Attribute(attr="mul", value=ast.Name(id=own))) | ast.Name(id=own):
            return own == name
        case _:
            return False


def _changes_in_place(scope: ast.AST, name: str) -> bool:
    """Return True for ``v += g``, ``v[:] = g``, ``v.mul_(mu)`` and ``out=v``."""
    for node in nodes_in(scope, ast.AugAssign, ast.Subscript, ast.Attribute, ast.keyword):
        match node:
            case ast.AugAssign(ast.Name(own)) | ast.Subscript(ast.Name(own), ctx=ast.Store()):
                pass
            case ast.keyword("out", ast.Name(own)):
                pass
            case ast.Attribute(ast.Name(own), attr) if attr.endswith("_"):
                pass
            case _:
                continue
        if own == name:
            return True
    return False


def _is_passed_on(source: SourceFile, scope: ast.AST, name: str) -> bool:
    """Return True if a variable is stored, returned, or passed to code that may store it."""
    names = [each for each in nodes_in(scope, ast.Name) if each.id == name and isinstance(each.ctx, ast.Load)]
    return any(_is_kept(source, each) for each in names)


def _is_kept(source: SourceFile, node: ast.Name) -> bool:
    child: ast.AST = node
    for around in enclosing_expressions(source, node):
        match around:
            case ast.Call(func=func) if child is not func:
                is_read = _READING.search(last_name(func)) or source.qualified_name(func).startswith("torch.")
                if not is_read:
                    return True
            case ast.List() | ast.Tuple() | ast.Dict() | ast.Yield() | ast.Lambda():
                return True
            case _:
                pass
        child = around
    statement = source.statement_of(node)
    match statement:
        case ast.Assign(targets=targets, value=value) if encloses(value, node):
            stored = [each for each in targets if isinstance(each, ast.Subscript | ast.Attribute)]
            return value is node or any(getattr(each, "attr", "") != "data" for each in stored)
        case _:
            return isinstance(statement, ast.Return)


def _loop_variables(target: ast.expr, items: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables of a loop with what they iterate over, also through ``zip`` and ``enumerate``."""
    match target, items:
        case ast.Name(id=name), _:
            yield name, items
        case ast.Tuple(elts=[_, inner]), ast.Call(func=ast.Name(id="enumerate"), args=[counted]):
            yield from _loop_variables(inner, counted)
        case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="zip"), args=parts) if len(targets) == len(parts):
            for each, part in zip(targets, parts, strict=True):
                yield from _loop_variables(each, part)
        case ast.Tuple(elts=[_, ast.Name(id=name)]), ast.Call(func=ast.Attribute(value=container, attr="items")):
            yield name, container
        case _:
            pass


def _is_descent(loop: ast.For, value: ast.expr, name: str) -> bool:
    """Return True for ``p - lr * p.grad``, also if the gradient was assigned to a variable before."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Sub) or ast.unparse(value.left) != name:
        return False
    gradient = f"{name}.grad"
    held = {
        each.targets[0].id
        for each in nodes_in(loop, ast.Assign)
        if isinstance(each.targets[0], ast.Name) and ast.unparse(each.value).startswith(gradient)
    }
    reads = {each.id for each in nodes_in(value.right, ast.Name)}
    return gradient in ast.unparse(value.right) or bool(held & reads)


def _is_mixture(value: ast.expr) -> bool:
    """Return True for ``(1 - tau) * p + tau * q``, as of a target network or an average of the weights."""
    match value:
        case ast.BinOp(op=ast.Add(), left=ast.BinOp(op=ast.Mult()), right=ast.BinOp(op=ast.Mult())):
            return True
        case _:
            return False


def _reads(node: ast.AST, name: str) -> bool:
    return any(each.id == name for each in nodes_in(node, ast.Name))


def _is_last_use(loop: ast.For, statement: ast.Assign, name: str) -> bool:
    """Return True if a variable is not read in the loop after a statement."""
    reads = [each for each in nodes_in(loop, ast.Name) if each.id == name]
    return not any(each.lineno > statement.lineno and isinstance(each.ctx, ast.Load) for each in reads)


def _starts_at_zero(source: SourceFile, container: Any, key: ast.expr | None, read: ast.expr | None = None) -> bool:
    """Return True if the items of a container, or the one with a constant key, are created as zeros, and stay so."""
    container = container.func.value if last_name(getattr(container, "func", None)) == "values" else container
    stored = [*_stored(source, container, key), *(read.args[1:] if isinstance(read, ast.Call) else ())]
    values = {ast.unparse(each) for each in stored} - {"None", "{}"}
    return bool(values) and all(map(_ZEROS.search, values))


def _stored(source: SourceFile, container: ast.expr, key: ast.expr | None) -> Iterator[ast.expr]:
    """Yield what a program assigns to a list or dictionary and to its items, or to any item with a constant key."""
    is_named = isinstance(key, ast.Constant) and isinstance(key.value, str)
    path = "" if is_named else dotted_name(container)
    made = [*origins(source, container), *assigned_in(source.tree, path)] if path else []
    names = {last_name(each) for each in made if isinstance(each, ast.Name | ast.Attribute)}
    yield from (each for each in made if not isinstance(each, ast.Name | ast.Attribute))
    for node in source.nodes_of(ast.Attribute if key is container else ast.Subscript):
        name = last_name(node if key is container else node.value)
        if getattr(node.slice, "value", None) == key.value if is_named else name in names:  # type: ignore[union-attr]
            yield from _changes_of(source, node)
    for each in source.nodes_of(ast.Dict) if is_named else ():
        yield from (v for k, v in zip(each.keys, each.values, strict=True) if getattr(k, "value", None) == key.value)  # type: ignore[union-attr]


def _changes_of(source: SourceFile, item: ast.Subscript | ast.Attribute) -> Iterator[ast.expr]:
    """Yield what is assigned to an item, or the item itself if it may be changed in place."""
    parent: Any = source.parents.get(id(item))
    if isinstance(parent, ast.Assign) and item in parent.targets:
        yield parent.value
    elif isinstance(parent, ast.Call | ast.AugAssign | ast.Delete) or last_name(parent).endswith(("_", "data")):
        yield item


_UPDATES: Final = ".grad|grads|grad(|tau|target|ema|decay|polyak"
RULE = Rule(required_words=(_UPDATES, "for ", "parameters(|zeros|parameters_to_vector"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
for step in range(20):
    loss = nn.functional.mse_loss(model(x), y)
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p = p - 0.01 * p.grad
"""

FAILURE = Failure(
    code="GRD016",
    title="The update is computed but not stored in the model",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"p = p - 0.01 * p.grad": "p -= 0.01 * p.grad"}),
    fix="Change the parameter in place: `p -= lr * p.grad` under `torch.no_grad()`.",
    rule=RULE,
    detector=Detector,
)
