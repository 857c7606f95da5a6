"""Finds runs that load weights and go on at a later epoch or step, in programs that load no optimizer's state."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.resumed_loops import resumed_loops
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in

_STATEFUL: Final = re.compile(
    r"^(Adam\w*|NAdam|RAdam|SparseAdam|RMSprop|Adagrad|Adadelta|LBFGS|Rprop|Lamb|LAMB|Lion|Ranger)$"
)
_OPTIMIZER: Final = re.compile(r"(?i)(^|_)(opt(im\w*)?|solver|trainer|adam\w*|sgd)(_|\d|$)|optim")
_UNKNOWN_OWNER: Final = re.compile(r"^(obj\w*|each|item|value|v|x|part|thing|state\w*|self|super|component|o)$")
_RESTORING: Final = re.compile(r"(?i)load|resum|restor")


def counts_on(source: SourceFile) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield each load of weights whose run begins to count where the saved run stopped, with that first number."""
    if not _has_state(source) or _may_restore(source):
        return
    for _, start, load in resumed_loops(source):
        yield load, start
        return


def _has_state(source: SourceFile) -> bool:
    """Return True if the program names an optimizer with running averages, or SGD with momentum."""
    if any(_STATEFUL.match(last_name(each)) for each in source.nodes_of(ast.Name, ast.Attribute)):
        return True
    momentum = [e.value for each in source.all_calls if last_name(each.func) == "SGD" for e in each.keywords
                if e.arg == "momentum"]  # fmt: skip
    return any(integer(each) != 0 for each in momentum)


def _may_restore(source: SourceFile) -> bool:
    """Return True if the program may load the state of an optimizer, in whatever way."""
    for call in source.all_calls:
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if last_name(call.func) == "load_state_dict":
            if owner is None or isinstance(owner, ast.Call) or _may_be_optimizer(owner):
                return True
        elif _RESTORING.search(last_name(call.func)):
            passed = [*call.args, *(each.value for each in call.keywords)]
            parts = [each for part in passed for each in nodes_in(part, ast.Name, ast.Attribute)]
            owners = {id(each.value) for each in parts if isinstance(each, ast.Attribute)}
            names = [last_name(each) for each in parts if last_name(each) != "opt" or id(each) not in owners]
            if any(map(_OPTIMIZER.search, names)) or last_name(call.func) in ("load_state", "load_from_checkpoint"):
                return True
    keys = [each.slice for each in source.nodes_of(ast.Subscript) if isinstance(each.ctx, ast.Load)]
    return any(isinstance(e, ast.Constant) and isinstance(e.value, str) and _OPTIMIZER.search(e.value) for e in keys)


def _may_be_optimizer(owner: ast.expr) -> bool:
    name = last_name(owner)
    return _OPTIMIZER.search(name) is not None or _UNKNOWN_OWNER.match(name) is not None
