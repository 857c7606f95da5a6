"""An attack, or another inner loop, leaves gradients on the parameters of the model, and training adds to them.

What you see
    Adversarial training is unstable or slow, and gets worse with more attack steps. The gradient norm is several times
    as large as that of the loss alone. An energy-based model diverges with more Langevin steps.

Why it happens
    A backward pass for the gradient of an input also adds to ``.grad`` of all parameters. If ``zero_grad()`` is called
    before the attack and not after it, the step uses the sum of the gradients of the attack and of the training loss.

Fix
    Clear the gradients after the attack, or use ``grad, = torch.autograd.grad(loss, delta)`` in it.

        adversarial = attack(model, inputs, targets)
        optimizer.zero_grad()
        criterion(model(adversarial), targets).backward()

When this is fine
    - ``zero_grad()`` is called after the attack, by the attack at its end, or by the function that trains.
    - The attack uses ``torch.autograd.grad`` or ``backward(inputs=[delta])``.
    - The parameters are frozen during the attack, or it goes through another model or a copy.
    - "Free" adversarial training and FreeLB, which use the gradients of each backward pass for both on purpose.
    - A latent code that is trained together with the model, by the same backward pass.

How it is detected
    Only the linter finds it: a function, or an inner loop, calls ``backward()`` and reads the ``.grad`` of a tensor
    that it made a leaf. Its call is reported if the statements after it call the same model, ``backward()`` and
    ``step()``, and nothing clears gradients in between or may freeze the parameters.

References
    Madry et al., 2018, "Towards Deep Learning Models Resistant to Adversarial Attacks", arXiv:1706.06083
    Shafahi et al., 2019, "Adversarial Training for Free!", arXiv:1904.12843
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_CLEARING: Final = re.compile(r"zero_grad|clear_grad|reset_grad|zero_all|^zero_$")
_FREEZING: Final = re.compile(r"requires_grad_\(False|requires_grad = False|freez|deepcopy|parameters\(")
_LEAF: Final = re.compile(r"requires_grad_\(|requires_grad=True|Parameter\(")
_NOT_A_MODEL: Final = re.compile(
    r"crit|loss|entropy|^ce$|^bce$|mse|^(range|len|print|float|zip|enumerate|tqdm)$", re.IGNORECASE
)
_HARMLESS_CONTEXTS: Final = re.compile(r"autocast|enable_grad|tqdm|profile|record|progress", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each inner loop, or call of a function with one, whose gradients are added to those of the training."""
    for where, backward, models in _inner_passes(source):
        training = _training_after(source, where, models)
        if training is not None:
            text = f"`{ast.unparse(where)}`" if isinstance(where, ast.Call) else "The inner loop"
            yield Hit(
                message=f"{text} leaves gradients on the parameters of the model: nothing clears them before "
                f"`{ast.unparse(training)}` adds those of the training loss.",
                node=where,
                related=((backward, "leaves gradients"), (training, "adds to them")),
            )


def _inner_passes(source: SourceFile) -> Iterator[tuple[ast.AST, ast.Call, set[str]]]:
    """Yield each call of a function, or inner loop, that moves a leaf, with its backward pass and its models."""
    known = definitions(source)
    for node in source.nodes_of(ast.FunctionDef, ast.For):
        if isinstance(node, ast.FunctionDef):
            calls = known.calls.get(node.name, []) if known.functions.get(node.name) is node else []
            places: list[Any] = [each for each in calls if not encloses(node, each)]
        else:
            is_inner = any(isinstance(each, ast.For | ast.While) for each in enclosing_nodes(source, node))
            is_inner = is_inner or not isinstance(function_of(source, node), ast.Module)
            places = [node] if is_inner and ast.unparse(node.iter) != "range(1)" else []
        leaves = _leaves(node if isinstance(node, ast.FunctionDef) else function_of(source, node)) if places else set()
        backward = _leaving_backward(node, leaves) if leaves else None
        if backward is not None:
            models = set(_models(source, node, leaves))
            yield from ((each, backward, models) for each in places)


def _leaving_backward(node: Any, leaves: set[str]) -> ast.Call | None:
    """Return the last backward pass of code that moves a leaf, if it leaves gradients on other leaves too."""
    calls = nodes_in(node, ast.Call)
    backwards = [each for each in calls if last_name(each.func) == "backward"]
    backwards = [each for each in backwards if all(keyword.arg != "inputs" for keyword in each.keywords)]
    reads = [each for each in nodes_in(node, ast.Attribute) if each.attr == "grad" and isinstance(each.ctx, ast.Load)]
    is_moved = any(isinstance(each.value, ast.Name) and each.value.id in leaves for each in reads)
    if not backwards or not is_moved or any(last_name(each.func) == "step" for each in calls):
        return None
    last = max(backwards, key=lambda each: each.lineno)
    later = [last_name(each.func) for each in calls if each.lineno > last.lineno]
    is_cleared = any(each != "zero_" and _CLEARING.search(each) for each in later)  # delta.grad.zero_() is of the leaf
    if is_cleared or _FREEZING.search(ast.unparse(node)):
        return None
    losses = {last_name(getattr(each.func, "value", None)) for each in backwards}
    returned = {each.id for e in nodes_in(node, ast.Return) for each in nodes_in(e, ast.Name)}
    return None if returned & losses else last  # a loss that is returned is trained on


def _leaves(function: Any) -> set[str]:
    """Return the variables that a function makes leaves of the graph."""
    found: set[str] = set()
    for node in nodes_in(function, ast.Assign, ast.Call):
        match node:
            case (
                ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name), attr="requires_grad")])
                | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="requires_grad_"))
            ):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as made) if _LEAF.search(ast.unparse(made)):
                found.add(name)
            case _:
                pass
    return found


def _models(source: SourceFile, node: Any, leaves: set[str]) -> Iterator[str]:
    """Yield the names of the objects that get a leaf, or what is computed from it, except losses."""
    moved = set(leaves)
    for each in nodes_in(node, ast.Assign):
        if any(name.id in moved for name in nodes_in(each.value, ast.Name)):
            moved |= {target.id for target in each.targets if isinstance(target, ast.Name)}
    for call in nodes_in(node, ast.Call):
        func = call.func
        is_given = any(name.id in moved for argument in call.args for name in nodes_in(argument, ast.Name))
        is_own = isinstance(func, ast.Name) or dotted_name(getattr(func, "value", None)) == "self"
        is_other = _NOT_A_MODEL.search(last_name(func)) or source.qualified_name(func).startswith("torch.")
        if is_given and is_own and not is_other and called_function(source, call) is None:
            yield from _names(source, func)


def _names(source: SourceFile, node: ast.expr) -> Iterator[str]:
    """Yield a name for an object and for each expression from which it may come."""
    for each in origins(source, node):
        name = dotted_name(each)
        yield f"{getattr(function_of(source, each), 'name', '')}:{name}" if name else str(id(each))


def _training_after(source: SourceFile, where: ast.AST, models: set[str]) -> ast.Call | None:
    """Return the backward pass of the training loss after an inner loop, if nothing clears gradients before it."""
    statement = source.statement_of(where)
    around = ast.unparse(function_of(source, statement)).replace("parameters(", "")
    if not models or _FREEZING.search(around):
        return None
    backward: ast.Call | None = None
    own = {id(each) for each in walk(where)}
    others = [each for each in nodes_in(statement, ast.Name, ast.Attribute) if id(each) not in own]
    names = {name for each in others for name in _names(source, each)}
    for node in _nodes_after(source, statement):
        called = last_name(node.func) if isinstance(node, ast.Call) else ""
        if backward is not None:
            if called == "step":
                return backward if names & models else None
        elif called == "backward":
            backward = node  # type: ignore[assignment]
        elif isinstance(node, ast.Call) and _may_clear(source, node):
            return None
        elif isinstance(node, ast.Name | ast.Attribute):
            if node.id == "grad" if isinstance(node, ast.Name) else node.attr == "grad":
                return None
            names |= set(_names(source, node))
    return None


def _nodes_after(source: SourceFile, statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the calls and names of the statements after one, up to the end of its loop or function, in their order."""
    statements = list(source.following(statement))
    for around in enclosing_nodes(source, statement):
        is_harmless = isinstance(around, ast.With) and all(
            _HARMLESS_CONTEXTS.search(ast.unparse(each.context_expr)) for each in around.items
        )
        if not is_harmless and not isinstance(around, ast.If):
            break
        statements += source.following(around)  # type: ignore[arg-type]
    for each in statements:
        nodes: list[Any] = [*nodes_in(each, ast.Call, ast.Name, ast.Attribute)]
        yield from sorted(nodes, key=lambda node: (node.end_lineno, node.end_col_offset))


def _may_clear(source: SourceFile, call: ast.Call, depth: int = 2) -> bool:
    """Return True if a call, or a function that it runs, clears gradients."""
    function = called_function(source, call) if depth else None
    if function is None:
        return _CLEARING.search(last_name(call.func)) is not None
    is_set = any(each.attr == "grad" and isinstance(each.ctx, ast.Store) for each in nodes_in(function, ast.Attribute))
    return is_set or any(_may_clear(source, each, depth - 1) for each in nodes_in(function, ast.Call))


RULE = Rule(required_words=("backward(", ".step(", "requires_grad|Parameter(", ".grad"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(256, 8), torch.randint(3, (256,))
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(5):
        nn.functional.cross_entropy(model(x + delta), y).backward()
        delta.data = (delta.data + 0.05 * delta.grad.sign()).clamp(-0.2, 0.2)
        delta.grad = None
    loss = nn.functional.cross_entropy(model(x + delta.detach()), y)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD035",
    title="Gradients of an attack are added to those of the training",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"    loss.backward()\n": "    optimizer.zero_grad()\n    loss.backward()\n"}),
    fix="Call zero_grad() after the attack, or use torch.autograd.grad in it.",
    rule=RULE,
)
