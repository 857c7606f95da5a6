"""Evaluates calls of methods of known values, and records their effects on training.

The handler of a method is called ``_<kind of the owner>_<method>``; ``_<kind>`` handles all other methods.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

from trueloop.analysis.abstract_value import (
    EXTENDED,
    EXTERNAL,
    GRAD,
    LEAF,
    MANAGED,
    NO_GRAPH,
    SEQUENTIAL,
    SUBMODULE,
    AbstractValue,
    ValueKind,
    parameters_of_gradient,
    unknown_value,
)
from trueloop.analysis.interpreter.functions import attribute_of_name
from trueloop.analysis.operations import OpKind

if TYPE_CHECKING:
    from trueloop.analysis.interpreter.calls import Arguments
    from trueloop.analysis.interpreter.interpreter import Interpreter

CONVERTING_METHODS: Final = frozenset((
    "to", "cuda", "cpu", "half", "float", "double", "bfloat16", "type", "xpu", "mps", "share_memory",
    "to_empty", "compile", "contiguous", "pin_memory",
))  # fmt: skip
"""Methods that return the object itself, or a copy on another device or of another type."""
DETACHING_METHODS: Final = frozenset((
    "item", "tolist", "numpy", "detach", "detach_", "argmax", "argmin", "size", "dim", "numel", "ne", "eq", "data_ptr",
    "nelement",
))  # fmt: skip
ADDING_METHODS: Final = frozenset(("append", "add", "extend", "insert", "appendleft", "update", "setdefault", "put"))
VIEW_METHODS: Final = frozenset(("items", "values", "keys", "copy"))
OVERWRITING_METHODS: Final = frozenset(("zero_", "fill_", "copy_"))
FILLING_METHODS: Final = OVERWRITING_METHODS | {"normal_", "uniform_", "random_", "bernoulli_"}
FREEZING_METHODS: Final = frozenset(("parameters", "named_parameters", "requires_grad_"))
PREPARING_METHODS: Final = frozenset(("prepare", "setup", "setup_module", "setup_optimizers", "setup_dataloaders"))
CLIPPING_METHODS: Final = frozenset(("clip_grad_norm_", "clip_grad_value_", "clip_gradients"))
OPAQUE_METHODS: Final = frozenset(("buffers", "extra_repr", "no_sync", "values", "items", "keys"))
KEYWORDS: Final = "keywords"
"""Name of the dictionary of keyword arguments, whose keys are all known."""
KNOWN_ITEMS: Final = "known items"
"""Name of the pairs of keys and values of such a dictionary: a loop over them is interpreted once for each pair."""


class Methods:
    """Evaluates calls of methods, by the kind of the object that has the method."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter

    def evaluate(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        """Return the value of a call of a method, and record its operations."""
        special = getattr(self, f"_{owner.kind.value}_{name}", None)
        if special is not None:
            return special(owner, node, arguments)
        if name == "backward":
            return self._backward(owner, node, arguments)
        if name == "state_dict" and owner.kind in (
            ValueKind.MODEL,
            ValueKind.OPTIMIZER,
            ValueKind.SCHEDULER,
            ValueKind.SCALER,
        ):
            return self._record(
                OpKind.STATE_DICT, node, owner, result=AbstractValue(kind=ValueKind.STATE, node=node, sources=(owner,))
            )
        if name == "load_state_dict" and owner.kind is not ValueKind.UNKNOWN:
            return self._record(
                OpKind.LOAD_STATE_DICT, node, owner, *arguments.all()[:1], arguments=arguments.by_name()
            )
        handler = getattr(self, f"_{owner.kind.value}", None)
        found: AbstractValue | None = handler(owner, name, node, arguments) if handler is not None else None
        return found or self.interpreter.calls.record_escape(node, owner, *arguments.all())

    def _record(
        self, kind: OpKind, node: ast.Call, subject: AbstractValue, *inputs: AbstractValue, **fields: Any
    ) -> AbstractValue:
        self.interpreter.recording.add(kind, node, subject, *inputs, **fields)
        return fields.get("result") or AbstractValue(kind=ValueKind.CONSTANT, node=node)

    def _backward(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        """Record ``loss.backward()``, ``scaler.scale(loss).backward()`` or ``accelerator.backward(loss)``."""
        first = arguments.positional[0] if arguments.positional else None
        if first is not None and owner.kind is not ValueKind.TENSOR:
            first.facts = first.facts | {MANAGED}
            return self._record(OpKind.BACKWARD, node, first, owner, arguments=arguments.by_name())
        root, *scaler = owner.sources if owner.name == "scaled" else (owner,)
        return self._record(OpKind.BACKWARD, node, root, *scaler, arguments=arguments.by_name())

    def _set_requires_grad(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        argument = arguments.get(0, "requires_grad")
        self.interpreter.assignments.set_requires_grad(node, owner, True if argument is None else argument.constant())
        return owner

    # Models ----------------------------------------------------------------------------------------------------------

    def _model_forward(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self.interpreter.calls.call_model(owner, node, arguments, OpKind.FORWARD_CALL)

    def _model___call__(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self.interpreter.calls.call_model(owner, node, arguments, OpKind.MODEL_CALL)

    def _model_train(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        mode = arguments.get(0, "mode")
        value = True if mode is None else mode.constant()
        value = value if isinstance(value, bool) else None
        self._record(OpKind.SET_MODE, node, owner, value=value, arguments=arguments.by_name())
        return owner

    def _model_eval(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        self._record(OpKind.SET_MODE, node, owner, value=False)
        return owner

    def _model_freeze(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        """Record ``freeze()``, which sets eval mode in Lightning, and perhaps in other libraries."""
        return self._record(OpKind.SET_MODE, node, owner)

    def _class_load_from_checkpoint(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        """Return the new module of Lightning's ``Net.load_from_checkpoint(path)``, with the weights loaded."""
        model = self.interpreter.calls.create_instance(owner, node, [], {"**": unknown_value(node)})
        self._record(OpKind.LOAD_STATE_DICT, node, model, *arguments.all()[:1], arguments=arguments.by_name())
        return model

    def _model_zero_grad(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self._record(OpKind.CLEAR_GRADIENTS, node, owner, arguments=arguments.by_name())

    _optimizer_zero_grad = _model_zero_grad
    _model_requires_grad_ = _parameters_requires_grad_ = _set_requires_grad

    def _model_add_module(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        key, value = arguments.get(0, "name"), arguments.get(1, "module")
        if value is not None:
            if owner.name == SEQUENTIAL:
                self._extend(owner, [value])
            owner.attributes[str(key.constant("?") if key else "?")] = value
            value.add_owner(owner)
            self._record(OpKind.SET_ATTRIBUTE, node, owner, value, name="add_module")
        return AbstractValue(kind=ValueKind.CONSTANT, node=node)

    _model_register_module = _model_add_module

    def _model_append(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        self._extend(owner, arguments.positional)
        self._record(OpKind.SET_ATTRIBUTE, node, owner, *arguments.positional, name="[]")
        return owner

    _model_extend = _model_insert = _model_append

    def _extend(self, owner: AbstractValue, layers: list[AbstractValue]) -> None:
        """Add layers to a container; note whether a ``Sequential`` certainly gets one at its end."""
        recording = self.interpreter.recording
        before, count = owner.last_layer(), len(owner.sources)
        is_known = before is not owner or not (owner.sources or getattr(owner.node, "args", ()))
        is_layer = len(layers) == 1 and layers[0].kind is ValueKind.MODEL
        is_certain = is_layer and is_known and not recording.branches and not recording.loops
        if owner.name == SEQUENTIAL and is_certain:
            owner.attributes[f"[{count}]"] = layers[0]
        owner.facts = {*owner.facts, EXTENDED} if is_certain else owner.facts - {EXTENDED}
        owner.sources = (*owner.sources, *layers)
        for each in layers:
            each.add_owner(owner)

    def _model_parameters(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return AbstractValue(kind=ValueKind.PARAMETERS, name="parameters", node=node, sources=(owner,))

    def _model_named_parameters(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return AbstractValue(kind=ValueKind.PARAMETERS, name="named_parameters", node=node, sources=(owner,))

    _loss_parameters = _model_parameters

    def _model_modules(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        submodule = AbstractValue(kind=ValueKind.MODEL, node=node, sources=(owner,), facts={SUBMODULE})
        return AbstractValue(kind=ValueKind.SEQUENCE, name="modules", node=node, sources=(submodule,))

    _model_children = _model_modules

    def _model_named_modules(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        submodule = AbstractValue(kind=ValueKind.MODEL, node=node, sources=(owner,), facts={SUBMODULE})
        item = AbstractValue(
            kind=ValueKind.SEQUENCE, node=node, sources=(unknown_value(node), submodule), attributes={"[1]": submodule}
        )
        return AbstractValue(kind=ValueKind.SEQUENCE, name="iterations", node=node, sources=(item,))

    _model_named_children = _model_named_modules

    def _model_apply(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        function = arguments.get(0, "fn")
        if function is not None and function.kind is ValueKind.FUNCTION:
            # ``apply`` calls the function with every submodule, and so with all parts of the model.
            self.interpreter.run_function(function, node, [owner], {})
        return owner

    def _model(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if name in CONVERTING_METHODS:
            return owner
        if name.startswith("register_"):
            return self._record(OpKind.SET_ATTRIBUTE, node, owner, *arguments.positional, name=name)
        if name.startswith(("named_", "get_")) or name in OPAQUE_METHODS:
            return unknown_value(node, owner)
        return AbstractValue(kind=ValueKind.UNKNOWN, node=node, sources=(owner, *arguments.all()))

    def _loss(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return owner if name in CONVERTING_METHODS or name in ("train", "eval") else unknown_value(node, owner)

    # Optimizers, schedulers, scalers ---------------------------------------------------------------------------------

    def _optimizer_step(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        closure = arguments.get(0, "closure")
        if closure is not None and closure.kind is ValueKind.FUNCTION:
            self.interpreter.run_function(closure, node, [], {})
        elif closure is not None and closure.kind is not ValueKind.CONSTANT:
            self.interpreter.calls.record_escape(node, owner, closure)
        return self._record(OpKind.STEP, node, owner, value="closure" if closure is not None else None)

    def _optimizer_add_param_group(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        owner.sources = (*owner.sources, *arguments.all())
        return self._record(OpKind.SET_ATTRIBUTE, node, owner, *arguments.all(), name="add_param_group")

    def _optimizer(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue | None:
        return (
            unknown_value(node, owner) if name in ("train", "eval", "get_lr") or name.startswith("register_") else None
        )

    def _scheduler_step(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self._record(OpKind.SCHEDULER_STEP, node, owner, *arguments.all())

    def _scaler_scale(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        first = arguments.get(0, "outputs") or unknown_value(node)
        result = AbstractValue(
            kind=ValueKind.TENSOR, name="scaled", node=node, sources=(first, owner), facts=set(first.facts)
        )
        return self._record(OpKind.SCALE_LOSS, node, owner, first, result=result)

    def _scaler_step(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self._record(OpKind.STEP, node, arguments.get(0, "optimizer") or unknown_value(node), owner)

    def _scaler_unscale_(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self._record(OpKind.UNSCALE, node, arguments.get(0, "optimizer") or unknown_value(node), owner)

    def _scaler_update(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self._record(OpKind.SCALER_UPDATE, node, owner)

    def _generic(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return unknown_value(node, owner, *arguments.all())

    _scheduler = _scaler = _sampler = _loader = _dataset = _constant = _generic

    def _accelerator(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        inputs = arguments.positional
        if name in PREPARING_METHODS and inputs:
            for each in inputs:
                each.facts = each.facts | {MANAGED}
            items = {f"[{number}]": each for number, each in enumerate(inputs)}
            prepared = AbstractValue(kind=ValueKind.SEQUENCE, node=node, sources=tuple(inputs), attributes=items)
            return inputs[0] if len(inputs) == 1 else prepared
        if name in CLIPPING_METHODS and inputs:
            return self._record(OpKind.CLIP_GRADIENTS, node, inputs[0], name=name)
        return inputs[0] if name == "unwrap_model" and inputs else unknown_value(node, owner)

    # Data ------------------------------------------------------------------------------------------------------------

    def _sampler_set_epoch(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self._record(OpKind.SET_EPOCH, node, owner, *arguments.all())

    _loader_set_epoch = _dataset_set_epoch = _sampler_set_epoch

    # Tensors ---------------------------------------------------------------------------------------------------------

    def _tensor_requires_grad_(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        argument = arguments.get(0, "requires_grad")
        value = True if argument is None else argument.constant()
        result = AbstractValue(
            kind=ValueKind.TENSOR, name="requires_grad_", node=node, sources=(owner,), facts=set(owner.facts)
        )
        return self._record(
            OpKind.SET_REQUIRES_GRAD, node, owner, value=value if isinstance(value, bool) else None, result=result
        )

    def _tensor(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if owner.name == GRAD:
            self._record(
                OpKind.CLEAR_GRADIENTS if name in OVERWRITING_METHODS else OpKind.ACCESS_GRADIENTS,
                node,
                parameters_of_gradient(owner),
                name=name,
            )
            return owner
        statement = self.interpreter.recording.statement
        is_statement = isinstance(statement, ast.Expr) and statement.value is node
        if is_statement and (name in CONVERTING_METHODS or name == "detach"):
            return self._record(OpKind.TORCH_CALL, node, owner, name=f"torch.Tensor.{name}")  # the result is discarded
        if name in CONVERTING_METHODS:
            return owner
        if name in DETACHING_METHODS:
            sources = (owner, *arguments.positional) if name in ("eq", "ne") else (owner,)
            return AbstractValue(kind=ValueKind.TENSOR, name=name, node=node, sources=sources, facts={NO_GRAPH})
        result = self.interpreter.calls.torch_result(f"torch.Tensor.{name}", node, arguments, owner)
        target = node.func.value if is_statement and isinstance(node.func, ast.Attribute) else None
        if name in FILLING_METHODS and LEAF not in owner.facts and isinstance(target, ast.Name):
            self.interpreter.assignments.assign(target, result)  # nothing is left of how its numbers were computed
        return result

    def _parameters(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if name in ADDING_METHODS:
            owner.sources = (*owner.sources, *(each for value in arguments.all() for each in value.sources))
            return AbstractValue(kind=ValueKind.CONSTANT, node=node)
        if name in DETACHING_METHODS:
            return AbstractValue(kind=ValueKind.TENSOR, name=name, node=node, sources=(owner,), facts={NO_GRAPH})
        return owner if name in ("items", "values") else unknown_value(node, owner)

    # Containers and unknown values -----------------------------------------------------------------------------------

    def _state(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if name in ADDING_METHODS:
            return self._record(OpKind.STORE_ITEM, node, owner, *arguments.all(), name=name)
        return owner if name in VIEW_METHODS else unknown_value(node, owner)

    def _sequence_get(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        """Return the class or function that a registry has under a name; other items are unknown."""
        from trueloop.analysis.interpreter.evaluator import is_empty_dictionary

        key = f"[{arguments.positional[0].constant()!r}]" if arguments.positional else ""
        if key not in owner.attributes and is_empty_dictionary(owner):
            self.interpreter.imports.run_registrations()
        found = owner.attributes.get(key)
        is_known = found is not None and found.kind in (ValueKind.CLASS, ValueKind.FUNCTION)
        return found if found is not None and is_known else unknown_value(node, owner)

    def _sequence(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if name == "items" and owner.name == KEYWORDS:
            return _known_items(owner, node)
        if name == "setdefault" and len(arguments.positional) == 2:
            return self._setdefault(owner, node, arguments)
        if name == "items" and owner.sources:
            from trueloop.analysis.interpreter.evaluator import element

            value = element(owner, node)
            item = AbstractValue(
                kind=ValueKind.SEQUENCE, node=node, sources=(unknown_value(node), value), attributes={"[1]": value}
            )
            return AbstractValue(kind=ValueKind.SEQUENCE, name="iterations", node=node, sources=(item,))
        if name not in ADDING_METHODS:
            return owner if name in ("items", "values", "copy") else unknown_value(node, owner)
        added = arguments.positional
        if name in ("update", "extend") and len(added) == 1 and added[0].kind is ValueKind.SEQUENCE:
            owner.attributes |= added[0].attributes if name == "update" else {}
            added = [each for each in added[0].sources if each not in owner.sources]
        if name == "update":
            owner.attributes |= {f"[{key!r}]": each for key, each in arguments.keyword.items()}
        owner.sources = (*owner.sources, *added)
        if arguments.positional and all(each.kind is ValueKind.PARAMETERS for each in owner.sources):
            owner.kind, owner.sources = (
                ValueKind.PARAMETERS,
                tuple(one for each in owner.sources for one in each.sources),
            )
        return self._record(OpKind.STORE_ITEM, node, owner, *arguments.all(), name=name)

    def _setdefault(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        """Return the item of a dictionary; it is created only once, and not in each iteration of the loops around."""
        key, value = arguments.positional
        name = f"[{key.constant()!r}]"
        self._record(OpKind.STORE_ITEM, node, owner, *arguments.all(), name="setdefault")
        known = owner.attributes.get(name)
        if known is not None:
            return known
        value.loops = owner.loops
        owner.sources = (*owner.sources, value)
        if key.constant() is not None:
            owner.attributes[name] = value
        return value

    def _model_get_submodule(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        key = arguments.get(0, "target")
        known = attribute_of_name(owner, key) if key is not None else None
        return known or AbstractValue(kind=ValueKind.MODEL, node=node, sources=(owner,), facts={SUBMODULE})

    def _unknown(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue | None:
        if name in FREEZING_METHODS and owner.name == "builtins.getattr" and owner.sources[0].kind is ValueKind.MODEL:
            part = AbstractValue(kind=ValueKind.MODEL, node=owner.node, sources=owner.sources, facts={SUBMODULE})
            return self.evaluate(part, name, node, arguments)  # getattr(model, name).parameters()
        has_no_graph = NO_GRAPH in owner.facts and not arguments.all()  # (outputs == labels).sum()
        if name in ("item", "detach", "tolist", "numpy", "argmax") or has_no_graph:
            return AbstractValue(kind=ValueKind.UNKNOWN, name=name, node=node, sources=(owner,), facts={NO_GRAPH})
        if name in CONVERTING_METHODS and EXTERNAL not in owner.facts:
            return owner
        if name in ADDING_METHODS and arguments.positional:
            self._record(OpKind.STORE_ITEM, node, owner, *arguments.all(), name=name)
        return unknown_value(node, owner) if name == "append" else None

    def _instance(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        """Call a method that the file does not define: it is inherited from another file, or does not exist."""
        return self.interpreter.calls.record_escape(node, owner, *owner.attributes.values(), *arguments.all())


def _known_items(owner: AbstractValue, node: ast.Call) -> AbstractValue:
    """Return the pairs of a dictionary whose keys are all known."""
    pairs: list[AbstractValue] = []
    for name, value in owner.attributes.items():
        key = AbstractValue(kind=ValueKind.CONSTANT, node=node, value=name[2:-2])
        items = {"[0]": key, "[1]": value}
        pairs.append(AbstractValue(kind=ValueKind.SEQUENCE, node=node, sources=(key, value), attributes=items))
    return AbstractValue(kind=ValueKind.SEQUENCE, name=KNOWN_ITEMS, node=node, sources=tuple(pairs))
