"""An AUC or average precision is computed from predicted classes instead of scores.

What you see
    The AUC is lower than that of comparable models, and its curve has a single corner. It changes with the threshold,
    although it should not depend on one.

Why it happens
    An AUC says how well the scores rank the positive samples above the negative ones. Classes have only two ranks, so
    all samples of a class are ties, and the result is the mean of recall and specificity at one threshold. Classes are
    numbers like scores, so no error is raised.

Fix
    Pass the probabilities or the logits:

        auc = roc_auc_score(labels, (probabilities > 0.5).float())  # wrong
        auc = roc_auc_score(labels, probabilities)                  # right

When this is fine
    - The scores are whole numbers, such as counts or ranks.
    - You want the mean of recall and specificity. Then ``balanced_accuracy_score`` says so.
    - Accuracy, F1, precision and recall need classes.

How it is detected
    Only the linter finds it, from the source code. It follows the scores of ``roc_auc_score``, ``roc_curve``,
    ``average_precision_score`` or ``precision_recall_curve``, of a metric of torchmetrics such as ``BinaryAUROC``, or
    of an AUC function of the program, through variables, lists, parameters and returned values. It reports scores that
    are always classes: an ``argmax``, a rounded value, a comparison with a threshold or a conversion to integers.

References
    scikit-learn, "Metrics and scoring", https://scikit-learn.org/stable/modules/model_evaluation.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions, instances, uses
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SKLEARN: Final = frozenset((
    "roc_auc_score", "average_precision_score", "roc_curve", "precision_recall_curve", "det_curve",
))  # fmt: skip
"""Functions of scikit-learn that take the labels, then the scores."""
_TORCHMETRICS: Final = re.compile(r"^(Binary|Multiclass|Multilabel)?(AUROC|AveragePrecision|ROC|PrecisionRecallCurve)$")
_FUNCTIONAL: Final = re.compile(
    r"^(binary|multiclass|multilabel)_(auroc|average_precision|roc|precision_recall_curve)$"
)
"""Classes and functions of torchmetrics, which take the scores first."""
_OWN: Final = re.compile(
    r"^((compute|calc|calculate|get|binary|manual|my)_)*((roc_?)?auc(_score|_roc)?|auroc|average_precision(_score)?)$"
)
_SCORES: Final = re.compile(r"score|pred|prob|logit|output|y_?hat")
_KEEPS: Final = frozenset((
    "cpu", "detach", "numpy", "tolist", "float", "double", "ravel", "flatten", "reshape", "view", "squeeze", "astype",
    "to", "type", "copy", "clone", "unsqueeze", "contiguous", "half", "item",
))  # fmt: skip
"""Methods that change only the type or shape of a value."""
_JOINS: Final = frozenset((
    "cat", "concatenate", "concat", "stack", "hstack", "vstack", "array", "asarray", "list", "tensor", "as_tensor",
    "float", "squeeze", "ravel", "from_numpy", "one_hot", "FloatTensor", "Tensor",
))  # fmt: skip
"""Functions whose result has the values of their first argument."""
_INTEGERS: Final = frozenset(("int", "long", "short", "bool"))
_MODULES: Final = frozenset(("torch", "np", "numpy", "F"))
MAX_DEPTH: Final = 10


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ranking metric whose scores are classes."""
    for call, name, scores in _ranked(source):
        made = None if scores is None else _class(source, scores, 0)
        if made is not None and scores is not None:
            given, origin = ast.unparse(scores), ast.unparse(made)
            given = f"`{given}`" if len(given) <= 80 else "its argument"
            what = "" if given == f"`{origin}`" or len(origin) > 80 else f", made by `{origin}`"
            yield Hit(
                message=f"`{name}` ranks samples by their scores, but {given} contains predicted classes{what}: "
                "pass the probabilities or logits.",
                node=call,
                related=((made, "the classes"),),
            )


def _ranked(source: SourceFile) -> Iterator[tuple[ast.Call, str, ast.expr | None]]:
    """Yield each call of a metric that ranks samples, with its name and its scores."""
    own = definitions(source).functions
    for call in source.all_calls:
        name = last_name(call.func)
        if name in own:
            if _OWN.match(name):
                yield call, name, _own_scores(own[name], call)
        elif name in _SKLEARN:
            yield call, name, _argument(call, 1, "y_score", "y_prob", "y_pred", "probas_pred")
        elif _FUNCTIONAL.match(name):
            yield call, name, _argument(call, 0, "preds", "input")
    for instance in instances(source):
        made = (last_name(each.func) for each in nodes_in(instance.call, ast.Call))
        name = next(
            (each for each in made if _TORCHMETRICS.match(each) and each not in definitions(source).classes), ""
        )
        for used in (uses(source, instance.target) or ()) if name else ():
            parent: Any = source.parents.get(id(used))
            is_update = isinstance(parent, ast.Attribute) and parent.attr in ("update", "forward")
            call = source.parents.get(id(parent)) if is_update else parent
            if isinstance(call, ast.Call) and call.func is (parent if is_update else used):
                yield call, name, _argument(call, 0, "preds", "input")


def _argument(call: ast.Call, position: int, *names: str) -> ast.expr | None:
    """Return an argument by its keyword or position."""
    given = next((each.value for each in call.keywords if each.arg in names), None)
    starred = any(isinstance(each, ast.Starred) for each in call.args)
    return given or (call.args[position] if len(call.args) > position and not starred else None)


def _own_scores(function: ast.FunctionDef, call: ast.Call) -> ast.expr | None:
    """Return the scores that an AUC function of the program gets, by the names of its parameters."""
    names = [each.arg for each in function.args.args]
    scores = [each for each in names if _SCORES.search(each)]
    if len(names) < 2 or len(scores) != 1 or names[0] in ("self", "cls"):
        return None
    return _argument(call, names.index(scores[0]), scores[0])


def _class(source: SourceFile, node: ast.expr, depth: int) -> ast.expr | None:
    """Return the expression that makes classes of scores, if a value is certainly made by one; else None."""
    inner = _container(node)
    if depth > MAX_DEPTH or _is_class(node):
        return node if depth <= MAX_DEPTH else None
    if isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and last_name(node.value) == "self"):
        return _class_in_variable(source, node, depth)
    if isinstance(node, ast.Call):
        return _class_of_call(source, node, depth)
    if isinstance(node, ast.Subscript) and (added := list(_added(function_of(source, node), node))):
        return _all_classes(source, added, depth)  # outputs["predicted"]
    return None if inner is None else _class(source, inner, depth + 1)


def _is_class(node: ast.expr) -> bool:
    """Return True for a comparison of numbers, one of two constants, or the position of a maximum."""
    match node:
        case ast.Compare(ops=[ast.Gt() | ast.GtE() | ast.Lt() | ast.LtE()]):
            return True
        case ast.IfExp(body=ast.Constant(), orelse=ast.Constant()):
            return True
        case (
            ast.Subscript(value=ast.Call(func=func), slice=ast.Constant(value=1))
            | ast.Attribute(attr="indices", value=ast.Call(func=func))
        ):
            return last_name(func) in ("max", "topk")
        case _:
            return False


def _container(node: ast.expr) -> ast.expr | None:
    """Return the value that an expression selects from, repeats or scales."""
    match node:
        case ast.Attribute(attr="data" | "T" | "values", value=inner) | ast.Subscript(value=inner):
            return inner
        case ast.ListComp(elt=inner):
            return None if isinstance(inner, ast.Name) else inner
        case ast.List(elts=[inner]) | ast.BinOp(op=ast.Mult(), left=inner, right=ast.Constant()):
            return inner
        case _:
            return None


def _class_of_call(source: SourceFile, node: ast.Call, depth: int) -> ast.expr | None:
    """Return what makes classes in a call; None if its result may be scores."""
    name = last_name(node.func)
    owner = getattr(node.func, "value", None)
    is_function = owner is None or getattr(owner, "id", "") in _MODULES
    first = owner if not is_function else node.args[0] if node.args else None
    rounds = name in ("round", "round_", "rint") and len(node.args) <= is_function and not node.keywords
    if name in ("argmax", "gt", "ge", "lt", "le") or rounds:
        return node
    if name == "where" and len(node.args) == 3:
        return node if all(map(_is_plain, node.args[1:])) else None
    converts = name in ("astype", "to", "type")
    to_integers = (
        converts and len(node.args) == 1 and re.search(r"\b(int|bool|u?int\d+|long)\b", ast.unparse(node.args[0]))
    )
    if first is not None and (to_integers or (name in _INTEGERS and (not is_function or owner is None))):
        return _class(source, first, depth + 1) or node
    if first is not None and ((is_function and name in _JOINS) or (not is_function and name in _KEEPS)):
        joined = first.elts if isinstance(first, ast.List | ast.Tuple) else [first]
        return _all_classes(source, [each for each in joined if not _starts_empty(source, each)], depth)
    return _all_classes(source, possible_values(source, node), depth)


def _is_plain(node: ast.expr) -> bool:
    """Return True for a number, or a tensor with one."""
    made = last_name(getattr(node, "func", None))
    return isinstance(node, ast.Constant) or made in ("tensor", "ones_like", "zeros_like")


def _all_classes(source: SourceFile, values: list[ast.expr], depth: int) -> ast.expr | None:
    """Return what makes the first of several values, if all of them are classes."""
    filled = [each for each in values if not _is_empty(each)]
    made = [_class(source, each, depth + 1) for each in filled]
    return made[0] if made and all(each is not None for each in made) else None


def _starts_empty(source: SourceFile, node: ast.expr) -> bool:
    """Return True for the first value of ``found = torch.cat([found, new])``, which is an empty tensor."""
    values = possible_values(source, node) if isinstance(node, ast.Name) else []
    return bool(values) and all(map(_is_empty, values)) and not list(_added(function_of(source, node), node))


def _is_empty(node: ast.expr) -> bool:
    """Return True for an empty list or tensor, or None."""
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        return (name == "list" and not node.args) or (len(node.args) == 1 and _is_empty(node.args[0]))
    return (isinstance(node, ast.List) and not node.elts) or (isinstance(node, ast.Constant) and node.value is None)


def _class_in_variable(source: SourceFile, node: Any, depth: int) -> ast.expr | None:
    """Return what makes the classes in a variable or attribute, also those that are appended to it."""
    values = possible_values(source, node)
    if not values:
        return _index_of_maximum(source, node)
    added: list[ast.expr] = []
    if any(map(_is_empty, values)):
        empty = next(each for each in values if _is_empty(each))
        scope = (
            enclosing_definition(source, empty, ast.ClassDef)
            if isinstance(node, ast.Attribute)
            else function_of(source, empty)
        )
        target = getattr(source.parents.get(id(empty)), "targets", [node])[0]
        added = list(_added(scope, node if isinstance(target, ast.Tuple) else target))
    return _all_classes(source, values + added, depth)


def _added(scope: Any, items: ast.expr) -> Iterator[ast.expr]:
    """Yield what a function or class appends to a list."""
    name = ast.unparse(items)
    for each in nodes_in(scope, ast.Call, ast.AugAssign):
        match each:
            case ast.Call(func=ast.Attribute(attr="append" | "extend", value=owner), args=[value]):
                if ast.unparse(owner) == name:
                    yield value
            case ast.AugAssign(op=ast.Add(), target=target, value=value) if ast.unparse(target) == name:
                yield value
            case _:
                pass


def _index_of_maximum(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return the call in ``_, predicted = torch.max(outputs, 1)`` whose second result a variable has."""
    found: ast.expr | None = None
    for each in nodes_in(function_of(source, node), ast.Assign):
        match each:
            case ast.Assign(targets=[ast.Tuple(elts=[first, second])], value=ast.Call() as call):
                if ast.unparse(node) in (ast.unparse(first), ast.unparse(second)) and each.lineno < node.lineno:
                    is_index = ast.unparse(second) == ast.unparse(node) and last_name(call.func) in ("max", "topk")
                    found = call if is_index else None
            case _:
                pass
    return found


RULE = Rule(
    required_words=(
        "auc|roc_curve|average_precision|precision_recall_curve|det_curve|AUROC|auroc|AveragePrecision|ROC|RecallCurve",
        "argmax|round|rint|>|<|max(|topk|int|long|.gt(|.ge(|.lt(",
    ),
    find=find,
)

BAD = """
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

torch.manual_seed(0)
x = torch.randn(600, 8)
y = (x[:, 0] + torch.randn(600) > 0).float()
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for start in range(0, 400, 50):
    optimizer.zero_grad()
    logits = model(x[start : start + 50])[:, 0]
    loss = nn.functional.binary_cross_entropy_with_logits(logits, y[start : start + 50])
    loss.backward()
    optimizer.step()
model.eval()
with torch.inference_mode():
    probabilities = torch.sigmoid(model(x[400:])[:, 0])
predicted = (probabilities > 0.5).float()
print("accuracy", (predicted == y[400:]).float().mean())
print("AUC", roc_auc_score(y[400:].numpy(), predicted.numpy()))
"""

FAILURE = Failure(
    code="EVL023",
    title="AUC is computed from predicted classes",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"y[400:].numpy(), predicted.numpy()": "y[400:].numpy(), probabilities.numpy()"}),
    fix="Pass the probabilities or logits instead of the classes.",
    rule=RULE,
)
