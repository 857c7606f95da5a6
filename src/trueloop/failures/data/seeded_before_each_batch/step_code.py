"""Finds the code that runs in every training step: bodies of loops, and functions that the steps call."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import assigned_in, function_of, with_bound_arguments
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.minimised_values import reached_from
from trueloop.analysis.queries.possible_values import (
    enclosing_nodes,
    method_of,
    origins,
    possible_values,
    unpacked_call,
)
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk

_TRANSFORMS: Final = frozenset(("grad", "grad_and_value", "value_and_grad", "vjp"))
_HOOKS: Final = frozenset(("training_step", "compute_loss"))
"""Methods that trainers of other libraries call in each step."""
_PARAMETERS: Final = re.compile(r"param|weight|theta|phi", re.IGNORECASE)
_AROUND_ITERABLE: Final = frozenset(("enumerate", "zip", "tqdm", "islice", "iter"))
_MAX_DEPTH: Final = 4
_FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef
_LOOPS: Final = ast.For | ast.While


class StepCode(NamedTuple):
    """Code that runs in every training step."""

    node: Any
    """The loop or function."""
    reached: frozenset[int]
    """Ids of the nodes from which the loss, or the result of the function, is computed."""
    kept: frozenset[int]
    """Ids of the conditions and inner statements that certainly run, because they contain the backward pass."""
    calls: Mapping[int, ast.Call]
    """Id of a function -> the call of it that leads to the code."""
    loop: Any
    """The training loop; the function itself if another library calls it."""

    def nodes(self) -> Iterator[ast.AST]:
        """Yield the nodes that run each time, without inner loops, functions and conditions."""
        queue: list[Any] = list(self.node.body)
        while queue:
            each = queue.pop(0)
            match each:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    continue
                case ast.With() | ast.Try():
                    queue = [*each.body, *queue]
                    yield from (n for item in getattr(each, "items", []) for n in walk(item))
                case ast.If() | ast.Match() | ast.For() | ast.While():
                    header = getattr(each, "test", getattr(each, "iter", getattr(each, "subject", each)))
                    yield from walk(header)
                    queue = [*(each.body if id(each) in self.kept else ()), *queue]  # type: ignore[union-attr]
                case _:
                    yield from walk(each)


def step_code(source: SourceFile) -> Iterator[StepCode]:
    """Yield the code of each training step, and of the functions that compute its loss."""
    for trigger, roots in _differentiations(source):
        reached = reached_from(source, roots)
        for chain, calls in _around(source, trigger):
            is_hook = isinstance(chain[-1], ast.FunctionDef) and chain[-1].name in _HOOKS
            if not (is_hook or isinstance(chain[-1], _LOOPS)) or _makes_optimizer(chain[-1]):
                continue
            kept = frozenset(id(each) for each in enclosing_nodes(source, trigger))
            for node in chain:
                code = StepCode(node, reached, kept, calls, chain[-1])
                yield code
                yield from _called(source, code, 0)
                yield from _loops_over_samples(source, code)


def _loops_over_samples(source: SourceFile, code: StepCode) -> Iterator[StepCode]:
    """Yield the inner loops that collect the samples of a batch in a list, from which the loss is computed."""
    for loop in nodes_in(code.node, ast.For):
        appended = [each for each in nodes_in(loop, ast.Call) if last_name(each.func) == "append" and each.args]
        is_inner = loop is not code.node and id(loop) not in code.kept
        if is_inner and any(id(each.args[0]) in code.reached for each in appended):
            inner = code._replace(node=loop, kept=frozenset())
            yield inner
            yield from _called(source, inner, 1)


def _differentiations(source: SourceFile) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    """Yield each place where a program computes gradients, with the expressions of the loss."""
    backwards = [
        each for each in source.all_calls if isinstance(each.func, ast.Attribute) and each.func.attr == "backward"
    ]
    for each in backwards:
        yield each, [each.func.value, *each.args[:1]]  # type: ignore[attr-defined]
    for each in source.all_calls:
        if last_name(each.func) == "grad" and len(each.args) > 1:
            is_input = any(word.arg == "create_graph" for word in each.keywords)
            if not is_input and (not backwards or _PARAMETERS.search(ast.unparse(each.args[1]))):
                yield each, [each.args[0]]
        elif any(_is_transform(source, value) for value in origins(source, each.func)):
            yield each, [*each.args, *(word.value for word in each.keywords)]
    for function in source.nodes_of(ast.FunctionDef):
        results = [each.value for each in nodes_in(function, ast.Return) if each.value is not None]
        if function.name in _HOOKS and results:
            yield results[0], list(results)


def _makes_optimizer(block: Any) -> bool:
    """Return True for a loop that trains another model in each iteration."""
    assigned = [each.value for each in block.body if isinstance(each, ast.Assign)]
    return any(isinstance(n, ast.Attribute) and n.attr == "parameters" for value in assigned for n in walk(value))


def _is_transform(source: SourceFile, call: ast.expr) -> bool:
    """Return True for ``torch.func.grad(objective)``, which makes a function that computes gradients."""
    if not isinstance(call, ast.Call):
        return False
    name = source.qualified_name(call.func)
    return last_name(call.func) in _TRANSFORMS and (not name or "func" in name) and len(call.args) <= 1


def _around(source: SourceFile, node: ast.AST, depth: int = 0) -> Iterator[tuple[list[Any], dict[int, ast.Call]]]:
    """Yield the functions around a node up to the loop that calls the outermost one, innermost first."""
    child: ast.AST = node
    parent: Any = source.parents.get(id(node))
    while parent is not None and not isinstance(parent, _FUNCTIONS):
        if isinstance(parent, _LOOPS) and child is not getattr(parent, "iter", None):
            yield [parent], {}
            return
        child, parent = parent, source.parents.get(id(parent))
    if parent is None:
        return
    if parent.name in _HOOKS:
        yield [parent], {}
        return
    known = definitions(source)
    calls = known.calls.get(parent.name, []) if known.functions.get(parent.name) is parent else []
    for call in calls[:_MAX_DEPTH] if depth < _MAX_DEPTH else ():
        for chain, bound in _around(source, call, depth + 1):
            yield [parent, *chain], {id(parent): call} | bound


def _called(source: SourceFile, code: StepCode, depth: int) -> Iterator[StepCode]:
    """Yield the code of the functions of the program whose results the code uses for the loss."""
    if depth == _MAX_DEPTH:
        return
    names = [each for each in nodes_in(code.node, ast.Name, ast.Attribute) if id(each) in code.reached]
    unpacked = {id(unpacked_call(source, each)) for each in names}
    is_first_loop = isinstance(code.node, ast.For) and depth == 0
    calls = [each for each in code.nodes() if isinstance(each, ast.Call) and {id(each)} & (code.reached | unpacked)]
    for call in calls:
        for function, bound in _functions(source, call):
            yield from _code_of(source, code, function, bound, depth)
    for call in _iterated(code.node.iter) if is_first_loop else ():
        for function in filter(None, (called_function(source, call), _iteration(source, call))):
            for block in _yielding_loops(source, function):
                values = [e.value for e in nodes_in(block, ast.Yield) if e.value is not None]
                inner = StepCode(
                    block, reached_from(source, values), frozenset(), {**code.calls, id(function): call}, code.loop
                )
                yield inner
                yield from _called(source, inner, depth + 1)


def _code_of(
    source: SourceFile, code: StepCode, function: ast.FunctionDef, call: ast.Call, depth: int
) -> Iterator[StepCode]:
    results = [e.value for e in nodes_in(function, ast.Return) if e.value is not None]
    if id(function) in code.calls or not results:
        return
    bound = {**code.calls, id(function): call}
    inner = StepCode(function, reached_from(source, results), frozenset(), bound, code.loop)
    yield inner
    yield from _called(source, inner, depth + 1)


def _functions(source: SourceFile, call: ast.Call) -> Iterator[tuple[ast.FunctionDef, ast.Call]]:
    """Yield the functions that a call may run, with the call; also what ``partial`` or a closure factory returns."""
    known = definitions(source)
    function = known.functions.get(last_name(call.func)) or _call_method(source, call)
    if function is not None:
        yield function, call
        return
    bound = with_bound_arguments(source, call)
    if bound is not call and last_name(bound.func) in known.functions:
        yield known.functions[last_name(bound.func)], bound
    for made in assigned_in(source.tree, ast.unparse(call.func)) or possible_values(source, call.func):
        for value in possible_values(source, made) if isinstance(made, ast.Call) else ():
            if isinstance(value, ast.Name) and value.id in known.functions:
                yield known.functions[value.id], call


def _call_method(source: SourceFile, call: ast.Call) -> ast.FunctionDef | None:
    """Return the ``__call__`` of the class of which a variable holds an instance."""
    made = [
        last_name(each.func) for each in assigned_in(source.tree, ast.unparse(call.func)) if isinstance(each, ast.Call)
    ]
    classes = [definitions(source).classes[name] for name in made if name in definitions(source).classes]
    return method_of(classes[0], "__call__") if len(classes) == 1 else None


def _iterated(node: ast.expr) -> Iterator[ast.Call]:
    """Yield the calls whose items a loop goes through: ``draw()`` in ``enumerate(draw())``."""
    if isinstance(node, ast.Call) and last_name(node.func) in _AROUND_ITERABLE:
        for each in node.args:
            yield from _iterated(each)
    elif isinstance(node, ast.Call):
        yield node


def _iteration(source: SourceFile, call: ast.Call) -> ast.FunctionDef | None:
    """Return the ``__iter__`` of the class that a call creates."""
    definition = definitions(source).classes.get(last_name(call.func))
    return method_of(definition, "__iter__") if definition is not None else None


def _yielding_loops(source: SourceFile, function: ast.FunctionDef) -> Iterator[Any]:
    """Yield the innermost loops of a generator function that yield a batch in each iteration."""
    for each in nodes_in(function, ast.Yield):
        loop = enclosing_definition(source, each, _LOOPS)
        if isinstance(loop, _LOOPS) and function_of(source, loop) is function:
            yield loop
