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

How it is detected
    The sanitizer reports a program in which 12 backward passes reached the parameters of a model, none of its values
    changed, no optimizer ever stepped, and a line of the program computes ``x - y`` from a gradient and gives the
    result the name of ``x``. The linter reports such a line in a loop over the parameters of a model, also for the
    mixture of two models, if the result is not used, and a loop variable over a list of zeros, such as momentum
    buffers, that gets its new value and is not stored in the list.

References
    PyTorch tutorial "Learning PyTorch with Examples",
    https://docs.pytorch.org/tutorials/beginner/pytorch_with_examples.html
"""

import ast
import weakref
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.program_files import parse_files
from trueloop.analysis.queries.batch_loops import assigned_in
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import Fix, dotted_name, nodes_in, read_source
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import BackwardEnded, ModelCalled, Ref, StepSkipped, StepTaken
from trueloop.tracing.parameter_snapshot import first_values
from trueloop.tracing.running_code import user_modules

MIN_BACKWARDS: Final = 12
_TO_VECTOR: Final = "parameters_to_vector"


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
                what = "" if _is_stored(loop, name) else what
            elif "parameters(" in ast.unparse(items):
                is_lost = ("grad" in text or _is_mixture(value)) and _is_last_use(loop, node, name)
                what = "the model keeps the old parameter" if is_lost else ""
            else:
                is_state = _starts_at_zero(source, items) and not _is_stored(loop, name)
                what = f"`{ast.unparse(items)}` keeps its old value, so the next update starts from it again"
                what = what if is_state else ""
                edit = source.text.replace(node, f"{name}.copy_({text})")
                fix = Fix((edit,), safe=False, description="Change the state in place")
            if what:
                message = f"`{ast.unparse(node)}` gives a new tensor to the loop variable only: {what}."
                yield Hit(message=message, node=node, fix=fix)


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


def _starts_at_zero(source: SourceFile, items: ast.expr) -> bool:
    """Return True if a list is created once with tensors of zeros, as momentum buffers are."""
    created = assigned_in(source.tree, dotted_name(items)) if dotted_name(items) else []
    return len(created) == 1 and isinstance(created[0], ast.ListComp) and "zeros" in ast.unparse(created[0].elt)


def _is_stored(loop: ast.For, name: str) -> bool:
    """Return True if a loop stores a variable in a list or tensor, or passes it to a call that may do so."""
    for node in nodes_in(loop, ast.Assign, ast.Call, ast.Yield, ast.Return):
        match node:
            case ast.Assign(targets=[ast.Subscript() | ast.Attribute()], value=value) if _reads(value, name):
                return True
            case ast.Call(func=ast.Attribute(attr="append" | "copy_" | "set_" | "extend"), args=args):
                if any(_reads(each, name) for each in args):
                    return True
            case ast.Yield() | ast.Return():
                return True
            case _:
                pass
    return False


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
