"""Evaluates expressions to abstract values."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from trueloop.analysis.abstract_value import (
    GRAD,
    NO_GRAPH,
    SUBMODULE,
    WRAPPER,
    AbstractValue,
    ValueKind,
    join_values,
    unknown_value,
)
from trueloop.analysis.interpreter.functions import DEFAULT_DICT
from trueloop.analysis.interpreter.qualified_names import canonical_name, created_kind
from trueloop.analysis.operations import OpKind
from trueloop.core.source_text import children, dotted_name, is_none, walk

if TYPE_CHECKING:
    from trueloop.analysis.interpreter.interpreter import Interpreter

BUILTINS: Final = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)
MAX_ITEMS: Final = 200  # items of a list that are evaluated; longer lists are tables
OBJECT_KINDS: Final = frozenset((ValueKind.SEQUENCE, ValueKind.INSTANCE, ValueKind.MODEL))
USUAL_NAMES: Final = {
    **{name: name for name in ("torch", "torchvision", "copy", "random", "math")},
    "nn": "torch.nn",
    "F": "torch.nn.functional",
    "optim": "torch.optim",
    "np": "numpy",
    "tqdm": "tqdm.tqdm",
    **{name: f"torch.utils.data.{name}" for name in ("DataLoader", "TensorDataset", "random_split")},
    **{
        f"{name}Loss": f"torch.nn.{name}Loss"
        for name in ("CrossEntropy", "BCE", "BCEWithLogits", "MSE", "NLL", "KLDiv")
    },
    "Variable": "torch.autograd.Variable",
    "models": "torchvision.models",
}
"""Meaning of names that a file uses but does not define, as in a notebook cell or after ``from x import *``."""
METADATA_ATTRIBUTES: Final = frozenset(
    ("shape", "dtype", "device", "ndim", "grad_fn", "requires_grad", "is_cuda", "itemsize")
)
"""Attributes of a tensor that are not tensors."""


class Evaluator:
    """Evaluates expressions for an `Interpreter`."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self._handlers: dict[type[ast.expr], Callable[[Any], AbstractValue] | None] = {}
        """Class of an expression -> the method that evaluates it."""

    def evaluate(self, node: ast.expr) -> AbstractValue:
        """Return the value of an expression, and record the operations in it."""
        kind = type(node)
        if kind not in self._handlers:
            self._handlers[kind] = getattr(self, f"_{kind.__name__.lower()}", None)
        run = self._handlers[kind]
        if run is not None:
            value = run(node)
            if value.loops is None and value.kind in OBJECT_KINDS and not value.union:
                value.loops = tuple([each.node for each in self.interpreter.recording.loops])
            return value
        parts = [self.evaluate(child) for child in children(node) if isinstance(child, ast.expr)]
        return unknown_value(node, *parts)

    def qualified_name(self, node: ast.expr) -> str:
        """Return the qualified name of an evaluated expression; "" if unknown."""
        return self.interpreter.recording.names.get(id(node), "")

    def _imported_value(self, node: ast.expr, name: str) -> AbstractValue:
        name = canonical_name(name)
        self.interpreter.recording.names[id(node)] = name
        return AbstractValue(kind=ValueKind.NAME, name=name, node=node)

    # Names and attributes ----------------------------------------------------------------------------------

    def _name(self, node: ast.Name) -> AbstractValue:
        found = self.interpreter.scope.get(node.id)
        if found is None:
            name = f"builtins.{node.id}" if node.id in BUILTINS else USUAL_NAMES.get(node.id)
            return self._imported_value(node, name) if name else self.interpreter.undefined_names.value(node)
        if found.kind is ValueKind.NAME:
            found = self.interpreter.imports.resolve(found)
        if found.kind is ValueKind.NAME:
            self.interpreter.recording.names[id(node)] = found.name
        return found

    def _attribute(self, node: ast.Attribute) -> AbstractValue:
        return self.attribute(self.evaluate(node.value), node)

    def attribute(self, owner: AbstractValue, node: ast.Attribute) -> AbstractValue:
        """Return the value of an attribute."""
        name = node.attr
        if name in owner.attributes:
            return owner.attributes[name]
        match owner.kind:
            case ValueKind.NAME:
                found = self.interpreter.imports.attribute(owner, name)
                return found or self._imported_value(node, f"{owner.name}.{name}")
            case ValueKind.MODEL:
                return self._model_attribute(owner, node)
            case ValueKind.TENSOR | ValueKind.PARAMETERS:
                return self._tensor_attribute(owner, node)
            case ValueKind.OPTIMIZER if name == "param_groups":
                return AbstractValue(kind=ValueKind.PARAMETERS, node=node, sources=owner.sources)
            case ValueKind.SCHEDULER if name == "optimizer" and owner.sources:
                return owner.sources[0]
            case ValueKind.DATASET if name == "dataset" and owner.name.endswith("Subset") and owner.sources:
                return owner.sources[0]
            case ValueKind.LOADER if name in ("dataset", "sampler"):
                return _first_of_kind(
                    owner.sources, ValueKind.DATASET if name == "dataset" else ValueKind.SAMPLER
                ) or unknown_value(node, owner)
            case _:
                pass
        value = (_common_item(owner, name) if owner.kind is ValueKind.INSTANCE else None) or unknown_value(node, owner)
        if owner.kind in (ValueKind.UNKNOWN, ValueKind.INSTANCE) and not value.union:
            owner.attributes[name] = self.interpreter.infer_kind(value, dotted_name(node), self.enclosing_definition())
        return value

    def enclosing_definition(self) -> Any:
        """Return the definition of the running function, or of the class of the running method."""
        functions = self.interpreter.recording.functions
        return self.interpreter.calls.enclosing_class(functions[-1]) if functions else None

    def _model_attribute(self, owner: AbstractValue, node: ast.Attribute) -> AbstractValue:
        if WRAPPER in owner.facts and node.attr == "module" and owner.sources:
            return owner.sources[0]
        if node.attr in ("training", "device", "dtype", "config"):
            return unknown_value(node)
        for each in owner.alternatives():
            if each is not owner and node.attr in each.attributes:
                return each.attributes[node.attr]
        part = AbstractValue(kind=ValueKind.MODEL, node=node, sources=(owner,), facts={SUBMODULE})
        if self.interpreter.calls.find_method(owner, node.attr) is not None:
            return part  # a property or a method, which is looked up at each access
        other = self.interpreter.infer_kind(unknown_value(node, owner), dotted_name(node), self.enclosing_definition())
        if other.kind is ValueKind.OPTIMIZER:  # critic.optimizer
            part = other
        owner.attributes[node.attr] = part
        return part

    def _tensor_attribute(self, owner: AbstractValue, node: ast.Attribute) -> AbstractValue:
        if node.attr == GRAD:
            return AbstractValue(kind=ValueKind.TENSOR, name=GRAD, node=node, sources=(owner,), facts={NO_GRAPH})
        if node.attr in METADATA_ATTRIBUTES:
            return unknown_value(node)
        facts = {NO_GRAPH} if node.attr == "data" else owner.facts & {NO_GRAPH}
        return AbstractValue(kind=ValueKind.TENSOR, name=owner.name, node=node, sources=(owner,), facts=set(facts))

    # Plain expressions -----------------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> AbstractValue:
        return AbstractValue(kind=ValueKind.CONSTANT, node=node, value=node.value)

    def _call(self, node: ast.Call) -> AbstractValue:
        return self.interpreter.calls.evaluate(node)

    def _await(self, node: ast.Await) -> AbstractValue:
        return self.evaluate(node.value)

    def _yield(self, node: ast.Yield) -> AbstractValue:
        self.interpreter.add_yield(self.evaluate(node.value) if node.value else unknown_value(node))
        return unknown_value(node)

    def _yieldfrom(self, node: ast.YieldFrom) -> AbstractValue:
        self.interpreter.add_yield(element(self.evaluate(node.value), node))
        return unknown_value(node)

    def _starred(self, node: ast.Starred) -> AbstractValue:
        return self.evaluate(node.value)

    def _namedexpr(self, node: ast.NamedExpr) -> AbstractValue:
        value = self.evaluate(node.value)
        self.interpreter.assignments.assign(node.target, value)
        return value

    def _ifexp(self, node: ast.IfExp) -> AbstractValue:
        decided = self.static_truth(node.test)
        self.evaluate(node.test)
        if decided is not None:
            return self.evaluate(node.body if decided else node.orelse)
        return join_values(self.evaluate(node.body), self.evaluate(node.orelse))

    def _boolop(self, node: ast.BoolOp) -> AbstractValue:
        values = [self.evaluate(value) for value in node.values]
        if isinstance(node.op, ast.Or):  # options or {}
            *others, last = values
            values = [each for each in others if each.kind is not ValueKind.CONSTANT or each.value is not None] + [last]
        return reduce(join_values, values)

    def _lambda(self, node: ast.Lambda) -> AbstractValue:
        return AbstractValue(kind=ValueKind.FUNCTION, name="<lambda>", node=node, scope=self.interpreter.scope)

    def _unaryop(self, node: ast.UnaryOp) -> AbstractValue:
        operand = self.evaluate(node.operand)
        if operand.kind is ValueKind.CONSTANT:
            value = operand.value
            if isinstance(node.op, ast.Not):
                return AbstractValue(kind=ValueKind.CONSTANT, node=node, value=not value)
            if isinstance(node.op, ast.USub) and isinstance(value, int | float):
                return AbstractValue(kind=ValueKind.CONSTANT, node=node, value=-value)
        return self.tensor_result(node, f"unary {type(node.op).__name__}", operand)

    def _binop(self, node: ast.BinOp) -> AbstractValue:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        if ValueKind.PARAMETERS in (left.kind, right.kind):  # list(a.parameters()) + list(b.parameters())
            return AbstractValue(kind=ValueKind.PARAMETERS, node=node, sources=(*left.sources, *right.sources))
        if left.kind is right.kind is ValueKind.SEQUENCE:
            return AbstractValue(kind=ValueKind.SEQUENCE, node=node, sources=(*left.sources, *right.sources))
        is_repeated = isinstance(node.op, ast.Mult) and left.kind is ValueKind.SEQUENCE and left.sources  # [layer] * 3
        if is_repeated and all(each.kind is ValueKind.MODEL for each in left.sources):
            return AbstractValue(kind=ValueKind.SEQUENCE, node=node, sources=left.sources)
        if left.kind is right.kind is ValueKind.CONSTANT:
            return AbstractValue(
                kind=ValueKind.CONSTANT, node=node, value=_fold_constants(node.op, left.value, right.value)
            )
        return self.tensor_result(node, f"binary {type(node.op).__name__}", left, right)

    def _compare(self, node: ast.Compare) -> AbstractValue:
        parts = [self.evaluate(each) for each in (node.left, *node.comparators)]
        is_python_bool = any(isinstance(each, ast.Is | ast.IsNot | ast.In | ast.NotIn) for each in node.ops)
        kind = (
            ValueKind.TENSOR
            if not is_python_bool and any(each.kind is ValueKind.TENSOR for each in parts)
            else ValueKind.UNKNOWN
        )
        return AbstractValue(kind=kind, name="compare", node=node, sources=tuple(parts), facts={NO_GRAPH})

    def tensor_result(self, node: ast.expr, name: str, *inputs: AbstractValue) -> AbstractValue:
        """Return the result of an operation, which is a tensor if any of its inputs is one."""
        if not any(each.kind in (ValueKind.TENSOR, ValueKind.PARAMETERS) for each in inputs):
            return unknown_value(node, *inputs)
        graphs = [each for each in inputs if each.kind is not ValueKind.CONSTANT and NO_GRAPH not in each.facts]
        return AbstractValue(
            kind=ValueKind.TENSOR, name=name, node=node, sources=inputs, facts=set() if graphs else {NO_GRAPH}
        )

    def _joinedstr(self, node: ast.JoinedStr) -> AbstractValue:
        for each in node.values:
            if isinstance(each, ast.FormattedValue):
                self.evaluate(each.value)
        return AbstractValue(kind=ValueKind.UNKNOWN, node=node, facts={NO_GRAPH})

    # Sequences -------------------------------------------------------------------------------------------------------

    def _tuple(self, node: ast.Tuple | ast.List | ast.Set) -> AbstractValue:
        if len(node.elts) > MAX_ITEMS:
            return unknown_value(node)
        return self._sequence(node, [self.evaluate(each) for each in node.elts])

    _list = _set = _tuple

    def _sequence(self, node: ast.expr, values: list[AbstractValue]) -> AbstractValue:
        if values and all(each.kind is ValueKind.PARAMETERS for each in values):
            return AbstractValue(kind=ValueKind.PARAMETERS, node=node, sources=_unique(each.sources for each in values))
        items = {f"[{number}]": each for number, each in enumerate(values)}
        return AbstractValue(kind=ValueKind.SEQUENCE, node=node, sources=tuple(values), attributes=items)

    def _dict(self, node: ast.Dict) -> AbstractValue:
        if len(node.values) > MAX_ITEMS:
            return unknown_value(node)
        items: dict[str, AbstractValue] = {}
        for key_node, value in zip(node.keys, node.values, strict=True):
            item = self.evaluate(value)
            key = self.evaluate(key_node).constant() if key_node is not None else None
            items[f"[{key!r}]" if isinstance(key, str | int) else f"[?{len(items)}]"] = item
        parameters = items.get("['params']")
        if parameters is not None and parameters.kind is ValueKind.PARAMETERS:
            return AbstractValue(kind=ValueKind.PARAMETERS, node=node, sources=parameters.sources)
        return AbstractValue(
            kind=ValueKind.SEQUENCE, name="dict", node=node, sources=tuple(items.values()), attributes=items
        )

    def _listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> AbstractValue:
        return self._comprehension(node, node.generators, node.elt)

    _setcomp = _generatorexp = _listcomp

    def _dictcomp(self, node: ast.DictComp) -> AbstractValue:
        match node:
            case ast.DictComp(
                value=ast.Name(id=value) | ast.Call(func=ast.Attribute(value=ast.Name(id=value), attr="detach")),
                generators=[
                    ast.comprehension(
                        target=ast.Tuple(elts=[_, ast.Name(id=item)]),
                        iter=ast.Call(func=ast.Attribute(value=owner, attr="items")),
                        ifs=[],
                    )
                ],
            ) if value == item and (state := self.evaluate(owner)).kind is ValueKind.STATE:
                return state  # another dictionary of the same tensors
            case _:
                pass
        return self._comprehension(node, node.generators, node.value)

    def _comprehension(self, node: ast.expr, generators: list[ast.comprehension], value: ast.expr) -> AbstractValue:
        first, *rest = generators
        iterable = self.evaluate(first.iter)
        self.interpreter.recording.add(OpKind.ITERATE, node, iterable)
        before = self.interpreter.scope.copy_names()
        with self.interpreter.recording.loop(first, iterable):
            self.interpreter.assignments.assign(first.target, element(iterable, first.iter))
            for test in first.ifs:
                self.evaluate(test)
            result = self._comprehension(node, rest, value) if rest else self.evaluate(value)
        self.interpreter.scope.names = before
        if rest:
            return result
        if result.kind is ValueKind.PARAMETERS:
            return AbstractValue(kind=ValueKind.PARAMETERS, node=node, sources=result.sources)
        return AbstractValue(
            kind=ValueKind.SEQUENCE, name="comprehension", node=node, sources=(result,), attributes={"[?]": result}
        )

    def _subscript(self, node: ast.Subscript) -> AbstractValue:
        owner, index = self.evaluate(node.value), self.evaluate(node.slice).constant()
        key = f"[{index!r}]"
        found = item_at(owner, index) if isinstance(index, int) else None
        if isinstance(index, str):
            found = self._named_item(owner, key, node, index)
        if found is None and owner.name == DEFAULT_DICT and owner.arguments:
            found = self._default_item(owner, key, node)
        if found is not None:
            return found
        if owner.kind in (ValueKind.SEQUENCE, ValueKind.UNKNOWN, ValueKind.LOADER) and not isinstance(
            node.slice, ast.Slice
        ):
            value = element(owner, node)
            if isinstance(index, str | int):
                owner.attributes[key] = value
            return value
        if owner.kind is ValueKind.TENSOR:
            return self.tensor_result(node, owner.name, owner)
        if owner.kind is ValueKind.MODEL:  # a layer of Sequential or ModuleList
            layer = owner.attributes.get(key)
            return layer or AbstractValue(kind=ValueKind.MODEL, node=node, sources=(owner,), facts={SUBMODULE})
        if owner.kind in (ValueKind.PARAMETERS, ValueKind.SEQUENCE):
            return owner
        return unknown_value(node, owner)

    def _named_item(self, owner: AbstractValue, key: str, node: ast.Subscript, name: str) -> AbstractValue | None:
        """Return the item of a dictionary, a registry that other files fill, or ``globals()``; None if unknown."""
        if dotted_name(getattr(node.value, "func", None)) == "globals":
            return self.interpreter.scope.module_scope.get(name)
        if key not in owner.attributes and is_empty_dictionary(owner):
            self.interpreter.imports.run_registrations()
        return owner.attributes.get(key)

    def _default_item(self, owner: AbstractValue, key: str, node: ast.Subscript) -> AbstractValue:
        """Return the item of a ``defaultdict``, which is created when it is read for the first time."""
        known = owner.attributes.get(key)
        if known is not None:
            return known
        factory = owner.arguments["0"]
        if factory.kind is ValueKind.CLASS:
            item = self.interpreter.calls.create_instance(factory, node, [], {})
        else:
            item = AbstractValue(kind=ValueKind.SEQUENCE, node=owner.node)
        item.loops = owner.loops
        owner.sources, owner.attributes[key] = (*owner.sources, item), item
        return item

    # Conditions and annotations --------------------------------------------------------------------------------------

    def static_truth(self, test: ast.expr) -> bool | None:
        """Return the truth of a condition if the source code determines it; None if it depends on the run."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.static_truth(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.Constant):
            return bool(test.value)
        if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__":
            return self.interpreter.scope.module_scope is self.interpreter.module_scope  # which is run as a program
        if isinstance(test, ast.Compare) and is_none(test.comparators[0]):
            is_given = len(test.ops) == 1 and self._is_given_none(test.left)
            return isinstance(test.ops[0], ast.Is | ast.Eq) if is_given else None
        if isinstance(test, ast.Compare):
            return self._compare_to_constant(test)
        found = self._constant_of(test)
        return None if found is None else bool(found.value)

    def _constant_of(self, node: ast.expr) -> AbstractValue | None:
        """Return the constant that a variable has in the running call; None if it may have another value."""
        found = self.interpreter.scope.get(node.id) if isinstance(node, ast.Name) else None
        is_known = found is not None and found.kind is ValueKind.CONSTANT and not found.union
        return found if is_known and self.interpreter.recording.calls else None

    def _is_given_none(self, node: ast.expr) -> bool:
        """Return True for a parameter that is None in the running call, by its default or a literal, throughout."""
        found, recording = self._constant_of(node), self.interpreter.recording
        if found is None or not is_none(found.node) or not isinstance(node, ast.Name) or not recording.functions:
            return False
        function = recording.functions[-1]
        given = (*walk(function.args), *walk(recording.calls[-1]))  # a variable may have other values later
        is_stored = any(isinstance(e, ast.Name) and e.id == node.id and isinstance(e.ctx, ast.Store)
                        for e in walk(function))  # fmt: skip
        return any(each is found.node for each in given) and not is_stored

    def _compare_to_constant(self, test: ast.Compare) -> bool | None:
        """Return the truth of ``task == "depth"`` if the running call passes ``task`` as a constant; else None."""
        functions, left, right = self.interpreter.recording.functions, test.left, test.comparators[0]
        found = self.interpreter.scope.names.get(left.id) if functions and isinstance(left, ast.Name) else None
        if found is None or found.union or len(test.ops) > 1 or not isinstance(test.ops[0], ast.Eq | ast.NotEq):
            return None
        left_value, right_value = found.constant(), getattr(right, "value", None)
        if not (isinstance(left_value, str) and isinstance(right_value, str)) or found.node in walk(functions[-1]):
            return None  # a default or a local constant may not be the only value
        return (left_value == right_value) is isinstance(test.ops[0], ast.Eq)

    def annotated_kind(self, node: ast.expr) -> ValueKind | None:
        """Return the kind of value that an annotation describes; None if unknown."""
        if isinstance(node, ast.BinOp):  # optimizer: Optimizer | None
            return self.annotated_kind(node.left) or self.annotated_kind(node.right)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return self.annotated_kind(ast.parse(node.value, mode="eval").body)
            except (SyntaxError, ValueError):
                return None
        if isinstance(node, ast.Subscript):  # Optional[Optimizer], DataLoader[Batch]
            return (
                self.annotated_kind(node.slice)
                if dotted_name(node.value).endswith("Optional")
                else self.annotated_kind(node.value)
            )
        if not isinstance(node, ast.Name | ast.Attribute):
            return None
        value = self.evaluate(node)
        if value.kind is ValueKind.CLASS:
            return ValueKind.MODEL if self.interpreter.calls.is_module(value) else None
        if value.name in ("torch.Tensor", "torch.FloatTensor", "torch.LongTensor"):
            return ValueKind.TENSOR
        if value.name.endswith((".LRScheduler", "._LRScheduler")):
            return ValueKind.SCHEDULER
        return created_kind(value.name) if value.kind is ValueKind.NAME else None


def is_empty_dictionary(value: AbstractValue) -> bool:
    """Return True for a dictionary that is created empty, such as a registry."""
    match value.node if value.kind is ValueKind.SEQUENCE else None:
        case ast.Dict(keys=[]) | ast.Call(func=ast.Name(id="dict" | "OrderedDict"), args=[], keywords=[]):
            return True
        case _:
            return False


def element(iterable: AbstractValue, node: Any) -> AbstractValue:
    """Return the value of a loop's target in one iteration over an iterable."""
    match iterable.kind:
        case ValueKind.LOADER | ValueKind.DATASET:
            return AbstractValue(kind=ValueKind.TENSOR, name="batch", node=node, sources=(iterable,), facts={NO_GRAPH})
        case ValueKind.SEQUENCE if iterable.sources:
            return reduce(join_values, iterable.sources)
        case ValueKind.PARAMETERS:
            return iterable
        case ValueKind.TENSOR:
            return AbstractValue(
                kind=ValueKind.TENSOR,
                name=iterable.name,
                node=node,
                sources=(iterable,),
                facts=iterable.facts & {NO_GRAPH},
            )
        case ValueKind.MODEL:
            return AbstractValue(kind=ValueKind.MODEL, node=node, sources=(iterable,), facts={SUBMODULE})
        case _:
            return unknown_value(node, iterable)


def item_at(value: AbstractValue, number: int) -> AbstractValue | None:
    """Return an item of a tuple, or the union of these items if the value may be one of several tuples."""
    key = f"[{number}]"
    if key in value.attributes or not value.union:
        return value.attributes.get(key)
    return _common_item(value, key)


def _common_item(value: AbstractValue, key: str) -> AbstractValue | None:
    """Return the union of an attribute or item of all alternatives of a value; None if one of them lacks it."""
    items = [each.attributes.get(key) for each in value.union]
    found = [each for each in items if each is not None]
    if not found or len(found) < len(items):
        return None
    return reduce(join_values, found)


def _first_of_kind(values: tuple[AbstractValue, ...], kind: ValueKind) -> AbstractValue | None:
    return next((each for each in values if each.kind is kind), None)


def _unique(groups: Any) -> tuple[AbstractValue, ...]:
    return tuple({id(each): each for group in groups for each in group}.values())


def _fold_constants(op: ast.operator, left: Any, right: Any) -> Any:
    """Return the result of arithmetic on two constants; None if they are not numbers."""
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        return None
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.FloorDiv() if right:
            return left // right
        case ast.Div() if right:
            return left / right
        case _:
            return None
