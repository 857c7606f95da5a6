"""Finds learning rates in variables that the program changes after the optimizer was created from them."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.optimizer_settings import sets_in_groups
from trueloop.analysis.queries.unread_variables import has_loop, is_local, is_unread, scope_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in, walk
from trueloop.failures.failure import Severity

MIN_TEMPLATE: Final = 3  # settings that a function which prepares a configuration sets


def changed_variables(source: SourceFile) -> Iterator[Hit]:
    """Yield each change of a variable that an optimizer got as its learning rate, and that nothing reads after it."""
    seen = set[int]()
    for creation in source.ops(OpKind.CREATE):
        is_optimizer = creation.subject.kind is ValueKind.OPTIMIZER and creation.subject.name.startswith("torch.optim.")
        rate = argument_node(creation.node, "lr", 1) if is_optimizer and isinstance(creation.node, ast.Call) else None
        if not isinstance(rate, ast.Name | ast.Attribute) or not dotted_name(rate) or sets_in_groups(source.tree, "lr"):
            continue
        stores = _stores(source, rate)
        later = [each for each in stores if _is_later(source, creation, rate, each)]
        if not later or not is_unread(source, creation.node, rate, stores):
            continue
        for statement in later:
            if id(statement) not in seen:
                seen.add(id(statement))
                yield _hit(source, creation, statement, dotted_name(rate))


def _hit(source: SourceFile, creation: Op, statement: Any, name: str) -> Hit:
    built = creation.statement
    optimizer = dotted_name(built.targets[0]) if isinstance(built, ast.Assign) and len(built.targets) == 1 else ""
    lines = (f"for group in {optimizer}.param_groups:", f'    group["lr"] = {name}')
    is_visible = optimizer.startswith("self.") or function_of(source, statement) is function_of(source, creation.node)
    edit = source.text.insert_after(statement, *lines) if optimizer and is_visible else None
    return Hit(
        message=f"`{source.text.segment(statement)}` has no effect: the optimizer read `{name}` once, when it was "
        "created, and nothing reads the new value.",
        node=statement,
        related=((creation.node, "the optimizer was created here"),),
        severity=Severity.WARNING,
        fix=Fix((edit,), safe=False, description="Set the value in optimizer.param_groups") if edit else None,
    )


def _stores(source: SourceFile, rate: ast.Name | ast.Attribute) -> list[Any]:
    """Return the statements that assign the variable alone: ``lr = lr * 0.1``, ``self.lr *= 0.1``."""
    name = dotted_name(rate)
    scope = scope_of(source, rate)
    found: list[Any] = []
    for each in walk(scope):
        targets = (
            each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AugAssign) else []
        )
        if len(targets) != 1 or dotted_name(targets[0]) != name or _reads_rate(getattr(each, "value", each)):
            continue
        if isinstance(rate, ast.Attribute) or scope is not source.tree or not is_local(function_of(source, each), name):
            found.append(each)
    return found


def _reads_rate(value: ast.AST) -> bool:
    """Return True for a value that is read from a schedule or optimizer: ``schedule.get_last_lr()[0]``."""
    names = {last_name(each) for each in nodes_in(value, ast.Name, ast.Attribute)}
    return not names.isdisjoint(("get_lr", "get_last_lr", "param_groups"))


def _is_later(source: SourceFile, creation: Op, rate: ast.Name | ast.Attribute, statement: Any) -> bool:
    """Return True for a change after the optimizer was created, in a loop or in another method."""
    if isinstance(rate, ast.Name) and isinstance(statement, ast.Assign):
        own = {each.id for each in nodes_in(statement.value, ast.Name)}
        if not own:  # a constant: perhaps the start of another experiment
            return has_loop(source, statement) and statement.lineno > creation.node.lineno
    same_function = function_of(source, statement) is function_of(source, creation.node)
    if not same_function and _may_run_again(source, function_of(source, creation.node)):
        return False
    is_after = statement.lineno > creation.node.lineno or not same_function
    in_other = not same_function and getattr(function_of(source, statement), "name", "__init__") != "__init__"
    if in_other and _is_setup(source, creation, statement):
        return False
    return is_after and (has_loop(source, statement) or (in_other and isinstance(rate, ast.Attribute)))


def _is_setup(source: SourceFile, creation: Op, statement: Any) -> bool:
    """Return True for a change in a function that makes the settings, or that runs before the optimizer is created."""
    function = function_of(source, statement)
    owner = dotted_name(getattr(statement, "targets", [getattr(statement, "target", None)])[0]).partition(".")[0]
    stored = [each.id for each in nodes_in(function, ast.Name) if isinstance(each.ctx, ast.Store)]
    fields = {dotted_name(e) for e in nodes_in(function, ast.Attribute) if isinstance(e.ctx, ast.Store)}
    if owner != "self" and sum(each.startswith(f"{owner}.") for each in fields) >= MIN_TEMPLATE:
        return True
    calls = _calls_of(source, function)
    creating = function_of(source, creation.node)
    runs_before = any(
        function_of(source, each) is creating and each.lineno < creation.node.lineno and not has_loop(source, each)
        for each in calls
    )
    is_first = bool(calls) and all(_is_in_constructor(source, each, creation) for each in calls)
    return owner in stored or is_first or (owner != "self" and runs_before)


def _is_in_constructor(source: SourceFile, call: ast.Call, creation: Op) -> bool:
    """Return True for a call in a constructor that has not created the optimizer before."""
    function = function_of(source, call)
    is_after = function is function_of(source, creation.node) and call.lineno > creation.node.lineno
    return getattr(function, "name", "") == "__init__" and not is_after


def _may_run_again(source: SourceFile, function: Any) -> bool:
    """Return True for a function that is called in a loop, or from several places, and so reads the new value too."""
    calls = _calls_of(source, function)
    return getattr(function, "name", "__init__") != "__init__" and (
        len(calls) > 1 or any(has_loop(source, each) for each in calls)
    )


def _calls_of(source: SourceFile, function: Any) -> list[ast.Call]:
    return definitions(source).calls.get(getattr(function, "name", "__init__"), [])
