"""Finds objects that keep the lowest of all values, but are given an accuracy, or the highest, but are given a loss."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of, single_assignments
from trueloop.analysis.queries.best_values import MIRRORED, stores
from trueloop.analysis.queries.class_instances import definitions, instances, uses
from trueloop.analysis.queries.metric_names import better_direction, metric_name, name_of_computed, name_words
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import unparse

_UNKNOWN: Final = object()
_BEST: Final = frozenset(("best", "lowest", "highest", "min", "max"))
_STOPPER: Final = re.compile(r"patience|stop|save|state_dict|deepcopy")
_OTHER_PURPOSE: Final = re.compile(r"worst|hardest|attack|adversar", re.IGNORECASE)
_COMPARISONS: Final = {"lt": "<", "le": "<", "less": "<", "less_equal": "<"} | {
    "gt": ">", "ge": ">", "greater": ">", "greater_equal": ">"
}  # fmt: skip
_TESTS: Final[dict[type[ast.cmpop], Any]] = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
_FLIPPED: Final = {"<": ">", ">": "<"}


class _Tracked(NamedTuple):
    """What a method does with one of its parameters."""

    method: str
    parameter: str
    key: str
    """Item of the parameter that is compared: "val_acc"; "" for the parameter itself."""
    direction: str
    """ "min" or "max" """


class _Comparison(NamedTuple):
    """A comparison by "<" or ">"."""

    left: ast.expr
    sign: str
    right: ast.expr


class _Slope(NamedTuple):
    """A value that rises or falls with a parameter."""

    sign: int
    parameter: str
    key: str = ""


def find_kept_worst(source: SourceFile) -> Iterator[Hit]:
    """Yield each value that is given to an object of the program which keeps the worst of all values."""
    for instance in instances(source):
        definition = definitions(source).classes.get(last_name(instance.call.func))
        if definition is None or not _may_stop(definition):
            continue
        kept = _class_keeps(definition, instance.call)
        if kept is None:
            continue
        for used in uses(source, instance.target) or ():
            callee: Any = used if kept.method == "__call__" else source.parents.get(id(used))
            call = source.parents.get(id(callee))
            if not isinstance(call, ast.Call) or call.func is not callee:
                continue
            if kept.method not in ("__call__", getattr(callee, "attr", "")):
                continue
            name = kept.key or _name_of_argument(source, definition, call, kept)
            better = better_direction(name)
            if better not in ("", kept.direction):
                extreme, other = ("lowest", "higher") if better == "max" else ("highest", "lower")
                yield Hit(
                    message=f"`{ast.unparse(instance.target)}` keeps the {extreme} value, but `{name}` is better when "
                    f"it is {other}: it takes the worst epoch for the best one.",
                    node=call,
                    related=((instance.call, "created here"),),
                )
                break


@lru_cache(maxsize=256)  # many objects of few classes
def _may_stop(definition: ast.ClassDef) -> bool:
    """Return True for a class that saves a model or ends the training, and is not for the worst of all values."""
    text = unparse(definition)
    return _STOPPER.search(text) is not None and _OTHER_PURPOSE.search(text) is None


def _name_of_argument(source: SourceFile, definition: ast.ClassDef, call: ast.Call, kept: _Tracked) -> str:
    """Return the name of the value that a call passes for the parameter that is compared."""
    parameters = [each.arg for each in _methods(definition)[kept.method].args.args[1:]]
    position = parameters.index(kept.parameter)
    named = [each.value for each in call.keywords if each.arg == kept.parameter]
    values = named or ([] if any(isinstance(e, ast.Starred) for e in call.args) else call.args[position : position + 1])
    return name_of_computed(function_of(source, call), values[0]) if values else ""


def _class_keeps(definition: ast.ClassDef, call: ast.Call) -> _Tracked | None:
    """Return which of its parameters an object compares with the best value so far, if there is exactly one."""
    methods = _methods(definition)
    env = _Environment(methods)
    if not env.initialise(definition, call):
        return None
    found = {each for name in methods if name != "__init__" for each in env.comparisons(name)}
    return found.pop() if len(found) == 1 else None


def _methods(definition: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}


class _Environment:
    """The attributes of an object that its constructor sets to constants, and its methods with these values."""

    def __init__(self, methods: dict[str, ast.FunctionDef]) -> None:
        self._methods = methods
        self._values: dict[str, Any] = {}
        self._constants: dict[str, Any] = {}

    def initialise(self, definition: ast.ClassDef, call: ast.Call) -> bool:
        """Set the attributes as the constructor does; False if its arguments are unknown."""
        method = self._methods.get("__init__")
        if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
            return False
        for each in definition.body:
            if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None:
                target = each.targets[0] if isinstance(each, ast.Assign) else each.target
                self._values[f"self.{ast.unparse(target)}"] = self._evaluate(each.value)
        if method is not None:
            arguments = [*method.args.posonlyargs, *method.args.args][1:]
            given = dict(zip((each.arg for each in arguments[::-1]), method.args.defaults[::-1], strict=False))
            given |= {a.arg: d for a, d in zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True) if d}
            given |= dict(zip((each.arg for each in arguments), call.args, strict=False))
            given |= {each.arg: each.value for each in call.keywords if each.arg}
            self._values |= {name: self._evaluate(value) for name, value in given.items()}
            self._live(method.body, {})
        attributes = {name: value for name, value in self._values.items() if name.startswith("self.")}
        changed = {
            ast.unparse(target)
            for name, each in self._methods.items()
            if name != "__init__"
            for target, _ in stores([each])
        }
        self._constants = {name: value for name, value in attributes.items() if name not in changed}
        return True

    def comparisons(self, name: str) -> Iterator[_Tracked]:
        """Yield the parameters of a method that it compares with the best value so far before it stores them."""
        self._values = dict(self._constants)
        method, local = self._methods[name], dict[str, ast.expr]()
        parameters = [each.arg for each in method.args.args[1:]]
        for statement in self._live(method.body, local):
            for each in ast.walk(statement):
                if not isinstance(each, ast.If):
                    continue
                stored, otherwise = any(map(_stores_best, each.body)), any(map(_stores_best, each.orelse))
                compared = self._comparison(each.test, local) if stored != otherwise else None
                if compared is not None and _reads_best(compared.left):
                    compared = _Comparison(compared.right, _FLIPPED[compared.sign], compared.left)
                is_best = compared is not None and _reads_best(compared.right)
                slope = self._slope(compared.left, local, parameters) if compared is not None and is_best else None
                if compared is not None and slope is not None:
                    rises = (compared.sign == ">") == (slope.sign > 0)
                    yield _Tracked(name, slope.parameter, slope.key, "max" if rises == stored else "min")

    def _live(self, statements: Sequence[ast.stmt], local: dict[str, ast.expr]) -> list[ast.stmt]:
        """Return the statements that run with these constants, and record what they assign."""
        found: list[ast.stmt] = []
        for each in statements:
            test = self._evaluate(each.test) if isinstance(each, ast.If) else _UNKNOWN
            if found and isinstance(found[-1], ast.Return):
                break
            if isinstance(each, ast.If) and test is not _UNKNOWN:
                found += self._live(each.body if test else each.orelse, local)
                continue
            found.append(each)
            for target, value in single_assignments(each):
                is_certain = isinstance(each, ast.Assign)
                self._values[ast.unparse(target)] = self._evaluate(value) if is_certain else _UNKNOWN
                if isinstance(target, ast.Name) and is_certain:
                    local[target.id] = value
        return found

    def _evaluate(self, node: Any) -> Any:
        """Return the constant that an expression is; "<" or ">" for a function that compares."""
        value: Any = _UNKNOWN
        match node:
            case ast.Constant(value=value):
                pass
            case ast.Name() | ast.Attribute(value=ast.Name(id="self")):
                value = self._values.get(ast.unparse(node), _UNKNOWN)
            case ast.Attribute(attr=name):
                value = _COMPARISONS.get(name, _UNKNOWN)
            case ast.Lambda(body=ast.Compare(left=left, ops=[sign])) if len(node.args.args) == 2:
                is_first = node.args.args[0].arg in {getattr(each, "id", "") for each in ast.walk(left)}
                value = _sign(sign) if is_first else _UNKNOWN
            case ast.IfExp() | ast.Subscript(value=ast.Dict()):
                chosen = self._chosen(node)
                value = self._evaluate(chosen) if chosen is not None else _UNKNOWN
            case _:
                value = self._calculate(node)
        return value

    def _chosen(self, node: Any) -> Any:
        """Return the expression that a conditional, or a dictionary with a constant key, selects; None if unknown."""
        if isinstance(node, ast.IfExp):
            test = self._evaluate(node.test)
            return None if test is _UNKNOWN else node.body if test else node.orelse
        key = self._evaluate(node.slice)
        pairs = zip(node.value.keys, node.value.values, strict=True)
        return next((value for each, value in pairs if self._evaluate(each) == key), None)

    def _calculate(self, node: Any) -> Any:
        match node:
            case ast.UnaryOp(op=ast.USub() | ast.Not() as sign, operand=inner):
                value = self._evaluate(inner)
                known = isinstance(value, int | float | str)
                negative = -value if isinstance(value, int | float) else _UNKNOWN
                return _UNKNOWN if not known else not value if isinstance(sign, ast.Not) else negative
            case ast.Compare(left=left, ops=[test], comparators=[right]) if type(test) in _TESTS:
                sides = self._evaluate(left), self._evaluate(right)
                return _UNKNOWN if _UNKNOWN in sides else _TESTS[type(test)](*sides)
            case _:
                return _UNKNOWN

    def _comparison(self, test: Any, local: dict[str, ast.expr]) -> _Comparison | None:
        """Return the comparison that a condition consists of; None if there is none."""
        found: _Comparison | None = None
        test, local = self._resolve(test, local)
        match test:
            case ast.BoolOp(values=values):
                found = next(filter(None, (self._comparison(each, local) for each in values)), None)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                inner = self._comparison(inner, local)
                found = inner and inner._replace(sign=_FLIPPED[inner.sign])
            case ast.Compare(left=left, ops=[sign], comparators=[right]) if _sign(sign) is not _UNKNOWN:
                found = _Comparison(left, _sign(sign), right)
            case ast.Call(func=func, args=[left, right]) if self._evaluate(func) in ("<", ">"):
                found = _Comparison(left, self._evaluate(func), right)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if name in self._methods:
                found = self._returned(name, test, local)
            case _:
                pass
        return found

    def _resolve(self, node: Any, local: dict[str, ast.expr]) -> tuple[Any, dict[str, ast.expr]]:
        """Return the expression that a variable was assigned or that a conditional selects, and the other variables."""
        if isinstance(node, ast.Name) and node.id in local:
            return self._resolve(local[node.id], {name: each for name, each in local.items() if name != node.id})
        chosen = self._chosen(node) if isinstance(node, ast.IfExp) else None
        return (node, local) if chosen is None else self._resolve(chosen, local)

    def _returned(self, name: str, call: ast.Call, local: dict[str, ast.expr]) -> _Comparison | None:
        """Return the only comparison that a method returns, of the values that it is given."""
        method, own = self._methods[name], dict(local)
        given = {p.arg: each for p, each in zip(method.args.args[1:], call.args, strict=False)}
        live = [each for statement in self._live(method.body, own) for each in ast.walk(statement)]
        own |= {p: each for p, each in given.items() if getattr(each, "id", "") != p}
        found = [self._comparison(each.value, own) for each in live if isinstance(each, ast.Return)]
        compared = [each for each in found if each is not None]
        if len(compared) != 1:
            return None
        sides = [given.get(getattr(side, "id", ""), side) for side in (compared[0].left, compared[0].right)]
        return _Comparison(sides[0], compared[0].sign, sides[1])

    def _slope(self, node: Any, local: dict[str, ast.expr], parameters: Sequence[str]) -> _Slope | None:
        """Return how an expression depends on a parameter; None if that is unknown."""
        node, local = self._resolve(node, local)
        inner, sign = None, 1
        match node:
            case ast.Name(id=name) if name in parameters:
                return _Slope(1, name)
            case (
                ast.Subscript(value=ast.Name(id=name), slice=key)
                | ast.Call(func=ast.Attribute(attr="get", value=ast.Name(id=name)), args=[key, *_])
            ) if name in parameters:
                constant = self._evaluate(key)
                return _Slope(1, name, constant) if isinstance(constant, str) else None
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                sign = -1
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                factors = {id(each): self._evaluate(each) for each in (left, right)}
                numbers = [each for each in factors.values() if isinstance(each, int | float) and each]
                inner = right if isinstance(factors[id(left)], int | float) else left
                sign = 0 if len(numbers) != 1 else 1 if numbers[0] > 0 else -1
            case (
                ast.BinOp(op=ast.Add() | ast.Sub(), left=inner)
                | ast.Call(func=ast.Name(id="float" | "round"), args=[inner, *_])
                | ast.Call(func=ast.Attribute(attr="item", value=inner))
            ):
                pass
            case _:
                pass
        slope = self._slope(inner, local, parameters) if inner is not None and sign else None
        return slope and slope._replace(sign=slope.sign * sign)


def _sign(operator_node: ast.cmpop) -> Any:
    return next((sign for kind, sign in MIRRORED.items() if isinstance(operator_node, kind)), _UNKNOWN)


def _reads_best(node: Any) -> bool:
    return node is not None and any(
        isinstance(each, ast.Attribute) and bool(name_words(each.attr) & _BEST) for each in ast.walk(node)
    )


def _stores_best(statement: ast.stmt) -> bool:
    return any(
        isinstance(target, ast.Attribute) and metric_name(target).startswith("self.") and _reads_best(target)
        for target, _ in single_assignments(statement)
    )
