"""Evaluates calls: runs functions and classes of the file, and records the effects of PyTorch functions."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, Final

from trueloop.analysis.abstract_value import (
    FORWARD_RESULT,
    LEAF,
    MAYBE_NONE,
    NO_GRAPH,
    SUBMODULE,
    WRAPPER,
    AbstractValue,
    ValueKind,
    join_values,
    unknown_value,
)
from trueloop.analysis.interpreter.functions import BASES_BY_KIND, Functions
from trueloop.analysis.interpreter.methods import Methods
from trueloop.analysis.interpreter.qualified_names import (
    LEAF_CONSTRUCTORS,
    PARAMETERS,
    WRAPPERS,
    created_kind,
    is_harmless,
    is_loss,
)
from trueloop.analysis.interpreter.scope import Scope
from trueloop.analysis.operations import OpKind

if TYPE_CHECKING:
    from trueloop.analysis.interpreter.interpreter import Interpreter

MODULE_BASES: Final = frozenset(("Module", "LightningModule", "PreTrainedModel"))
FIRST_ARGUMENT: Final = {ValueKind.OPTIMIZER: "params", ValueKind.SCHEDULER: "optimizer", ValueKind.LOADER: "dataset"}
"""Kind of value -> name of the first argument of its constructors."""
SEQUENTIALS: Final = frozenset(("torch.nn.Sequential",))
INDEX_FUNCTIONS: Final = frozenset(("argmax", "argmin", "argsort", "bincount", "multinomial", "long", "int", "bool"))
"""Functions and methods whose results are integers, which have no graph."""


_MAX_FLATTENED: Final = 100


class Arguments:
    """Arguments of a call.

    Args:
        positional: positional arguments.
        keyword: keyword arguments.
    """

    __slots__ = ("keyword", "positional")

    def __init__(self, positional: Sequence[AbstractValue], keyword: dict[str, AbstractValue]) -> None:
        self.positional, self.keyword = list(positional), keyword

    def get(self, position: int, name: str) -> AbstractValue | None:
        """Return an argument by its position or name."""
        return self.positional[position] if position < len(self.positional) else self.keyword.get(name)

    def all(self) -> list[AbstractValue]:
        """Return all arguments."""
        return [*self.positional, *self.keyword.values()]

    def by_name(self) -> dict[str, AbstractValue]:
        """Return all arguments by name; the names of positional arguments are "0", "1" ..."""
        return {**{str(number): each for number, each in enumerate(self.positional)}, **self.keyword}


class Calls:
    """Evaluates calls for an `Interpreter`."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.functions, self.methods = Functions(interpreter), Methods(interpreter)
        self._class_by_method: dict[Any, AbstractValue] = {}
        """Definition of a method -> its class."""

    def evaluate(self, node: ast.Call) -> AbstractValue:
        """Return the value of a call, and record its operations."""
        evaluator = self.interpreter.evaluator
        if not isinstance(node.func, ast.Attribute):
            return self.call_value(evaluator.evaluate(node.func), node, self._evaluate_arguments(node))
        if _is_super(node.func.value) and self.interpreter.recording.functions:
            return self._call_super(node)
        owner, name = evaluator.evaluate(node.func.value), node.func.attr
        arguments = self._evaluate_arguments(node)
        if owner.kind is ValueKind.CLASS and arguments.positional:
            found = self._call_unbound(owner, name, node, arguments)
            if found is not None:
                return found
        if owner.kind is not ValueKind.NAME:
            method = self.find_method(owner, name)
            if (
                method is not None
                and name == "forward"
                and owner.kind is ValueKind.MODEL
                and owner is not self._current_self()
            ):
                return self.call_model(owner, node, arguments, OpKind.FORWARD_CALL)
            if method is not None:
                return self.interpreter.run_function(method, node, arguments.positional, arguments.keyword)
            attribute = owner.attributes.get(name)
            if attribute is None or attribute.kind is ValueKind.UNKNOWN:
                return self.methods.evaluate(owner, name, node, arguments)
        return self.call_value(evaluator.attribute(owner, node.func), node, arguments)

    def _call_unbound(
        self, class_value: AbstractValue, name: str, node: ast.Call, arguments: Arguments
    ) -> AbstractValue | None:
        """Run a method that is called on its class: ``Net.forward(model, x)``; None if the file does not define it."""
        for base in (class_value, *_base_classes(class_value)):
            method = self._find_definition(base, name)
            if method is None:
                continue
            first = arguments.positional[0]
            if name == "forward" and first.kind is ValueKind.MODEL and first is not self._current_self():
                return self.call_model(
                    first, node, Arguments(arguments.positional[1:], arguments.keyword), OpKind.FORWARD_CALL
                )
            receiver = (class_value,) if "classmethod" in _decorator_names(method) else ()
            bound = AbstractValue(kind=ValueKind.FUNCTION, name=name, node=method, scope=base.scope, sources=receiver)
            return self.interpreter.run_function(bound, node, arguments.positional, arguments.keyword)
        return None

    def _evaluate_arguments(self, node: ast.Call) -> Arguments:
        evaluator = self.interpreter.evaluator
        positional = list[AbstractValue]()
        for each in node.args:
            value = evaluator.evaluate(each)
            unpacked = (
                isinstance(each, ast.Starred) and isinstance(value.node, ast.Tuple) and value.kind is ValueKind.SEQUENCE
            )
            positional += value.sources if unpacked else (value,)
        keyword = dict[str, AbstractValue]()
        for each in node.keywords:
            value = evaluator.evaluate(each.value)
            items = _keyword_items(value) if each.arg is None else {each.arg: value}
            keyword |= {"**": value} if items is None else items
        return Arguments(positional, keyword)

    def call_value(self, callee: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        """Return the result of calling ``callee``, whose kind decides how the call is evaluated."""
        created = self._call_one_of(callee, node, arguments) if callee.union and not callee.name else None
        if created is not None:
            return created
        if callee.arguments and callee.kind in (ValueKind.NAME, ValueKind.FUNCTION, ValueKind.CLASS):
            bound = dict(callee.arguments)  # by functools.partial
            positional = [bound.pop(key) for key in list(bound) if key.isdigit()]
            arguments = Arguments([*positional, *arguments.positional], bound | arguments.keyword)
        match callee.kind:
            case ValueKind.NAME:
                return self._call_by_name(callee.name, node, arguments)
            case ValueKind.FUNCTION:
                return self.interpreter.run_function(callee, node, arguments.positional, arguments.keyword)
            case ValueKind.CLASS:
                return self.create_instance(callee, node, arguments.positional, arguments.keyword)
            case ValueKind.MODEL:
                return self.call_model(callee, node, arguments, OpKind.MODEL_CALL)
            case ValueKind.LOSS:
                return self._call_loss(callee, callee.name, node, arguments)
            case ValueKind.INSTANCE:
                method = self.find_method(callee, "__call__")
                if method is not None:
                    return self.interpreter.run_function(method, node, arguments.positional, arguments.keyword)
            case _:
                pass
        return self.record_escape(node, callee, *arguments.all())

    def _call_one_of(self, callee: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue | None:
        """Return what a call of one of several classes creates: ``{"adam": Adam, "sgd": SGD}[name](...)``."""
        classes = list(callee.alternatives())
        if any(each.kind is not ValueKind.NAME for each in classes):
            return None
        kinds = {created_kind(each.name) for each in classes}
        kind = kinds.pop() if len(kinds) == 1 else None
        base = BASES_BY_KIND.get(kind, "") if kind is not None else ""
        return self.create(kind, base, node, arguments) if kind is not None and base else None

    def record_escape(self, node: ast.AST, *values: AbstractValue) -> AbstractValue:
        """Record that values are passed to code outside the file, and return an unknown value."""
        escaping = [each for each in values if each.kind is not ValueKind.CONSTANT]
        if any(_may_be_changed(each) for each in escaping):
            self.interpreter.recording.add(OpKind.ESCAPE, node, unknown_value(node), *_flatten(escaping))
        return unknown_value(node, *escaping)

    def _call_by_name(self, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        kind = created_kind(name)
        if kind is not None:
            return self.create(kind, name, node, arguments)
        if is_loss(name):
            return self._call_loss(unknown_value(node), name, node, arguments)
        found = self.functions.evaluate(name, node, arguments)
        if found is not None:
            return found
        if not is_harmless(name):
            return self.record_escape(node, *arguments.all())
        if name.startswith("torch."):
            return self.torch_result(name, node, arguments)
        return unknown_value(node, *arguments.all())

    def torch_result(self, name: str, node: ast.AST, arguments: Arguments, *tensors: AbstractValue) -> AbstractValue:
        """Return the result of a PyTorch function on tensors."""
        inputs = (*tensors, *arguments.all())
        recording = self.interpreter.recording
        if name in LEAF_CONSTRUCTORS:
            argument = (
                arguments.get(1, "requires_grad") if name in PARAMETERS else arguments.keyword.get("requires_grad")
            )
            requires_grad = name in PARAMETERS if argument is None else argument.constant()
            facts = {NO_GRAPH} if requires_grad is False else {LEAF} if requires_grad else set[str]()
        else:
            plain = (ValueKind.CONSTANT, ValueKind.NAME)
            with_graph = [each for each in _flatten(inputs) if each.kind not in plain and NO_GRAPH not in each.facts]
            has_no_graph = recording.grad is False or not with_graph or name.rpartition(".")[2] in INDEX_FUNCTIONS
            facts = {NO_GRAPH} if has_no_graph else set[str]()
        result = AbstractValue(
            kind=ValueKind.TENSOR, name=name, node=node, sources=inputs, arguments=arguments.by_name(), facts=facts
        )
        recording.add(
            OpKind.TORCH_CALL,
            node,
            inputs[0] if inputs else unknown_value(node),
            result=result,
            name=name,
            arguments=arguments.by_name(),
        )
        return result

    def create(self, kind: ValueKind, name: str, node: ast.AST, arguments: Arguments) -> AbstractValue:
        """Return a new value of a given kind, and record its creation."""
        value = AbstractValue(
            kind=kind, name=name, node=node, sources=tuple(arguments.positional), arguments=arguments.by_name()
        )
        first = arguments.get(0, FIRST_ARGUMENT.get(kind, ""))
        if kind in (ValueKind.OPTIMIZER, ValueKind.SCHEDULER, ValueKind.LOADER) and first is not None:
            sampler = [each for key in ("sampler", "batch_sampler") if (each := arguments.keyword.get(key))]
            value.sources = (
                (*_flatten_parameters(first), *sampler) if kind is ValueKind.OPTIMIZER else (first, *sampler)
            )
        if kind is ValueKind.MODEL:
            last = name.rpartition(".")[2]
            if last in WRAPPERS:
                value.facts = value.facts | {WRAPPER}
            elif name.startswith("torch.nn."):
                layers = (
                    arguments.positional[0].sources
                    if len(arguments.positional) == 1 and arguments.positional[0].sources
                    else arguments.positional
                )
                value.sources = tuple(layers) if name in SEQUENTIALS or last.startswith("Module") else ()
                value.attributes = {f"[{number}]": each for number, each in enumerate(value.sources)}
                for each in value.sources:
                    each.add_owner(value)
        self.interpreter.recording.add(
            OpKind.CREATE, node, value, *arguments.all(), name=name, arguments=arguments.by_name()
        )
        return value

    def _call_loss(self, criterion: AbstractValue, name: str, node: ast.AST, arguments: Arguments) -> AbstractValue:
        all_arguments = {
            **arguments.by_name(),
            **{key: each for key, each in criterion.arguments.items() if not key.isdigit()},
        }
        first, second = arguments.get(0, "input"), arguments.get(1, "target")
        both = [] if first is None else [first] if second is None else [first, second]
        with_graph = [
            each for each in arguments.all() if each.kind is not ValueKind.CONSTANT and NO_GRAPH not in each.facts
        ]
        facts = {NO_GRAPH} if self.interpreter.recording.grad is False or not with_graph else set[str]()
        result = AbstractValue(
            kind=ValueKind.TENSOR,
            name=name or "loss",
            node=node,
            sources=tuple(arguments.all()),
            arguments=all_arguments,
            facts=facts,
        )
        self.interpreter.recording.add(
            OpKind.LOSS, node, criterion, *both, result=result, name=name, arguments=all_arguments
        )
        return result

    def call_model(self, model: AbstractValue, node: ast.AST, arguments: Arguments, kind: OpKind) -> AbstractValue:
        """Return the output of a model; if the file defines the model, run its forward."""
        recording = self.interpreter.recording
        result = AbstractValue(
            kind=ValueKind.TENSOR, name=model.name or "model", node=node, sources=(model, *arguments.all())
        )
        operation = recording.add(kind, node, model, *arguments.all(), result=result, arguments=arguments.by_name())
        wrapped = model
        while WRAPPER in wrapped.facts and wrapped.sources:
            wrapped = wrapped.sources[0]
        forward = self.find_method(wrapped, "forward")
        if forward is not None:
            inner = self.interpreter.run_function(forward, node, arguments.positional, arguments.keyword)
            inner, items = _tensor_or_tuple(inner)
            if inner.kind is ValueKind.TENSOR:
                result.name, result.sources = inner.name, (model, inner, *arguments.all())
                result.arguments, result.attributes = inner.arguments, {**items, FORWARD_RESULT: inner}
            elif inner.kind is ValueKind.SEQUENCE:
                operation.result = inner
                return inner
        elif not wrapped.union:
            last = wrapped.last_layer()
            result.name, result.arguments = last.name or result.name, last.arguments
            result.attributes = {FORWARD_RESULT: wrapped}
        if recording.grad is False:
            result.facts = result.facts | {NO_GRAPH}
        return result

    def define_class(self, node: ast.ClassDef) -> AbstractValue:
        """Return the class of a class definition."""
        bases = tuple(self.interpreter.evaluator.evaluate(each) for each in node.bases)
        value = AbstractValue(
            kind=ValueKind.CLASS, name=node.name, node=node, sources=bases, scope=self.interpreter.scope
        )
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                self._class_by_method[each] = value
        return value

    def enclosing_class(self, function: Any) -> Any:
        """Return the definition of a method's class, or the function itself if it is not a method."""
        found = self._class_by_method.get(function)
        return function if found is None else found.node

    def is_module(self, class_value: AbstractValue) -> bool:
        """Return True for a class that derives from ``torch.nn.Module``."""
        return any(
            self.is_module(base)
            if base.kind is ValueKind.CLASS
            else base.name.rpartition(".")[2] in MODULE_BASES
            or created_kind(base.name) in (ValueKind.MODEL, ValueKind.LOSS)
            for base in class_value.sources
        )

    def create_instance(
        self,
        class_value: AbstractValue,
        node: ast.AST,
        positional: Sequence[AbstractValue],
        keyword: dict[str, AbstractValue],
    ) -> AbstractValue:
        """Return a new instance of a class of the file, after running its constructor."""
        module = self.is_module(class_value)
        library_kind = next(
            (
                found
                for base in _base_classes(class_value)
                if (found := created_kind(base.name)) and base.kind is ValueKind.NAME
            ),
            None,
        )
        value_kind = ValueKind.MODEL if module else library_kind or ValueKind.INSTANCE
        value = AbstractValue(
            kind=value_kind, name=class_value.name, node=node, arguments=Arguments(positional, keyword).by_name()
        )
        value.scope = class_value
        if isinstance(class_value.scope, Scope):  # the other methods of the class may run
            class_value.scope.module_scope.has_run = True
        if value_kind is ValueKind.OPTIMIZER:
            value.sources = tuple(each for first in positional[:1] for each in _flatten_parameters(first))
        elif value_kind in (ValueKind.LOADER, ValueKind.SCHEDULER):
            value.sources = tuple(positional[:1])
        for each in reversed([class_value, *_base_classes(class_value)]):
            self._set_class_attributes(each, value)
        method = self.find_method(value, "__init__")
        if method is not None:
            self.interpreter.run_function(method, node, positional, keyword)
        elif class_value.node.decorator_list:  # a dataclass
            self._set_fields(class_value, value, positional, keyword)
        self.interpreter.recording.add(
            OpKind.CREATE,
            node,
            value,
            *positional,
            *keyword.values(),
            name=class_value.name,
            arguments=dict(value.arguments),
        )
        return value

    def _set_class_attributes(self, class_value: AbstractValue, value: AbstractValue) -> None:
        if class_value.kind is not ValueKind.CLASS:
            return
        before = self.interpreter.scope
        self.interpreter.scope = class_value.scope or before  # a union of classes has no scope
        for each in class_value.node.body:
            if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
                value.attributes[each.targets[0].id] = self.interpreter.evaluator.evaluate(each.value)
        self.interpreter.scope = before

    def _set_fields(
        self,
        class_value: AbstractValue,
        instance: AbstractValue,
        positional: Sequence[AbstractValue],
        keyword: dict[str, AbstractValue],
    ) -> None:
        fields = [
            (each, each.target.id)
            for each in class_value.node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        for number, (each, name) in enumerate(fields):
            value = positional[number] if number < len(positional) else keyword.get(name)
            is_name = isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
            if value is None and each.value is not None and is_name and "**" not in keyword:
                value = self.interpreter.evaluator.evaluate(each.value)  # the name of a class in a registry, say
            elif value is None and each.value is not None and _makes_collection(each.value):
                value = self.interpreter.evaluator.evaluate(ast.copy_location(ast.List([], ast.Load()), each.value))
            elif value is None:
                value = unknown_value(each)
                value.kind = self.interpreter.evaluator.annotated_kind(each.annotation) or value.kind
            instance.attributes[name] = self.interpreter.infer_kind(
                value, f"self.{name}", class_value.node, class_value.scope
            )

    def find_method(self, owner: AbstractValue, name: str) -> AbstractValue | None:
        """Return a method that the file defines for an object, bound to this object; None if there is none."""
        for each in owner.alternatives():
            class_value = each.scope
            if each.kind is ValueKind.FUNCTION or not isinstance(class_value, AbstractValue):
                continue
            for base in (class_value, *_base_classes(class_value)):
                method = self._find_definition(base, name)
                if method is not None:
                    static = "staticmethod" in _decorator_names(method)
                    return AbstractValue(
                        kind=ValueKind.FUNCTION,
                        name=name,
                        node=method,
                        scope=base.scope,
                        sources=() if static else (each,),
                    )
        return None

    @staticmethod
    def _find_definition(class_value: AbstractValue, name: str) -> Any:
        return _methods(class_value.node).get(name) if class_value.kind is ValueKind.CLASS else None

    def _call_super(self, node: ast.Call) -> AbstractValue:
        """Run the method that ``super().method(...)`` calls."""
        arguments = self._evaluate_arguments(node)
        function = self.interpreter.recording.functions[-1]
        class_value, owner = self._class_by_method.get(function), self._current_self()
        name = getattr(node.func, "attr", "")
        for base in _base_classes(class_value) if class_value is not None and owner is not None else ():
            method = self._find_definition(base, name)
            if method is not None and owner is not None:
                bound = AbstractValue(
                    kind=ValueKind.FUNCTION, name=name, node=method, scope=base.scope, sources=(owner,)
                )
                return self.interpreter.run_function(bound, node, arguments.positional, arguments.keyword)
        return unknown_value(node, *arguments.all())

    def _current_self(self) -> AbstractValue | None:
        """Return the ``self`` of the running method."""
        functions = self.interpreter.recording.functions
        function: Any = functions[-1] if functions else None
        if (
            function not in self._class_by_method
            or _decorator_names(function) & {"staticmethod"}
            or not function.args.args
        ):
            return None
        return self.interpreter.scope.get(function.args.args[0].arg)


@lru_cache(maxsize=1024)
def _makes_collection(default: ast.expr | None) -> bool:
    """Return True for a field that starts as an empty list or dictionary: ``field(default_factory=list)``."""
    factories = [each.value for each in getattr(default, "keywords", ()) if each.arg == "default_factory"]
    return any(isinstance(each, ast.Name) and each.id in ("list", "dict") for each in factories)


def _methods(definition: ast.ClassDef) -> dict[str, Any]:
    methods = [each for each in definition.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {each.name: each for each in reversed(methods)}  # the first one of equal names


def _tensor_or_tuple(output: AbstractValue) -> tuple[AbstractValue, dict[str, AbstractValue]]:
    """Return the tensor of an output that is a tensor or, by a flag, a tuple, and the items of the tuple."""
    tuples = [each for each in output.alternatives() if each.kind is ValueKind.SEQUENCE]
    tensors = [each for each in output.alternatives() if each.kind is ValueKind.TENSOR]
    if len(tuples) != 1 or not tensors or len(output.union) != len(tuples) + len(tensors):
        return output, {}
    return reduce(join_values, tensors), tuples[0].attributes


def _keyword_items(value: AbstractValue) -> dict[str, AbstractValue] | None:
    """Return the items of a dictionary with constant keys, by key; None if some may be unknown."""
    keys = [key[2:-2] for key in value.attributes if key.startswith("['")]
    if value.kind is not ValueKind.SEQUENCE or value.name != "dict" or value.union or MAYBE_NONE in value.facts:
        return None
    if len(keys) != len(value.sources) or not all(map(str.isidentifier, keys)):
        return None
    return {key: value.attributes[f"['{key}']"] for key in keys}


def _decorator_names(function: Any) -> set[str]:
    """Return the names of the plain decorators of a method."""
    return {getattr(each, "id", "") for each in function.decorator_list}


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _base_classes(class_value: AbstractValue) -> list[AbstractValue]:
    found, queue = list[AbstractValue](), list(class_value.sources)
    while queue and len(found) < 20:
        each = queue.pop(0)
        found.append(each)
        queue.extend(each.sources if each.kind is ValueKind.CLASS else ())
    return found


def _flatten_parameters(value: AbstractValue) -> list[AbstractValue]:
    """Return the parameters in the first argument of an optimizer."""
    if value.kind is ValueKind.SEQUENCE:
        return [inner for each in value.sources for inner in _flatten_parameters(each)]
    return [value]


def _flatten(values: Sequence[AbstractValue]) -> list[AbstractValue]:
    """Return values, the items of sequences, the attributes of instances and the owners of bound methods."""
    queue = list(values)
    seen: set[AbstractValue] = set()
    for number, each in enumerate(queue, 1):  # which grows
        if number == _MAX_FLATTENED:
            break
        seen.add(each)
        kind = each.kind
        if kind is ValueKind.SEQUENCE or kind is ValueKind.FUNCTION:
            queue += each.sources
        elif kind is ValueKind.INSTANCE:
            queue += [inner for inner in each.attributes.values() if inner not in seen]
        elif kind is ValueKind.UNKNOWN:
            queue += [
                inner
                for inner in each.sources
                if inner.kind is not ValueKind.TENSOR and SUBMODULE not in inner.facts and inner not in seen
            ]
    return queue[:_MAX_FLATTENED]


def _may_be_changed(value: AbstractValue) -> bool:
    return value.kind not in (ValueKind.CONSTANT, ValueKind.NAME)
