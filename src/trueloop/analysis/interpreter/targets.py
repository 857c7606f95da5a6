"""Runs assignments: what names, attributes and items stand for afterwards."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from trueloop.analysis.abstract_value import (
    FROZEN,
    GRAD,
    NO_GRAPH,
    SUBMODULE,
    AbstractValue,
    ValueKind,
    join_values,
    unknown_value,
)
from trueloop.analysis.interpreter.values import element
from trueloop.analysis.operations import OpKind
from trueloop.core.source_text import dotted_name

if TYPE_CHECKING:
    from trueloop.analysis.interpreter.interpreter import Interpreter


class Assignments:
    """Assigns for a `Interpreter`."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter

    def assign(self, target: ast.expr, thing: AbstractValue) -> None:
        """Let a target stand for a thing."""
        match target:
            case ast.Name():
                functions = self.interpreter.recording.functions
                within = functions[-1] if functions else self.interpreter.tree
                self.interpreter.scope.put(target.id, self.interpreter.used(thing, target.id, within))
            case ast.Attribute():
                self._assign_attribute(target, thing)
            case ast.Subscript():
                owner, word = self.interpreter.values.of(target.value), self.interpreter.values.of(target.slice).constant()
                if isinstance(word, str | int):
                    owner.attributes[f"[{word!r}]"] = thing
                self.interpreter.recording.add(OpKind.STORE_ITEM, target, owner, thing)
            case ast.Tuple() | ast.List():
                for number, each in enumerate(target.elts):
                    if isinstance(each, ast.Starred):
                        self.assign(each.value, unknown_value(each, thing))
                    else:
                        self.assign(each, self._unpacked_item(thing, number, each))
            case _:
                pass

    def _unpacked_item(self, thing: AbstractValue, number: int, node: ast.expr) -> AbstractValue:
        """Return an item of what is taken apart."""
        found = thing.attributes.get(f"[{number}]")
        if found is not None:
            return found
        if thing.kind is ValueKind.TENSOR:  # a batch, the outputs of a model
            return AbstractValue(
                kind=ValueKind.TENSOR, name=thing.name, node=node, sources=(thing,), facts=thing.facts & {NO_GRAPH}
            )
        if thing.kind is ValueKind.PARAMETERS:  # (name, parameter)
            return AbstractValue(kind=ValueKind.PARAMETERS, node=node, sources=thing.sources)
        return element(thing, node) if thing.kind is ValueKind.SEQUENCE else unknown_value(node, thing)

    def _assign_attribute(self, target: ast.Attribute, thing: AbstractValue) -> None:
        owner, name = self.interpreter.values.of(target.value), target.attr
        recording = self.interpreter.recording
        if name == GRAD:
            recording.add(OpKind.CLEAR_GRADIENTS, target, owner, thing, name=GRAD)
            return
        if name == "requires_grad":
            self.freeze(target, owner, thing.constant())
            return
        thing = self.interpreter.used(thing, dotted_name(target), self.interpreter.values.around())
        before = owner.attributes.get(name)
        inside = recording.branches and before is not None and SUBMODULE not in before.facts
        owner.attributes[name] = join_values(before, thing) if inside and before is not None else thing
        if owner.kind is ValueKind.MODEL:
            thing.owners = (*thing.owners, owner)
        if name == "data" and owner.kind in (ValueKind.PARAMETERS, ValueKind.TENSOR):
            return
        recording.add(OpKind.SET_ATTRIBUTE, target, owner, thing, name=name)

    def freeze(self, node: ast.AST, owner: AbstractValue, value: Any) -> None:
        """Take note that something wants gradients, or does not."""
        wants = value if isinstance(value, bool) else None
        self.interpreter.recording.add(OpKind.SET_REQUIRES_GRAD, node, owner, value=wants)
        if wants is not True:
            owner.facts = owner.facts | {FROZEN}
            for each in owner.sources if owner.kind is ValueKind.PARAMETERS else ():
                each.facts = each.facts | {FROZEN}

    def augmented(self, node: ast.AugAssign) -> None:
        """Run ``total += loss``."""
        target: Any = node.target
        reading = ast.copy_location(_as_load(target), target)
        before, thing = self.interpreter.values.of(reading), self.interpreter.values.of(node.value)
        if before.kind is ValueKind.TENSOR and before.name == GRAD:
            self.interpreter.recording.add(OpKind.ACCESS_GRADIENTS, node, before, thing)
            return
        result = self.interpreter.values.computed(node.value, f"binary {type(node.op).__name__}", before, thing)
        self.interpreter.recording.add(OpKind.STORE_ITEM, node, before, thing, result=result, name="+=")
        if before.kind is not ValueKind.SEQUENCE:
            self.assign(target, result)


def _as_load(target: Any) -> Any:
    """Return the same expression, to be read instead of written."""
    match target:
        case ast.Name():
            return ast.Name(id=target.id, ctx=ast.Load())
        case ast.Attribute():
            return ast.Attribute(value=target.value, attr=target.attr, ctx=ast.Load())
        case _:
            return ast.Subscript(value=target.value, slice=target.slice, ctx=ast.Load())
