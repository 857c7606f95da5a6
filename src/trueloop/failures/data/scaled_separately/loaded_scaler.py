"""Finds scalers and encoders that a program reads from a file and then fits again."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, dotted_name, nodes_in

_READING: Final = frozenset(("joblib.load", "pickle.load", "pickle.loads", "dill.load", "cloudpickle.load"))
_UPDATING: Final = re.compile(r"partial|update|retrain|refit", re.IGNORECASE)


def refitted(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``fit_transform`` of an object that is only read from a file, never created."""
    reading = [each for each in source.all_calls if dotted_name(each.func) in _READING]
    functions = {getattr(function_of(source, each), "name", "") for each in reading} - {""}
    for call in source.all_calls if reading else ():
        method = call.func
        if not isinstance(method, ast.Attribute) or method.attr != "fit_transform" or not call.args:
            continue
        name = last_name(method.value)
        scope = source.tree if isinstance(method.value, ast.Attribute) else function_of(source, call)
        values = [each.value for each in nodes_in(scope, ast.Assign) if _assigns(each, name)]
        is_read = bool(values) and all(_reads(each, functions) for each in values)
        if is_read and not _UPDATING.search(ast.unparse(call)):
            end = source.text.span(method)[1]
            edit = Edit(end - len("fit_transform"), end, "transform")
            yield Hit(
                message=f"`{ast.unparse(call)}` fits `{name}` again, which was fitted on the training data and read "
                "from a file: the model gets inputs on another scale. Use `transform`.",
                node=call,
                related=((values[0], "read here"),),
                fix=Fix((edit,), safe=False, description="Only transform"),
            )


def _reads(value: ast.expr, functions: set[str]) -> bool:
    """Return True for a call that reads an object from a file, or of a function of the program that does."""
    if not isinstance(value, ast.Call):
        return False
    return dotted_name(value.func) in _READING or last_name(value.func) in functions


def _assigns(assignment: ast.Assign, name: str) -> bool:
    targets = [n for each in assignment.targets for n in nodes_in(each, ast.Name, ast.Attribute)]
    return any(last_name(each) == name for each in targets)
