"""A list collects the same array again and again while it is changed in place, so all its entries are equal in the end.

What you see
    The model trains on copies of the last state: the loss falls immediately, and the predictions do not depend on the
    input. A replay buffer of thousands of transitions contains one state.

Why it happens
    ``states.append(state)`` stores a reference. ``state[i] = ...``, ``state += ...``, ``state.add_(...)`` or
    ``torch.exp(x, out=state)`` change the one array that all entries refer to.

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
    in place, but never assigns it, or writes to it with ``out=``; the list is stacked or converted to a tensor
    elsewhere. Or a method changes an array of its object in place and returns it, and the file appends what the method
    returns.

References
    Python FAQ, "How do I create a multidimensional list?", https://docs.python.org/3/faq/programming.html
    torch.stack, https://docs.pytorch.org/docs/stable/generated/torch.stack.html
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_CREATORS: Final = frozenset((
    "arange", "array", "empty", "full", "linspace", "ones", "rand", "randint", "randn", "tensor", "uniform", "zeros",
    "zeros_like", "ones_like", "empty_like",
))  # fmt: skip
_STACKING: Final = frozenset((
    "array", "asarray", "as_tensor", "cat", "concatenate", "from_numpy", "hstack", "stack", "tensor", "vstack",
    "FloatTensor", "sample", "sum",
))  # fmt: skip
_STORING: Final = frozenset(("append", "push", "add", "store", "remember"))
_Loop = ast.For | ast.While


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each array that is stored without a copy and changed in place."""
    for node, container, values in _stores(source):
        loop = _loop_around(source, node)
        if loop is None:
            continue
        for value in values:
            name, written = _array(source, loop, value)
            change = written or next(_changes_in_place(source, loop, name), None)
            made = _creation(source, loop, name)
            if change is None or _is_assigned(loop, name) or _is_assigned(loop, ast.unparse(container)):
                continue
            if (made is not None or _output(source, change) == name) and _is_stacked(source, container):
                yield Hit(
                    message=f"`{ast.unparse(node)}` stores the same array in each iteration, and "
                    f"`{ast.unparse(change).splitlines()[0]}` changes it in place: all entries are equal in the end.",
                    node=node,
                    related=((change, "changed here"), *([(made, "created once, here")] if made is not None else [])),
                    fix=_copy(source, value, made),
                )
    for each in source.nodes_of(ast.ListComp):
        if _output(source, each.elt):
            yield Hit(
                message=f"All items of `{ast.unparse(each)}` are `{_output(source, each.elt)}` itself: all are equal.",
                node=each,
            )
    yield from _returned_arrays(source)


def _stores(source: SourceFile) -> Iterator[tuple[Any, ast.expr, list[ast.expr]]]:
    """Yield each call and assignment that stores values in a list or dictionary, with the container and the values."""
    for each in source.nodes_of(ast.Call, ast.Assign):
        match each:
            case ast.Call(func=ast.Attribute(attr="append", value=container), args=[value]):
                yield each, container, value.elts if isinstance(value, ast.Tuple) else [value]
            case ast.Assign(targets=[ast.Subscript(value=container, slice=ast.Name())], value=value):
                if ast.unparse(container) in _dictionaries(source):
                    yield each, container, [value]
            case _:
                pass


@lru_cache(maxsize=1)
def _dictionaries(source: SourceFile) -> frozenset[str]:
    """Return the variables and attributes that are set to an empty dictionary."""
    return frozenset(
        ast.unparse(target)
        for each in source.nodes_of(ast.Assign)
        for target in each.targets
        if ast.unparse(each.value) in ("{}", "dict()")
    )


def _array(source: SourceFile, loop: Any, value: ast.expr) -> tuple[str, ast.AST | None]:
    """Return the variable or attribute whose array is stored, and the call that writes to it if that is stored."""
    results = assigned_in(loop, value.id) if isinstance(value, ast.Name) else [value]
    if len(results) == 1 and _output(source, results[0]):
        return _output(source, results[0]), results[0]
    return (ast.unparse(value) if isinstance(value, ast.Name | ast.Attribute) else ""), None


def _output(source: SourceFile, node: Any) -> str:
    """Return the variable or attribute to which a call writes its result: "buffer" for ``torch.exp(x, out=buffer)``."""
    keywords = node.keywords if isinstance(node, ast.Call) and _library(source, node) else ()
    return next((dotted_name(each.value) for each in keywords if each.arg == "out"), "")


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


def _changes_in_place(source: SourceFile, node: ast.AST, name: str) -> Iterator[ast.AST]:
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
            case ast.Call() if name and _output(source, each) == name:
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
    is_own = name.startswith("self.")
    scope = enclosing_definition(source, loop, ast.ClassDef) if is_own else function_of(source, loop)
    found = [
        (each, value)
        for each in nodes_in(scope, ast.Assign)
        for target, value in _pairs(each)
        if ast.unparse(target) == name
    ]
    found = [(each, value) for each, value in found if not is_own or ast.unparse(value) != "None"]
    made = [each for each, value in found if (is_own or each.lineno < loop.lineno) and _creates_array(source, value)]
    return made[-1] if made and len(made) == len(found) else None


def _pairs(statement: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the single assignments of ``a, b = c, d``."""
    for target in statement.targets:
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            yield from zip(target.elts, statement.value.elts, strict=False)
        else:
            yield target, statement.value


def _creates_array(source: SourceFile, value: ast.expr) -> bool:
    """Return True for ``torch.zeros(...)``, also with methods: ``torch.zeros(4).double()``."""
    node: Any = value
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        library = _library(source, node)
        if library:
            return node.func.attr in _CREATORS or library.endswith(".random")
        node = node.func.value
    return False


def _library(source: SourceFile, call: ast.Call) -> str:
    """Return the module of a function of PyTorch or NumPy; "" for other functions."""
    module = (source.qualified_name(call.func) or ast.unparse(call.func)).rpartition(".")[0]
    return module if module.partition(".")[0] in ("numpy", "np", "torch") else ""


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


def _copy(source: SourceFile, stored: ast.expr, made: ast.Assign | None) -> Fix | None:
    """Return the fix that stores a copy."""
    if made is None or not isinstance(stored, ast.Name | ast.Attribute):
        return None
    is_torch = any(_library(source, each).startswith("torch") for each in nodes_in(made.value, ast.Call))
    end = source.text.span(stored)[1]
    return Fix((Edit(end, end, f".{'clone' if is_torch else 'copy'}()"),), safe=False, description="Store a copy")


# Arrays of objects ---------------------------------------------------------------------------------------------------


def _returned_arrays(source: SourceFile) -> Iterator[Hit]:
    """Yield each method that changes an array of its object in place and returns it to code that collects it."""
    for method in source.nodes_of(ast.FunctionDef):
        if not isinstance(source.parents.get(id(method)), ast.ClassDef):
            continue
        for node in nodes_in(method, ast.Return):
            for part in _parts(node.value):
                name = ast.unparse(part)
                change = next(_changes_in_place(source, method, name), None)
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
    return bool(found) and all(_creates_array(source, each) for each in found)


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


_CREATION: Final = re.compile(rf"\bout=|\.(?:(?:{'|'.join(sorted(_CREATORS))})\(|random\b)")
RULE = Rule(
    required_words=(
        "append(|push(|store(|remember(|out=|] = ",
        "torch",
        "stack|tensor(|array(|cat(|sample(|sum(|out=",
        _CREATION,
    ),
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
