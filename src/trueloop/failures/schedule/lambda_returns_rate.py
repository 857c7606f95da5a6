"""The function of a LambdaLR returns a learning rate, but LambdaLR expects a factor.

What you see
    Training is much slower than with the learning rate that you chose, although the schedule looks right. With
    ``lr=0.001`` the real learning rate is 0.000001, and the loss hardly moves.

Why it happens
    ``LambdaLR`` multiplies the optimizer's ``lr`` by what the function returns. If the function returns the learning
    rate itself, the optimizer uses its square.

Fix
    Return a factor that starts at 1, or set ``lr=1.0`` in the optimizer.

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = LambdaLR(optimizer, lambda epoch: 0.95**epoch)  # not 0.1 * 0.95**epoch

When this is fine
    - A warm-up starts with a factor that happens to equal the learning rate, and rises to 1.
    - The optimizer has ``lr=1.0``, and the function returns rates, as in the schedule of "Attention Is All You Need".
    - A long warm-up has not reached its end yet.
    - The function returns a constant factor for some parameter groups, such as 0.1 for the backbone.
    - The parameter groups have rates of their own, such as 1.0 and 0.1, so that the optimizer does not use its ``lr``.

How it is detected
    In a run, the sanitizer reports a LambdaLR whose first factor equals the optimizer's learning rate, and whose factor
    never rose above it in at least three steps. It also reports a LambdaLR whose factor rose to at most 1/20 and then
    fell, or fell from there, if the optimizer's ``lr`` is at most 0.01 and so is a learning rate itself. That may be
    a coincidence, so this is a warning. The linter reports a function that multiplies by what is passed to the
    optimizer as ``lr``, also a closure, a lambda, a method, an object that is called or a ``partial``, in any file, if
    each value that it returns has this factor, unless all parameter groups have a ``lr`` of their own that is not a
    multiple of it. It also reports a function that returns
    ``min(step**-0.5, step * warmup**-1.5)``, which is a small rate, with an ``lr`` of at most 0.01.

References
    LambdaLR, https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.LambdaLR.html
"""

import ast
import math
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import EXTERNAL, AbstractValue, ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.best_values import initial_number
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import MAX_DEPTH, parameters_of, possible_values
from trueloop.analysis.queries.td_targets import product_factors
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import SchedulerStepped, WatchEnded
from trueloop.tracing.trackers.schedule_courses import ScheduleCourse, ScheduleCourses

MIN_STEPS: Final = 3
MAX_BASE_RATE: Final = 0.01  # the schedule of a transformer with up to 10,000 dimensions may start from a higher one
MAX_FACTOR: Final = 0.05
MIN_COURSE: Final = 8  # steps of a schedule that has risen and fallen
MIN_FALL: Final = 0.9
_RATE: Final = re.compile(r"(^|_)(lr|learning_?rate|eta)($|_)|rate$", re.IGNORECASE)


class Detector(BaseDetector):
    """Compares the learning rates with the square of the optimizer's own learning rate, at the end of the program."""

    activated_by = (SchedulerStepped,)
    courses: ScheduleCourses

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for each LambdaLR that never used more than the square of the learning rate."""
        for course in self.courses.by_scheduler.values():
            if _is_squared(course):
                returned = f"which is {course.base_rate:.3g} too"
            elif _is_far_below(course):
                returned = f"which is at most {course.highest / course.base_rate:.2g}"
            else:
                continue
            yield Evidence(
                message=f"LambdaLR multiplies the learning rate {course.base_rate:.3g} by what its function returns, "
                f"{returned}: the updates used at most {course.highest:.3g}.",
                location=course.built_at or course.location,
                first_update=0,
            )


def _is_squared(course: ScheduleCourse) -> bool:
    base = course.base_rate
    if course.kind != "LambdaLR" or course.steps < MIN_STEPS or not 0 < base < 1:
        return False
    return math.isclose(course.first_rate, base * base, rel_tol=1e-6) and course.highest <= course.first_rate * 1.001


def _is_far_below(course: ScheduleCourse) -> bool:
    """Return True if a schedule has risen and fallen, but far below the learning rate of its optimizer."""
    if course.kind != "LambdaLR" or course.steps < MIN_COURSE or not course.is_complete:
        return False
    is_low = 0 < course.base_rate <= MAX_BASE_RATE and course.highest <= MAX_FACTOR * course.base_rate
    return is_low and 0 < course.rate < MIN_FALL * course.highest


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and functions that get the learning rate as an argument and return it."""
    found = list(find(source))
    yield from found
    reported = {id(each.node) for each in found}
    yield from (each for each in _passed_rates(source) if id(each.node) not in reported)


def _passed_rates(source: SourceFile) -> Iterator[Hit]:
    """Yield ``lambda step: cosine(step, total, args.lr, 0.0)``, if the optimizer gets ``lr=args.lr`` too."""
    rates = {
        last_name(each.value): each.value
        for each in source.nodes_of(ast.keyword)
        if each.arg == "lr" and _RATE.search(last_name(each.value))
    }
    own = [each for each in source.tree.body if isinstance(each, ast.FunctionDef)]  # schedulers have a get_lr
    functions = definitions(source).functions | {each.name: each for each in own}
    for call in source.all_calls if rates else ():
        function = argument_node(call, "lr_lambda", 1) if last_name(call.func) == "LambdaLR" else None
        match function:
            case ast.Lambda(body=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) as inner) if (
                name in functions
            ):
                passed = _returned_argument(functions[name], inner, set(rates))
            case _:
                continue
        if passed is not None:
            yield Hit(
                message=f"LambdaLR multiplies the optimizer's learning rate by what this function returns, and "
                f"`{name}` returns a rate that is computed from `{ast.unparse(passed)}`.",
                node=function,
                related=((rates[last_name(passed)], "the learning rate"),),
            )


def _returned_argument(function: ast.FunctionDef, call: ast.Call, rates: set[str]) -> ast.expr | None:
    """Return the learning rate that a call passes, if each result of the function is a multiple of it, or a sum."""
    names = [each.arg for each in parameters_of(function)]
    given = [*zip(names, call.args, strict=False), *((each.arg, each.value) for each in call.keywords)]
    rate = [(name, each) for name, each in given if last_name(each) in rates]
    if len(rate) != 1 or any(not isinstance(each, ast.Name | ast.Attribute) for _, each in rate):
        return None
    name, passed = rate[0]
    returned = _own_returns(function)
    divisors = [each.right for each in nodes_in(function, ast.BinOp) if isinstance(each.op, ast.Div)]
    divisors += [each.value for each in nodes_in(function, ast.AugAssign) if isinstance(each.op, ast.Div)]
    is_divided = any(part.id == name for each in divisors for part in nodes_in(each, ast.Name))
    is_factor = all(any(part.id == name for part in nodes_in(each, ast.Name)) for each in returned)
    return passed if returned and is_factor and not is_divided else None


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each function of a LambdaLR that returns a learning rate."""
    for creation in source.ops(OpKind.CREATE):
        scheduler, call = creation.subject, creation.node
        optimizer = scheduler.sources[0] if scheduler.kind is ValueKind.SCHEDULER and scheduler.sources else None
        if optimizer is None or not isinstance(call, ast.Call):
            continue
        if dotted_name(call.func).rpartition(".")[2] != "LambdaLR":
            continue
        function = argument_node(call, "lr_lambda", 1)
        returned, rate = _returned(source, function), _rate_argument(optimizer.node)
        schedule = scheduler.arguments.get("lr_lambda") or scheduler.arguments.get("1")
        if function is None or rate is None or _is_unused(source, optimizer.node, rate):
            continue
        if schedule is not None and _multiplies_by_rate(schedule, optimizer):
            what = f"multiplies by `{ast.unparse(rate)}` again"
        elif not returned:
            continue
        elif all(any(_is_same(each, rate) for each in product_factors(value)) for value in returned):
            what = f"multiplies by `{ast.unparse(rate)}` again"
        elif any(map(_is_inverse_root, returned)) and (initial_number(rate) or 1) <= MAX_BASE_RATE:
            what = (
                f"returns a rate, far below 1: with `lr={ast.unparse(rate)}` the updates are a thousand times too small"
            )
        else:
            continue
        yield Hit(
            message=f"LambdaLR multiplies the optimizer's learning rate by what this function returns, and the "
            f"function {what}.",
            node=function,
            related=((optimizer.node, "the learning rate"),) if optimizer.node is not None else (),
        )


def _returned(source: SourceFile, function: ast.expr | None) -> list[ast.expr]:
    """Return what a lambda or a function of the file returns; [] if it is neither."""
    if isinstance(function, ast.Lambda):
        return [function.body]
    name = dotted_name(function).rpartition(".")[2]
    found = [each for each in source.nodes_of(ast.FunctionDef) if each.name == name]
    return _own_returns(found[0]) if len(found) == 1 else []


def _rate_argument(creation: ast.AST | None) -> ast.expr | None:
    """Return what is passed to an optimizer as ``lr``."""
    keywords = creation.keywords if isinstance(creation, ast.Call) else []
    return next((each.value for each in keywords if each.arg == "lr"), None)


def _is_unused(source: SourceFile, creation: ast.Call, rate: ast.expr) -> bool:
    """Return True if each parameter group of an optimizer has a rate of its own that is not a multiple of ``lr``."""
    parameters = argument_node(creation, "params", 0)
    found = list(_groups(source, parameters, MAX_DEPTH)) if parameters is not None else []
    own = [each for each in found if each is not None]
    return bool(own) and len(own) == len(found) and not any(_is_multiple(source, each, rate) for each in own)


def _groups(source: SourceFile, parameters: ast.expr, depth: int) -> Iterator[ast.expr | None]:
    """Yield the rate of each parameter group that an expression may contain, and None for a group without one."""
    match parameters:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            for each in parts:
                yield from _groups(source, each, depth)
        case ast.ListComp(elt=part):
            yield from _groups(source, part, depth)
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            yield from _rate_of_group({key.value: each for key, each in pairs if isinstance(key, ast.Constant)})
        case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
            yield from _rate_of_group({each.arg: each.value for each in keywords})
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            yield from (*_groups(source, left, depth), *_groups(source, right, depth))
        case _:
            for each in possible_values(source, parameters) if depth else ():
                yield from _groups(source, each, depth - 1)
            if isinstance(parameters, ast.Name):
                yield from _appended(source, parameters, depth)


def _rate_of_group(items: dict[Any, ast.expr]) -> Iterator[ast.expr | None]:
    if "params" in items:
        yield items.get("lr")


def _appended(source: SourceFile, groups: ast.Name, depth: int) -> Iterator[ast.expr | None]:
    """Yield the rate of each parameter group that a function adds to a list: ``groups.append({"params": ...})``."""
    for call in nodes_in(function_of(source, groups), ast.Call):
        match call:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend"), args=[added]):
                if name == groups.id and depth:
                    yield from _groups(source, added, depth - 1)
            case _:
                pass


def _is_multiple(source: SourceFile, value: ast.expr, rate: ast.expr, depth: int = MAX_DEPTH) -> bool:
    """Return True if each value that an expression may have is a product with a learning rate as a factor."""
    for each in product_factors(value):
        if _is_same(each, rate):
            return True
        known = [arm for found in possible_values(source, each) for arm in _arms(found)] if depth else []
        if known and all(_is_multiple(source, arm, rate, depth - 1) for arm in known):
            return True
    return False


def _is_same(factor: ast.expr, rate: ast.expr) -> bool:
    """Return True for the same name, or the same number if it is a learning rate."""
    name, number = dotted_name(rate), initial_number(rate)
    return (name != "" and dotted_name(factor) == name) or (
        number is not None and number <= MAX_BASE_RATE and initial_number(factor) == number
    )


def _multiplies_by_rate(schedule: AbstractValue, optimizer: AbstractValue) -> bool:
    """Return True if a function, closure or object multiplies all that it returns by the learning rate of an optimizer.

    Variables of enclosing functions, attributes of the object and arguments of ``partial`` are followed.
    """
    rate = optimizer.arguments.get("lr") or optimizer.arguments.get("1")
    definition: Any = schedule.node
    instance, name = schedule, "__call__"
    if isinstance(definition, ast.Attribute) and schedule.sources:
        instance, name = schedule.sources[0], definition.attr
    if instance.kind is ValueKind.INSTANCE and isinstance(instance.scope, AbstractValue):
        definition = next((e for e in instance.scope.node.body if getattr(e, "name", "") == name), None)
    if rate is None or schedule.union or rate.union or not isinstance(definition, ast.FunctionDef | ast.Lambda):
        return False
    returned = [definition.body] if isinstance(definition, ast.Lambda) else _own_returns(definition)
    known = _Values(schedule, definition)
    arms = [arm for value in returned for arm in _arms(known.expression(value))]
    return bool(arms) and all(known.has_factor(arm, rate) for arm in arms)


def _own_returns(definition: ast.FunctionDef) -> list[ast.expr]:
    inner = {id(e) for each in nodes_in(definition, ast.FunctionDef, ast.Lambda) for e in walk(each)
             if each is not definition}  # fmt: skip
    returns = [each for each in nodes_in(definition, ast.Return) if id(each) not in inner]
    return [each.value for each in returns if each.value is not None]


def _arms(value: ast.expr) -> Iterator[ast.expr]:
    """Yield the alternatives of ``a if test else b``."""
    if isinstance(value, ast.IfExp):
        yield from _arms(value.body)
        yield from _arms(value.orelse)
    else:
        yield value


class _Values:
    """The values of the names and attributes in a function that is passed to a scheduler."""

    def __init__(self, schedule: AbstractValue, definition: ast.FunctionDef | ast.Lambda) -> None:
        self._schedule, self._definition = schedule, definition
        self._instance = schedule if schedule.kind is ValueKind.INSTANCE else next(iter(schedule.sources), None)
        self._parameters = [each.arg for each in nodes_in(definition.args, ast.arg)]
        self._stored = [e.id for e in nodes_in(definition, ast.Name) if isinstance(e.ctx, ast.Store)]

    def expression(self, node: ast.expr) -> ast.expr:
        """Return the expression that a local variable is assigned, if only once; else the node."""
        found = [
            each.value
            for each in nodes_in(self._definition, ast.Assign)
            if isinstance(node, ast.Name) and ast.unparse(each.targets[0]) == node.id
        ]
        name = getattr(node, "id", "")
        return found[0] if len(found) == 1 and self._stored.count(name) == 1 and name not in self._parameters else node

    def value(self, node: ast.expr) -> AbstractValue | None:
        """Return the value of a variable of an enclosing function, a bound parameter or an attribute; else None."""
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if self._instance is not None:
                return self._instance.attributes.get(name)
            case ast.Name(id=name) if name in self._parameters:
                bound = self._schedule.arguments if self._schedule.kind is ValueKind.FUNCTION else {}
                return bound.get(name) or bound.get(str(self._parameters.index(name)))
            case ast.Name(id=name) if name not in self._stored and hasattr(self._schedule.scope, "get"):
                return self._schedule.scope.get(name)
            case _:
                return None

    def has_factor(self, product: ast.expr, rate: AbstractValue) -> bool:
        """Return True if a learning rate is among the factors of a product, and it is not divided by one."""
        match product:
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                return self.has_factor(left, rate) != self.has_factor(right, rate)
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                names = [each for each in walk(right) if isinstance(each, ast.Name | ast.Attribute)]
                return self.has_factor(left, rate) and not any(self._is_rate(each, rate) for each in names)
            case ast.Call(func=ast.Name(id="min" | "max"), args=args) if len(args) > 1:
                return all(self.has_factor(each, rate) for each in args)
            case _:
                inner = self.expression(product)
                return self._is_rate(product, rate) if inner is product else self.has_factor(inner, rate)

    def _is_rate(self, node: ast.expr, rate: AbstractValue) -> bool:
        """Return True for the value that the optimizer gets, the same option, or the same number below 1."""
        value = self.value(node)
        if value is None or value.union:
            return False
        number = rate.constant()
        if isinstance(number, int | float):
            is_same = value is rate or (value.constant() == number and number <= MAX_BASE_RATE)
            return is_same and 0 < number < 1
        options = [each.node for each in (value, rate)]
        is_option = all(isinstance(each, ast.Attribute | ast.Subscript) for each in options)
        is_known = value is rate and EXTERNAL not in rate.facts and rate.node is not None
        return is_known or (is_option and ast.unparse(options[0]) == ast.unparse(options[1]))


def _is_inverse_root(returned: ast.expr) -> bool:
    """Return True for ``min(step**-0.5, step * warmup**-1.5)``, unless it is scaled by ``warmup**0.5``."""
    nodes = walk(returned)
    powers = {
        initial_number(each.right) for each in nodes if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Pow)
    }
    is_scaled = 0.5 in powers or any(isinstance(e, ast.Call) and dotted_name(e.func).endswith("sqrt") for e in nodes)
    return powers >= {-0.5, -1.5} and not is_scaled


RULE: Final = Rule(required_words=("LambdaLR",), find=find_all)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(120, 6)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Linear(6, 1)
lr = 0.1
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: lr * 0.95**epoch)
for epoch in range(5):
    for batch in range(0, 120, 30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[batch:batch + 30]), targets[batch:batch + 30])
        loss.backward()
        optimizer.step()
    scheduler.step()
    print(epoch, optimizer.param_groups[0]["lr"], loss.item())
"""

FAILURE = Failure(
    code="SCH008",
    title="LambdaLR gets a learning rate where it expects a factor",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"lambda epoch: lr * 0.95**epoch": "lambda epoch: 0.95**epoch"}),
    fix="Return a factor that starts at 1: LambdaLR multiplies the optimizer's lr by it.",
    rule=RULE,
    detector=Detector,
)
