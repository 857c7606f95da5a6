"""A function or a command line has an argument, but the program uses a value of its own in its place.

What you see
    ``Loss(weight=0.1)`` and ``Loss(weight=100)`` train alike. A search over the argument finds that it does not matter.

Why it happens
    The constant of a first version stayed when the argument was added: ``self.weight = 10`` in a constructor with the
    argument ``weight``, or ``weight = 10`` at the start of a function. Python raises no error for an argument that
    nothing reads. An option of the command line is lost in the same way: ``args.config = "debug.json"`` was written
    to try something out, or ``warmup = total // 10`` came after ``warmup = args.warmup``.

Fix
    Use the argument:

        def __init__(self, weight=10):
            self.weight = weight

When this is fine
    - The argument is only there because callers pass it, or for old programs, and the text says so.
    - The function reads the argument before it takes another value, or in a condition: ``if weight is None``.
    - The attribute starts as None, or as an empty list.
    - A method has the arguments of a base class, or a decorator that may read them.
    - A launcher of several processes passes the option, such as ``--local_rank``.
    - An option is only replaced under a condition, as by ``if args.debug``.

How it is detected
    Only the linter finds it, from the source code: an argument that a function never reads, and a constant, a number, a
    text, True or False, that gets its name, as an attribute of ``self`` in a constructor, or as a keyword of a
    call. It also reports an argument that is replaced by a constant before the function reads it. Arguments that the
    text calls unused, ignored or deprecated are not reported. Of the command line, it reports an attribute of the
    parsed arguments that is replaced in the same block before it is read, and a variable that got an option, if nothing
    else reads the option. It also reports a comparison such as ``loss == "mse"`` in a loop that assigns the loss of a
    batch to the same variable later.

References
    Pylint, "unused-argument", https://pylint.readthedocs.io/en/stable/user_guide/messages/warning/unused-argument.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import arguments_of_calls, enclosing_nodes, parameters_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in, walk
from trueloop.failures.environment.argument_replaced.loss_over_setting import settings_lost_to_loss
from trueloop.failures.environment.argument_replaced.options import overwritten_options
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ON_PURPOSE: Final = re.compile(
    r"unused|not used|ignor|deprecat|compat|no effect|placeholder|dummy|overrid|hard.?coded|\balways\b|\bforces?\b|TODO"
    r"|FIXME|noqa",
    re.IGNORECASE,
)
_READS_ALL: Final = frozenset(("locals", "vars", "eval", "exec"))
_METHODS_THAT_READ_ALL: Final = frozenset(("save_hyperparameters", "getcallargs"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each value that stands where an argument or an option is meant."""
    yield from overwritten_options(source)
    yield from settings_lost_to_loss(source)
    for name, constant, place in _constants(source):
        function = function_of(source, place)
        if (
            not isinstance(function, ast.FunctionDef)
            or function.decorator_list
            or name not in {each.arg for each in parameters_of(function)}
        ):
            continue
        is_read = any(each.id == name and not isinstance(each.ctx, ast.Store) for each in nodes_in(function, ast.Name))
        is_attribute = isinstance(place, ast.Assign) and isinstance(place.targets[0], ast.Attribute)
        if isinstance(place, ast.Assign) and not is_attribute:
            is_found = is_read and _is_replaced(function, name, place)
        else:
            is_found = not is_read and _is_unconditional(source, place)
            is_found &= function.name == "__init__" or not (is_attribute or _may_be_inherited(source, function))
        is_found = is_found and not _has_no_effect(source, function, name, constant)
        if is_found and not _reads_all(function) and not _ON_PURPOSE.search(_with_comments(source, function)):
            yield _hit(source, function, name, constant, is_read=is_read)


def _constants(source: SourceFile) -> Iterator[tuple[str, ast.expr, ast.Assign | ast.keyword]]:
    """Yield the name of an argument, a constant that the same name gets, and the assignment or keyword."""
    names = {each.arg for each in source.nodes_of(ast.arg)}
    for each in source.nodes_of(ast.Assign, ast.keyword):
        if not _is_constant(each.value):
            continue
        match each:
            case ast.keyword(arg=str(name)) | ast.Assign(targets=[ast.Name(id=name)]) if name in names:
                yield name, each.value, each
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=attr)]):
                if attr.lstrip("_") in names:
                    yield attr.lstrip("_"), each.value, each
            case _:
                pass


def _hit(source: SourceFile, function: ast.FunctionDef, name: str, constant: ast.expr, *, is_read: bool) -> Hit:
    reason = "replaced by it before it is read" if is_read else "never read"
    return Hit(
        message=f"`{ast.unparse(constant)}` is a constant: the argument `{name}` of `{function.name}` is {reason}.",
        node=constant,
        related=((function, "the function with the argument"),),
        fix=None
        if is_read
        else Fix((source.text.replace(constant, name),), safe=False, description="Use the argument"),
    )


def _has_no_effect(source: SourceFile, function: ast.FunctionDef, name: str, constant: ast.expr) -> bool:
    """Return True if nothing calls a function, all calls pass the same constant, or attributes are set by name."""
    owner = source.parents.get(id(function))
    is_init = isinstance(owner, ast.ClassDef) and function.name == "__init__"
    called = owner.name if isinstance(owner, ast.ClassDef) and is_init else function.name
    calls, given = definitions(source).calls.get(called, []), arguments_of_calls(source, function, name)
    is_same = len(given) == len(calls) > 0 and {ast.dump(each) for each in given} == {ast.dump(constant)}
    return is_same or (is_init and _sets_by_name(source, owner)) or source.is_unused(called)


def _sets_by_name(source: SourceFile, owner: Any) -> bool:
    """Return True for a class with a base class that calls ``setattr(self, key, value)``, as `from_pretrained` does."""
    for base in map(last_name, owner.bases):
        known = definitions(source).classes.get(base)
        setters = [e for e in nodes_in(known, ast.Call) if last_name(e.func) == "setattr"] if known is not None else []
        if base == "PretrainedConfig" or any(
            len(each.args) > 1 and not isinstance(each.args[1], ast.Constant) for each in setters
        ):
            return True
    return False


def _with_comments(source: SourceFile, function: ast.FunctionDef) -> str:
    """Return the text of a function, to the end of its last line."""
    start, end = source.text.span(function)
    line_end = source.text.content.find(b"\n", end)
    return source.text.content[start : line_end if line_end >= 0 else None].decode(errors="replace")


def _may_be_inherited(source: SourceFile, function: ast.FunctionDef) -> bool:
    """Return True for a method with arguments that a base class may prescribe."""
    owner = source.parents.get(id(function))
    bases = {last_name(each) for each in owner.bases} if isinstance(owner, ast.ClassDef) else set[str]()
    return not bases <= {"Module", "object"} or (bool(bases) and function.name == "forward")


def _reads_all(function: ast.FunctionDef) -> bool:
    """Return True for a function that may read its arguments by name, or that is only a declaration."""
    methods = {last_name(each.func) for each in nodes_in(function, ast.Call)}
    names = {each.id for each in nodes_in(function, ast.Name)}
    reading = _READS_ALL | {"__class__", "NotImplementedError"}  # model.eval() reads nothing
    return not reading.isdisjoint(names) or not _METHODS_THAT_READ_ALL.isdisjoint(methods)


def _is_replaced(function: ast.FunctionDef, name: str, assignment: ast.Assign) -> bool:
    """Return True for an assignment of the function's own block, before which nothing reads the argument."""
    for statement in function.body:
        if statement is assignment:
            return True
        if any(isinstance(each, ast.Name) and each.id == name for each in walk(statement)):
            return False
    return False


def _is_unconditional(source: SourceFile, node: ast.AST) -> bool:
    """Return True for a node that runs whenever its function is called."""
    around = enclosing_nodes(source, node)
    return not any(isinstance(each, ast.If | ast.IfExp | ast.Try | ast.ExceptHandler) for each in around)


def _is_constant(node: ast.expr) -> bool:
    value = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float | str) and value.value != ""


_SIGNATURE: Final = re.compile(r"\bdef \w+\(([^)]*)\)")
_GETS_CONSTANT: Final = re.compile(r"(?:[\s(,]|self\._?)(\w+) ?= ?(?:-?[.\d]|True\b|False\b|[\"'])")

_COMPARED: Final = re.compile(r"\b(\w+) ?== ?[\"'1-9]")


def _may_replace(text: str) -> bool:
    """Return True for a text with options, or in which the name of an argument gets a constant or a setting a loss."""
    if "torch" not in text:
        return False
    if "add_argument" in text or any(f"{name}.backward(" in text for name in set(_COMPARED.findall(text))):
        return True
    arguments = {name for each in _SIGNATURE.findall(text) for name in re.findall(r"\w+", each)}
    return not arguments.isdisjoint(_GETS_CONSTANT.findall(_SIGNATURE.sub("", text)))


RULE = Rule(required_words=("def |add_argument|.backward(", _may_replace), find=find)

BAD = """
import torch
from torch import nn


class SmoothLoss(nn.Module):
    def __init__(self, weight=10):
        super().__init__()
        self.weight = 10

    def forward(self, out, y):
        return nn.functional.mse_loss(out, y) + self.weight * out.diff(dim=0).abs().mean()


torch.manual_seed(0)
x = torch.randn(64, 4)
model = nn.Linear(4, 1)
loss_fn = SmoothLoss(weight=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss_fn(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="ENV011",
    title="An argument is replaced by another value",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"self.weight = 10": "self.weight = weight"}),
    fix="Use the argument: self.weight = weight.",
    rule=RULE,
)
