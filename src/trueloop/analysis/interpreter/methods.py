"""What the methods of models, optimizers, tensors and the like mean to training.

A method here is called ``_<kind of the owner>_<name of the method>``; one called ``_<kind>`` stands for all others.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

from trueloop.analysis.abstract_value import (
    EXTERNAL,
    GRAD,
    MANAGED,
    NO_GRAPH,
    PART,
    AbstractValue,
    ValueKind,
    parameters_of_gradient,
    unknown,
)
from trueloop.analysis.operations import OpKind

if TYPE_CHECKING:
    from trueloop.analysis.interpreter.calls import Arguments
    from trueloop.analysis.interpreter.interpreter import Reader

SAME: Final = frozenset((
    "to", "cuda", "cpu", "half", "float", "double", "bfloat16", "type", "xpu", "mps", "share_memory",
    "to_empty", "compile", "contiguous", "pin_memory",
))  # fmt: skip
"""Return what they are called on, or the same in another place or type."""
READ_OUT: Final = frozenset((
    "item", "tolist", "numpy", "detach", "detach_", "argmax", "argmin", "size", "dim", "numel", "ne", "eq", "data_ptr",
    "nelement",
))  # fmt: skip
GROWING: Final = frozenset(("append", "add", "extend", "insert", "appendleft", "update", "setdefault", "put"))
PASSED_ON: Final = frozenset(("items", "values", "keys", "copy"))
IN_PLACE: Final = frozenset(("zero_", "fill_", "copy_"))
PREPARING: Final = frozenset(("prepare", "setup", "setup_module", "setup_optimizers", "setup_dataloaders"))
CLIPPING: Final = frozenset(("clip_grad_norm_", "clip_grad_value_", "clip_gradients"))
OPAQUE: Final = frozenset(("buffers", "extra_repr", "no_sync", "values", "items", "keys"))


class Methods:
    """Evaluates calls of methods by the kind of their owner."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def run(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        """Return what a call of a method returns, and write down what it does."""
        special = getattr(self, f"_{owner.kind}_{name}", None)
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
            return self._add(
                OpKind.STATE_DICT, node, owner, result=AbstractValue(kind=ValueKind.STATE, node=node, sources=(owner,))
            )
        if name == "load_state_dict" and owner.kind is not ValueKind.UNKNOWN:
            return self._add(OpKind.LOAD_STATE_DICT, node, owner, *arguments.all()[:1], options=arguments.options())
        run = getattr(self, f"_{owner.kind}", None)
        found: AbstractValue | None = run(owner, name, node, arguments) if run is not None else None
        return found or self.reader.calls.escaped(node, owner, *arguments.all())

    def _add(
        self, act: OpKind, node: ast.Call, subject: AbstractValue, *things: AbstractValue, **more: Any
    ) -> AbstractValue:
        self.reader.recording.add(act, node, subject, *things, **more)
        return more.get("result") or AbstractValue(kind=ValueKind.CONSTANT, node=node)

    def _backward(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        """Run ``loss.backward()``, ``scaler.scale(loss).backward()`` or ``accelerator.backward(loss)``."""
        first = arguments.given[0] if arguments.given else None
        if first is not None and owner.kind is not ValueKind.TENSOR:
            first.facts = first.facts | {MANAGED}
            return self._add(OpKind.BACKWARD, node, first, owner, options=arguments.options())
        root, *scaler = owner.sources if owner.name == "scaled" else (owner,)
        return self._add(OpKind.BACKWARD, node, root, *scaler, options=arguments.options())

    def _wants_gradients(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        wants = arguments.get(0, "requires_grad")
        self.reader.targets.freeze(node, owner, True if wants is None else wants.constant())
        return owner

    # Models ----------------------------------------------------------------------------------------------------------

    def _model_forward(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self.reader.calls.model(owner, node, arguments, OpKind.FORWARD_CALL)

    def _model___call__(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self.reader.calls.model(owner, node, arguments, OpKind.MODEL_CALL)

    def _model_train(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        mode = arguments.get(0, "mode")
        value = True if mode is None else mode.constant()
        self._add(OpKind.SET_MODE, node, owner, value=value if isinstance(value, bool) else None)
        return owner

    def _model_eval(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        self._add(OpKind.SET_MODE, node, owner, value=False)
        return owner

    def _model_zero_grad(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self._add(OpKind.CLEAR_GRADIENTS, node, owner, options=arguments.options())

    _optimizer_zero_grad = _model_zero_grad
    _model_requires_grad_ = _parameters_requires_grad_ = _wants_gradients

    def _model_add_module(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        word, thing = arguments.get(0, "name"), arguments.get(1, "module")
        if thing is not None:
            owner.attributes[str(word.constant("?") if word else "?")] = thing
            thing.owners = (*thing.owners, owner)
            self._add(OpKind.SET_ATTRIBUTE, node, owner, thing, name="add_module")
        return AbstractValue(kind=ValueKind.CONSTANT, node=node)

    _model_register_module = _model_add_module

    def _model_append(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        owner.sources = (*owner.sources, *arguments.given)
        for each in arguments.given:
            each.owners = (*each.owners, owner)
        self._add(OpKind.SET_ATTRIBUTE, node, owner, *arguments.given, name="[]")
        return owner

    _model_extend = _model_insert = _model_append

    def _model_parameters(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return AbstractValue(kind=ValueKind.PARAMETERS, name="parameters", node=node, sources=(owner,))

    def _model_named_parameters(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return AbstractValue(kind=ValueKind.PARAMETERS, name="named_parameters", node=node, sources=(owner,))

    _loss_parameters = _model_parameters

    def _model_modules(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        part = AbstractValue(kind=ValueKind.MODEL, node=node, sources=(owner,), facts={PART})
        return AbstractValue(kind=ValueKind.SEQUENCE, name="modules", node=node, sources=(part,))

    _model_children = _model_modules

    def _model_named_modules(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        part = AbstractValue(kind=ValueKind.MODEL, node=node, sources=(owner,), facts={PART})
        turn = AbstractValue(
            kind=ValueKind.SEQUENCE, node=node, sources=(unknown(node), part), attributes={"[1]": part}
        )
        return AbstractValue(kind=ValueKind.SEQUENCE, name="turns", node=node, sources=(turn,))

    _model_named_children = _model_named_modules

    def _model_apply(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        function = arguments.get(0, "fn")
        if function is not None and function.kind is ValueKind.FUNCTION:
            self.reader.function(function, node, [owner], {})  # with one part after the other, and so with all of it
        return owner

    def _model(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if name in SAME:
            return owner
        if name.startswith("register_"):
            return self._add(OpKind.SET_ATTRIBUTE, node, owner, *arguments.given, name=name)
        if name.startswith(("named_", "get_")) or name in OPAQUE:
            return unknown(node, owner)
        return AbstractValue(kind=ValueKind.UNKNOWN, node=node, sources=(owner, *arguments.all()))

    def _loss(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return owner if name in SAME or name in ("train", "eval") else unknown(node, owner)

    # Optimizers, schedulers, scalers ---------------------------------------------------------------------------------

    def _optimizer_step(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        closure = arguments.get(0, "closure")
        if closure is not None and closure.kind is ValueKind.FUNCTION:
            self.reader.function(closure, node, [], {})
        elif closure is not None and closure.kind is not ValueKind.CONSTANT:
            self.reader.calls.escaped(node, owner, closure)
        return self._add(OpKind.STEP, node, owner, value="closure" if closure is not None else None)

    def _optimizer_add_param_group(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        owner.sources = (*owner.sources, *arguments.all())
        return self._add(OpKind.SET_ATTRIBUTE, node, owner, *arguments.all(), name="add_param_group")

    def _optimizer(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue | None:
        return unknown(node, owner) if name in ("train", "eval", "get_lr") or name.startswith("register_") else None

    def _scheduler_step(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self._add(OpKind.SCHEDULER_STEP, node, owner, *arguments.all())

    def _scaler_scale(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        first = arguments.get(0, "outputs") or unknown(node)
        result = AbstractValue(
            kind=ValueKind.TENSOR, name="scaled", node=node, sources=(first, owner), facts=set(first.facts)
        )
        return self._add(OpKind.SCALE_LOSS, node, owner, first, result=result)

    def _scaler_step(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self._add(OpKind.STEP, node, arguments.get(0, "optimizer") or unknown(node), owner)

    def _scaler_unscale_(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self._add(OpKind.UNSCALE, node, arguments.get(0, "optimizer") or unknown(node), owner)

    def _scaler_update(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self._add(OpKind.SCALER_UPDATE, node, owner)

    def _plain(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return unknown(node, owner, *arguments.all())

    _scheduler = _scaler = _sampler = _loader = _dataset = _constant = _plain

    def _accelerator(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        things = arguments.given
        if name in PREPARING and things:
            for each in things:
                each.facts = each.facts | {MANAGED}
            held = {f"[{number}]": each for number, each in enumerate(things)}
            whole = AbstractValue(kind=ValueKind.SEQUENCE, node=node, sources=tuple(things), attributes=held)
            return things[0] if len(things) == 1 else whole
        if name in CLIPPING and things:
            return self._add(OpKind.CLIP_GRADIENTS, node, things[0], name=name)
        return things[0] if name == "unwrap_model" and things else unknown(node, owner)

    # Data ------------------------------------------------------------------------------------------------------------

    def _sampler_set_epoch(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return self._add(OpKind.SET_EPOCH, node, owner, *arguments.all())

    _loader_set_epoch = _dataset_set_epoch = _sampler_set_epoch

    # Tensors ---------------------------------------------------------------------------------------------------------

    def _tensor_requires_grad_(self, owner: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
        wants = arguments.get(0, "requires_grad")
        value = True if wants is None else wants.constant()
        result = AbstractValue(
            kind=ValueKind.TENSOR, name="requires_grad_", node=node, sources=(owner,), facts=set(owner.facts)
        )
        return self._add(
            OpKind.SET_REQUIRES_GRAD, node, owner, value=value if isinstance(value, bool) else None, result=result
        )

    def _tensor(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if owner.name == GRAD:
            self._add(
                OpKind.CLEAR_GRADIENTS if name in IN_PLACE else OpKind.ACCESS_GRADIENTS,
                node,
                parameters_of_gradient(owner),
                name=name,
            )
            return owner
        statement = self.reader.recording.statement
        if isinstance(statement, ast.Expr) and statement.value is node and (name in SAME or name == "detach"):
            return self._add(OpKind.TORCH_CALL, node, owner, name=f"torch.Tensor.{name}")  # for nobody
        if name in SAME:
            return owner
        if name in READ_OUT:
            return AbstractValue(kind=ValueKind.TENSOR, name=name, node=node, sources=(owner,), facts={NO_GRAPH})
        return self.reader.calls.computed(f"torch.Tensor.{name}", node, arguments, owner)

    def _parameters(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if name in GROWING:
            owner.sources = (*owner.sources, *(each for thing in arguments.all() for each in thing.sources))
            return AbstractValue(kind=ValueKind.CONSTANT, node=node)
        return owner if name in ("items", "values") else unknown(node, owner)

    # Containers and the unknown --------------------------------------------------------------------------------------

    def _state(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if name in GROWING:
            return self._add(OpKind.STORE_ITEM, node, owner, *arguments.all(), name=name)
        return owner if name in PASSED_ON else unknown(node, owner)

    def _sequence(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if name == "items" and owner.sources:
            from trueloop.analysis.interpreter.values import element

            value = element(owner, node)
            turn = AbstractValue(
                kind=ValueKind.SEQUENCE, node=node, sources=(unknown(node), value), attributes={"[1]": value}
            )
            return AbstractValue(kind=ValueKind.SEQUENCE, name="turns", node=node, sources=(turn,))
        if name not in GROWING:
            return owner if name in ("items", "values", "copy") else unknown(node, owner)
        owner.sources = (*owner.sources, *arguments.given)
        if arguments.given and all(each.kind is ValueKind.PARAMETERS for each in owner.sources):
            owner.kind, owner.sources = (
                ValueKind.PARAMETERS,
                tuple(one for each in owner.sources for one in each.sources),
            )
        return self._add(OpKind.STORE_ITEM, node, owner, *arguments.all(), name=name)

    def _unknown(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue | None:
        read_out = NO_GRAPH in owner.facts and not arguments.all()  # (outputs == labels).sum()
        if name in ("item", "detach", "tolist", "numpy", "argmax") or read_out:
            return AbstractValue(kind=ValueKind.UNKNOWN, name=name, node=node, sources=(owner,), facts={NO_GRAPH})
        if name in SAME and EXTERNAL not in owner.facts:
            return owner
        if name in GROWING and arguments.given:
            self._add(OpKind.STORE_ITEM, node, owner, *arguments.all(), name=name)
        return unknown(node, owner) if name == "append" else None

    def _instance(self, owner: AbstractValue, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue:
        """Run a method that the file does not define: it is inherited from elsewhere, or does not exist."""
        return self.reader.calls.escaped(node, owner, *owner.attributes.values(), *arguments.all())
