"""Finds parameters that are stored without copies and mixed with those of the same model, in the source."""

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of, single_assignments
from trueloop.analysis.queries.parameter_views import OwnTensors, is_view, model_of_parameters, own_tensors, viewed
from trueloop.analysis.queries.possible_values import enclosing_nodes, loops_around
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Severity
from trueloop.core.source_text import Fix, dotted_name, encloses, nodes_in
from trueloop.failures.failure import Rule

MAX_STEPS: Final = 3  # assignments between a tensor and the collection that it is taken from
_FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef
_CONTAINERS: Final = ("dict", "list", "OrderedDict", "collections.OrderedDict")
_COPYING: Final = ("deepcopy", "clone", "AveragedModel")
_SAME_ITEMS: Final = ("enumerate", "list", "reversed", "iter", "tqdm")
_MOVING: Final = (".data = ", "vector_to_parameters", "assign=True")
"""Text that gives parameters other memory, so an earlier view is a copy from then on."""
_PENALTIES: Final = ("mse_loss", "l1_loss", "dist", "sub")


class _Role(NamedTuple):
    """A tensor that is a parameter of a model, or shares its memory."""

    model: str
    """The model as the caller of the function knows it."""
    stored_in: "_Stored | None"
    """The collection from which the tensor is taken; None for a parameter of the model itself."""


class _Stored(NamedTuple):
    """A collection of a model's own tensors in a variable or attribute."""

    name: str
    model: str
    collected: ast.expr
    item: ast.expr | None
    function: Any
    """The function that stores it; the module if there is none."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each collection without copies that is mixed with, or subtracted from, the parameters of its model."""
    program = _Program(source)
    reported = set[int]()
    is_moved = any(each in source.text.source for each in _MOVING)
    for node in source.nodes_of(ast.Call, ast.BinOp, ast.AugAssign) if program.stored else ():
        for one, other, in_place in _pairs(source, node):
            function = function_of(source, node)
            roles = program.role(function, one), program.role(function, other)
            if None in roles or ast.unparse(viewed(one)) == ast.unparse(viewed(other)):
                continue
            tensors = [each for each in roles if each is not None]
            stored = next((each.stored_in for each in tensors if each.stored_in is not None), None)
            models = {each.model for each in tensors}
            if stored is None or len(models) != 1 or id(stored.collected) in reported or (is_moved and not in_place):
                continue
            reported.add(id(stored.collected))
            yield _hit(source, stored, node, in_place=in_place)
            break


def _hit(source: SourceFile, stored: _Stored, node: ast.AST, *, in_place: bool) -> Hit:
    effect = "averaging it in place changes the model" if in_place else "their difference is always 0"
    text, fix = source.text.segment(stored.collected), None
    if stored.item is not None:
        edit = source.text.replace(stored.item, f"{source.text.segment(stored.item)}.clone()")
        fix = Fix((edit,), safe=False, description="Copy each tensor")
    return Hit(
        message=f"`{text}` does not copy the weights: `{stored.name}` shares memory with the model, so {effect}.",
        node=stored.collected,
        related=((node, "mixed with the weights here" if in_place else "compared with the weights here"),),
        fix=fix,
        severity=None if in_place else Severity.WARNING,
    )


def _pairs(source: SourceFile, node: Any) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield the pairs of tensors that an operation mixes, and whether it changes the first of them."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="_foreach_lerp_"), args=[average, new, *_]):
            yield average, new, True
        case ast.Call(func=ast.Attribute(value=average, attr="lerp_"), args=[new, *_]):
            yield average, new, True
        case ast.Call(func=ast.Attribute(value=average, attr="add_" | "sub_" | "copy_" as attr), args=[*_, new]):
            yield from _averaged(source, node, average, new, attr)
        case ast.AugAssign(target=average, op=ast.Add() | ast.Sub() as operator, value=new):
            yield from _averaged(source, node, average, new, "sub_" if isinstance(operator, ast.Sub) else "add_")
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            yield left, right, False
        case ast.Call(func=func, args=[left, right, *_]) if last_name(func) in _PENALTIES:
            yield left, right, False
        case _:
            pass


def _averaged(
    source: SourceFile, node: ast.AST, average: ast.expr, new: ast.expr, operation: str
) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield an average with each tensor of the sum that an operation makes of it."""
    if _is_averaged(source, node, average, new, operation):
        for each in _parts(new):
            yield _unscaled(average), each, True


def _is_averaged(source: SourceFile, node: ast.AST, average: ast.expr, new: ast.expr, operation: str) -> bool:
    """Return True for a sum that is an average: after ``mul_``, or over what contains the average itself."""
    own = ast.unparse(viewed(_unscaled(average)))
    if any(ast.unparse(each) == own for each in nodes_in(new, ast.expr)):
        return isinstance(new, ast.BinOp)
    return operation == "add_" and (_unscaled(average) is not average or _is_scaled_before(source, node, own))


def _is_scaled_before(source: SourceFile, node: ast.AST, own: str) -> bool:
    """Return True if the statement before an operation scales the same tensor: ``average.mul_(decay)``."""
    statement = source.statement_of(node)
    block = source.block(statement)
    before = block[block.index(statement) - 1] if statement in block and block.index(statement) else None
    match before:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=scaled, attr="mul_"))):
            return ast.unparse(viewed(scaled)) == own
        case ast.AugAssign(target=scaled, op=ast.Mult()):
            return ast.unparse(viewed(scaled)) == own
        case _:
            return False


def _unscaled(average: ast.expr) -> ast.expr:
    """Return the tensor of ``average.mul_(decay)``."""
    match average:
        case ast.Call(func=ast.Attribute(value=inner, attr="mul_")):
            return inner
        case _:
            return average


def _parts(new: ast.expr) -> Iterator[ast.expr]:
    """Yield the tensors of a weighted sum, without the weights."""
    match new:
        case ast.BinOp(left=left, right=right):
            yield from _parts(left)
            yield from _parts(right)
        case _:
            yield new


class _Program:
    """The collections of a file, and what the variables of its functions stand for."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source

    @cached_property
    def stored(self) -> dict[str, _Stored]:
        """Collections of parameters that hold no copies, by the variable or attribute that holds them."""
        found: dict[str, list[_Stored | None]] = {}
        for target, collected, function in _stores(self._source):
            name = dotted_name(target)
            if _is_empty(collected):
                continue
            own = collected if isinstance(collected, OwnTensors) else _own(collected) or self._returned(collected)
            model = "" if own is None else self._known_as(function, ast.unparse(own.model))
            found.setdefault(name, []).append(
                _Stored(name, model, own.collected, own.item, function) if own is not None and model else None
            )
        single = {name: each[0] for name, each in found.items() if len(each) == 1}
        return {name: each for name, each in single.items() if name and each is not None}

    def _returned(self, value: Any) -> OwnTensors | None:
        """Return the collection that a function of the file returns: ``old = snapshot(model)``."""
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and len(value.args) == 1):
            return None
        for function in self._source.nodes_of(ast.FunctionDef):
            if function.name != value.func.id:
                continue
            returned = [each.value for each in nodes_in(function, ast.Return)]
            own = own_tensors(returned[0]) if len(returned) == 1 and returned[0] is not None else None
            first = function.args.args[0].arg if function.args.args else ""
            if own is not None and ast.unparse(own.model) == first:
                return own._replace(model=value.args[0])
        return None

    def role(self, function: Any, node: ast.expr, depth: int = MAX_STEPS) -> _Role | None:
        """Return of which model an expression in a function is a parameter; None for anything else."""
        node = viewed(node)
        match node:
            case ast.Subscript(value=holder):
                return self._of_holder(function, holder, depth)
            case ast.Name():
                return self._of_variable(function, node, depth)
            case ast.Attribute():
                return self._of_holder(function, node, depth)
            case ast.Call(func=func, args=args):
                is_list = last_name(func) in ("list", "tuple") and len(args) == 1
                return self._of_items(function, args[0] if is_list else node, depth)
            case _:
                return self._of_items(function, node, depth)  # torch._foreach_lerp_(slow, [p.data for p in ...])

    def _of_variable(self, function: Any, node: ast.Name, depth: int) -> _Role | None:
        iterable = self._iterable_of(node)
        if iterable is not None:
            return self._of_items(function, iterable, depth)
        values = [value for target, value in single_assignments(function) if dotted_name(target) == node.id]
        if len(values) == 1 and depth and isinstance(viewed(values[0]), ast.Subscript):  # old = shadow[name]
            return self.role(function, values[0], depth - 1)
        return self._of_holder(function, node, depth)  # torch._foreach_lerp_(shadow, ...)

    def _of_items(self, function: Any, iterable: ast.expr, depth: int) -> _Role | None:
        """Return the role of what an iterable yields: ``model.parameters()``, ``shadow.values()``, ``shadow``."""
        own = _own(iterable)
        model = model_of_parameters(iterable) if own is None else own.model
        if model is not None:
            name = self._known_as(function, ast.unparse(model))
            return _Role(name, None) if name else None
        match iterable:
            case ast.Call(func=ast.Attribute(value=holder, attr="values" | "items"), args=[]):
                return self._of_holder(function, holder, depth)
            case ast.Name() | ast.Attribute():
                return self._of_holder(function, iterable, depth)
            case _:
                return None

    def _of_holder(self, function: Any, holder: ast.expr, depth: int) -> _Role | None:
        """Return the role of the items of a collection or of a ``state_dict()``."""
        match holder:
            case ast.Call(func=ast.Attribute(value=model, attr="state_dict"), args=[]):
                name = self._known_as(function, ast.unparse(model))
                return _Role(name, None) if name else None
            case ast.Name() | ast.Attribute():
                text = dotted_name(holder)
                values = [value for target, value in single_assignments(function) if dotted_name(target) == text]
                stored = self._stored_as(function, text)
                if stored is None and len(values) == 1 and depth and isinstance(values[0], ast.Call):
                    return self._of_holder(function, values[0], depth - 1)
                return None if stored is None else _Role(stored.model, stored)
            case _:
                return None

    def _stored_as(self, function: Any, text: str) -> _Stored | None:
        """Return the collection that a variable or attribute of a function stands for."""
        is_argument = isinstance(function, _FUNCTIONS) and text in {each.arg for each in function.args.args}
        found = self.stored.get(self._known_as(function, text) if is_argument else text)
        if found is None or is_argument or "." in text or found.function in (function, self._source.tree):
            return found
        return found if encloses(found.function, function) else None

    def _iterable_of(self, name: ast.Name) -> ast.expr | None:
        """Return what the innermost loop around a variable iterates over, if the variable is one of its own."""
        pairs = (pair for loop in loops_around(self._source, name) for pair in _aligned(loop.target, loop.iter))
        return next((iterable for target, iterable in pairs if getattr(target, "id", "") == name.id), None)

    def _known_as(self, function: Any, name: str) -> str:
        """Return the variable of the caller that a name in a function stands for; "" if it is not certain."""
        first, _, rest = name.partition(".")
        if first == "self" and rest.isidentifier():
            values = {
                (function_of(self._source, value), ast.unparse(value))
                for target, value in single_assignments(self._source.tree)
                if dotted_name(target) == name
            }
            if len(values) != 1:
                return "" if values else name
            maker, value = values.pop()
            is_argument = isinstance(maker, _FUNCTIONS) and value in {each.arg for each in maker.args.args}
            return self._known_as(maker, value) if is_argument else "" if _is_copy(value) else name
        arguments = [each.arg for each in function.args.args] if isinstance(function, _FUNCTIONS) else []
        if name in arguments:
            return self._argument(function, arguments, name)
        assigned = [value for target, value in single_assignments(self._source.tree) if dotted_name(target) == name]
        is_certain = name.isidentifier() and len(assigned) == 1 and not _is_copy(ast.unparse(assigned[0]))
        return name if is_certain else ""

    def _argument(self, function: Any, arguments: list[str], name: str) -> str:
        """Return what all calls of a function pass as an argument; "" if they differ, or if there are none."""
        method = arguments[0] == "self"
        owner = self._source.parents.get(id(function))
        called = owner.name if isinstance(owner, ast.ClassDef) and function.name == "__init__" else function.name
        index, passed = arguments.index(name) - method, set[str]()
        if index < 0:
            return ""  # self
        for call in self._source.all_calls:
            is_function = method and called == function.name and isinstance(call.func, ast.Name)
            if last_name(call.func) != called or is_function:
                continue
            given = {each.arg: each.value for each in call.keywords}
            value = call.args[index] if index < len(call.args) else given.get(name)
            caller = function_of(self._source, call)
            passed.add("" if value is None or caller is function else self._passed(caller, value))
        return passed.pop() if len(passed) == 1 else ""

    def _passed(self, caller: Any, value: ast.expr) -> str:
        name = dotted_name(value)
        is_own = isinstance(caller, _FUNCTIONS) and name in {each.arg for each in caller.args.args}
        return f"{caller.name}.{name}" if is_own else name and (name if self._is_single(name) else "")

    def _is_single(self, name: str) -> bool:
        """Return True if a variable is assigned at most once, and not as a copy of another model."""
        values = [value for target, value in single_assignments(self._source.tree) if dotted_name(target) == name]
        return len(values) < 2 and not any(_is_copy(ast.unparse(each)) for each in values)


def _own(value: ast.expr) -> OwnTensors | None:
    """Return a collection of a model's own tensors, also a shallow copy of its ``state_dict()``."""
    match value:
        case ast.Call(func=ast.Attribute(attr="state_dict", value=model), args=[]):
            return OwnTensors(value, None, model)
        case ast.Call(func=func, args=[ast.Call() as inner]) if last_name(func) in ("copy", "dict", "OrderedDict"):
            found = _own(inner)
        case ast.Call(func=ast.Attribute(attr="copy", value=inner), args=[]):
            found = _own(inner)
        case _:
            found = None
    return own_tensors(value) if found is None else found._replace(collected=value)


def _is_copy(text: str) -> bool:
    return any(each in text for each in _COPYING)


def _aligned(target: ast.expr, iterable: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each variable of a loop over tensors with the iterable that it comes from, through ``zip``."""
    if isinstance(iterable, ast.Call) and last_name(iterable.func) == "zip" and isinstance(target, ast.Tuple):
        for each, part in zip(target.elts, iterable.args, strict=False):
            yield from _aligned(each, part)
    elif isinstance(iterable, ast.Call) and last_name(iterable.func) in _SAME_ITEMS and iterable.args:
        is_counted = last_name(iterable.func) == "enumerate" and isinstance(target, ast.Tuple)
        yield from _aligned(target.elts[-1] if is_counted else target, iterable.args[0])  # type: ignore[attr-defined]
    else:
        is_named = isinstance(iterable, ast.Call) and last_name(iterable.func) in ("items", "named_parameters")
        if isinstance(target, ast.Tuple) and is_named:
            yield target.elts[-1], iterable
        elif isinstance(target, ast.Name) and not is_named:
            yield target, iterable


def _stores(source: SourceFile) -> Iterator[tuple[ast.expr, Any, Any]]:
    """Yield what is stored in variables, or item by item in a loop over parameters, with the function around it."""
    for statement in source.nodes_of(ast.Assign, ast.AnnAssign):
        function = function_of(source, statement)
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets if statement.value is not None else ():
            if isinstance(target, ast.Subscript):
                yield target.value, _in_loop(source, statement, statement.value) or statement.value, function
            elif isinstance(target, ast.Name | ast.Attribute):
                yield target, statement.value, function
    for call in source.all_calls:
        match call:
            case ast.Call(func=ast.Attribute(value=target, attr="append"), args=[value]):
                yield target, _in_loop(source, call, value) or value, function_of(source, call)
            case _:
                pass


def _is_empty(value: Any) -> bool:
    """Return True for None and an empty container."""
    match value:
        case ast.Constant(value=None) | ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(func=func, args=[], keywords=[]):
            return dotted_name(func) in _CONTAINERS
        case _:
            return False


def _in_loop(source: SourceFile, node: ast.AST, value: ast.expr | None) -> OwnTensors | None:
    """Return the collection to which a loop over parameters adds a view: ``shadow[name] = p.data``."""
    loop = next((each for each in enclosing_nodes(source, node) if isinstance(each, ast.For)), None)
    model = model_of_parameters(loop.iter) if loop is not None else None
    if model is None or value is None or loop is None or not is_view(value, loop.target):
        return None
    return OwnTensors(value, value, model)


RULE = Rule(
    required_words=("parameters(|state_dict(", "lerp_|add_(|sub_(|copy_(| - | += | -= |mse_loss(|l1_loss(", "torch"),
    find=find,
)
