"""Finds data that is scaled with statistics of all samples before the samples are split, in the source."""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_pairs
from trueloop.analysis.queries.simple_statements import simple_statements
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.failure import Rule, Severity

SPLITS: Final = frozenset(("train_test_split", "random_split"))
WORDS: Final = re.compile(r"(?<![a-z])(train|val|valid|validation|test|held_?out|holdout)(?![a-z])", re.IGNORECASE)
TRAINING: Final = re.compile(r"train|(?<![a-z])tr(?![a-z])", re.IGNORECASE)
TARGET: Final = re.compile(r"(y|ys|targets?|labels?)(_\w+)?", re.IGNORECASE)
"""Names of targets: their scale reveals little about single samples, and predictions are scaled back for the score."""
STANDARDISED: Final = re.compile(r"std|mean|sigma|\bmu\b|\bsd\b")
SERIES: Final = re.compile(
    r"series|window|horizon|forecast|seq_len|timestamp|\blags?\b|\bdates?\b|hourly|daily|\bdays?\b|stock", re.IGNORECASE
)
"""Words of programs whose samples follow each other in time."""
FITTED: Final = re.compile(r"scal|pca|svd|(?<![a-z])(nmf|ica|umap)|imput|vectori|quantile|power_?tr", re.IGNORECASE)
"""Words of what is fitted to all samples: scalers, projections, imputation, word counts."""
PER_FEATURE: Final = frozenset(("", "0", "(0,)", "(0, 1)", "[0, 1]"))
"""Values of ``axis`` that include all samples."""
Block = list[ast.stmt]


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each statement that scales data which is split into training and held-out data later."""
    scaling_classes: dict[str, ast.stmt] = {}
    for owner in source.nodes_of(ast.ClassDef):
        for method in owner.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__" and _may_scale_in(method):
                scope = _Scope(source, {})
                yield from scope.hits(method.body)
                own = [each for name, each in scope.scaled.items() if name.startswith("self.")]
                scaling_classes |= {owner.name: own[0]} if own and not scope.split else {}
    may_scale = _may_scale(source.nodes_of(ast.Attribute), source.nodes_of(ast.BinOp))
    if scaling_classes or may_scale:
        yield from _Scope(source, scaling_classes).hits(source.tree.body)
    for each in source.nodes_of(ast.FunctionDef) if scaling_classes or may_scale else ():
        if each.name != "__init__" and (scaling_classes or _may_scale_in(each)):
            yield from _Scope(source, scaling_classes).hits(each.body)


def _may_scale_in(function: ast.FunctionDef) -> bool:
    return _may_scale(nodes_in(function, ast.Attribute), nodes_in(function, ast.BinOp))


def _may_scale(attributes: Iterable[ast.Attribute], operations: Iterable[ast.BinOp]) -> bool:
    """Return True if code may scale data: it calls a scaler, or subtracts something and computes a statistic."""
    names = {each.attr for each in attributes}
    if names & {"transform", "fit_transform"}:
        return True
    return bool(names & {"mean", "std", "min", "fit"}) and any(isinstance(each.op, ast.Sub) for each in operations)


class _Scope:
    """The variables of a function or of the file, in the order of its statements.

    Args:
        source: the file.
        scaling_classes: datasets that scale all their samples when they are created -> the statement that scales.
    """

    def __init__(self, source: SourceFile, scaling_classes: dict[str, ast.stmt]) -> None:
        self.source, self.scaling_classes = source, scaling_classes
        self.statistics: dict[str, str] = {}
        """Variable or scaler -> the data from which it was computed."""
        self.scaled: dict[str, ast.stmt] = {}
        self.parts: set[str] = set()
        """Variables that hold a part of the samples."""
        self.split = False
        self._subsets: set[str] = set()
        """Datasets of which there is one `Subset` so far."""
        self._scalers: set[str] = set()
        self._heads: dict[tuple[str, str], ast.stmt] = {}
        """Variable and position of ``x[:n]`` -> the latest statement that uses this part."""

    def hits(self, block: Block) -> Iterator[Hit]:
        """Yield the scalings before a split."""
        for statement in simple_statements(block):
            name = self._split_name(statement)
            if name:
                self.split = True
                scaling = ast.unparse(self.scaled[name]).lower()
                is_scaled = "scal" in scaling or not FITTED.search(scaling) or "fit" not in scaling
                yield Hit(
                    message=f"`{name}` is {'scaled' if is_scaled else 'transformed'} with statistics of all samples "
                    "and then split: the statistics contain the held-out samples. Split first, and compute the "
                    "statistics on the training part.",
                    node=self.scaled[name],
                    related=((statement, "split here"),),
                    severity=Severity.NOTE if self._is_harmless(name, statement) else None,
                )
                self.scaled.clear()
            self._read(statement)

    def _is_harmless(self, name: str, split: ast.stmt) -> bool:
        """Return True for targets, and for data that is standardised by hand, unless it is a series split at a time.

        Mean and deviation of a random part hardly differ from those of all samples; the extremes do.
        """
        scaling = ast.unparse(self.scaled[name])
        by_hand = STANDARDISED.search(scaling) is not None and "fit" not in scaling
        is_random = any(_function(call) in SPLITS for call in _calls(split))
        return bool(TARGET.fullmatch(name.rpartition(".")[2])) or (
            by_hand and (is_random or not self.source.mentions(SERIES))
        )

    def _split_name(self, statement: ast.stmt) -> str:
        """Return the scaled variable that a statement splits into training and held-out data."""
        if not self.scaled:
            return ""
        for each in nodes_in(statement, ast.Call, ast.Subscript):
            if isinstance(each, ast.Call) and _function(each) in (*SPLITS, "Subset"):
                names = [_root(inner) for argument in each.args for inner in walk(argument)]
                found = next((name for name in names if name in self.scaled), "")
                if found and (_function(each) in SPLITS or found in self._subsets):
                    return found
                self._subsets.add(found)
            elif isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Slice):
                name = dotted_name(each.value)
                if name in self.scaled and self._is_rest(name, each.slice, statement):
                    return name
        return ""

    def _is_rest(self, name: str, part: ast.Slice, statement: ast.stmt) -> bool:
        """Return True for ``x[n:]`` if ``x[:n]`` is used as well, and one of them is called training or held-out."""
        lower, upper = (ast.unparse(each) if each is not None else "" for each in (part.lower, part.upper))
        if upper and not lower and not upper.startswith("-") and upper != "1":
            self._heads[name, upper] = statement
        return any(
            of == name
            and re.search(rf"(?<![\w.]){re.escape(position)}(?!\w)", lower)
            and WORDS.search(ast.unparse(head) + ast.unparse(statement))
            for (of, position), head in self._heads.items()
        )

    def _read(self, statement: ast.stmt) -> None:
        """Update the variables."""
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            function = statement.value.func
            if isinstance(function, ast.Attribute) and function.attr == "fit" and statement.value.args:
                self.statistics[dotted_name(function.value)] = self._all_samples(statement.value.args[0])
        if not isinstance(statement, ast.Assign):
            return
        if isinstance(statement.value, ast.Call) and FITTED.search(_function(statement.value)):
            self._scalers |= set(map(ast.unparse, statement.targets))
        for target, value in assigned_pairs(statement):
            self._bind({dotted_name(each) for each in walk(target)} - {""}, statement, value)

    def _bind(self, names: set[str], statement: ast.stmt, value: ast.expr) -> None:
        """Update the variables that a statement assigns a value to."""
        statistic, scaling = self._statistic_of(value), self._scaling_of(statement, value)
        is_part = any((each.lower or each.upper) for each in nodes_in(value, ast.Slice))
        is_part |= any(_function(each) in SPLITS for each in _calls(value))
        for name in names:
            for known in (self.scaled, self.statistics):
                known.pop(name, None)
            self.parts.discard(name)
            if statistic:
                self.statistics[name] = statistic
            elif is_part:
                self.parts.add(name)
            elif scaling is not None:
                self.scaled[name] = scaling

    def _scaling_of(self, statement: ast.stmt, value: ast.expr) -> ast.stmt | None:
        """Return the statement that has scaled a value, if it is scaled with statistics of all its samples."""
        if self._is_scaled(value):
            return statement
        created = self.scaling_classes.get(_function(value)) if isinstance(value, ast.Call) else None
        return created or next((self.scaled[n] for n in map(_root, _passed(value)) if n in self.scaled), None)

    def _all_samples(self, node: ast.expr) -> str:
        """Return the name of the data if an expression is all of it; "" for a part, or training data."""
        name = _root(node)
        return "" if name in self.parts or TRAINING.search(ast.unparse(node)) else name

    def _is_scaled(self, value: ast.expr) -> bool:
        """Return True if a value is data that is scaled with statistics of all its samples."""
        for call in _calls(value):
            function = call.func
            if not isinstance(function, ast.Attribute) or not call.args or not self._all_samples(call.args[0]):
                continue
            owner = ast.unparse(function.value)
            if function.attr == "fit_transform" and (FITTED.search(owner) or owner in self._scalers):
                return True
            fitted_on = self.statistics.get(dotted_name(function.value)) or self._statistic_of(function.value)
            if function.attr == "transform" and fitted_on == _root(call.args[0]):
                return True
        for each in nodes_in(value, ast.BinOp):
            if isinstance(each.op, ast.Sub) and (name := self._all_samples(each.left)):
                others = [self._statistic_of(inner) for inner in nodes_in(each.right, ast.expr)]
                if name in others and any(isinstance(n.op, ast.Div) for n in nodes_in(value, ast.BinOp)):
                    return True
        return False

    def _statistic_of(self, node: ast.expr) -> str:
        """Return the data whose mean, deviation or range an expression is, over all samples; "" for other values."""
        if isinstance(node, ast.Name | ast.Attribute):
            return self.statistics.get(dotted_name(node), "")
        if isinstance(node, ast.BoolOp):
            return self._statistic_of(node.values[-1])
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return ""
        if node.func.attr == "fit" and node.args and FITTED.search(ast.unparse(node.func.value)):
            return self._all_samples(node.args[0])
        if node.func.attr not in ("mean", "std", "min"):
            return ""
        is_function = dotted_name(node.func.value) in ("np", "numpy", "torch")
        data = node.args[0] if is_function and node.args else node.func.value
        axes = [*node.args[is_function:], *(each.value for each in node.keywords if each.arg in ("dim", "axis"))]
        return self._all_samples(data) if "".join(map(ast.unparse, axes)) in PER_FEATURE else ""


def _calls(node: ast.AST) -> list[ast.Call]:
    return list(nodes_in(node, ast.Call))


def _function(call: ast.Call) -> str:
    return dotted_name(call.func).rpartition(".")[2]


def _passed(value: ast.expr) -> Iterator[ast.expr]:
    """Yield what a value is made of: itself, the arguments of its call, and the object whose method is called."""
    yield value
    for call in _calls(value):
        yield from call.args
        yield call.func.value if isinstance(call.func, ast.Attribute) else call.func


def _root(node: Any) -> str:
    """Return the variable of which an expression is all samples: "x" for ``x.values.reshape(-1, 1)``."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="reshape" | "numpy" | "to_numpy" | "astype" | "float")):
                node = value
            case ast.Attribute(value=value, attr="values"):
                node = value
            case ast.Subscript(value=value, slice=ast.List() | ast.Constant(value=str())):
                node = value  # columns of a table
            case ast.Name() | ast.Attribute():
                return dotted_name(node)
            case _:
                return ""


RULE = Rule(required_words=("mean(|fit_transform(|.fit(|min(", "split|test|val|train"), find=find)
