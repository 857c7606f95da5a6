"""A list collects the same array again and again while it is changed in place, so all its entries are equal in the end.

What you see
    The model trains on copies of the last state: the loss falls immediately, and the predictions do not depend on the
    input. A replay buffer of thousands of transitions contains one state.

Why it happens
    ``states.append(state)`` stores a reference. ``state[i] = ...``, ``state += ...`` or ``state.add_(...)`` change the
    one array that all entries refer to.

Fix
    Store a copy.

        states.append(state.copy())   # NumPy
        states.append(state.clone())  # PyTorch

When this is fine
    - The variable is assigned a new array in each iteration.
    - A copy, or a number, is stored.
    - The program reads the list and empties it before the array changes again.

How it is detected
    Only the linter finds it: a loop appends a variable, which was created as an array before the loop, and changes it
    in place, but never assigns it; the list is stacked or converted to a tensor elsewhere. Or a method changes an array
    of its object in place and returns it, and the file appends what the method returns.

References
    Python FAQ, "How do I create a multidimensional list?", https://docs.python.org/3/faq/programming.html
    torch.stack, https://docs.pytorch.org/docs/stable/generated/torch.stack.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_CREATORS: Final = frozenset((
    "arange", "array", "empty", "full", "linspace", "ones", "rand", "randint", "randn", "tensor", "uniform", "zeros",
    "zeros_like", "ones_like", "empty_like",
))  # fmt: skip
_STACKING: Final = frozenset((
    "array", "asarray", "as_tensor", "cat", "concatenate", "from_numpy", "hstack", "stack", "tensor", "vstack",
    "FloatTensor", "sample",
))  # fmt: skip
_STORING: Final = frozenset(("append", "push", "add", "store", "remember"))
_LIBRARIES: Final = frozenset(("np", "numpy", "torch"))
_Loop = ast.For | ast.While


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each array that is stored without a copy and changed in place."""
    for call in source.all_calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "append":
            continue
        loop = _loop_around(source, call)
        if loop is None:
            continue
        container = ast.unparse(call.func.value)
        for name in _stored_names(call):
            change = next(_changes_in_place(loop, name), None)
            made = _creation(source, loop, name)
            if change is None or made is None or _is_assigned(loop, name) or _is_assigned(loop, container):
                continue
            if _is_stacked(source, call.func.value):
                yield Hit(
                    message=f"`{ast.unparse(call)}` stores the same array in each iteration, and "
                    f"`{ast.unparse(change).splitlines()[0]}` changes it in place: all entries are equal in the end.",
                    node=call,
                    related=((change, "changed here"), (made, "created once, here")),
                    fix=_copy(source, call, name, made),
                )
    yield from _returned_arrays(source)


def _loop_around(source: SourceFile, node: ast.AST) -> _Loop | None:
    """Return the innermost loop around a node within its function."""
    parent = source.parents.get(id(node))
    while parent is not None and not isinstance(parent, ast.FunctionDef | ast.Lambda | ast.Module):
        if isinstance(parent, _Loop):
            return parent
        parent = source.parents.get(id(parent))
    return None


def _stored_names(call: ast.Call) -> list[str]:
    """Return the variables that a call stores, directly or in a tuple."""
    stored = [part for each in call.args for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    return [each.id for each in stored if isinstance(each, ast.Name)]


def _changes_in_place(node: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield the statements and calls in a node that change an array in place, such as "state" or "self.state"."""
    for each in nodes_in(node, ast.Assign, ast.AugAssign, ast.Call):
        match each:
            case ast.Assign(targets=targets):
                if any(isinstance(t, ast.Subscript) and ast.unparse(t.value) == name for t in targets):
                    yield each
            case ast.AugAssign(target=target):
                inner = target.value if isinstance(target, ast.Subscript) else target
                if ast.unparse(inner) == name:
                    yield each
            case ast.Call(func=ast.Attribute(value=owner, attr=attr)):
                if ast.unparse(owner) == name and attr.endswith("_") and not attr.startswith("_"):
                    yield each
            case _:
                pass


def _is_assigned(node: ast.AST, name: str) -> bool:
    """Return True if a node assigns a variable, other than with an augmented assignment such as ``+=``."""
    for each in nodes_in(node, ast.Name, ast.Attribute):
        if isinstance(each.ctx, ast.Store) and ast.unparse(each) == name:
            parent_is_change = any(other.target is each for other in nodes_in(node, ast.AugAssign))
            if not parent_is_change:
                return True
    return False


def _creation(source: SourceFile, loop: _Loop, name: str) -> ast.Assign | None:
    """Return the assignment that creates an array before a loop; None if the variable may be something else."""
    scope = function_of(source, loop)
    found = [
        (each, value)
        for each in nodes_in(scope, ast.Assign)
        for target, value in _pairs(each)
        if isinstance(target, ast.Name) and target.id == name
    ]
    before = [each for each, value in found if each.lineno < loop.lineno and _creates_array(value)]
    return before[-1] if before and len(before) == len(found) else None


def _pairs(statement: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the single assignments of ``a, b = c, d``."""
    for target in statement.targets:
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            yield from zip(target.elts, statement.value.elts, strict=False)
        else:
            yield target, statement.value


def _creates_array(value: ast.expr) -> bool:
    """Return True for ``torch.zeros(...)``, also with methods: ``torch.zeros(4).double()``."""
    node: Any = value
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if isinstance(node.func.value, ast.Name) and node.func.value.id in _LIBRARIES:
            return node.func.attr in _CREATORS
        if ast.unparse(node.func.value) in ("np.random", "numpy.random"):
            return True
        node = node.func.value
    return False


def _is_stacked(source: SourceFile, container: ast.expr) -> bool:
    """Return True if the file stacks a list, or converts it to a tensor."""
    name = last_name(container)
    return any(
        last_name(each) == name
        for call in source.all_calls
        if last_name(call.func) in _STACKING
        for arg in call.args[:1]
        for each in nodes_in(arg, ast.Name, ast.Attribute)
    )


def _copy(source: SourceFile, call: ast.Call, name: str, made: ast.Assign) -> Fix | None:
    """Return the fix that stores a copy."""
    node = next((each for each in nodes_in(call, ast.Name) if each.id == name), None)
    if node is None:
        return None
    method = "clone" if "torch." in ast.unparse(made.value) else "copy"
    end = source.text.span(node)[1]
    return Fix((Edit(end, end, f".{method}()"),), safe=False, description="Store a copy")


# Arrays of objects ---------------------------------------------------------------------------------------------------


def _returned_arrays(source: SourceFile) -> Iterator[Hit]:
    """Yield each method that changes an array of its object in place and returns it to code that collects it."""
    for method in source.nodes_of(ast.FunctionDef):
        if not isinstance(source.parents.get(id(method)), ast.ClassDef):
            continue
        for node in nodes_in(method, ast.Return):
            for part in _parts(node.value):
                name = ast.unparse(part)
                change = next(_changes_in_place(method, name), None)
                if change is None or _is_assigned(method, name) or not _is_own_array(source, method, name):
                    continue
                stored = _collected(source, method.name)
                if stored is not None:
                    yield Hit(
                        message=f"`{method.name}` returns `{name}` itself, which it changes in place: all states that "
                        f"`{ast.unparse(stored)}` stores are the same array.",
                        node=node,
                        related=((change, "changed here"), (stored, "stored here")),
                    )


def _parts(node: ast.expr | None) -> list[ast.Attribute]:
    """Return the attributes of ``self`` that are returned, directly or in a tuple."""
    returned = node.elts if isinstance(node, ast.Tuple) else [node]
    return [
        each
        for each in returned
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self"
    ]


def _is_own_array(source: SourceFile, method: ast.FunctionDef, name: str) -> bool:
    """Return True if the class of a method assigns only new arrays to an attribute."""
    owner: Any = source.parents[id(method)]
    found = [
        value for each in nodes_in(owner, ast.Assign) for target, value in _pairs(each) if ast.unparse(target) == name
    ]
    return bool(found) and all(map(_creates_array, found))


def _collected(source: SourceFile, method: str) -> ast.Call | None:
    """Return the call that stores a result of a method in a loop."""
    for call in source.all_calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != method:
            continue
        loop, statement = _loop_around(source, call), source.parents.get(id(call))
        if loop is None or not isinstance(statement, ast.Assign):
            continue
        results = {each.id for target in statement.targets for each in nodes_in(target, ast.Name)}
        for other in nodes_in(loop, ast.Call):
            if last_name(other.func) in _STORING and results & set(_stored_names(other)):
                return other
    return None


_CREATION: Final = re.compile(rf"\b(?:np|numpy|torch)\.(?:(?:{'|'.join(sorted(_CREATORS))})\(|random\b)")
RULE = Rule(
    required_words=("append(|push(|store(|remember(", "torch", "stack|tensor(|array(|cat(|sample(", _CREATION),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
state = torch.zeros(4)
states, targets = [], []
for t in range(100):
    state[t % 4] += torch.randn(())
    states.append(state)
    targets.append(state.sum())
x, y = torch.stack(states), torch.stack(targets)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(5):
    for rows in torch.randperm(100).split(20):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]).squeeze(1), y[rows]).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT021",
    title="A list collects one array that changes in place",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"states.append(state)": "states.append(state.clone())"}),
    fix="Store a copy: append(state.clone()), or append(state.copy()) with NumPy.",
    rule=RULE,
)
