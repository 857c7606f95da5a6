"""Evaluates calls of PyTorch functions and Python builtins, and records their effects on training."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Final

from trueloop.analysis.abstract_value import (
    COPY,
    GRAD,
    NO_GRAPH,
    AbstractValue,
    ValueKind,
    join_values,
    parameters_of_gradient,
    unknown_value,
)
from trueloop.analysis.operations import OpKind

if TYPE_CHECKING:
    from trueloop.analysis.interpreter.calls import Arguments
    from trueloop.analysis.interpreter.interpreter import Interpreter

SEEDING_FUNCTIONS: Final = frozenset((
    "torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.random.manual_seed",
    "random.seed", "numpy.random.seed", "lightning.seed_everything", "pytorch_lightning.seed_everything",
    "accelerate.utils.set_seed", "transformers.set_seed",
))  # fmt: skip
PASS_THROUGH_FUNCTIONS: Final = frozenset((
    "builtins.list", "builtins.tuple", "builtins.iter", "builtins.reversed", "builtins.sorted", "builtins.set",
    "torch.compile", "torch.jit.script", "tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm",
    "tqdm.rich.tqdm", "tqdm.trange", "rich.progress.track", "itertools.cycle", "itertools.islice",
))  # fmt: skip
"""Functions that return their first argument, or an iterator over it."""
CLIPPING_FUNCTIONS: Final = frozenset((
    "torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_norm",
    "torch.nn.utils.clip_grad.clip_grad_norm_", "torch.nn.utils.clip_grad.clip_grad_value_",
))  # fmt: skip
SCALAR_FUNCTIONS: Final = frozenset(("builtins.float", "builtins.int", "builtins.bool", "builtins.str", "builtins.len",
    "builtins.round", "builtins.print", "builtins.isinstance", "math.isnan", "math.isfinite"))  # fmt: skip
BASE_CLASSES: Final = {
    "torch.optim": "Optimizer", "torch.optim.lr_scheduler": "LRScheduler", "torch.nn": "Module",
    }  # fmt: skip
"""Package -> the class that stands for one of its classes that the text does not name."""
BASES_BY_KIND: Final = {
    ValueKind.OPTIMIZER: "torch.optim.Optimizer",
    ValueKind.SCHEDULER: "torch.optim.lr_scheduler.LRScheduler",
    ValueKind.MODEL: "torch.nn.Module",
}
DEFAULT_DICT: Final = "collections.defaultdict"


def attribute_of_name(owner: AbstractValue, name: AbstractValue) -> AbstractValue | None:
    """Return the attribute of a name that may be one of several constants; None if one of them is unknown."""
    keys = [each.constant() for each in name.alternatives()]
    found = [owner.attributes[key] for key in keys if isinstance(key, str) and key in owner.attributes]
    return reduce(join_values, found) if found and len(found) == len(keys) else None


class Functions:
    """Evaluates calls of functions by their qualified name."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self._handlers: dict[str, Callable[[ast.Call, Arguments], AbstractValue | None]] = {
            "builtins.enumerate": self._enumerate,
            "builtins.zip": self._zip,
            "builtins.next": self._next,
            "builtins.filter": self._filter,
            "builtins.map": self._map,
            "builtins.sum": self._sum,
            "builtins.getattr": self._getattr,
            "builtins.type": self._type,
            "builtins.setattr": self._setattr,
            "builtins.dict": self._dict,
            "collections.OrderedDict": self._ordered_dict,
            "collections.defaultdict": self._default_dict,
            "itertools.chain": self._chain,
            "copy.deepcopy": self._copy,
            "copy.copy": self._copy,
            "functools.partial": self._partial,
            "torch.save": self._save,
            "torch.load": self._load,
            "torch.autograd.backward": self._backward,
            "torch.utils.data.random_split": self._split,
        }

    def evaluate(self, name: str, node: ast.Call, arguments: Arguments) -> AbstractValue | None:
        """Return the value of a call; None for an unknown function."""
        recording = self.interpreter.recording
        handler = self._handlers.get(name)
        found = handler(node, arguments) if handler is not None else None
        if found is not None:
            return found
        if name in PASS_THROUGH_FUNCTIONS and arguments.positional:
            return arguments.positional[0]
        if name in SCALAR_FUNCTIONS:
            return AbstractValue(
                kind=ValueKind.UNKNOWN, name=name, node=node, sources=tuple(arguments.all()), facts={NO_GRAPH}
            )
        if name in CLIPPING_FUNCTIONS:
            subject = arguments.get(0, "parameters") or unknown_value(node)
            result = AbstractValue(kind=ValueKind.TENSOR, name=name, node=node, sources=(subject,), facts={NO_GRAPH})
            recording.add(OpKind.CLIP_GRADIENTS, node, subject, result=result, name=name, arguments=arguments.by_name())
            return result
        if name in SEEDING_FUNCTIONS:
            recording.add(OpKind.SEED, node, unknown_value(node), *arguments.positional, name=name)
            return AbstractValue(kind=ValueKind.UNKNOWN, name="torch.Generator", node=node)
        if name.startswith("torch.") and name.endswith("_"):
            self._record_in_place_write(name, node, arguments)
        return None

    def _record_in_place_write(self, name: str, node: ast.Call, arguments: Arguments) -> None:
        """Record the gradients to which a function writes: ``torch._foreach_zero_([p.grad for p in ...])``."""
        target = arguments.positional[0] if arguments.positional else unknown_value(node)
        for each in target.sources if target.kind is ValueKind.SEQUENCE else (target,):
            if each.kind is ValueKind.TENSOR and each.name == GRAD:
                self.interpreter.recording.add(OpKind.ACCESS_GRADIENTS, node, parameters_of_gradient(each), name=name)

    def _enumerate(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        iterable = arguments.get(0, "iterable") or unknown_value(node)
        counter = AbstractValue(kind=ValueKind.UNKNOWN, name="builtins.enumerate", node=node, facts={NO_GRAPH})
        return self._zipped_items(node, iterable, counter)

    def _zip(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if len(arguments.positional) == 1:
            return arguments.positional[0]
        return self._zipped_items(node, *arguments.positional)

    def _zipped_items(self, node: ast.Call, *iterables: AbstractValue) -> AbstractValue:
        """Return a sequence whose items contain one element of each iterable."""
        from trueloop.analysis.interpreter.evaluator import element

        counter = iterables[-1] if iterables and iterables[-1].name == "builtins.enumerate" else None
        parts = [element(each, node) for each in iterables if each is not counter]
        items = [counter, *parts] if counter is not None else parts
        item = AbstractValue(
            kind=ValueKind.SEQUENCE,
            node=node,
            sources=tuple(items),
            attributes={f"[{number}]": each for number, each in enumerate(items)},
        )
        return AbstractValue(
            kind=ValueKind.SEQUENCE,
            name="iterations",
            node=node,
            sources=(item,),
            arguments={"iterable": iterables[0]} if iterables else {},
        )

    def _next(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        from trueloop.analysis.interpreter.evaluator import element

        return element(arguments.positional[0], node) if arguments.positional else unknown_value(node)

    def _filter(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        return arguments.positional[1] if len(arguments.positional) > 1 else unknown_value(node)

    def _map(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        """Run the mapped function once, inside a loop, and return a sequence with its result."""
        if len(arguments.positional) < 2:
            return unknown_value(node, *arguments.all())
        from trueloop.analysis.interpreter.calls import Arguments as CallArguments
        from trueloop.analysis.interpreter.evaluator import element

        iterable = arguments.positional[1]
        with self.interpreter.recording.loop(node, iterable):
            result = self.interpreter.calls.call_value(
                arguments.positional[0], node, CallArguments([element(iterable, node)], {})
            )
        return AbstractValue(
            kind=ValueKind.SEQUENCE, name="comprehension", node=node, sources=(result,), attributes={"[?]": result}
        )

    def _sum(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        summands = arguments.positional[0] if arguments.positional else unknown_value(node)
        parts = summands.sources if summands.kind is ValueKind.SEQUENCE else (summands,)
        if not any(each.kind is ValueKind.TENSOR for each in parts):
            return unknown_value(node, summands)
        graphs = any(each.kind is ValueKind.TENSOR and NO_GRAPH not in each.facts for each in parts)
        return AbstractValue(
            kind=ValueKind.TENSOR, name="builtins.sum", node=node, sources=parts, facts=set() if graphs else {NO_GRAPH}
        )

    def _getattr(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        key = arguments.positional[1].constant() if len(arguments.positional) > 1 else None
        owner = arguments.positional[0] if arguments.positional else unknown_value(node)
        found = attribute_of_name(owner, arguments.positional[1]) if len(arguments.positional) > 1 else None
        if found is None and isinstance(key, str):  # getattr(heads, "MLP"), of an imported file
            found = self.interpreter.imports.attribute(owner, key)
        if found is not None:
            return found
        if owner.kind is ValueKind.NAME and owner.name in BASE_CLASSES:  # getattr(torch.optim, name)
            last = key if isinstance(key, str) and key.isidentifier() else BASE_CLASSES[owner.name]
            return AbstractValue(kind=ValueKind.NAME, name=f"{owner.name}.{last}", node=node)
        return AbstractValue(kind=ValueKind.UNKNOWN, name="builtins.getattr", node=node, sources=(owner,))

    def _type(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        """Return the class of a value: ``type(optimizer)(...)``."""
        value = arguments.positional[0] if len(arguments.positional) == 1 else unknown_value(node)
        if isinstance(value.scope, AbstractValue) and not value.union:
            return value.scope
        base = BASES_BY_KIND.get(value.kind, "")
        return AbstractValue(kind=ValueKind.NAME, name=value.name or base, node=node) if base else unknown_value(node)

    def _setattr(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if len(arguments.positional) > 2:
            owner, key, value = arguments.positional[:3]
            owner.attributes[str(key.constant(f"?{len(owner.attributes)}"))] = value
            self.interpreter.recording.add(OpKind.SET_ATTRIBUTE, node, owner, value, name=str(key.constant("")))
        return AbstractValue(kind=ValueKind.CONSTANT, node=node)

    def _dict(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        given = self._ordered_dict(node, arguments)  # another dictionary of the same values
        if given is not None and (given.kind is ValueKind.STATE or not arguments.keyword):
            return given
        items = {} if given is None else dict(given.attributes)
        items |= {f"[{key!r}]": each for key, each in arguments.keyword.items()}
        parameters = items.get("['params']")
        if parameters is not None and parameters.kind is ValueKind.PARAMETERS:
            return AbstractValue(kind=ValueKind.PARAMETERS, node=node, sources=parameters.sources)
        return AbstractValue(
            kind=ValueKind.SEQUENCE, name="dict", node=node, sources=tuple(arguments.all()), attributes=items
        )

    def _ordered_dict(self, node: ast.Call, arguments: Arguments) -> AbstractValue | None:
        given = arguments.positional[0] if len(arguments.positional) == 1 else unknown_value(node)
        if given.kind is ValueKind.STATE:
            return given
        if given.kind is ValueKind.SEQUENCE and given.name == "dict" and given.attributes:
            return AbstractValue(
                kind=given.kind, name="dict", node=node, sources=given.sources, attributes=dict(given.attributes)
            )
        pairs = [(each.attributes.get("[0]"), each.attributes.get("[1]")) for each in given.sources]
        items = {f"[{key.constant()!r}]": value for key, value in pairs if key is not None and value is not None}
        if given.kind is not ValueKind.SEQUENCE or not items or len(items) < len(pairs):
            return None
        return AbstractValue(
            kind=ValueKind.SEQUENCE, name="dict", node=node, sources=tuple(items.values()), attributes=items
        )

    def _default_dict(self, node: ast.Call, arguments: Arguments) -> AbstractValue | None:
        factory = arguments.positional[0] if len(arguments.positional) == 1 else unknown_value(node)
        is_known = factory.kind is ValueKind.CLASS or factory.name == "builtins.list"
        return (
            AbstractValue(kind=ValueKind.SEQUENCE, name=DEFAULT_DICT, node=node, arguments={"0": factory})
            if is_known
            else None
        )

    def _chain(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if arguments.positional and all(each.kind is ValueKind.PARAMETERS for each in arguments.positional):
            models = {id(model): model for each in arguments.positional for model in each.sources}
            return AbstractValue(kind=ValueKind.PARAMETERS, node=node, sources=tuple(models.values()))
        return AbstractValue(kind=ValueKind.SEQUENCE, node=node, sources=tuple(arguments.positional))

    def _copy(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        if not arguments.positional:
            return unknown_value(node)
        original = arguments.positional[0]
        if original.kind is ValueKind.STATE and self.interpreter.evaluator.qualified_name(node.func) == "copy.copy":
            return original  # with the same tensors
        deep = self.interpreter.evaluator.qualified_name(node.func) == "copy.deepcopy"
        value = AbstractValue(
            kind=original.kind,
            name=original.name,
            node=node,
            sources=original.sources,
            arguments=original.arguments,
            value=original.value,
        )
        value.scope, value.attributes = original.scope, dict(original.attributes)
        value.owners = () if deep else original.owners  # a shallow copy shares the parameters
        value.facts = {*original.facts, COPY} if deep else set(original.facts)
        return value

    def _partial(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        first = arguments.positional[0] if arguments.positional else unknown_value(node)
        bound = {str(number): each for number, each in enumerate(arguments.positional[1:])} | arguments.keyword
        is_function = first.kind in (ValueKind.FUNCTION, ValueKind.CLASS, ValueKind.NAME) and not first.union
        plain = (ValueKind.CONSTANT, ValueKind.NAME)
        if (
            not is_function
            or first.arguments
            or "**" in bound
            or any(each.kind not in plain for each in bound.values())
        ):
            return self.interpreter.calls.record_escape(node, *arguments.all())
        return replace(first, arguments=bound) if bound else first

    def _save(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        self.interpreter.recording.add(
            OpKind.SAVE, node, unknown_value(node), *arguments.positional[:1], arguments=arguments.by_name()
        )
        return AbstractValue(kind=ValueKind.CONSTANT, node=node)

    def _load(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        result = AbstractValue(kind=ValueKind.UNKNOWN, name="torch.load", node=node, arguments=arguments.by_name())
        self.interpreter.recording.add(
            OpKind.LOAD, node, unknown_value(node), result=result, arguments=arguments.by_name()
        )
        return result

    def _backward(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        root = arguments.get(0, "tensors") or unknown_value(node)
        self.interpreter.recording.add(OpKind.BACKWARD, node, root, arguments=arguments.by_name())
        return AbstractValue(kind=ValueKind.CONSTANT, node=node)

    def _split(self, node: ast.Call, arguments: Arguments) -> AbstractValue:
        dataset = arguments.get(0, "dataset") or unknown_value(node)
        parts = {
            f"[{number}]": AbstractValue(
                kind=ValueKind.DATASET, name="torch.utils.data.Subset", node=node, sources=(dataset,)
            )
            for number in range(4)
        }
        return AbstractValue(kind=ValueKind.SEQUENCE, node=node, sources=tuple(parts.values()), attributes=parts)
