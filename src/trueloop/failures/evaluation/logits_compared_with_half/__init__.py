"""Raw outputs of a model that is trained with BCEWithLogitsLoss are compared with 0.5, as if they were probabilities.

What you see
    The loss falls as it should, but recall, accuracy or F1 are lower than they should be: the model seems to miss many
    positive samples.

Why it happens
    A model for ``BCEWithLogitsLoss`` returns logits, and the loss applies the sigmoid itself. A logit of 0.5 is a
    probability of 0.62, so samples between 0.5 and 0.62 are counted as negative. Nothing raises an error, since a logit
    is a number like a probability.

Fix
    Compare the probability with 0.5, or the logit with 0:

        predicted = torch.sigmoid(model(x)) > 0.5
        predicted = model(x) > 0

When this is fine
    - The model applies a sigmoid in eval mode, or the outputs are probabilities from another function.
    - The threshold of the logits was tuned on validation data, or several are compared.
    - Another model of the program, trained with another loss, returns probabilities.

How it is detected
    The sanitizer reads the outputs of models for which a binary cross-entropy with logits was computed. It reports a
    line that compares all of them with 0.5, and with no other number, or rounds them, if some are below 0 or above 1.

    The linter finds it in the source code: the program uses ``BCEWithLogitsLoss`` or its functional form and no loss
    for probabilities, no ``forward`` contains a sigmoid or softmax, and the result of a model call, without a sigmoid
    in between, or a variable called logits, or each item of a list of them, is compared with a constant between 0 and
    1, such as 0.5, or a setting with such a value, or rounded to a class, or given to ``get_stats`` of
    segmentation_models_pytorch with such a ``threshold``. It reports the same for the largest output of a sample if the
    model is trained with a cross-entropy: ``conf, label = model(x).max(1)`` and ``conf > 0.9``. And it reports
    ``sigmoid(...) > 0``, which is True for every sample.

References
    torch.nn.BCEWithLogitsLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
    PyTorch forum, "Multilabel classification: how to threshold BCEWithLogitsLoss outputs",
    https://discuss.pytorch.org/t/is-there-an-example-for-multi-class-multilabel-classification-in-pytorch/53579
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import (
    added_to_list,
    assigned_pairs,
    function_of,
    is_label,
    is_loss_call,
    without_conversions,
)
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import enclosing_nodes, possible_values, unpacked_call
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import Fix, dotted_name, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import Event, Ref, WatchEnded

HALF: Final = 0.5

_LOGIT_LOSSES: Final = ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits")
_CLASS_LOSSES: Final = ("CrossEntropyLoss", "cross_entropy")
_PROBABILITY_LOSSES: Final = ("BCELoss", "binary_cross_entropy")
_SIGMOIDS: Final = re.compile(r"sigmoid|expit|softmax|Sigmoid|Softmax")
_SIGMOID_CALLS: Final = ("sigmoid", "expit")
_LOGITS: Final = re.compile(r"(^|_)logits?($|_)", re.IGNORECASE)
_NUMPY: Final = re.compile(r"\bnp\.|numpy|tolist")
_SHAPING: Final = frozenset(("squeeze", "view", "reshape", "flatten", "unsqueeze", "ravel"))
_JOINING: Final = frozenset((
    "array", "asarray", "concatenate", "cat", "vstack", "hstack", "stack", "tensor", "Tensor", "squeeze", "ravel",
))  # fmt: skip
_MAX_DEPTH: Final = 7


@dataclass(slots=True, kw_only=True, eq=False)
class LogitsCompared(Event):
    """All outputs of a model that are logits were compared with a number, or rounded."""

    model: Ref
    number: float
    """The number, 0.5 for rounding."""
    values: tuple[float, float]
    """Smallest and largest logit; at least one is no probability."""


class Detector(BaseDetector):
    """Collects the numbers with which each line compares logits, and judges them at the end of the program."""

    def __init__(self) -> None:
        self._lines = dict[CodePosition | None, list[LogitsCompared]]()

    def on_logits_compared(self, event: LogitsCompared) -> None:
        """Record one comparison."""
        self._lines.setdefault(event.location, []).append(event)

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for each line that compares logits with 0.5 only: others may look for the best threshold."""
        for location, each in self._lines.items():
            if {one.number for one in each} == {HALF}:
                low, high = each[0].values
                yield Evidence(
                    message=f"The outputs of `{each[0].model.name}`, from {low:.3g} to {high:.3g}, are compared with "
                    "0.5 or rounded, as if they were probabilities. But the loss takes them as logits: a logit of 0 is "
                    "a probability of 0.5.",
                    location=location,
                    first_update=each[0].update,
                )

    def inconclusive(self) -> str:
        """Return a reason if no logits were compared."""
        return "" if self._lines else "no logits were compared with a number"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each comparison of a logit with a threshold for probabilities, or of a probability with 0."""
    yield from _always_true(source)
    used = {last_name(each.func) for each in source.all_calls}
    if not used.isdisjoint(_CLASS_LOSSES) and not _applies_sigmoid(source):
        yield from _confidences(source)
    if used.isdisjoint(_LOGIT_LOSSES) or not used.isdisjoint(_PROBABILITY_LOSSES) or _applies_sigmoid(source):
        return
    calls = {id(each.node) for each in source.ops(OpKind.MODEL_CALL)}
    for node in source.nodes_of(ast.Compare, ast.Call):
        compared = _compared(source, node)
        if compared is not None and _is_logit(source, compared, calls, 0):
            rounds = last_name(getattr(node, "func", None)) == "round"
            yield Hit(
                message=f"`{ast.unparse(node)}` treats the raw outputs of a model that is trained with logits as "
                f"probabilities{': rounding cuts at 0.5' if rounds else ''}. A logit of 0.5 is a probability of 0.62.",
                node=node,
                fix=_with_sigmoid(source, compared) if isinstance(node, ast.Compare) else None,
            )


def _confidences(source: SourceFile) -> Iterator[Hit]:
    """Yield each comparison of the largest logit of a sample with a threshold, as if it were a confidence."""
    calls = {id(each.node) for each in source.ops(OpKind.MODEL_CALL)}
    for node in source.nodes_of(ast.Compare, ast.Call):
        compared = _compared(source, node) if last_name(getattr(node, "func", None)) != "round" else None
        is_each = last_name(getattr(node, "func", None)) == "get_stats"
        scores = compared if is_each or compared is None else _scores_of_largest(source, compared)
        if scores is not None and _is_logit(source, scores, calls, 0):
            yield Hit(
                message=f"`{ast.unparse(node)}` treats {'each' if is_each else 'the largest'} raw output as the "
                "probability of its class, but a "
                "model that is trained with a cross-entropy returns logits.",
                node=node,
                related=((scores, "the raw outputs"),),
            )


def _always_true(source: SourceFile) -> Iterator[Hit]:
    """Yield each comparison of the result of a sigmoid with 0."""
    has_sigmoid = any(last_name(each.func) in _SIGMOID_CALLS for each in source.all_calls)
    for node in source.nodes_of(ast.Compare) if has_sigmoid else ():
        match node:
            case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE()], comparators=[ast.Constant(value=0 | 0.0)]):
                values = _assigned_before(function_of(source, node), dotted_name(left), node) or [left]
            case _:
                continue
        if all(_is_sigmoid(without_conversions(each)) for each in values):
            yield Hit(
                message=f"`{ast.unparse(node)}` is True for every sample: a sigmoid gives numbers between 0 and 1.",
                node=node,
                fix=Fix((source.text.replace(node.comparators[0], "0.5"),), safe=False, description="Compare with 0.5"),
            )


def _is_sigmoid(node: ast.expr) -> bool:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SHAPING:
        node = without_conversions(node.func.value)
    return isinstance(node, ast.Call) and last_name(node.func) in _SIGMOID_CALLS


def _scores_of_largest(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return x of ``x.max(1)[0]``, ``torch.max(x, 1).values`` or ``x.amax(1)``, also through an unpacked variable."""
    match node:
        case (
            ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=0))
            | ast.Attribute(value=ast.Call() as call, attr="values")
        ):
            pass
        case ast.Call(func=ast.Attribute(attr="amax")) as call:
            pass
        case ast.Name(id=name):
            found = unpacked_call(source, node)
            target = source.parents.get(id(found)) if found is not None else None
            names = getattr(target.targets[0], "elts", ()) if isinstance(target, ast.Assign) else ()
            values = possible_values(source, node)
            if found is None and len(values) == 1 and not isinstance(values[0], ast.Name):
                return _scores_of_largest(source, values[0])
            if found is None or not names or last_name(names[0]) != name:
                return None
            call = found
        case _:
            return None
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in ("max", "amax"):
        return None
    is_function = last_name(function.value) == "torch"
    arguments = [*call.args[is_function:], *call.keywords]
    scores = call.args[0] if is_function and call.args else function.value
    return scores if arguments and not is_label(scores) else None


def _applies_sigmoid(source: SourceFile) -> bool:
    """Return True if a ``forward`` contains a sigmoid or softmax, or a layer for one is created anywhere."""
    if any(last_name(each.func) in ("Sigmoid", "Softmax") for each in source.all_calls):
        return True
    forwards = (each for each in source.nodes_of(ast.FunctionDef) if each.name == "forward")
    return any(_SIGMOIDS.search(ast.unparse(each)) for each in forwards)


def _compared(source: SourceFile, node: ast.AST) -> ast.expr | None:
    """Return the value that is compared with 0.5 or rounded; None for other nodes."""
    match node:
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE() | ast.Lt() | ast.LtE()], comparators=[right]):
            found = [one for one, other in ((left, right), (right, left)) if _is_probability(source, other)]
            return found[0] if found else None
        case (
            ast.Call(func=ast.Attribute(attr="gt" | "ge" | "greater" | "lt" | "le"), args=[left, limit])  # torch.gt
            | ast.Call(func=ast.Attribute(attr="gt" | "ge" | "greater" | "lt" | "le", value=left), args=[limit])
            | ast.Call(
                func=ast.Attribute(attr="get_stats") | ast.Name(id="get_stats"),  # of segmentation_models_pytorch
                args=[left, *_],
                keywords=[*_, ast.keyword(arg="threshold", value=limit)],
            )
        ):
            return left if _is_probability(source, limit) else None
        case (
            ast.Call(func=ast.Attribute(attr="round", value=ast.Name(id="torch" | "np" | "numpy")), args=[left])
            | ast.Call(func=ast.Attribute(attr="round", value=left), args=[])
        ):
            return left
        case _:
            return None


def _is_probability(source: SourceFile, node: ast.expr, depth: int = 0) -> bool:
    """Return True for 0.5 and similar constants, or a variable or parameter that is one wherever it gets a value."""
    if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript) or depth > _MAX_DEPTH:
        return isinstance(node, ast.Constant) and isinstance(node.value, float) and 0.05 <= node.value <= 0.95
    arguments = getattr(function_of(source, node), "args", None)
    defaults: dict[str, ast.expr] = {}
    if isinstance(arguments, ast.arguments):
        names = [each.arg for each in arguments.args]
        defaults = dict(zip(names[::-1], arguments.defaults[::-1], strict=False))
    values = possible_values(source, node)
    values += [defaults[node.id]] if isinstance(node, ast.Name) and node.id in defaults else []
    values = values or list(_setting(source, node))
    return bool(values) and all(_is_probability(source, each, depth + 1) for each in values)


def _setting(source: SourceFile, node: ast.expr) -> Iterator[ast.expr]:
    """Yield the values of an item of a dictionary, an argument of the command line, or a field of a class."""
    if isinstance(node, ast.Subscript):
        for made in possible_values(source, node.value):
            if isinstance(made, ast.Dict):
                items = [
                    (getattr(key, "value", None), value) for key, value in zip(made.keys, made.values, strict=True)
                ]
            else:
                items = [(each.arg, each.value) for each in getattr(made, "keywords", ())]
            yield from (value for key, value in items if key == getattr(node.slice, "value", ""))
    elif isinstance(node, ast.Attribute):
        for call in definitions(source).calls.get("add_argument", ()):
            names = [each.value for each in call.args if isinstance(each, ast.Constant)]
            if node.attr in [str(each).lstrip("-").replace("-", "_") for each in names]:
                yield from (key.value for key in call.keywords if key.arg == "default")
        for field in source.nodes_of(ast.AnnAssign):
            if field.value is not None and last_name(field.target) == node.attr:
                yield field.value


def _is_logit(source: SourceFile, node: ast.expr, calls: set[int], depth: int) -> bool:
    """Return True for the output of a model, or a variable called logits, to which no sigmoid is applied.

    Also for a list of outputs, and for an item of such a list.
    """
    node = _without_joining(node)
    if isinstance(node, ast.Subscript):
        return _is_logit(source, node.value, calls, depth)
    if isinstance(node, ast.Call):
        return id(node) in calls
    name = dotted_name(node)
    if not name or depth > _MAX_DEPTH:
        return False
    values = _assigned_before(function_of(source, node), name, node) or _passed(source, node)
    filled = [each for each in values if not isinstance(each, ast.List) or each.elts]
    if not filled and isinstance(node, ast.Name):
        filled = list(added_to_list(source, node)) if values else _unpacked(source, node)
    values = filled
    if any(_SIGMOIDS.search(ast.unparse(each)) for each in values):
        return False
    if not values:
        return isinstance(node, ast.Name | ast.Attribute) and bool(_LOGITS.search(last_name(node)))
    return all(_is_logit(source, each, calls, depth + 1) for each in values)


def _without_joining(node: ast.expr) -> ast.expr:
    """Return x of ``np.concatenate(x).squeeze()``, ``torch.cat(x)`` and ``x.view(-1).tolist()``."""
    while isinstance(node := without_conversions(node), ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _SHAPING:
            node = node.func.value
        elif node.func.attr in _JOINING and node.args:
            node = node.args[0]
        else:
            break
    return node


def _unpacked(source: SourceFile, node: ast.Name) -> list[ast.expr]:
    """Return the items of a list that a comprehension goes through, or what unpacking assigns to a variable.

    One of several outputs of a model counts if a loss on logits gets it, by its name.
    """
    for each in enclosing_nodes(source, node):
        for loop in getattr(each, "generators", ()):
            if isinstance(loop.target, ast.Name) and loop.target.id == node.id:
                return [loop.iter]
    call = unpacked_call(source, node)
    is_output = call is not None and any(
        last_name(e.args[0]) == node.id for e in source.all_calls if e.args and is_loss_call(source, e)
    )
    return possible_values(source, node) or ([call] if call is not None and is_output else [])


def _passed(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """Return what the calls of a function or of an object pass for its parameter."""
    arguments = getattr(function_of(source, node), "args", None)
    names = [each.arg for each in arguments.args] if isinstance(arguments, ast.arguments) else []
    return possible_values(source, node) if isinstance(node, ast.Name) and node.id in names else []


def _assigned_before(function: Any, name: str, node: ast.expr) -> list[ast.expr]:
    """Return the values that a function assigns to a variable in lines before an expression."""
    found: list[ast.expr] = []
    for each in nodes_in(function, ast.Assign):
        if each.lineno < node.lineno:
            found += [value for target, value in assigned_pairs(each) if dotted_name(target) == name]
    return found


def _with_sigmoid(source: SourceFile, compared: ast.expr) -> Fix | None:
    """Return the fix that takes the sigmoid of a tensor; None for a number of a list or an array of NumPy."""
    values = (compared, *_assigned_before(function_of(source, compared), dotted_name(compared), compared))
    is_item = any(hasattr(each, "generators") for each in enclosing_nodes(source, compared))
    if is_item or any(_NUMPY.search(ast.unparse(each)) for each in values):
        return None
    text = f"torch.sigmoid({source.text.segment(compared)})"
    return Fix((source.text.replace(compared, text),), safe=False, description="Compare probabilities")


_LOSS_WORDS: Final = "BCEWithLogitsLoss|binary_cross_entropy_with_logits|CrossEntropyLoss|cross_entropy"
RULE = Rule(required_words=(_LOSS_WORDS, "0.|round|> 0|>= 0", "BCEWith|_with_logits|max(|get_stats("), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
y = (x[:, :3] + 0.5 * torch.randn(256, 3) > 0.5).float()
model = nn.Linear(8, 3)
loss_fn = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for step in range(40):
    optimizer.zero_grad()
    loss_fn(model(x), y).backward()
    optimizer.step()
with torch.no_grad():
    predicted = model(x) > 0.5
print("recall", (predicted * y).sum() / y.sum())
"""

FAILURE = Failure(
    code="EVL017",
    title="Logits are compared with a probability",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"predicted = model(x) > 0.5": "predicted = torch.sigmoid(model(x)) > 0.5"}),
    fix="Compare the sigmoid of the logits with 0.5, or the logits with 0.",
    rule=RULE,
    detector=Detector,
)
