"""Outputs that were collected from a shuffling loader are paired with labels in the order of the dataset.

What you see
    A classifier on extracted features, a confusion matrix or a submission file is as good as guessing, although the
    model is good: with ten classes, one answer in ten is right.

Why it happens
    A loop over a loader with ``shuffle=True`` visits the samples in a random order. ``dataset.targets`` and
    ``dataset.labels`` have the order of the dataset, so output 3 belongs to another sample than label 3. Both have the
    same length, so nothing raises an error.

Fix
    Do not shuffle where you collect outputs, or collect the labels of the batches in the same loop:

        for x, y in loader:
            features.append(model(x))
            labels.append(y)

When this is fine
    - The loader does not shuffle.
    - The labels are collected in the same loop.
    - The outputs are not paired with labels, as for a mean or a plot of all points.
    - The inputs or indices of the samples are collected in the same loop.
    - The outputs are written in the order of the dataset, as by ``outputs[order] = ...``.

How it is detected
    Only the linter finds it, from the source code: a loop over a loader with ``shuffle=True`` that does not use the
    labels of its batches collects outputs, directly, in a comprehension or in a function that gets the loader. The
    outputs are then compared, or passed to a call such as ``fit`` or ``accuracy_score``, together with the labels of
    the dataset from which the loader was built, or with labels that a second loop over the loader has collected.

    Outputs and labels are also followed through methods, attributes and arguments: ``p = self.predict()`` holds the
    outputs of ``self.batches``, and ``self.y`` the variable that the program passed to the batch class. A class or
    generator of the program shuffles if it puts its samples in a random order, always or because of an argument such as
    ``shuffle=True``. Such outputs are reported in a metric, a comparison or a difference; also where they are joined
    with rows of the dataset, by a ``TensorDataset``, by ``zip``, or by one index, as ``self.base[i], self.logits[i]``
    in a dataset for distillation; also where another pass reads them by the number of the batch. Outputs that are
    sorted or indexed afterwards, or averaged, are not reported.

References
    PyTorch forum, "How to retrieve the sample indices of a mini-batch",
    https://discuss.pytorch.org/t/how-to-retrieve-the-sample-indices-of-a-mini-batch/7948
    torch.utils.data.DataLoader, ``shuffle``, https://docs.pytorch.org/docs/stable/data.html
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.queries.shuffled_loaders import (
    Calls,
    Loader,
    Traced,
    function_called,
    loaders_of,
    may_shuffle,
    text_key,
    traced,
    value_keys,
    values_of,
)
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LABELS: Final = frozenset(("label", "labels", "target", "targets", "y"))
_COLLECTING: Final = frozenset(("append", "extend"))
_PASSING: Final = frozenset(("enumerate", "tqdm"))
_METRIC: Final = re.compile(
    r"(^|_)(acc|accuracy|auc|auroc|brier|compare|confusion|corr|corrcoef|correlation|entropy|equal|error|errors|err|"
    r"evaluate|fit|kappa|loss|mae|metric|metrics|mse|mape|nll|precision|r2|recall|report|rmse|score|scores|spearmanr|"
    r"pearsonr|kendalltau|allclose|array_equal|f1|fbeta|hits|ndcg)(_|$)|Accuracy|Error|Score|Loss|AUROC|Confusion",
)
"""Names of calls that pair outputs and labels row by row."""
_REDUCING: Final = frozenset(("mean", "sum", "max", "min", "std", "var", "median", "any", "all", "norm", "prod"))
_OTHER_ROWS: Final = re.compile(
    r"sort|unique|count|hist|^len$|size|quantile|percentile|topk|^take|gather|index|where|^item$|score|loss|metric|auc|"
    r"range|zeros|ones|full|empty|permut|randperm|shuffle|^set$|accuracy"
)
"""Names of calls whose results have other rows than their arguments."""
_INPUT: Final = re.compile(r"(?<![A-Za-z])[xX](?![A-Za-z])|^[xX](?=[a-z]{1,5}$)")


_MAX_EXPRESSIONS: Final = 200  # through which outputs are followed back to the loop that collects them
_PAIRING: Final = (ast.Call, ast.Compare, ast.BinOp)
"""Kinds of expressions that may pair outputs with labels."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each expression that pairs outputs of a shuffling loader with the labels of its dataset or another pass."""
    yield from _by_flow(source)
    yield from _by_batch_number(source)


def _mentions_any(node: ast.AST, names: set[str]) -> bool:
    """Return True if an expression reads one of some variables for more than its length."""
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and ast.unparse(node) in names:
        return True
    if (isinstance(node, ast.Call) and last_name(node.func) in ("len", "size")) or getattr(node, "attr", "") == "shape":
        return False
    return any(_mentions_any(each, names) for each in ast.iter_child_nodes(node))


class _Collected(NamedTuple):
    """Where a program collects outputs: a loop, or a comprehension."""

    node: ast.For | ast.ListComp | ast.GeneratorExp
    iterable: ast.expr


def _by_flow(source: SourceFile) -> Iterator[Hit]:
    """Yield pairs of what a loop over a shuffling loader collects and the labels that the loader was given."""
    loops, reported = _collecting(source) if may_shuffle(source) else {}, set[int]()
    if not loops:
        return
    metrics = ((each, _metric_operands(each), _is_label_of) for each in source.nodes_of(*_PAIRING))
    rows = ((node, operands, _is_row_of) for node, operands in _paired_by_row(source))
    for node, pair, belongs in chain(metrics, rows):
        for outputs in pair if len(pair) > 1 else ():
            others = [each for each in pair if each is not outputs]
            for collected, calls in _collected_in(source, outputs, (), loops, set()):
                found = _out_of_order(source, loaders_of(source, collected.iterable, calls), others, belongs)
                if found is not None and id(found[0].call) not in reported:
                    loader, other = found
                    reported.add(id(loader.call))
                    what = "label" if belongs is _is_label_of else "row"
                    yield Hit(
                        message=f"`{ast.unparse(outputs)}` is in the shuffled order of "
                        f"`{ast.unparse(collected.iterable)}`, and `{ast.unparse(other)}` in another order: "
                        f"each output is paired with the {what} of another sample.",
                        node=node,
                        related=((loader.call, "the batches are shuffled"),),
                    )


def _collecting(source: SourceFile) -> dict[tuple[str, int], list[ast.For]]:
    """Return the loops that fill a list, by its variable; {} only if no comprehension fills one, either."""
    found: dict[tuple[str, int], list[ast.For]] = {}
    for loop in source.nodes_of(ast.For):
        for name in _filled_with_outputs(loop):
            found.setdefault((name, id(_scope(source, loop, name))), []).append(loop)
    comprehensions = any(nodes_in(e, ast.Call) for e in source.nodes_of(ast.ListComp, ast.GeneratorExp))
    return found or ({("", 0): []} if comprehensions else {})


def _scope(source: SourceFile, node: ast.AST, name: str) -> Any:
    function = function_of(source, node)
    return source.parents.get(id(function)) if name.startswith("self.") else function


def _filled_with_outputs(loop: ast.For) -> Iterator[str]:
    """Yield the lists and arrays to which a loop adds something that is computed from its batches."""
    targets = [*nodes_in(loop.target, ast.Name)]
    if len(targets) > 2 + (isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "enumerate"):
        return  # a number of the sample may be collected with its output
    label = {targets[-1].id} if len(targets) > 1 else set[str]()
    for each in nodes_in(loop, ast.Call):
        if isinstance(each.func, ast.Attribute) and each.func.attr in _COLLECTING and each.args:
            read = {e.id for e in nodes_in(each.args[0], ast.Name)}
            if not label or (read - label - {"torch", "np"} and not isinstance(each.args[0], ast.Tuple)):
                yield dotted_name(each.func.value)
    for each in nodes_in(loop, ast.AugAssign):  # outputs += model(x).tolist()
        is_list = isinstance(each.value, ast.List | ast.ListComp) or last_name(getattr(each.value, "func", None)) in (
            "list", "tolist")  # fmt: skip
        if is_list and not {e.id for e in nodes_in(each.value, ast.Name)} <= label:
            yield dotted_name(each.target)
    own = {each.id for each in targets[1:] if isinstance(loop.iter, ast.Call)} or {each.id for each in targets}
    for each in nodes_in(loop, ast.Assign):
        match each.targets[0]:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Slice() as rows):
                if rows.lower is not None and not {e.id for e in nodes_in(rows.lower, ast.Name)} & own:
                    yield name  # outputs[start : start + len(x)] = model(x)
            case _:
                pass


def _collected_in(
    source: SourceFile,
    node: ast.expr,
    calls: Calls,
    loops: dict[tuple[str, int], list[ast.For]],
    seen: set[tuple[ast.expr, Calls]],
) -> Iterator[tuple[_Collected, Calls]]:
    """Yield the loops and comprehensions whose outputs an expression holds in the order of their batches."""
    if (node, calls) in seen or len(seen) > _MAX_EXPRESSIONS:
        return
    seen.add((node, calls))
    if isinstance(node, ast.Name | ast.Attribute):
        name = dotted_name(node)
        scope = _scope(source, node, name)
        known = [e for e in loops.get((name, id(scope)), ()) if e.lineno < node.lineno or name.startswith("self.")]
        if known and not _is_reordered(scope, name):
            yield _Collected(known[-1], known[-1].iter), calls
    else:
        known = []
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        if len(node.generators) == 1 and _is_of_outputs(node):
            yield _Collected(node, node.generators[0].iter), calls
    elif not known:
        for each, path in _parts(source, node, calls):
            yield from _collected_in(source, each, path, loops, seen)
    function = function_called(source, node) if isinstance(node, ast.Call) else None
    for loop in nodes_in(function, ast.For) if function is not None else ():
        if nodes_in(loop, ast.Yield):  # def outputs(loader): for x, _ in loader: yield model(x)
            yield _Collected(loop, loop.iter), (*calls, node)  # type: ignore[misc]


def _is_of_outputs(made: ast.ListComp | ast.GeneratorExp) -> bool:
    """Return True for ``[model(x) for x, _ in loader]``, also with several inputs, and False for the labels."""
    names = [each.id for each in nodes_in(made.generators[0].target, ast.Name)]
    read = {each.id for each in nodes_in(made.elt, ast.Name)}
    is_computed = bool(nodes_in(made.elt, ast.Call)) and not isinstance(made.elt, ast.Tuple)
    return is_computed and (len(names) == 1 or (names[-1] not in read and read.issuperset(names[:-1])))


def _parts(source: SourceFile, node: ast.expr, calls: Calls) -> list[Traced]:
    """Return the expressions from which an expression has its rows, in their order."""
    if isinstance(node, ast.Name | ast.Attribute | ast.Call):
        is_other = isinstance(node, ast.Call) and (_OTHER_ROWS.search(last_name(node.func)) or _reduces(node))
        values = [] if is_other else values_of(source, node, calls)
        if values or is_other:
            return values
    return [(each, calls) for each in _inner(node)]


def _inner(node: ast.expr) -> list[ast.expr]:
    """Return the parts of an expression from which it has its rows."""
    found: list[ast.expr] = []
    match node:
        case ast.Call(func=func, args=args):
            found = [*([func.value] if isinstance(func, ast.Attribute) else []), *args]
        case ast.Subscript(value=value, slice=index):
            inner = index.elts if isinstance(index, ast.Tuple) else [index]
            is_same_order = all(isinstance(e, ast.Slice | ast.Constant | ast.UnaryOp) for e in inner)
            found = [value] if is_same_order else []
        case ast.BinOp(left=left, right=right):
            found = [left, right]
        case ast.Compare(left=left) | ast.UnaryOp(operand=left) | ast.Starred(value=left) | ast.Attribute(value=left):
            found = [left]
        case ast.List(elts=elts) | ast.Tuple(elts=elts):
            found = elts
        case _:
            pass
    return found


def _reduces(call: ast.Call) -> bool:
    """Return True for a mean or another statistic over all rows, and False for one within each row: ``max(1)``."""
    is_function = isinstance(call.func, ast.Name) or last_name(getattr(call.func, "value", None)) in ("np", "torch")
    axes = [*call.args[1 if is_function else 0 :], *(each.value for each in call.keywords)]
    is_over_rows = not axes or (isinstance(axes[0], ast.Constant) and axes[0].value == 0)
    return last_name(call.func) in _REDUCING and is_over_rows


def _is_reordered(scope: Any, name: str) -> bool:
    """Return True if a function sorts a list, writes its items to other places, or indexes it."""
    called = {dotted_name(each.func) for each in nodes_in(scope, ast.Call)}
    for each in nodes_in(scope, ast.Assign):  # outputs = torch.cat(outputs)[order]
        match each:
            case ast.Assign(targets=[target], value=ast.Subscript(value=value, slice=ast.Name() | ast.Call())) if (
                dotted_name(target) == name and _mentions_any(value, {name})
            ):
                return True
            case _:
                pass
    targets = [target for each in nodes_in(scope, ast.Assign) for target in each.targets]
    return bool(called & {f"{name}.{each}" for each in ("sort", "scatter_", "index_copy_")}) or any(
        isinstance(each, ast.Subscript) and dotted_name(each.value) == name and not isinstance(each.slice, ast.Slice)
        for each in targets
    )


def _metric_operands(node: ast.AST) -> list[ast.expr]:
    """Return what a metric, a comparison or a difference pairs row by row; [] for other nodes."""
    match node:
        case ast.Compare(left=left, comparators=[right]) if not isinstance(node.ops[0], ast.In | ast.NotIn | ast.Is):
            return [left, right]
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return [left, right]
        case ast.Call(func=ast.Attribute(attr="eq" | "ne" | "sub", value=left), args=[right]):
            return [left, right]
        case ast.Call(func=func, args=args, keywords=keywords) if _METRIC.search(last_name(func)):
            return [*args, *(each.value for each in keywords)]
        case _:
            return []


def _paired_by_row(source: SourceFile) -> Iterator[tuple[ast.AST, list[ast.expr]]]:
    """Yield what a dataset or ``zip`` joins, and what a function reads at one index: ``base[i]`` and ``logits[i]``."""
    for call in source.all_calls:
        if last_name(call.func) in ("TensorDataset", "zip", "StackDataset") and len(call.args) > 1:
            yield call, [each for each in call.args if not isinstance(each, ast.Starred)]
    read: dict[tuple[int, str], list[ast.Subscript]] = {}
    for each in source.nodes_of(ast.Subscript):
        if isinstance(each.slice, ast.Name) and isinstance(each.ctx, ast.Load):
            read.setdefault((id(function_of(source, each)), each.slice.id), []).append(each)
    for found in read.values():
        values = {ast.unparse(each.value): each.value for each in found}
        if len(values) > 1:
            yield found[-1], list(values.values())


def _is_row_of(source: SourceFile, node: ast.expr, loader: Loader) -> bool:
    """Return True if an expression holds the rows of the dataset that a loader was given, in their order."""
    if loader.dataset is None:
        return False
    keys = value_keys(source, node)
    for each, calls in traced(source, *loader.dataset, lambda _: None):
        parts = each.args if isinstance(each, ast.Call) and last_name(each.func) == "TensorDataset" else [each]
        if any(keys & value_keys(source, part, calls) for part in parts if not isinstance(part, ast.Starred)):
            return True
    return _is_label_of(source, node, loader)


def _out_of_order(
    source: SourceFile,
    loaders: list[Loader],
    others: list[ast.expr],
    belongs: Callable[[SourceFile, ast.expr, Loader], bool],
) -> tuple[Loader, ast.expr] | None:
    """Return the shuffling loader and what belongs to its dataset; None if a loader in order has the same dataset."""
    found: tuple[Loader, ast.expr] | None = None
    for other in others if any(each.shuffles for each in loaders) else ():
        for loader in loaders:
            if belongs(source, other, loader):
                if not loader.shuffles:
                    return None
                found = found or (loader, other)
    return found


def _is_label_of(source: SourceFile, node: ast.expr, loader: Loader) -> bool:
    """Return True if an expression holds the labels that a loader was given, in their order."""
    keys = value_keys(source, node)
    passes = [made for each in origins(source, node) for made in nodes_in(each, ast.ListComp)]
    if any(keys & value_keys(source, each, calls) for each, calls in loader.labels) or any(
        _is_pass_over_labels(source, made, loader) for made in passes
    ):
        return True
    dataset = loader.dataset
    if dataset is None:
        return False
    first, calls = dataset
    named = _INPUT.sub(lambda found: "Y" if found[0] == "X" else "y", last_name(first))
    is_input = isinstance(first, ast.Name) and not loader.labels and named != first.id and named not in ("y", "Y")
    if is_input and keys & text_key(source, first, named):
        return True
    for each, _ in traced(source, node, (), lambda _: None):
        if isinstance(each, ast.Attribute):
            owner, attribute = each.value, each.attr
            if attribute in _LABELS | _returned_second(source) and value_keys(source, owner) & value_keys(
                source, first, calls
            ):
                return True  # dataset.targets
            is_inner = isinstance(owner, ast.Attribute) and owner.attr == "dataset" and attribute in _LABELS
            loader_of = owner.value if is_inner and isinstance(owner, ast.Attribute) else owner
            if (is_inner or attribute in loader.attributes) and any(
                each.call is loader.call for each in loaders_of(source, loader_of)
            ):
                return True  # loader.dataset.targets
    return False


def _is_pass_over_labels(source: SourceFile, made: ast.ListComp, loader: Loader) -> bool:
    """Return True for the labels of a pass of their own: ``torch.cat([y for _, y in loader])``."""
    match made.generators:
        case [ast.comprehension(target=ast.Tuple(elts=[ast.Name(), ast.Name(id=label)]), iter=iterable)]:
            calls_model = any(isinstance(call.func, ast.Name) for call in nodes_in(made.elt, ast.Call))
            is_label = label in {name.id for name in nodes_in(made.elt, ast.Name)} and not calls_model
            return is_label and any(each.call is loader.call for each in loaders_of(source, iterable))
        case _:
            return False


@lru_cache(maxsize=1)
def _returned_second(source: SourceFile) -> frozenset[str]:
    """Return the attributes that hold the labels of a dataset: ``return self.inputs[i], self.classes[i]``."""
    methods = [each for each in source.nodes_of(ast.FunctionDef) if each.name == "__getitem__"]
    pairs = [each.value for method in methods for each in nodes_in(method, ast.Return)]
    items = [pair.elts[1] for pair in pairs if isinstance(pair, ast.Tuple) and len(pair.elts) == 2]
    return frozenset(last_name(each.value) for each in items if isinstance(each, ast.Subscript))


def _by_batch_number(source: SourceFile) -> Iterator[Hit]:
    """Yield each output of an earlier pass over a shuffling loader that another pass reads by the batch's number."""
    known = _collecting(source) if may_shuffle(source) else {}
    for loop in source.nodes_of(ast.For) if known else ():
        for batches, outputs in _numbered_outputs(loop):
            loaders = [] if _is_list_of_batches(source, batches) else loaders_of(source, batches)
            shuffling = {id(each.call): each.call for each in loaders if _is_drawn_anew(each)}
            for collected, calls in _collected_in(source, outputs, (), known, set()) if shuffling else ():
                made = shuffling.keys() & {id(each.call) for each in loaders_of(source, collected.iterable, calls)}
                if made and _is_other_pass(source, loop, collected, calls):
                    yield Hit(
                        message=f"`{ast.unparse(outputs)}` has the outputs of an earlier pass over "
                        f"`{ast.unparse(batches)}`, which shuffles again in each pass: the batch with the same number "
                        "has other samples now.",
                        node=outputs,
                        related=((collected.node, "collected here"), (shuffling[made.pop()], "shuffles the batches")),
                    )
                    break


def _is_other_pass(source: SourceFile, loop: ast.For, collected: _Collected, calls: Calls) -> bool:
    """Return True if the outputs come from another loop over the loader itself, and are not the sizes of batches."""
    is_size = last_name(getattr(getattr(collected.node, "elt", None), "func", None)) in ("len", "size")
    is_same = encloses(loop, collected.node) or encloses(collected.node, loop)
    return not is_size and not is_same and not _is_list_of_batches(source, collected.iterable, calls)


def _numbered_outputs(loop: ast.For) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the loader of a loop, and each list from which the loop takes the item with the number of its batch."""
    match loop.target, loop.iter:
        case ast.Tuple(elts=[ast.Name(id=number), _]), ast.Call(func=ast.Name(id="enumerate"), args=[batches, *_]):
            for each in nodes_in(loop, ast.Subscript):
                is_number = isinstance(each.slice, ast.Name) and each.slice.id == number
                if is_number and isinstance(each.ctx, ast.Load) and isinstance(each.value, ast.Name | ast.Attribute):
                    yield batches, each.value
        case _, ast.Call(func=ast.Name(id="zip"), args=[first, second]):
            yield first, second
            yield second, first
        case _:
            pass


def _is_list_of_batches(source: SourceFile, batches: ast.expr, calls: Calls = ()) -> bool:
    """Return True if a loop goes through a list of batches, which has the same order in each pass."""
    parts = [each for each, _ in traced(source, batches, calls, _iterable_in)]
    return any(isinstance(e, ast.ListComp) or last_name(getattr(e, "func", None)) in ("list", "tuple") for e in parts)


def _iterable_in(node: ast.expr) -> ast.expr | None:
    return node.args[0] if isinstance(node, ast.Call) and last_name(node.func) in _PASSING and node.args else None


def _is_drawn_anew(loader: Loader) -> bool:
    """Return True for a loader that shuffles, without a generator that the program may set back."""
    return loader.shuffles and not any(each.arg in ("generator", "sampler") for each in loader.call.keywords)


RULE = Rule(
    required_words=("DataLoader|shuffle|permut|randperm", "shuffle|True|permut|randperm", "append|extend|for "),
    find=find,
)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 8)
y = (x[:, 0] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
predictions = []
with torch.no_grad():
    for inputs, _ in loader:
        predictions.append(model(inputs).argmax(1))
predictions = torch.cat(predictions)
print("accuracy", (predictions == y).float().mean())
"""

FAILURE = Failure(
    code="DAT022",
    title="Outputs in shuffled order are paired with labels of the dataset",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"for inputs, _ in loader:": "for inputs, _ in DataLoader(loader.dataset, 32):"}),
    fix="Use a loader without shuffle to collect outputs, or collect the labels in the same loop.",
    rule=RULE,
)
