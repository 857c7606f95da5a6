"""Features are selected, or computed, with the labels of all samples, before the split.

What you see
    The validation score, or the score of the cross-validation, is far better than the score on new data. With many
    features and few samples, even random labels are "predicted" well.

Why it happens
    ``SelectKBest(...).fit_transform(x, y)`` keeps the features that correlate with the labels, also by chance, and also
    in the samples that are held out afterwards. The mean label of a group, as in target encoding, contains the label of
    the row itself if it is computed on all rows.

Fix
    Split first, and fit the selection on the training part.

        x_train, x_test, y_train, y_test = train_test_split(x, y)
        selector = SelectKBest(k=20).fit(x_train, y_train)
        x_train, x_test = selector.transform(x_train), selector.transform(x_test)

When this is fine
    - The selection is fitted on the training part alone.
    - Each row is encoded by the mean label of the other folds, or of earlier rows.
    - It is part of a pipeline that is fitted in each fold.
    - The features are selected without labels, such as by their variance.

How it is detected
    Only the linter finds it: a selection, a target encoder or a discriminant analysis that is fitted with labels, the
    mean label of each group of a table, or columns of an array that were sorted by a score of this array and the
    labels, and whose result the same function, or one that it calls, splits afterwards into training and held-out
    samples, by a call, by slices or with two arrays of indices, also before it takes the columns. Target encodings by
    hand, with ``groupby(...)[label].mean()``, ``pivot_table`` or ``numpy.bincount(..., weights=labels)``, are followed
    through functions: it reports each call that passes them a table, or arrays, of which the same function splits the
    rows, if rows look up what was computed. A column holds labels if its name says so, or if it is stratified by,
    scored or assigned to ``y``.

References
    scikit-learn, "Common pitfalls", https://scikit-learn.org/stable/common_pitfalls.html
    Ambroise and McLachlan, "Selection bias in gene extraction", PNAS 99, 2002, https://doi.org/10.1073/pnas.102102699
    imbalanced-learn, "Common pitfalls", https://imbalanced-learn.org/stable/common_pitfalls.html
"""

import ast
import re
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import is_label
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING, data_words
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.simple_statements import simple_statements
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.data.selected_before_split.group_means import ORDERED, group_means, split_of
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SELECTORS: Final = frozenset((
    "GenericUnivariateSelect", "RFE", "RFECV", "SelectFdr", "SelectFpr", "SelectFromModel", "SelectFwe", "SelectKBest",
    "SelectPercentile", "SequentialFeatureSelector",
))  # fmt: skip
_ENCODERS: Final = frozenset((
    "TargetEncoder", "LeaveOneOutEncoder", "CatBoostEncoder", "MEstimateEncoder", "JamesSteinEncoder", "WOEEncoder",
    "LinearDiscriminantAnalysis", "NeighborhoodComponentsAnalysis", "PLSRegression",
))  # fmt: skip
"""What computes new features with the labels."""
_SPLITS: Final = frozenset(
    ("cross_val_predict", "cross_val_score", "cross_validate", "random_split", "split", "train_test_split")
)
_TRAINING: Final = frozenset(("train", "training", "tr", "trn", "fit"))
_SCORES: Final = "corrcoef|pearsonr|spearmanr|ttest_ind|f_classif|mutual_info"
_OWN: Final = "a function of the program that returns selected columns"
_RANKS: Final = frozenset(("argsort", "topk", "argpartition"))


class _Ranking(NamedTuple):
    """Scores of features, or their order, that were computed with labels."""

    features: frozenset[str]
    """Variables of the computation but the labels."""
    call: ast.Call
    is_order: bool


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each selection whose result is split afterwards."""
    made = _created(source) | dict.fromkeys(_selecting_functions(source), _OWN)
    scopes = [source.tree, *source.nodes_of(ast.FunctionDef)]
    found = [hit for scope in scopes for hit in _in_scope(source, scope.body, made)]
    yield from found
    reported = {id(each.node) for each in found}
    if re.search(r"groupby\(|bincount\(|pivot_table\(|\]\.mean\(", source.text.source):
        yield from (each for each in group_means(source) if id(each.node) not in reported)


def _created(source: SourceFile) -> dict[str, str]:
    """Return the class of each variable that is a selector."""
    return {
        ast.unparse(target): last_name(each.value.func)
        for each in source.nodes_of(ast.Assign)
        if isinstance(each.value, ast.Call)
        for target in each.targets
        if last_name(each.value.func) in _SELECTORS | _ENCODERS
    }


def _in_scope(source: SourceFile, body: list[ast.stmt], made: dict[str, str]) -> Iterator[Hit]:
    """Follow the results through the statements of a function."""
    derived: dict[str, ast.Call] = {}
    fitted: dict[str, ast.Call] = {}
    ranked: dict[str, _Ranking] = {}
    parts: dict[int, set[str]] = {}
    reported: set[int] = set()
    for statement in simple_statements(body, heads=True):
        for origin, split in chain(
            _splits(source, statement, derived, parts), _columns_of_parts(statement, ranked, parts)
        ):
            if id(origin) not in reported:
                reported.add(id(origin))
                yield _hit(origin, split)
        for call in list(nodes_in(statement, ast.Call)):
            if _kind(call, made) and last_name(call.func) == "fit" and isinstance(call.func, ast.Attribute):
                fitted[ast.unparse(call.func.value)] = call
        if isinstance(statement, ast.Assign):
            is_split = any(last_name(each.func) in _SPLITS for each in nodes_in(statement.value, ast.Call))
            origin = _origin(statement.value, made, fitted, derived) or _chosen(source, statement.value, ranked)
            origin = origin or _mean_of_labels(statement.value)
            ranking = None if is_split else _ranking(source, statement.value, ranked)
            is_column = isinstance(statement.targets[0], ast.Subscript) and origin is None
            for target in [] if is_column else [name for each in statement.targets for name in _names(each)]:
                derived.pop(target, None)
                ranked.pop(target, None)
                if origin is not None and not is_split:
                    derived[target] = origin
                elif ranking is not None:
                    ranked[target] = ranking


def _selecting_functions(source: SourceFile) -> Iterator[str]:
    """Yield the functions that return columns of their argument which they chose with the labels."""
    for function in source.nodes_of(ast.FunctionDef):
        if not any(is_label(ast.Name(each.arg)) for each in function.args.args):
            continue
        ranked: dict[str, _Ranking] = {}
        chosen: set[str] = set()
        for statement in simple_statements(function.body, heads=True):
            value = getattr(statement, "value", None)
            is_chosen = value is not None and (_chosen(source, value, ranked) or chosen & set(_names(value)))
            if isinstance(statement, ast.Return) and is_chosen:
                yield function.name
            ranking = (
                _ranking(source, value, ranked) if isinstance(statement, ast.Assign) and value is not None else None
            )
            for name in _names(statement.targets[0]) if isinstance(statement, ast.Assign) else ():
                chosen |= {name} if is_chosen else set()
                ranked |= {name: ranking} if ranking is not None else {}


def _splits(
    source: SourceFile, statement: ast.stmt, derived: dict[str, ast.Call], parts: dict[int, set[str]]
) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield the selections whose result a statement splits, by a call or by the indices of two parts."""
    for call in nodes_in(statement, ast.Call):
        origin = next((derived[n] for each in call.args for n in _names(each) if n in derived), None)
        if origin is not None and (last_name(call.func) in _SPLITS or _is_split_inside(source, call, derived)):
            yield origin, call
    targets = data_words(statement.targets[0]) if isinstance(statement, ast.Assign) else set[str]()
    for each in nodes_in(statement, ast.Subscript):
        origin = derived.get(each.value.id) if isinstance(each.value, ast.Name) else None
        if origin is not None and isinstance(each.slice, ast.Name | ast.Slice):
            used = parts.setdefault(id(origin), set())
            used.add(ast.unparse(each.slice))
            is_named = any(name_words(name) & _TRAINING for name in used)
            if len(used) > 1 and (is_named or (isinstance(each.slice, ast.Slice) and targets & (TRAINING | HELD_OUT))):
                yield origin, each


def _columns_of_parts(
    statement: ast.stmt, ranked: dict[str, _Ranking], parts: dict[int, set[str]]
) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield the rankings by which a statement chooses columns of two parts: ``x[train][:, best], x[test][:, best]``."""
    for each in nodes_in(statement, ast.Subscript):
        match each:
            case ast.Subscript(
                value=ast.Subscript(value=ast.Name(id=features), slice=ast.Name(id=rows)),
                slice=ast.Tuple(elts=[ast.Slice(), columns]),
            ):
                found = next((ranked[name] for name in _names(columns) if name in ranked), None)
            case _:
                continue
        if found is not None and found.is_order and features in found.features:
            used = parts.setdefault(id(found.call), set())
            used.add(rows)
            if len(used) > 1 and any(name_words(name) & (_TRAINING | TRAINING) for name in used):
                yield found.call, each


def _is_split_inside(source: SourceFile, call: ast.Call, derived: dict[str, ast.Call]) -> bool:
    """Return True if a function of the program splits an argument with selected features."""
    function = called_function(source, call)
    names = [each.arg for each in function.args.args] if function is not None else []
    passed = zip(names, call.args, strict=False)
    return any(getattr(each, "id", "") in derived and split_of(function, name) is not None for name, each in passed)


def _mean_of_labels(value: ast.expr) -> ast.Call | None:
    """Return ``table.groupby("city")["target"].mean()`` within an expression; None if there is none."""
    for call in nodes_in(value, ast.Call):
        match call:
            case ast.Call(
                func=ast.Attribute(
                    attr="mean" | "transform" | "agg",
                    value=ast.Subscript(
                        value=ast.Call(func=ast.Attribute(attr="groupby", value=table)),
                        slice=ast.Constant(value=str(column)),
                    ),
                )
            ) if (
                is_label(ast.Name(column))
                and not data_words(table) & TRAINING
                and not ORDERED.search(ast.unparse(call))
            ):
                return call
            case _:
                pass
    return None


def _ranking(source: SourceFile, value: ast.expr, ranked: dict[str, _Ranking]) -> _Ranking | None:
    """Return the scores, or the order, of features that a value computes from samples and labels; None for others."""
    names = set(_names(value))
    before = next((ranked[name] for name in names if name in ranked), None)
    calls = list(nodes_in(value, ast.Call))
    ranks = any(last_name(each.func) in _RANKS for each in calls)
    inner = [function for each in calls if (function := called_function(source, each)) is not None]
    ranks |= any(last_name(c.func) in _RANKS for each in inner for c in nodes_in(each, ast.Call))
    if before is not None:
        bounds = ast.Gt | ast.GtE | ast.Lt | ast.LtE  # scores > 0.2
        ranks |= any(isinstance(each.ops[0], bounds) for each in nodes_in(value, ast.Compare))
        return _Ranking(before.features, before.call, ranks or before.is_order)
    labels = {name for name in names if is_label(ast.Name(name))}
    is_part = any(name_words(name) & _TRAINING or data_words(ast.Name(name)) & TRAINING for name in names)
    is_part |= any(last_name(e) in labels and isinstance(e.slice, ast.Name) for e in nodes_in(value, ast.Subscript))
    if not labels or not names - labels or not calls or is_part:
        return None
    return _Ranking(frozenset(names - labels), calls[0], ranks)


def _chosen(source: SourceFile, value: ast.expr, ranked: dict[str, _Ranking]) -> ast.Call | None:
    """Return the call that ranks the features of ``x[:, order[:20]]``; None if this chooses no ranked columns."""
    for each in nodes_in(value, ast.Subscript):
        if isinstance(each.value, ast.Name) and isinstance(each.slice, ast.Tuple) and len(each.slice.elts) == 2:
            columns = each.slice.elts[1]
            found = [ranked[name] for name in _names(columns) if name in ranked]
            found += [e for e in [_ranking(source, columns, {})] if e is not None]  # x[:, best_columns(x, y)]
            if found and found[0].is_order and each.value.id in found[0].features:
                return found[0].call
    return None


def _origin(
    value: ast.expr, made: dict[str, str], fitted: dict[str, ast.Call], derived: dict[str, ast.Call]
) -> ast.Call | None:
    """Return the call from which an assigned value results."""
    for call in list(nodes_in(value, ast.Call)):
        if _kind(call, made) and last_name(call.func) == "fit_transform":
            return call
        if (
            made.get(last_name(call.func)) == _OWN
            and not data_words(call) & (TRAINING | HELD_OUT)
            and not any(isinstance(each, ast.Subscript) for each in call.args)
        ):
            return call
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if owner is not None and last_name(call.func) == "transform":
            if ast.unparse(owner) in fitted:
                return fitted[ast.unparse(owner)]
            if isinstance(owner, ast.Call) and _kind(owner, made):
                return owner
        if owner is not None and last_name(call.func) == "get_support" and ast.unparse(owner) in fitted:
            return fitted[ast.unparse(owner)]
    return next((derived[name] for name in _names(value) if name in derived), None)


def _kind(call: ast.Call, made: dict[str, str]) -> str:
    """Return the class if a call fits a selector with labels, on data that is not training data."""
    if not isinstance(call.func, ast.Attribute) or not call.func.attr.startswith("fit") or not call.args:
        return ""
    owner = call.func.value
    name = last_name(owner.func) if isinstance(owner, ast.Call) else made.get(ast.unparse(owner), "")
    labels = len(call.args) > 1 or any(each.arg == "y" for each in call.keywords)
    words = {word for each in _names(call.args[0]) for word in name_words(each)}
    is_part = bool(words & _TRAINING) or bool(nodes_in(call.args[0], ast.Slice))
    return name if name in _SELECTORS | _ENCODERS and labels and not is_part else ""


def _hit(origin: ast.Call, split: ast.expr) -> Hit:
    by = split.func if isinstance(split, ast.Call) else split
    return Hit(
        message=f"`{ast.unparse(origin.func)}` gets all samples before `{ast.unparse(by)}` splits them: "
        "the labels of held-out samples decide which features are kept, or are part of them.",
        node=origin,
        related=((split, "split here"),),
    )


def _names(node: ast.AST) -> list[str]:
    return [each.id for each in nodes_in(node, ast.Name)]


_FITTED: Final = (
    "Select|RFE|argsort|topk|argpart|Encoder|Discriminant|PLSReg|Neighborhood|groupby(|bincount|pivot|].mean("
)
RULE = Rule(
    required_words=(
        f"fit_transform(|.fit(|argsort|topk|argpartition|groupby(|weights=|pivot_table|==|{_SCORES}",
        f"{_FITTED}|{_SCORES}",
        "split|cross_val|train|tr]|tr_|fit_",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class SelectKBest:
    def __init__(self, k):
        self.k = k

    def fit_transform(self, x, y):
        self.columns = torch.corrcoef(torch.cat([x, y], 1).T)[-1, :-1].abs().topk(self.k).indices
        return x[:, self.columns]


torch.manual_seed(0)
x = torch.randn(120, 200)
y = torch.randn(120, 1)
selected = SelectKBest(k=10).fit_transform(x, y)
train, test = random_split(TensorDataset(selected, y), [90, 30])
model = nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    for inputs, targets in DataLoader(train, batch_size=30, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT020",
    title="Features are selected before the split",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "selected = SelectKBest(k=10).fit_transform(x, y)\n": "",
            "train, test = random_split(TensorDataset(selected, y), [90, 30])": (
                "rows = torch.randperm(120)\n"
                "x_train, y_train = x[rows[:90]], y[rows[:90]]\n"
                "train = TensorDataset(SelectKBest(k=10).fit_transform(x_train, y_train), y_train)"
            ),
            ", random_split\n": "\n",
        },
    ),
    fix="Split first, and fit the selection on the training part only.",
    rule=RULE,
)
