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
    In a run, the sanitizer compares the samples of the batches that a model is trained on. It reports a model whose
    samples were all equal in 16 batches of 8 or more in a row, while their targets differed, and whose answers
    were equal too. Samples of a single number, and of equal numbers, are left out.

    The linter finds loops: one appends a variable, which was created as an array before the loop, and changes it in
    place, but never assigns it, or writes to it with ``out=``; the list is stacked or converted to a tensor elsewhere.
    Or a class changes an array of its object in place, never assigns a new one in the same method, and
    returns it from a method, directly, through another method or property, or as a view; and a loop or function stores
    the result in a list, a deque, a dataclass or a buffer of the program that keeps what it gets. Or a list is appended
    to another one, and emptied by ``clear()`` for the next entry.

References
    Python FAQ, "How do I create a multidimensional list?", https://docs.python.org/3/faq/programming.html
    torch.stack, https://docs.pytorch.org/docs/stable/generated/torch.stack.html
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import assigned_in, assigned_pairs, function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import enclosing_nodes, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import Edit, Fix, dotted_name, encloses, is_none, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import LossGraphRead, ModelCalled, WatchEnded

if TYPE_CHECKING:
    from trueloop.tracing.trackers.learning_progress import LearningProgress

MIN_SAMPLES: Final = 8
BATCHES: Final = 16
MAX_NUMBERS: Final = 1 << 20  # of a batch whose samples are compared

_CREATORS: Final = frozenset((
    "arange", "array", "empty", "full", "linspace", "ones", "rand", "randint", "randn", "tensor", "uniform", "zeros",
    "zeros_like", "ones_like", "empty_like",
))  # fmt: skip
_STACKING: Final = frozenset((
    "array", "asarray", "as_tensor", "cat", "concatenate", "from_numpy", "hstack", "stack", "tensor", "vstack",
    "FloatTensor", "sample", "sum",
))  # fmt: skip
_STORING: Final = frozenset(("append", "push", "add", "store", "remember"))
_APPENDING: Final = frozenset(("append", "appendleft", "insert"))
_SHARING: Final = frozenset(("from_numpy", "as_tensor", "asarray"))
_VIEWS: Final = frozenset(("detach", "numpy", "view", "reshape", "ravel", "squeeze", "unsqueeze"))
_SAMPLING: Final = frozenset(("uniform", "normal", "standard_normal", "random", "integers", "randint", "rand", "randn"))
_SIZED: Final = frozenset(("standard_normal", "random", "rand", "randn"))
"""Functions whose arguments are only sizes."""
_MAX_PARTS: Final = 32
_Loop = ast.For | ast.While
_Methods = dict[str, ast.FunctionDef]


class Detector(BaseDetector):
    """Finds batches whose samples are all equal, while their targets differ."""

    progress: "LearningProgress"

    def __init__(self) -> None:
        self._equal, self._called = 0, False
        """Number of batches in a row of equal samples, and whether the latest call of a model had such a batch."""
        self._samples, self._first_update = 0, 0
        """Size of the latest such batch, and the update in which there were enough of them; 0 = there were not."""
        self._location: CodePosition | None = None
        self._judged = False

    def on_model_called(self, event: ModelCalled) -> None:
        """Compare the samples of a batch, and the answers for them."""
        if not event.has_graph or event.recomputed:
            return
        self._called = _all_equal(event.inputs) and _all_equal(event.output, numbers=1, tolerance=1e-4)
        if self._called:
            self._samples, self._location = len(event.inputs), event.location

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Count batches whose targets differ."""
        targets = [each.targets for each in event.live_losses if each.targets.is_cpu and each.targets.dim()]
        if any(len(each) >= MIN_SAMPLES and bool((each[1:] != each[:1]).any()) for each in targets):
            self._judged, self._equal = True, self._equal + 1 if self._called else 0
            if self._equal == BATCHES and not self._first_update:
                self._first_update, self.progress.cause_reported = event.update, True

    def on_watch_ended(self, event: WatchEnded) -> Evidence | None:
        """Return evidence if the latest batches consisted of equal samples."""
        if not self._first_update:
            return None
        return Evidence(
            message=f"All {self._samples} samples of a batch are equal, but their targets differ, in {BATCHES} batches "
            "in a row: what is stored for each sample is one array, which changes in place.",
            location=self._location,
            first_update=self._first_update,
        )

    def inconclusive(self) -> str:
        """Return the reason if no batch could be judged."""
        return "" if self._judged else "no loss with different targets was read"


def _all_equal(batch: object, numbers: int = 2, tolerance: float = 0.0) -> bool:
    """Return True if all samples are equal and consist of different numbers."""
    from torch import Tensor

    from trueloop.tracing.row_digests import has_storage

    if not isinstance(batch, Tensor) or not has_storage(batch) or not batch.is_cpu or batch.ndim < 2:
        return False
    if len(batch) < MIN_SAMPLES or batch[0].numel() < numbers or batch.numel() > MAX_NUMBERS:
        return False
    rows = batch.detach().flatten(1)
    if not rows[1].allclose(rows[0], tolerance, tolerance) or not rows.allclose(rows[:1], tolerance, tolerance):
        return False
    return numbers == 1 or bool(rows[0].amin() < rows[0].amax())


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each array that is stored without a copy and changed in place."""
    for node, container, values in _stores(source):
        loop = _loop_around(source, node)
        if loop is None:
            continue
        for value in values:
            name, written = _array(source, loop, value)
            if not name:
                continue
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
    yield from _cleared_lists(source)


def _cleared_lists(source: SourceFile) -> Iterator[Hit]:
    """Yield each list that is stored in another one and then emptied, not replaced: ``episodes.append(episode)``."""
    emptied = [each for each in definitions(source).calls.get("clear", ()) if isinstance(each.func, ast.Attribute)]
    cleared = {dotted_name(each.func.value): each for each in emptied if not each.args}  # type: ignore[attr-defined]
    for node, container, values in _stores(source) if cleared else ():
        held = next((each for each in values if dotted_name(each) in cleared), None)
        name, whole = dotted_name(held) if held is not None else "", dotted_name(container)
        loop = _loop_around(source, node)
        scope = enclosing_definition(source, node, ast.ClassDef) if name.startswith("self.") else loop
        if held is None or scope is None or not whole or whole in cleared or not encloses(scope, cleared[name]):
            continue
        parts = [e for e in getattr(scope, "body", []) if getattr(e, "name", "") != "__init__"]
        is_new = any(_is_assigned(part, each) for part in parts for each in (name, whole))
        if not is_new and any(isinstance(each, ast.List | ast.Dict) for each in possible_values(source, held)):
            yield Hit(
                message=f"`{ast.unparse(node)}` stores the list `{name}` itself, and `{ast.unparse(cleared[name])}` "
                "empties it for the next one: all entries are the same list.",
                node=node,
                related=((cleared[name], "emptied here"),),
            )


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
    outputs = [each.value for each in node.keywords if each.arg == "out"] if isinstance(node, ast.Call) else []
    return dotted_name(outputs[0]) if outputs and _library(source, node) else ""


def _loop_around(source: SourceFile, node: ast.AST) -> _Loop | None:
    """Return the innermost loop around a node within its function."""
    return next((each for each in enclosing_nodes(source, node) if isinstance(each, _Loop)), None)


def _changes_in_place(source: SourceFile, node: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield the statements and calls in a node that change an array in place, such as "state" or "self.state"."""
    for each in nodes_in(node, ast.Assign, ast.AugAssign, ast.Call):
        match each:
            case ast.Assign(targets=targets):
                if any(isinstance(t, ast.Subscript) and dotted_name(t.value) == name for t in targets):
                    yield each
            case ast.AugAssign(target=target):
                inner = target.value if isinstance(target, ast.Subscript) else target
                if dotted_name(inner) == name:
                    yield each
            case ast.Call() if name and _output(source, each) == name:
                yield each
            case ast.Call(func=ast.Attribute(value=owner, attr=attr)):
                if dotted_name(owner) == name and attr.endswith("_") and not attr.startswith("_"):
                    yield each
            case _:
                pass


def _is_assigned(node: ast.AST, name: str) -> bool:
    """Return True if a node assigns a variable, other than with an augmented assignment such as ``+=``."""
    changed = [each.target for each in nodes_in(node, ast.AugAssign)]
    stored = [each for each in nodes_in(node, ast.Name, ast.Attribute) if isinstance(each.ctx, ast.Store)]
    return any(ast.unparse(each) == name and each not in changed for each in stored)


def _creation(source: SourceFile, loop: _Loop, name: str) -> ast.Assign | None:
    """Return the assignment that creates an array before a loop; None if the variable may be something else."""
    is_own = name.startswith("self.")
    scope = enclosing_definition(source, loop, ast.ClassDef) if is_own else function_of(source, loop)
    found = [
        (each, value)
        for each in nodes_in(scope, ast.Assign)
        for target, value in assigned_pairs(each)
        if ast.unparse(target) == name
    ]
    found = [(each, value) for each, value in found if not is_own or ast.unparse(value) != "None"]
    made = [each for each, value in found if (is_own or each.lineno < loop.lineno) and _creates_array(source, value)]
    return made[-1] if made and len(made) == len(found) else None


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
    """Yield each method that returns an array of its object, which changes it in place, to code that collects it."""
    for owner in source.nodes_of(ast.ClassDef):
        methods = {each.name: each for each in owner.body if isinstance(each, ast.FunctionDef)}
        for method in methods.values():
            for attribute, node, position in _returned(methods, method):
                name = f"self.{attribute}"
                if not _is_own_array(source, owner, attribute) or _assigns(methods, method, name):
                    continue
                changes = [each for each in methods.values() if _changes_only(source, methods, each, name)]
                if not changes:
                    continue
                found = _collected(source, owner, method, position, [] if method in changes else changes)
                if found is not None:
                    change = next(e for each in _reached(methods, changes[0]) for e in _changes(source, each, name))
                    yield Hit(
                        message=f"`{method.name}` returns `{name}` itself, which changes in place: all states that "
                        f"`{ast.unparse(found)}` stores are the same array.",
                        node=node,
                        related=((change, "changed here"), (found, "stored here")),
                    )


def _aliased(node: ast.expr | None, *, single: bool = False) -> Iterator[ast.expr]:
    """Yield what the value of an expression is, contains or shares its memory with, as far as names and calls go.

    Args:
        node: the expression.
        single: whether arrays are of single precision, so that ``torch.as_tensor(x, dtype=torch.float32)`` is no copy.
    """
    match node:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Dict(values=items):
            inner: list[ast.expr | None] = [*items]
        case ast.IfExp(body=body, orelse=orelse):
            inner = [body, orelse]
        case ast.Starred(value=value) | ast.NamedExpr(value=value):
            inner = [value]
        case ast.Subscript(value=ast.Name() | ast.Call() as value) | ast.Subscript(value=value, slice=ast.Slice()):
            inner = [value]
        case ast.Call(func=ast.Attribute(attr=name), args=[value], keywords=options) if name in _SHARING and (
            not options or (single and all("float32" in ast.unparse(each) for each in options))
        ):
            inner = [value]
        case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in _VIEWS:
            inner = [value]
        case ast.Call(func=ast.Name(id=name)) if name[:1].isupper():  # a dataclass or a named tuple
            inner = [*node.args, *(each.value for each in node.keywords)]
        case ast.expr():
            yield node
            return
        case _:
            return
    for each in inner:
        yield from _aliased(each, single=single)


class _Returned(NamedTuple):
    """An attribute that a method returns."""

    attribute: str
    node: ast.Return
    position: int | None
    """Its position in the tuple that the method returns; None if it is returned alone."""


def _returned(methods: _Methods, method: ast.FunctionDef, depth: int = 3) -> Iterator[_Returned]:
    """Yield the attributes that a method returns, also by other methods and properties of its class."""
    for node in nodes_in(method, ast.Return):
        items = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for number, item in enumerate(items):
            position = number if isinstance(node.value, ast.Tuple) else None
            for each in _resolved(method, item):
                name = each.attr if isinstance(each, ast.Attribute) else each.func.attr  # type: ignore[attr-defined]
                if name in methods:
                    inner = _returned(methods, methods[name], depth - 1) if depth else ()
                    yield from (found._replace(position=position) for found in inner if found.position is None)
                elif isinstance(each, ast.Attribute):
                    yield _Returned(name, node, position)


def _resolved(method: ast.FunctionDef, node: ast.expr | None) -> Iterator[ast.Attribute | ast.Call]:
    """Yield the attributes and method calls of ``self`` that an expression or its variables have as their value."""
    queue = list(_aliased(node))
    for each in queue[:_MAX_PARTS]:
        match each:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"))) | ast.Attribute(value=ast.Name(id="self")):
                yield each
            case ast.Name(id=name):
                values = assigned_in(method, name)
                for part in _aliased(values[0]) if len(values) == 1 else ():
                    if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self":
                        yield part
            case _:
                pass


def _reached(methods: _Methods, method: ast.FunctionDef) -> list[ast.FunctionDef]:
    """Return a method and the methods of its class that it calls, directly or not."""
    found = [method]
    for each in found:
        called = [e.func for e in nodes_in(each, ast.Call) if isinstance(e.func, ast.Attribute)]
        names = [e.attr for e in called if isinstance(e.value, ast.Name) and e.value.id == "self"]
        found += [e for name, e in methods.items() if name in names and e not in found]
    return found


def _changes(source: SourceFile, method: ast.FunctionDef, name: str) -> Iterator[ast.AST]:
    """Yield the changes of an attribute in place, also by a variable that is the attribute."""
    yield from _changes_in_place(source, method, name)
    for each in nodes_in(method, ast.Assign):
        if ast.unparse(each.value) == name and isinstance(each.targets[0], ast.Name):
            yield from _changes_in_place(source, method, each.targets[0].id)


def _assigns(methods: _Methods, method: ast.FunctionDef, name: str) -> bool:
    return any(_is_assigned(each, name) for each in _reached(methods, method))


def _changes_only(source: SourceFile, methods: _Methods, method: ast.FunctionDef, name: str) -> bool:
    """Return True if a method changes an attribute in place and never assigns it a new array."""
    changes = any(any(_changes(source, each, name)) for each in _reached(methods, method))
    return changes and method.name != "__init__" and not _assigns(methods, method, name)


def _is_own_array(source: SourceFile, owner: ast.ClassDef, attribute: str, depth: int = 3) -> bool:
    """Return True if a class assigns only new arrays to an attribute, perhaps None before the first."""
    values: list[ast.expr] = []
    for each in nodes_in(owner, ast.Assign, ast.AnnAssign):
        pairs = assigned_pairs(each) if isinstance(each, ast.Assign) else [(each.target, each.value)]
        own = (f"self.{attribute}", attribute) if each in owner.body else (f"self.{attribute}",)
        values += [value for target, value in pairs if value is not None and dotted_name(target) in own]
    values = [each for each in values if not is_none(each)]
    return bool(values) and depth > 0 and all(_is_new_array(source, owner, each, depth) for each in values)


def _is_new_array(source: SourceFile, owner: ast.ClassDef, value: ast.expr, depth: int) -> bool:
    """Return True for a call that creates an array, a copy of such an attribute, and what is computed from either."""
    match value:
        case ast.Call(func=ast.Name(id="field"), keywords=[ast.keyword(value=ast.Lambda(body=body))]):
            return _is_new_array(source, owner, body, depth)
        case ast.BinOp(left=left, right=right):
            return any(_is_new_array(source, owner, each, depth) for each in (left, right))
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return _is_own_array(source, owner, name, depth - 1)
        case ast.Call(func=ast.Attribute(attr="copy" | "clone" | "astype", value=copied)):
            return _is_new_array(source, owner, copied, depth)
        case ast.Call(func=ast.Attribute(attr=name), args=args, keywords=keywords) if name in _SAMPLING:
            sizes = [each for each in keywords if each.arg in ("size", "shape")]
            return (
                bool(sizes)
                or len(args) > 2
                or (name in _SIZED and bool(args))
                or any(_creates_array(source, each) for each in args)
            )
        case _:
            return _creates_array(source, value)


def _collected(
    source: SourceFile,
    owner: ast.ClassDef,
    method: ast.FunctionDef,
    position: int | None,
    changing: list[ast.FunctionDef],
) -> ast.AST | None:
    """Return what stores results of a method in a loop or function, in which a changing method is called, if any."""
    for call in source.all_calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != method.name:
            continue
        scope = _loop_around(source, call) or function_of(source, call)
        called = {last_name(each.func) for each in nodes_in(scope, ast.Call)}
        if not _may_be_of(source, call.func.value, owner) or isinstance(scope, ast.Module):
            continue
        if changing and not called & {each.name for each in changing}:
            continue
        methods = {each.name for each in owner.body if isinstance(each, ast.FunctionDef)}
        names = _names_of_result(scope, call, position, methods)
        single = any("float32" in ast.unparse(each) for each in nodes_in(owner, ast.Assign))
        for node, values in _storing(source, scope, single=single):
            parts = [part for each in values for part in _aliased(each, single=single)]
            if any(part is call or getattr(part, "id", "") in names for part in parts):
                return node
    return None


def _may_be_of(source: SourceFile, instance: ast.expr, owner: ast.ClassDef) -> bool:
    """Return True if a variable may hold an instance of a class: it is assigned one, or nothing else of the program."""
    if isinstance(instance, ast.Name) and instance.id == "self":
        return owner is enclosing_definition(source, instance, ast.ClassDef)
    classes = {each.name for each in source.nodes_of(ast.ClassDef)}
    made = {
        last_name(value.func)
        for each in source.nodes_of(ast.Assign)
        for target, value in assigned_pairs(each)
        if isinstance(value, ast.Call) and last_name(target) == last_name(instance)
    }
    return owner.name in made or not made & classes


def _names_of_result(scope: ast.AST, call: ast.Call, position: int | None, methods: set[str]) -> set[str]:
    """Return the variables that get an item of the result of a call within a scope, and no copy of it."""
    pairs = [pair for each in nodes_in(scope, ast.Assign) for pair in assigned_pairs(each)]
    names: set[str] = set()
    for _ in range(3):  # state = next_state, in the next iteration
        for target, value in pairs:
            if isinstance(target, ast.Tuple | ast.List):
                is_item = value is call and position is not None and position < len(target.elts)
                names |= {last_name(target.elts[position])} if is_item and position is not None else set()
            elif any(part is call or getattr(part, "id", "") in names for part in _aliased(value)):
                names.add(last_name(target))
    copied = [target for target, value in pairs if not all(_is_result(part, methods) for part in _aliased(value))]
    return names - {part.id for target in copied for part in nodes_in(target, ast.Name)} - {""}


def _is_result(part: ast.expr, methods: set[str]) -> bool:
    """Return True for a variable, and for the result of a method of the object."""
    return isinstance(part, ast.Name) or (isinstance(part, ast.Call) and last_name(part.func) in methods)


def _storing(source: SourceFile, scope: ast.AST, *, single: bool) -> Iterator[tuple[ast.AST, list[ast.expr]]]:
    """Yield each call in a scope that stores values without a copy, and each comprehension, with the values."""
    for each in nodes_in(scope, ast.Call, ast.ListComp):
        if isinstance(each, ast.ListComp):
            yield each, [each.elt]
        elif isinstance(each.func, ast.Attribute) and each.func.attr in (*_STORING, *_APPENDING):
            values = {str(number): value for number, value in enumerate(each.args)}
            values |= {word.arg or "**": word.value for word in each.keywords}
            kept = None if each.func.attr in _APPENDING else _stored_parameters(source, each.func.attr, single=single)
            yield each, [value for key, value in values.items() if kept is None or key in kept]


def _stored_parameters(source: SourceFile, name: str, *, single: bool) -> set[str] | None:
    """Return the parameters, by position and name, that a method stores without a copy; None if all, or if unknown.

    A row of an array, as in ``self.states[i] = state``, gets a copy.
    """
    found = [each for each in source.nodes_of(ast.FunctionDef) if each.name == name]
    kept: set[str] = set()
    for each in found:
        values = [e.args[-1] for e in nodes_in(each, ast.Call) if last_name(e.func) in _APPENDING and e.args]
        rows = [e.value for e in nodes_in(each, ast.Assign) if isinstance(e.targets[0], ast.Subscript)]
        values += [value for value in rows if isinstance(value, ast.Tuple | ast.Call)]
        stored = {part.id for value in values for part in _aliased(value, single=single) if isinstance(part, ast.Name)}
        if each.args.vararg is not None and values:
            return None
        parameters = [part.arg for part in each.args.args[1:]]
        for number, parameter in enumerate(parameters):
            local = {
                target.id
                for e in nodes_in(each, ast.Assign)
                for target in e.targets
                if isinstance(target, ast.Name)
                and any(getattr(part, "id", "") == parameter for part in _aliased(e.value, single=single))
            }
            kept |= {str(number), parameter} if {parameter, *local} & stored else set()
    return kept if found else None


_CREATION: Final = re.compile(rf"\bout=|\.clear\(\)|\.(?:(?:{'|'.join(sorted(_CREATORS))})\(|random\b)")
_STORE: Final = re.compile(r"append\(|push\(|store\(|remember\(|out=|\] = |\[\w+\.\w+\(.*\)(?:\[\d\])? for ")
RULE = Rule(
    required_words=(
        _STORE,
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
    detector=Detector,
)
