"""Finds the closure that a step of an optimizer gets, and what it does."""

import ast
from typing import Any

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Op
from trueloop.analysis.source_file import SourceFile


def closure_of(source: SourceFile, step: Op) -> Any:
    """Return the function or lambda that a call of ``step`` gets; None unless the file shows exactly one."""
    call = step.node
    if not isinstance(call, ast.Call):
        return None
    named = [each.value for each in call.keywords if each.arg == "closure"]
    match [*call.args[:1], *named]:
        case [ast.Lambda() as function]:
            return function
        case [ast.Name(id=name) | ast.Attribute(attr=name)]:
            defined = [each for each in source.nodes_of(ast.FunctionDef) if each.name == name]
            near = [each for each in defined if step.function is not None and each in ast.walk(step.function)]
            found = near or defined
            assigned = [each for each in source.nodes_of(ast.Assign) if ast.unparse(each.targets[0]) == name]
            if not found and len(assigned) == 1 and isinstance(assigned[0].value, ast.Lambda):
                return assigned[0].value
            return found[0] if len(found) == 1 and not assigned else None
        case _:
            return None


def ops_in_closure(source: SourceFile, step: Op) -> list[Op]:
    """Return the operations of the closure of a step, including those in functions that it calls."""
    return [each for each in source.operations if any(call is step.node for call in each.calls)]


def calls_closure_repeatedly(step: Op) -> bool:
    """Return True for a step of an LBFGS optimizer that has more than one iteration and evaluation."""
    for each in step.subject.alternatives():
        if each.kind is not ValueKind.OPTIMIZER or not each.name.endswith("LBFGS"):
            return False
        for name, position in (("max_iter", "2"), ("max_eval", "3")):
            limit = each.arguments.get(name) or each.arguments.get(position)
            if limit is not None and (not isinstance(limit.constant(20), int) or limit.constant(20) < 2):
                return False
    return True
