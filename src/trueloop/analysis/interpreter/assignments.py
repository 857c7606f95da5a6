"""Interprets assignments to names, attributes and items."""

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
from trueloop.analysis.interpreter.evaluator import element, item_at
from trueloop.analysis.operations import Branch, OpKind
from trueloop.core.source_text import dotted_name

if TYPE_CHECKING:
    from trueloop.analysis.interpreter.interpreter import Interpreter


class Assignments:
    """Interprets assignments for an `Interpreter`."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter

    def assign(self, target: ast.expr, value: AbstractValue) -> None:
        """Assign a value to a target."""
        match target:
            case ast.Name():
                functions = self.interpreter.recording.functions
                user = functions[-1] if functions else self.interpreter.scope.module_scope.module.tree
                self.interpreter.scope.assign(target.id, self.interpreter.infer_kind(value, target.id, user))
            case ast.Attribute():
                self._assign_attribute(target, value)
            case ast.Subscript():
                owner, key = (
                    self.interpreter.evaluator.evaluate(target.value),
                    self.interpreter.evaluator.evaluate(target.slice).constant(),
                )
                if self._is_first(target) and value.loops is not None and not value.union:
                    value.loops = owner.loops  # created once, not in each iteration
                _store_item(owner, key, value)
                self.interpreter.recording.add(OpKind.STORE_ITEM, target, owner, value)
            case ast.Tuple() | ast.List():
                for number, each in enumerate(target.elts):
                    if isinstance(each, ast.Starred):
                        self.assign(each.value, unknown_value(each, value))
                    else:
                        self.assign(each, self._unpacked_item(value, number, each))
            case _:
                pass

    def _is_first(self, target: ast.Subscript) -> bool:
        """Return True for an item that is stored under ``if key not in items``."""
        branches = self.interpreter.recording.branches
        match branches[-1] if branches else None:
            case Branch(node=ast.If(test=ast.Compare(ops=[ast.NotIn()], comparators=[items])), arm=0):
                return ast.unparse(items) == ast.unparse(target.value)
            case _:
                return False

    def _unpacked_item(self, value: AbstractValue, number: int, node: ast.expr) -> AbstractValue:
        """Return the item of a value that unpacking assigns to a target."""
        found = item_at(value, number)
        if found is not None:
            return found
        if value.kind is ValueKind.TENSOR:  # a batch, the outputs of a model
            return AbstractValue(
                kind=ValueKind.TENSOR, name=value.name, node=node, sources=(value,), facts=value.facts & {NO_GRAPH}
            )
        if value.kind is ValueKind.PARAMETERS:  # (name, parameter)
            return AbstractValue(kind=ValueKind.PARAMETERS, node=node, sources=value.sources)
        return element(value, node) if value.kind is ValueKind.SEQUENCE else unknown_value(node, value)

    def _assign_attribute(self, target: ast.Attribute, value: AbstractValue) -> None:
        owner, name = self.interpreter.evaluator.evaluate(target.value), target.attr
        recording = self.interpreter.recording
        if name == GRAD:
            recording.add(OpKind.CLEAR_GRADIENTS, target, owner, value, name=GRAD)
            return
        if name == "requires_grad":
            self.set_requires_grad(target, owner, value.constant())
            return
        value = self.interpreter.infer_kind(
            value, dotted_name(target), self.interpreter.evaluator.enclosing_definition()
        )
        before = owner.attributes.get(name)
        conditional = recording.branches and before is not None and SUBMODULE not in before.facts
        known = join_values(before, value) if conditional and before is not None else value
        owner.attributes[name] = known
        if owner.kind is ValueKind.MODEL:
            known.add_owner(owner)
        if name == "data" and owner.kind in (ValueKind.PARAMETERS, ValueKind.TENSOR):
            return  # an update by hand, not an attribute of a module
        recording.add(OpKind.SET_ATTRIBUTE, target, owner, value, name=name)

    def set_requires_grad(self, node: ast.AST, owner: AbstractValue, value: Any) -> None:
        """Record a change of ``requires_grad``."""
        requires_grad = value if isinstance(value, bool) else None
        self.interpreter.recording.add(OpKind.SET_REQUIRES_GRAD, node, owner, value=requires_grad)
        if requires_grad is not True:  # an unknown value may freeze
            owner.facts = owner.facts | {FROZEN}
            for each in owner.sources if owner.kind is ValueKind.PARAMETERS else ():
                each.facts = each.facts | {FROZEN}

    def assign_augmented(self, node: ast.AugAssign) -> None:
        """Run an augmented assignment: ``total += loss``."""
        target: Any = node.target
        load = ast.copy_location(_as_load(target), target)
        before, value = self.interpreter.evaluator.evaluate(load), self.interpreter.evaluator.evaluate(node.value)
        if before.kind is ValueKind.TENSOR and before.name == GRAD:
            self.interpreter.recording.add(OpKind.ACCESS_GRADIENTS, node, before, value)
            return
        result = self.interpreter.evaluator.tensor_result(node.value, f"binary {type(node.op).__name__}", before, value)
        self.interpreter.recording.add(OpKind.STORE_ITEM, node, before, value, result=result, name="+=")
        if before.kind is not ValueKind.SEQUENCE:
            self.assign(target, result)
        elif isinstance(node.op, ast.Add) and value.kind is ValueKind.SEQUENCE:  # layers += [...]
            before.sources = (*before.sources, *value.sources)


def _store_item(owner: AbstractValue, key: Any, value: AbstractValue) -> None:
    """Add an item to a list or dictionary, or replace the item of a constant key."""
    name = f"[{key!r}]" if isinstance(key, str | int) else ""
    before = owner.attributes.get(name) if name else None
    if name:
        owner.attributes[name] = value
    is_part = value.kind is ValueKind.MODEL or (value.kind is ValueKind.STATE and not name)
    if owner.kind is ValueKind.SEQUENCE and is_part:
        kept = tuple(each for each in owner.sources if each is not before and each is not value)
        owner.sources = (*kept, value)


def _as_load(target: Any) -> Any:
    """Return an assignment target as an expression that reads it."""
    match target:
        case ast.Name():
            return ast.Name(id=target.id, ctx=ast.Load())
        case ast.Attribute():
            return ast.Attribute(value=target.value, attr=target.attr, ctx=ast.Load())
        case _:
            return ast.Subscript(value=target.value, slice=target.slice, ctx=ast.Load())
