"""Finds initialisations of a model that follow the loading of its weights."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.unregistered_modules import submodules
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in

_INITIALISING: Final = re.compile(
    r"(xavier_|kaiming_|trunc_)?(normal|uniform|orthogonal|constant|zeros|ones|fill|zero|dirac|sparse)_"
    r"|(xavier|kaiming|glorot)_(uniform|normal)|_?reset_parameters"
)
_BLOCKS: Final = ("body", "orelse", "finalbody", "handlers")


class InitialisedLater(NamedTuple):
    """A call that loads weights, and a later one that initialises them again."""

    load: ast.Call
    initialisation: ast.AST
    model: str


def initialised_later(source: SourceFile) -> Iterator[InitialisedLater]:
    """Yield the loads whose weights the same function initialises before it uses the model."""
    for load in source.all_calls:
        loaded, function = _loaded_model(source, load), function_of(source, load)
        for node, owner, code in _initialisations(source, function) if loaded else ():
            if (
                f"{loaded}.".startswith(f"{owner}.")
                and _runs_after(source, node, load)
                and not _is_used_between(function, loaded, load, node)
                and _reaches(source, load, code, is_whole=loaded == owner)
            ):
                yield InitialisedLater(load, node, loaded)
                break


def _loaded_model(source: SourceFile, call: ast.Call) -> str:
    """Return the model that a call loads weights into, also in a function that gets the model; "" for other calls."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict":
        return dotted_name(call.func.value)
    function = definitions(source).functions.get(last_name(call.func)) if isinstance(call.func, ast.Name) else None
    if function is None:
        return ""
    inside = [each.func for each in nodes_in(function, ast.Call) if isinstance(each.func, ast.Attribute)]
    loaded = {dotted_name(each.value) for each in inside if each.attr == "load_state_dict"}
    pairs = zip(function.args.args, call.args, strict=False)
    return next((dotted_name(argument) for parameter, argument in pairs if parameter.arg in loaded), "")


def _initialisations(source: SourceFile, function: Any) -> Iterator[tuple[ast.AST, str, list[ast.AST]]]:
    """Yield what initialises all layers of a model: the node, the model, and the code that runs for each layer."""
    functions = definitions(source).functions
    for call in nodes_in(function, ast.Call):
        if not isinstance(call.func, ast.Attribute):
            continue
        owner, code = dotted_name(call.func.value), functions.get(call.func.attr)
        if call.func.attr == "apply" and len(call.args) == 1:
            argument = call.args[0]
            code = argument if isinstance(argument, ast.Lambda) else functions.get(last_name(argument))
            body = [code] if code is not None else []
        else:  # model.init_weights(), which goes through self.modules()
            body = [each for each in nodes_in(code, ast.For) if _modules_of(each) == "self"] if code is not None else []
        if owner and any(map(_initialises, body)):
            yield call, owner, [*body]
    for loop in nodes_in(function, ast.For):
        if (owner := _modules_of(loop)) and _initialises(loop):
            yield loop, owner, [loop]


def _modules_of(loop: ast.For) -> str:
    """Return the model whose layers a loop goes through; "" if there is none."""
    match loop.iter:
        case ast.Call(func=ast.Attribute(attr="modules" | "named_modules" | "parameters", value=model)):
            return dotted_name(model)
        case _:
            return ""


def _initialises(code: ast.AST) -> bool:
    return any(_INITIALISING.fullmatch(last_name(call.func)) for call in nodes_in(code, ast.Call))


def _runs_after(source: SourceFile, node: Any, load: ast.Call) -> bool:
    """Return True if a later node of the same function runs whenever the load has run, unless the function ends."""
    if node.lineno <= (load.end_lineno or load.lineno) or function_of(source, node) is not function_of(source, load):
        return False
    child, parent = node, source.parents.get(id(node))
    while parent is not None and parent is not function_of(source, load):
        if isinstance(parent, ast.If | ast.For | ast.While | ast.Try | ast.Match) and not _is_in_same_block(
            parent, child, load
        ):
            return False
        child, parent = parent, source.parents.get(id(parent))
    return not _is_left_between(source, load, node)


def _is_in_same_block(parent: ast.AST, child: ast.AST, load: ast.Call) -> bool:
    blocks: list[list[Any]] = [getattr(parent, name, []) for name in _BLOCKS]
    return any(child in block and any(encloses(each, load) for each in block) for block in blocks)


def _is_left_between(source: SourceFile, load: ast.Call, node: Any) -> bool:
    """Return True if a ``return``, ``break`` or ``continue`` ends the block of a load before a later node."""
    last = source.block(source.statement_of(load))[-1:]
    return any(
        isinstance(each, ast.Return | ast.Break | ast.Continue | ast.Raise) and each.lineno < node.lineno
        for each in last
    )


def _is_used_between(function: Any, loaded: str, load: ast.Call, node: Any) -> bool:
    """Return True if the loaded model is called, or passed to a function, before it is initialised."""
    for call in nodes_in(function, ast.Call):
        if not (load.end_lineno or load.lineno) < call.lineno < node.lineno:
            continue
        parts = [call.func, *call.args, *(each.value for each in call.keywords)]
        if any((name := dotted_name(each)) and f"{loaded}.".startswith(f"{name}.") for each in parts):
            return True
    return False


def _reaches(source: SourceFile, load: ast.Call, code: list[ast.AST], *, is_whole: bool) -> bool:
    """Return True unless the code initialises only classes of layers that the loaded model does not have."""
    tested = {
        last_name(kind)
        for each in code
        for call in nodes_in(each, ast.Call)
        if last_name(call.func) == "isinstance" and len(call.args) == 2
        for kind in (call.args[1].elts if isinstance(call.args[1], ast.Tuple) else [call.args[1]])
    }
    if not tested or is_whole:
        return True
    operation = next((e for e in source.ops(OpKind.LOAD_STATE_DICT) if e.node is load), None)
    if operation is None or operation.subject.kind is not ValueKind.MODEL:
        return len(tested) > 1
    names = {each.name.rpartition(".")[2] for each in submodules(operation.subject)}
    return bool(names & tested)
