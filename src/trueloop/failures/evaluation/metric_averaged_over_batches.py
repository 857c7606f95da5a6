"""A metric that is no mean over samples, such as F1, AUC, RMSE or perplexity, is computed per batch and averaged.

What you see
    The reported F1, precision, recall, AUC or R2 differs from that of a library on all predictions, often by a lot for
    rare classes, and it changes with the batch size. The RMSE is too low, the perplexity too high.

Why it happens
    A loss or an accuracy is a mean over samples, so the mean over equal batches is the value of the whole dataset. F1,
    AUC or R2 are ratios or ranks: a batch without a positive sample counts as 0, or raises a warning, and a small batch
    says little about the order of the scores. The root of a mean is not the mean of the roots, nor is the exponential
    of a mean loss the mean of the exponentials.

Fix
    Collect the predictions of all batches, and compute the metric once:

        predictions.append(predicted.cpu())
        labels.append(y.cpu())
        ...
        f1 = f1_score(torch.cat(labels), torch.cat(predictions))

    For RMSE and perplexity, average the squared errors or the loss, and take the root or the exponential once:

        rmse = (squared_error_sum / count) ** 0.5
        perplexity = math.exp(loss_sum / token_count)

    A metric of torchmetrics does this with ``update()`` for each batch and ``compute()`` at the end.

When this is fine
    - A running value is only displayed during training.
    - Each batch is one unit of its own, such as the documents of one query.
    - A value is computed for each sample, such as the IoU of each image, and the mean is taken over samples.
    - The metric is the mean over samples: ``average="samples"``, or ``"micro"`` for one class per sample.
    - The RMSE is the loss that is trained, and its mean over batches is compared with that of training.

How it is detected
    Only the linter finds it, from the source code: in a loop over a loader or over parts of a tensor, without a
    backward pass, the result of a function for F1, precision, recall, AUC, average precision, a correlation or R2,
    the root of a mean squared error, the exponential of a loss or a ratio of counts like ``tp / (tp + fp)`` is added
    to a total, appended to a list or passed to a meter, and this total is divided or this list is averaged in the
    same function. A loop over what another loop yields or appends for each batch counts, too. A function of the
    program counts if it returns such a value, or a ratio of counts such as the IoU, of all samples or counts that it
    gets. So does a call of an object of torchmetrics, which returns the value of one batch. A method that does this
    with its arguments counts if it is called in such a loop.

References
    Forman and Scholz, 2010, "Apples-to-apples in cross-validation studies", on averaged F1 and AUC,
    https://doi.org/10.1145/1882471.1882479
    torchmetrics, "Metrics in distributed and batched mode", https://lightning.ai/docs/torchmetrics/stable/pages/overview.html
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import (
    LOADER_WORDS,
    BatchLoop,
    assigned_in,
    batch_loops,
    function_of,
    hand_made_batch_loops,
    has_batches_of_one,
    is_loader,
    is_loss_call,
    is_split,
    without_conversions,
)
from trueloop.analysis.queries.class_instances import (
    Instance,
    called_function,
    definitions,
    enclosing_loops,
    instances,
    uses,
)
from trueloop.analysis.queries.minimised_values import minimised
from trueloop.analysis.queries.possible_values import computed_from, enclosing_nodes, origins, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_METRIC: Final = re.compile(
    r"^((binary|multiclass|multilabel|compute|calc|calculate|get|sk|macro|micro|weighted|batch|mean|skmetrics|metric)_)*"
    r"(f1|f1_?(score|macro|metric|weighted)|fbeta(_score)?|f_score|precision_score|recall_score|(roc_)?auc(_score)?"
    r"|auroc|average_precision(_score)?|matthews_corrcoef|cohen_kappa(_score)?|r2|r2_?score|rmse|root_mean_squared_error"
    r"|perplexity|ppl|balanced_accuracy(_score)?|spearmanr|pearsonr|concordance_index"
    r"|precision_recall_fscore_support|classification_report)$",
    re.IGNORECASE,
)
_RATIO: Final = re.compile(r"(^|_)(precision|recall|m?iou|jaccard|dice|f1|specificity)($|_)", re.IGNORECASE)
"""Names of functions of the program whose text tells whether they compute one ratio for all samples of a batch."""
_MEANS: Final = frozenset(("mean", "average", "fmean", "nanmean"))
_METERS: Final = frozenset(("update", "add"))
_SQUARED_ERROR: Final = re.compile(r"(^|_|\b)mse|MSE|squared_error|(^|_)sq_?err")
_LOG_LOSS: Final = re.compile(
    r"(^|_|\.)(loss|nll|ce|xent|cross_entropy|nll_loss)($|_\d)|cross_?entropy|nll|CrossEntropy|NLL|crit"
)
_SQUARE: Final = re.compile(r"\*\* ?2|pow\(2\)|square|, 2\)")
_OF_MEAN: Final = re.compile(r"rmse|root_mean|perplexity|ppl")
_DISPLAYS: Final = frozenset(("set_postfix", "set_postfix_str", "set_description", "set_description_str"))
MAX_DEPTH: Final = 4
_SUMS: Final = frozenset(("sum", "count_nonzero", "bincount", "confusion_matrix", "histc"))
_METRIC_CLASS: Final = re.compile(
    r"^(Binary|Multiclass|Multilabel)?(F1Score|FBetaScore|Precision|Recall|Specificity|JaccardIndex|AUROC|"
    r"AveragePrecision|MatthewsCorrCoef|CohenKappa|R2Score|PearsonCorrCoef|SpearmanCorrCoef)$"
)
"""Classes of torchmetrics, whose call returns the value of one batch."""
_MATCHES: Final = frozenset(("logical_and", "bitwise_and", "mul"))
_CLASSES: Final = re.compile(r"class|unique")
_SAMPLES: Final = re.compile(r"size|len\(|shape|numel")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each metric of a batch that is averaged over the batches of an evaluation."""
    loops = [each for each in batch_loops(source) if not has_batches_of_one(source, each)]
    loops += [each for each in hand_made_batch_loops(source) if all(each.node is not other.node for other in loops)]
    batches = {id(each.node) for each in loops if not _trains(each.node)}
    loops += [
        BatchLoop(each, each.iter, "", function_of(source, each))
        for each in source.nodes_of(ast.For)
        if id(each) not in batches
        and isinstance(each.iter, ast.Call | ast.Name)
        and _holds_batches(source, each.iter, batches)
    ]
    for loop in loops:
        for value in _metrics(source, loop.node) if not _trains(loop.node) else ():
            if _innermost_loop(source, value) is loop.node:
                averaged = _averaged(source, loop.node, loop.function, value)
                if averaged is not None:
                    yield _hit(value, averaged)
    yield from _find_in_comprehensions(source, batches)
    yield from _find_in_meters(source)


def _find_in_comprehensions(source: SourceFile, batches: set[int]) -> Iterator[Hit]:
    """Yield each metric in a list or sum over a loader, or over results of its batches, that is averaged."""
    for node in source.nodes_of(ast.ListComp, ast.GeneratorExp):
        value, iterable = without_conversions(node.elt), node.generators[0].iter
        if value not in list(_metrics(source, node.elt)):
            continue
        is_cut = isinstance(iterable, ast.Call) and is_split(iterable)  # not: for train, test in folds.split(x)
        is_cut &= last_name(getattr(iterable, "func", None)) == "zip" or isinstance(node.generators[0].target, ast.Name)
        if not is_cut and not is_loader(source, iterable) and not _holds_batches(source, iterable, batches):
            continue
        parent: Any = source.parents.get(id(node))
        around: Any = source.parents.get(id(parent))
        averaged: ast.AST | None = None
        match parent:
            case ast.Call(func=func) if last_name(func) in _MEANS:
                averaged = parent
            case ast.Call(func=ast.Name(id="sum")) if isinstance(around, ast.BinOp) and isinstance(around.op, ast.Div):
                averaged = around
            case ast.Assign(targets=[target]):
                averaged = _mean(source, _scope_of(source, function_of(source, node), target), target)
            case _:
                pass
        if averaged is not None:
            yield _hit(value, averaged)


def _holds_batches(source: SourceFile, node: ast.expr, batches: set[int], depth: int = 0) -> bool:
    """Return True for what a loop over batches yields or appends once for each batch.

    Args:
        source: the file.
        node: what is iterated over.
        batches: ids of the loops over batches that do not train.
        depth: number of variables and calls that were followed.
    """
    if isinstance(node, ast.Call):
        function = called_function(source, node)
        if last_name(node.func) in ("list", "tuple", "tqdm", "enumerate") and node.args:
            return _holds_batches(source, node.args[0], batches, depth)
        yields = [] if function is None else nodes_in(function, ast.Yield)
        return bool(yields) and all(id(_innermost_loop(source, each)) in batches for each in yields)
    if not isinstance(node, ast.Name) or depth > MAX_DEPTH:
        return False
    function = function_of(source, node)
    appends = [
        each
        for each in definitions(source).calls.get("append", ())
        if dotted_name(getattr(each.func, "value", None)) == node.id and function_of(source, each) is function
    ]
    if appends:
        return all(
            id(_innermost_loop(source, each)) in batches and isinstance(each.args[0], ast.Tuple) for each in appends
        )
    values = possible_values(source, node)
    return bool(values) and all(_holds_batches(source, each, batches, depth + 1) for each in values)


def _metrics(source: SourceFile, inside: ast.AST) -> Iterator[ast.expr]:
    """Yield each call of a metric, ratio of counts, root of a mean squared error and exponential of a loss."""
    for each in nodes_in(inside, ast.Call, ast.BinOp):
        is_metric = isinstance(each, ast.Call) and _is_metric(source, each) and not _is_running(source, each)
        if is_metric or _is_function_of_mean(source, each) or _is_ratio_of_batch(source, each):
            yield each


def _is_running(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a value of totals, which grow with each batch."""
    read = {each.id for each in nodes_in(node, ast.Name)}
    return any(last_name(each.target) in read for each in nodes_in(function_of(source, node), ast.AugAssign))


def _is_ratio_of_batch(source: SourceFile, node: ast.expr) -> bool:
    """Return True for an F1, precision, recall or IoU that is written out with counts of a batch."""
    is_ratio = isinstance(node, ast.BinOp) and _is_ratio(function_of(source, node), node)
    return is_ratio and _counts_matches(source, node)


def _counts_matches(source: SourceFile, node: ast.expr) -> bool:
    """Return True if a value is computed from the number of elements that are set in two masks."""
    nodes = list(computed_from(source, node))
    calls = [last_name(each.func) for each in nodes if isinstance(each, ast.Call)]
    is_both = not _MATCHES.isdisjoint(calls) or any(isinstance(each, ast.BitAnd) for each in nodes)
    totals = {each.id for each in nodes if isinstance(each, ast.Name)}
    grows = any(last_name(e.target) in totals for e in nodes_in(function_of(source, node), ast.AugAssign))
    return is_both and not _SUMS.isdisjoint(calls) and not grows


def _is_ratio(scope: Any, node: ast.expr, depth: int = 0) -> bool:
    """Return True for ``tp / (tp + fp)``: a value divided by a sum of which it is a part."""
    match node:
        case ast.Name(id=name):
            values = assigned_in(scope, name) if depth < MAX_DEPTH else []
            return any(_is_ratio(scope, each, depth + 1) for each in values)
        case ast.IfExp(body=first, orelse=second):
            return _is_ratio(scope, first, depth) or _is_ratio(scope, second, depth)
        case ast.BinOp(op=ast.Mult(), left=first, right=second):
            return isinstance(first, ast.Constant) and _is_ratio(scope, second, depth)
        case ast.BinOp(op=ast.Div(), left=part, right=whole):
            pass
        case ast.Call() if without_conversions(node) is not node:
            return _is_ratio(scope, without_conversions(node), depth)
        case _:
            return False
    if isinstance(whole, ast.Name):
        values = assigned_in(scope, whole.id)
        whole = values[0] if len(values) == 1 else whole
    parts, wholes = ({each.id for each in nodes_in(side, ast.Name)} for side in (part, whole))
    is_count = not _SAMPLES.search(ast.unparse(whole)) and bool(nodes_in(whole, ast.Add))
    return is_count and bool(parts) and parts <= wholes - {"max"} and len(wholes - {"max", "min"}) > 1


def _hit(value: ast.expr, averaged: ast.AST, *related: tuple[ast.AST, str]) -> Hit:
    name = last_name(value.func) if isinstance(value, ast.Call) else "pow"
    what, advice = name, "collect the predictions and compute it once."
    if name in ("sqrt", "pow", "exp"):
        what = text if len(text := ast.unparse(value)) <= 80 else name
        mean, function = ("loss", "exponential") if name == "exp" else ("squared errors", "root")
        advice = f"average the {mean} over all batches, then take the {function} once."
    return Hit(
        message=f"`{what}` is computed for each batch and averaged over the batches, which is not its value on all "
        f"samples: {advice}",
        node=value,
        related=((averaged, "averaged here"), *related),
    )


def _find_in_meters(source: SourceFile) -> Iterator[Hit]:
    """Yield each metric that a method computes for a batch and that another method of its class averages."""
    reported: set[int] = set()
    for instance in instances(source):
        definition = definitions(source).classes.get(last_name(instance.call.func))
        for method in definition.body if definition is not None else ():
            if not isinstance(method, ast.FunctionDef) or len(method.args.args) < 3:  # self, predictions and targets
                continue
            for call in [each for each in _metrics(source, method) if id(each) not in reported]:
                if _innermost_loop(source, call) is not method or _reads_self(call):
                    continue
                averaged = _averaged(source, method, definition, call)
                update = _call_per_batch(source, instance, method.name) if averaged is not None else None
                if averaged is not None and update is not None:
                    reported.add(id(call))
                    yield _hit(call, averaged, (update, "called for each batch"))


def _call_per_batch(source: SourceFile, instance: Instance, method: str) -> ast.AST | None:
    """Return the call of a method of an object in a loop over a loader that does not train; None if there is none."""
    loops = {id(each.node) for each in batch_loops(source) if not has_batches_of_one(source, each)}
    for used in uses(source, instance.target) or ():
        callee: Any = used if method == "__call__" else source.parents.get(id(used))
        call = source.parents.get(id(callee)) if method in ("__call__", getattr(callee, "attr", "")) else None
        if isinstance(call, ast.Call) and call.func is callee:
            around = [path[0] for path in enclosing_loops(source, call) if path]
            if any(id(each) in loops and not _trains(each) for each in around):
                return call
    return None


def _reads_self(value: ast.expr) -> bool:
    """Return True if a call is given attributes of ``self``, such as lists of all predictions so far."""
    parts = value.args if isinstance(value, ast.Call) else [value]
    return any(isinstance(each, ast.Name) and each.id == "self" for part in parts for each in walk(part))


def _trains(loop: ast.AST) -> bool:
    return any(each.attr == "backward" for each in nodes_in(loop, ast.Attribute))


def _is_metric(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a call that computes a metric which is not a mean over samples."""
    average = next((each.value for each in call.keywords if each.arg == "average"), None)
    is_mean = isinstance(average, ast.Constant) and average.value in ("samples", "micro", None)
    is_unpacked = any(isinstance(each, ast.Starred) for each in call.args)
    if (len(call.args) + len(call.keywords) < 2 and not is_unpacked) or is_mean:
        return False
    function = called_function(source, call)
    if function is None or function.name == "__init__":
        return bool(_METRIC.match(last_name(call.func))) or _is_torchmetric(source, call)
    return _computes_metric(source, function)


@lru_cache(maxsize=1)
def _creates_metric(source: SourceFile) -> bool:
    return any(map(_METRIC_CLASS.match, definitions(source).calls))


def _is_torchmetric(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a call of an object of torchmetrics that is no mean over samples, as ``average="micro"`` is."""
    if not isinstance(call.func, ast.Name | ast.Attribute) or len(call.args) < 2 or not _creates_metric(source):
        return False
    for each in origins(source, call.func, 2):
        made = each.func.value if isinstance(each, ast.Call) and last_name(each.func) in ("to", "cuda") else each  # type: ignore[attr-defined]
        match = _METRIC_CLASS.match(last_name(made.func)) if isinstance(made, ast.Call) else None
        if match is not None and isinstance(made, ast.Call):
            given = {each.arg: getattr(each.value, "value", None) for each in made.keywords}
            is_binary = match[1] == "Binary" or given.get("task") == "binary"
            is_rank = match[2] in ("AUROC", "AveragePrecision", "R2Score", "PearsonCorrCoef", "SpearmanCorrCoef")
            return is_binary or is_rank or given.get("average") in ("macro", "weighted")
    return False


def _is_function_of_mean(source: SourceFile, node: ast.expr) -> bool:
    """Return True for the root of a mean squared error or the exponential of a mean loss that is not minimised."""
    match node:
        case ast.BinOp(op=ast.Pow(), left=inner, right=ast.Constant(value=0.5)):
            name = "sqrt"
        case ast.Call(func=ast.Attribute(attr="pow", value=inner), args=[ast.Constant(value=0.5)]):
            name = "sqrt"
        case ast.Call(func=func, args=[inner]):
            name = last_name(func)
        case ast.Call(func=ast.Attribute(attr=name, value=inner), args=[]):
            pass
        case _:
            return False
    kind = {"sqrt": _SQUARED_ERROR, "exp": _LOG_LOSS}.get(name)
    return kind is not None and _is_mean(source, inner, kind, 0) and id(node) not in minimised(source)


def _is_mean(source: SourceFile, node: ast.expr, kind: re.Pattern[str], depth: int) -> bool:
    """Return True for a mean squared error or loss of a batch, by what computes it or else by its name."""
    node = without_conversions(node)
    text = ast.unparse(node)
    if depth > MAX_DEPTH or re.search(r"reduction=|log_?var|log_?std|running|total|avg|(^|_)kl", text):
        return False
    values = possible_values(source, node)
    if values:
        return any(_is_mean(source, each, kind, depth + 1) for each in values)
    if isinstance(node, ast.Call):
        owner = getattr(node.func, "value", None)
        if last_name(node.func) == "mean":
            is_whole = len(node.args) == (last_name(owner) in ("torch", "np")) and not node.keywords
            return is_whole and kind is _SQUARED_ERROR and bool(_SQUARE.search(text)) and bool(nodes_in(node, ast.Sub))
        made = [ast.unparse(each) for each in possible_values(source, node.func)]
        named = source.qualified_name(node.func) or last_name(node.func)
        is_loss = is_loss_call(source, node) or kind.search(last_name(node.func)) is not None
        return is_loss and not any("reduction" in each for each in made) and bool(kind.search(" ".join([named, *made])))
    return isinstance(node, ast.Name | ast.Attribute) and bool(kind.search(last_name(node)))


def _computes_metric(source: SourceFile, function: ast.FunctionDef) -> bool:
    """Return True for a function of the program that returns one F1, IoU or similar ratio of all its samples."""
    if "loss" in function.name.lower() or _is_per_sample(function):
        return False
    if _METRIC.match(function.name) or (_RATIO.search(function.name) and _divides_counts(function)):
        return not (_OF_MEAN.search(function.name) and _is_minimised(source, function))
    returned = [each.value for each in nodes_in(function, ast.Return) if each.value is not None]
    value = without_conversions(returned[0]) if len(returned) == 1 else None
    if isinstance(value, ast.Name):
        assigned = assigned_in(function, value.id)
        value = without_conversions(assigned[0]) if len(assigned) == 1 else None
    if value is not None and _is_function_of_mean(source, value):
        return not _is_minimised(source, function)
    if _ratio_positions(function) and "acc" not in function.name.lower():
        return _gets_counts(source, function) and not _is_minimised(source, function)
    return isinstance(value, ast.Call) and called_function(source, value) is None and _is_metric(source, value)


def _ratio_positions(function: ast.FunctionDef) -> list[int]:
    """Return the positions of ratios of counts in what a function returns; [0] for one ratio."""
    found = set[int]()
    for each in nodes_in(function, ast.Return):
        values = each.value.elts if isinstance(each.value, ast.Tuple) else [each.value] if each.value else []
        found |= {position for position, value in enumerate(values) if _is_ratio(function, value)}
    return sorted(found)


def _gets_counts(source: SourceFile, function: ast.FunctionDef) -> bool:
    """Return True if a function counts matches, or all of its calls pass such counts."""
    returned = [each.value for each in nodes_in(function, ast.Return) if each.value is not None]
    if any(_counts_matches(source, each) for each in returned):
        return True
    calls = definitions(source).calls.get(function.name, ())
    arguments = [e.value if isinstance(e, ast.Starred) else e for call in calls for e in call.args]
    made = [called_function(source, each) for each in arguments if isinstance(each, ast.Call)]
    returned = [e.value for f in made if f is not None for e in nodes_in(f, ast.Return) if e.value is not None]
    return any(_counts_matches(source, each) for each in (*arguments, *returned))


def _is_minimised(source: SourceFile, function: ast.FunctionDef) -> bool:
    """Return True if the program trains with the result of a function."""
    return any(id(each) in minimised(source) for each in definitions(source).calls.get(function.name, ()))


def _divides_counts(function: ast.FunctionDef) -> bool:
    """Return True for a function that divides counts of a batch by each other, not by the size of the batch."""
    nodes = list(walk(function))
    counts = any(isinstance(each, ast.Call) and last_name(each.func) in _SUMS for each in nodes)
    divisors = [
        ast.unparse(each.right) for each in nodes if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div)
    ]
    return counts and bool(divisors) and not any(map(_SAMPLES.search, divisors))


def _is_per_sample(function: ast.FunctionDef) -> bool:
    """Return True for a function that may compute a value for each sample: it sums over other dimensions than 0."""
    for each in walk(function):
        if isinstance(each, ast.For | ast.comprehension):
            iterated = ast.unparse(each.iter)
            if not re.match(r"range\(|tqdm\(range\(", iterated) and (
                "zip" in iterated or not _CLASSES.search(iterated)
            ):
                return True
        if isinstance(each, ast.Call) and last_name(each.func) in ("sum", "mean"):
            is_function = last_name(getattr(each.func, "value", each.func)) in ("torch", "np", "numpy", "sum")
            dims = [k.value for k in each.keywords if k.arg in ("dim", "axis")] + each.args[1 if is_function else 0 :]
            if dims and not re.search(r"(?<!\d)0(?!\d)", ast.unparse(dims[0])) and not _is_matrix(function):
                return True
    return False


def _is_matrix(function: ast.FunctionDef) -> bool:
    """Return True for a function that builds a confusion matrix of all samples."""
    return bool(re.search(r"bincount|confusion", ast.unparse(function)))


def _innermost_loop(source: SourceFile, node: ast.AST) -> ast.AST | None:
    parent = source.parents.get(id(node))
    while parent is not None and not isinstance(parent, ast.For | ast.While | ast.FunctionDef):
        parent = source.parents.get(id(parent))
    return parent


def _averaged(source: SourceFile, inside: ast.AST, scope: Any, call: ast.expr) -> ast.AST | None:
    """Return the expression that averages the results of a call; None if there is none.

    Args:
        source: the file.
        inside: the loop or method that contains the call.
        scope: the function or class in which the average is searched.
        call: computes the metric of a batch.
    """
    value, parent = _outermost(source, call, ast.Subscript | ast.Attribute | ast.BinOp | ast.IfExp)
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name | ast.Tuple):
        names = _metric_names(source, parent.targets[0], call)
        reads = [each for each in nodes_in(inside, ast.Name) if each.id in names and isinstance(each.ctx, ast.Load)]
        found = (_accumulated(source, scope, each) for each in reads)
        return next((each for each in found if each is not None), None)
    return _accumulated(source, scope, value)


def _metric_names(source: SourceFile, target: ast.Name | ast.Tuple, call: ast.expr) -> set[str]:
    """Return the variables of an assignment that get a metric, by the positions of ratios in a returned tuple."""
    if isinstance(target, ast.Name):
        return {target.id}
    function = called_function(source, call) if isinstance(call, ast.Call) else None
    positions = [0, 1, 2] if function is None else _ratio_positions(function)
    is_known = function is not None or last_name(getattr(call, "func", None)) == "precision_recall_fscore_support"
    named = [each for number, each in enumerate(target.elts) if number in positions]
    return {each.id for each in named if isinstance(each, ast.Name)} if is_known else set()


def _outermost(source: SourceFile, value: ast.expr, kinds: Any) -> tuple[ast.expr, Any]:
    """Return the largest expression around a value that only converts or scales it, and the node around that."""
    parent: Any = source.parents.get(id(value))
    while isinstance(parent, kinds) or (isinstance(parent, ast.Call) and without_conversions(parent) is not parent):
        value, parent = parent, source.parents.get(id(parent))
    return value, parent


def _accumulated(source: SourceFile, scope: Any, value: ast.expr) -> ast.AST | None:
    """Return the expression that averages a total or list to which a value is added."""
    value, parent = _outermost(source, value, ast.BinOp | ast.Attribute | ast.IfExp)
    match parent:
        case ast.AugAssign(op=ast.Add(), target=target):
            return _division(source, _scope_of(source, scope, target), target)
        case ast.Call(func=ast.Attribute(attr="append", value=owner)):
            return _mean(source, _scope_of(source, scope, owner), owner)
        case ast.Call(func=ast.Attribute(attr=attr, value=owner)) if attr in _METERS and len(parent.args) == 2:
            return parent if re.search("meter|^avg", dotted_name(owner).lower()) else None
        case _:
            return None


def _scope_of(source: SourceFile, scope: Any, total: ast.expr) -> Any:
    """Return the class of a method for an attribute of ``self``, which other methods read too."""
    around = source.parents.get(id(scope))
    return around if dotted_name(total).startswith("self.") and isinstance(around, ast.ClassDef) else scope


def _division(source: SourceFile, scope: Any, total: ast.expr) -> ast.AST | None:
    """Return the division of a total."""
    name = ast.unparse(total)
    for each in nodes_in(scope, ast.BinOp, ast.AugAssign, ast.DictComp, ast.ListComp, ast.GeneratorExp, ast.For):
        if _is_displayed(source, each):
            continue
        match each:
            case ast.BinOp(op=ast.Div(), left=left) if ast.unparse(without_conversions(left)) == name:
                return each
            case ast.AugAssign(op=ast.Div(), target=target) if ast.unparse(target) == name:
                return each
            case ast.DictComp() | ast.ListComp() | ast.GeneratorExp() | ast.For() if _divides_items(each, total):
                return each
            case _:
                pass
    return None


def _is_displayed(source: SourceFile, node: ast.AST) -> bool:
    """Return True for a part of the text that a progress bar shows."""
    calls = (each for each in enclosing_nodes(source, node) if isinstance(each, ast.Call))
    return any(last_name(each.func) in _DISPLAYS for each in calls)


def _divides_items(loop: Any, total: ast.expr) -> bool:
    """Return True for a loop that divides all items of the dictionary of a total: ``for k, v in totals.items()``."""
    iterated = loop.iter if isinstance(loop, ast.For) else loop.generators[0].iter
    owner = ast.unparse(total.value) if isinstance(total, ast.Subscript) else ""
    divides = bool(nodes_in(loop, ast.Div))
    return divides and ast.unparse(iterated) in (f"{owner}.items()", f"{owner}.values()")


def _mean(source: SourceFile, scope: Any, items: ast.expr) -> ast.AST | None:
    """Return the expression that computes the mean of a list."""
    name = ast.unparse(items)
    owner = ast.unparse(items.value) if isinstance(items, ast.Subscript) else ""
    for each in nodes_in(scope, ast.BinOp, ast.Call, ast.DictComp, ast.ListComp):
        if _is_displayed(source, each):
            continue
        match each:
            case ast.DictComp() | ast.ListComp():
                means = [call for call in nodes_in(each, ast.Call) if last_name(call.func) in _MEANS]
                if (
                    owner
                    and means
                    and ast.unparse(each.generators[0].iter) in (f"{owner}.items()", f"{owner}.values()")
                ):
                    return each
            case ast.BinOp(op=ast.Div(), left=ast.Call(func=ast.Name(id="sum"), args=[summed])):
                if ast.unparse(summed) == name:
                    return each
            case ast.Call(func=func) if last_name(func) in _MEANS:
                if any(ast.unparse(inner) == name for inner in nodes_in(each, ast.expr)):
                    return each
            case _:
                pass
    return None


_WORDS: Final = (
    "f1", "F1", "precision", "recall", "auc", "AUC", "auroc", "r2", "kappa", "corrcoef", "spearman", "pearson",
    "fbeta", "iou", "jaccard", "dice", "balanced_acc", "sqrt", "exp(", "0.5", "rmse", "squared_error",
    "perplexity", "ppl",
)  # fmt: skip
_MATCH_COUNT: Final = re.compile(r"&[^\n]*\.sum\(")


def _has_metric(text: str) -> bool:
    return any(word in text for word in _WORDS) or _MATCH_COUNT.search(text) is not None


RULE = Rule(
    required_words=(_has_metric, f"{LOADER_WORDS}|split(|chunk(|range(", "+=|append|mean(|/|update("), find=find
)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def f1_score(labels, predicted):
    hits = (labels * predicted).sum().item()
    return 2 * hits / max(labels.sum().item() + predicted.sum().item(), 1)


torch.manual_seed(0)
x = torch.randn(320, 8)
y = (x.sum(1) > 4).float()
train_loader = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(x[160:], y[160:]), batch_size=16)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for epoch in range(3):
    for inputs, labels in train_loader:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], labels).backward()
        optimizer.step()
    with torch.no_grad():
        scores = []
        for inputs, labels in val_loader:
            predicted = (model(inputs)[:, 0] > 0).float()
            scores.append(f1_score(labels, predicted))
    print("F1", sum(scores) / len(scores))
"""

FAILURE = Failure(
    code="EVL016",
    title="F1, AUC, RMSE or perplexity is averaged over batches",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "scores = []": "predictions = []",
            "scores.append(f1_score(labels, predicted))": "predictions.append(predicted)",
            "sum(scores) / len(scores)": "f1_score(y[160:], torch.cat(predictions))",
        },
    ),
    fix="Collect the predictions of all batches, or add up the errors, and compute the metric once after the loop.",
    rule=RULE,
)
