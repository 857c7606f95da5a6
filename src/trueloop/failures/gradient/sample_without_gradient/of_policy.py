"""Finds the samples of a policy that a critic judges in the loss of the policy."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions, instances
from trueloop.analysis.queries.possible_values import is_without_gradients, possible_values, unpacked_call
from trueloop.analysis.queries.signed_terms import minimised_terms
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk

REPARAMETRISED: Final = frozenset((
    "Normal", "Laplace", "Beta", "Gamma", "Dirichlet", "MultivariateNormal", "LogNormal", "StudentT", "Gumbel",
))  # fmt: skip
"""Distributions of PyTorch that have ``rsample``."""
_WRAPPING: Final = frozenset(("Independent", "TransformedDistribution"))
_FIXED: Final = re.compile(r"\b(zeros|ones|full|empty)(_like)?\(|new_(zeros|ones)\(|^-?[\d.]+$")
_KEEPING: Final = frozenset((
    "tanh", "clamp", "clip", "sigmoid", "squeeze", "unsqueeze", "view", "reshape", "to", "float", "cat", "concat",
    "hstack", "stack", "flatten", "sum", "mul", "expand", "contiguous", "concatenate",
))  # fmt: skip
"""Functions and methods whose result has the gradient of their argument only."""
_NO_NETWORK: Final = re.compile(r"prob|entropy|cdf|loss|kl|mse|nll|step|print|append|backward|zero_grad|log$")
_MAX_DEPTH: Final = 8


class Judged(NamedTuple):
    """A sample without a gradient in the loss of a policy."""

    sample: ast.Call
    """``dist.sample()``."""
    critic: ast.Call
    """The call whose value is maximised."""


def judged_samples(source: SourceFile) -> Iterator[Judged]:
    """Yield each sample of a policy that is passed to a network whose value is maximised."""
    reported: set[int] = set()
    for terms in minimised_terms(source):
        for term in terms:
            if term.sign > 0 or not isinstance(term.node, ast.Call) or not _is_network(source, term.node):
                continue
            given = [*term.node.args, *(each.value for each in term.node.keywords)]
            for sample in [found for each in given for found in _samples(source, each, None, _MAX_DEPTH)]:
                if id(sample) not in reported and not is_without_gradients(source, term.node):
                    reported.add(id(sample))
                    yield Judged(sample, term.node)


def _is_network(source: SourceFile, call: ast.Call) -> bool:
    name = last_name(call.func)
    is_library = source.qualified_name(call.func).startswith(("torch.", "numpy.", "math."))
    return bool(name) and not is_library and name not in _KEEPING and not _NO_NETWORK.search(name)


def _samples(source: SourceFile, node: ast.expr, position: int | None, depth: int) -> Iterator[ast.Call]:
    """Yield the samples without a gradient of which an expression, or one item of the tuple that it is, is computed."""
    if depth == 0 or any(last_name(each.func) == "detach" for each in nodes_in(node, ast.Call)):
        return
    parts: list[tuple[ast.expr, int | None]] = []
    match node:
        case ast.Tuple(elts=elements) if position is not None:
            parts = [(each, None) for each in elements[position : position + 1]]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            parts = [(each, None) for each in elements]
        case ast.BinOp(left=left, right=right):
            parts = [(left, None), (right, None)]
        case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=int(number))):
            parts = [(call, number)]
        case ast.Name() | ast.Attribute():
            parts = _parts_of_variable(source, node, position)
        case ast.Call():
            if _is_sample(source, node):
                yield node
                return
            parts = _parts_of_call(source, node, position)
        case _:
            pass
    for part, number in parts:
        yield from _samples(source, part, number, depth - 1)


def _parts_of_variable(source: SourceFile, node: Any, position: int | None) -> list[tuple[ast.expr, int | None]]:
    unpacked = unpacked_call(source, node) if isinstance(node, ast.Name) else None
    if unpacked is not None:
        number = _position(source, node, unpacked)
        return [(unpacked, number)] if number is not None else []
    values = possible_values(source, node)
    parameters = [each.arg for each in nodes_in(getattr(function_of(source, node), "args", node), ast.arg)]
    is_parameter = isinstance(node, ast.Name) and node.id in parameters
    return [(each, position) for each in values] if len(values) == 1 or not is_parameter else []


def _position(source: SourceFile, node: ast.Name, call: ast.Call) -> int | None:
    """Return the position of a variable among the results of a call that are assigned to a tuple."""
    statement = source.statement_of(call)
    targets = statement.targets[0].elts if isinstance(statement, ast.Assign) else []  # type: ignore[attr-defined]
    return next((number for number, each in enumerate(targets) if getattr(each, "id", "") == node.id), None)


def _parts_of_call(source: SourceFile, call: ast.Call, position: int | None) -> list[tuple[ast.expr, int | None]]:
    returned = _returned(source, call)
    if returned:
        return [(each, position) for each in returned]
    if last_name(call.func) not in _KEEPING:
        return []
    owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return [(each, None) for each in (*owner, *call.args)]


def _returned(source: SourceFile, call: ast.Call) -> list[ast.expr]:
    """Return what the functions that a call may run return: those of its name, or the ``forward`` of a module."""
    name = last_name(call.func)
    if source.qualified_name(call.func).startswith("torch."):
        return []
    made = {last_name(each.call.func) for each in instances(source) if last_name(each.target) == name}
    classes = [definitions(source).classes[each] for each in made if each in definitions(source).classes]
    methods = [each for one in classes for each in one.body if isinstance(each, ast.FunctionDef)]
    functions = [each for each in methods if each.name in ("forward", "__call__")]
    functions = functions or [each for each in source.nodes_of(ast.FunctionDef) if each.name == name]
    return [e.value for each in functions for e in nodes_in(each, ast.Return) if e.value is not None]


def _is_sample(source: SourceFile, call: ast.Call) -> bool:
    """Return True for ``dist.sample()`` of a distribution with ``rsample`` whose location a network computes."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "sample" or is_without_gradients(source, call):
        return False
    return any(_is_computed(source, each) for each in _distributions(source, call.func.value, _MAX_DEPTH))


def _distributions(source: SourceFile, node: ast.expr, depth: int) -> Iterator[ast.Call]:
    """Yield the calls that create the distribution that an expression is; () unless all of them have ``rsample``."""
    if depth == 0:
        return
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        if name in REPARAMETRISED or name.endswith(("Normal", "Gaussian")):
            yield node
        for each in node.args[:1] if name in _WRAPPING else _returned(source, node):
            yield from _distributions(source, each, depth - 1)
        return
    unpacked = unpacked_call(source, node) if isinstance(node, ast.Name) else None
    number = _position(source, node, unpacked) if isinstance(node, ast.Name) and unpacked is not None else None
    values = possible_values(source, node)
    if unpacked is not None and number is not None:
        tuples = [each for each in _returned(source, unpacked) if isinstance(each, ast.Tuple)]
        values = [part for each in tuples for part in each.elts[number : number + 1]]
    for each in values:
        yield from _distributions(source, each, depth - 1)


def _is_computed(source: SourceFile, created: ast.Call) -> bool:
    """Return True if the first parameter of a distribution is computed, and is no constant."""
    first = next(iter([*created.args, *(each.value for each in created.keywords)]), None)
    if first is None:
        return False
    values = [first, *possible_values(source, first)]
    if any(_FIXED.search(ast.unparse(each)) for each in values):
        return False
    if isinstance(first, ast.Name) and unpacked_call(source, first) is not None:
        return True
    calls = [part for each in values for part in walk(each) if isinstance(part, ast.Call)]
    return any(not source.qualified_name(each.func).startswith("torch.tensor") for each in calls)
