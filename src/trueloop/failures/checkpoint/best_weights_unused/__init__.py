"""The best weights are kept during training and never used: the model ends with the weights of the last epoch.

What you see
    The test score is worse than the best validation score suggests, and early stopping brings nothing. The log shows
    the right best epoch.

Why it happens
    A copy of the weights, or a file, changes nothing by itself. The model is trained further, and has the weights of
    its last update when it is tested or saved.

Fix
    Load the copy after the loop:

        if val_loss < best_loss:
            best_loss, best_state = val_loss, copy.deepcopy(model.state_dict())
        ...
        model.load_state_dict(best_state)  # missing

When this is fine
    - The copy is loaded, saved, returned or passed on anywhere in the program, or by a base class of a library.
    - The best weights are also written to a file, or the test score is computed at each new best value.
    - The model is not used after the training.
    - The program tests the last weights to compare them with the best ones, which it loads later.

How it is detected
    Only the linter finds it: a copy of a ``state_dict()`` or of a model that is stored under a condition, in a loop or
    in a class, and that no part of the program reads, although the model is used afterwards. A test for None is no use.
    It also reports a test of the model after the loop in which the best weights were saved to a file, if nothing is
    loaded from there on, by names such as ``evaluate(model, test_loader)``, and nothing is tested within the loop.
    An object for early stopping that gets the model saves it, too, unless its class is known and does not.

References
    jpata/particleflow#88, "Load best weights before saving model", https://github.com/jpata/particleflow/pull/88
    agrimgupta92/sgan#42, the last state is evaluated, not the best, https://github.com/agrimgupta92/sgan/issues/42
    torch.nn.Module.load_state_dict, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.best_values import MIRRORED, saves_model, stores_in
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.checkpoint.best_weights_unused.tested_weights import last_tested
from trueloop.failures.failure import Failure, Rule, Severity, changed

_FLAGS: Final = frozenset(("best", "better", "improved", "improvement"))
_LOOPS: Final = ast.For | ast.AsyncFor | ast.While
_PLAIN_BASES: Final = frozenset(("object", "ABC", "Module", "LightningModule", "Callback", "Generic", "Protocol"))
"""Classes of libraries that read no attribute of their subclasses."""
_COPYING: Final = frozenset(("deepcopy", "copy", "clone"))


class _Copy(NamedTuple):
    """A copy of the weights of a model that is stored under a condition."""

    condition: ast.If
    target: Any
    """The variable, attribute or item that the copy is stored in."""
    key: Any
    """Key of the copy in the dictionary, list or tuple of the target; None = the target is the copy."""
    model: ast.expr


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each copy of the best weights that nothing reads, and tests of the last weights instead of the best."""
    for copied in _copies(source):
        name, model = ast.unparse(copied.target), ast.unparse(copied.model)
        if (
            _is_read(source, copied)
            or _has_other_use(copied.condition.body)
            or not _is_used_later(source, copied.model, copied.condition)
        ):
            continue
        yield Hit(
            message=f"`{name}` gets a copy of the best weights, and nothing reads it: after the training, `{model}` "
            "has the weights of the last epoch.",
            node=copied.target,
            related=((copied.condition.test, "the best epoch is found here"),),
        )
    for each in last_tested(source):
        yield Hit(
            message=f"`{ast.unparse(each.test)}` tests the weights of the last epoch: the best weights of "
            f"`{ast.unparse(each.model)}` were saved, but are not loaded before the test.",
            node=each.test,
            related=((each.saved_at, "the best weights are saved here"),),
        )


def _copies(source: SourceFile) -> Iterator[_Copy]:
    for node in source.nodes_of(ast.If):
        if not _is_best_condition(node.test):
            continue
        own = [each for each in node.body if not isinstance(each, ast.If | _LOOPS)]
        for target, value in stores_in(own):
            for key, part in _items(value):
                model = _copied_model(target, part) if part is not None else None
                if model is not None and isinstance(target, ast.Name | ast.Attribute | ast.Subscript):
                    yield _Copy(node, target, key, model)


def _is_best_condition(test: ast.expr) -> bool:
    """Return True for a comparison of two variables, or a flag such as ``is_best``."""
    compares = any(
        type(each.ops[0]) in MIRRORED and not isinstance(each.comparators[0], ast.Constant)
        for each in nodes_in(test, ast.Compare)
    )
    names = {word for each in nodes_in(test, ast.Name, ast.Attribute) for word in name_words(last_name(each))}
    return compares or bool(names & _FLAGS)


def _items(value: ast.expr | None) -> list[tuple[Any, ast.expr | None]]:
    """Return the parts of a value with their keys: (None, value) for a value without parts."""
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        return [(each.value, part) for each, part in pairs if isinstance(each, ast.Constant)]
    if isinstance(value, ast.Tuple | ast.List):
        return list(enumerate(value.elts))
    return [(None, value)]


def _copied_model(target: ast.expr, value: ast.expr) -> ast.expr | None:
    """Return the model whose weights a value copies; None for other values."""
    states = [each for each in nodes_in(value, ast.Call) if last_name(each.func) == "state_dict" and not each.args]
    is_whole = isinstance(value, ast.Call | ast.DictComp)
    if len(states) == 1 and is_whole and isinstance(states[0].func, ast.Attribute):
        owner = states[0].func.value
        is_other = {"optim", "optimizer", "opt", "scheduler", "scaler"} & name_words(last_name(owner))
        return None if is_other else owner
    match value:
        case ast.Call(func=func, args=[ast.Name() | ast.Attribute() as model]) if last_name(func) == "deepcopy":
            is_model = {"model", "net", "network"} & name_words(last_name(model))
            return model if is_model and "best" in name_words(ast.unparse(target)) else None
        case _:
            return None


def _has_other_use(body: list[ast.stmt]) -> bool:
    """Return True if the best weights are saved, or tested, where they are found."""
    stored = [target for target, _ in stores_in(body)]
    calls = [last_name(each.func) for statement in body for each in nodes_in(statement, ast.Call)]
    is_saved = any("save" in each.lower() or "write" in each.lower() or each == "dump" for each in calls)
    is_tested = any("test" in name_words(ast.unparse(each)) for each in stored)
    is_called = any({"test", "evaluate", "predict", "generate"} & name_words(each) for each in calls)
    return is_saved or is_tested or is_called or not saves_model(body)


def _is_read(source: SourceFile, copied: _Copy) -> bool:
    """Return True if the program reads the copy anywhere, apart from a test for None."""
    target, key = copied.target, copied.key
    if isinstance(target, ast.Subscript):
        if key is not None or not isinstance(target.slice, ast.Constant):
            return True
        target, key = target.value, target.slice.value
    name = last_name(target)
    if isinstance(target, ast.Attribute) and not _is_created(source, target):
        return True
    if name in source.text.source.replace(f".{name}", "").split('"')[1::2]:
        return True  # getattr(stopper, "best_state")
    kind = ast.Attribute if isinstance(target, ast.Attribute) else ast.Name
    return any(_reads(source, each, key) for each in source.nodes_of(kind) if last_name(each) == name)


def _is_created(source: SourceFile, attribute: ast.Attribute) -> bool:
    """Return True for an attribute of ``self`` in a class of which the program creates an instance."""
    around: Any = source.parents.get(id(attribute))
    while around is not None and not isinstance(around, ast.ClassDef):
        around = source.parents.get(id(around))
    is_own = isinstance(attribute.value, ast.Name) and attribute.value.id == "self"
    if around is None or not is_own or around.name not in definitions(source).calls:
        return False
    return not _has_unknown_base(source, around)


def _has_unknown_base(source: SourceFile, definition: ast.ClassDef, depth: int = 4) -> bool:
    """Return True if a class inherits from one that is not in the program, whose methods may read the copy."""
    for base in definition.bases:
        known = definitions(source).classes.get(last_name(base))
        if known is None and last_name(base) not in _PLAIN_BASES:
            return True
        if known is not None and known is not definition and depth and _has_unknown_base(source, known, depth - 1):
            return True
    return False


def _reads(source: SourceFile, node: Any, key: Any) -> bool:
    """Return True if a node reads the copy, and not another item next to it."""
    if not isinstance(node.ctx, ast.Load):
        return False
    parent = source.parents.get(id(node))
    if isinstance(parent, ast.Compare) and any(isinstance(each, ast.Is | ast.IsNot) for each in parent.ops):
        return False
    if isinstance(parent, ast.Subscript) and parent.value is node and key is not None:
        is_other = isinstance(parent.slice, ast.Constant) and parent.slice.value != key
        return isinstance(parent.ctx, ast.Load) and not is_other
    return True


def _is_used_later(source: SourceFile, model: ast.expr, node: ast.AST, depth: int = 3) -> bool:
    """Return True if the model is used after the loops around a node, or so by a caller that passes the model."""
    function, name = function_of(source, node), last_name(model)
    loops = [each for each in source.nodes_of(ast.For, ast.While) if encloses(each, node)]
    outer = next((each for each in loops if function_of(source, each) is function), node)
    if isinstance(model, ast.Attribute):
        own = {id(each) for each in nodes_in(outer, ast.Attribute)}
        reads = [each for each in source.nodes_of(ast.Attribute) if id(each) not in own]
        return any(each.attr == name and isinstance(each.ctx, ast.Load) for each in reads)
    if _is_loaded_after(function, name, outer):
        return True
    names = [each.arg for each in function.args.args] if isinstance(function, ast.FunctionDef) else []
    for call in definitions(source).calls.get(getattr(function, "name", ""), []) if name in names and depth else ():
        position = names.index(name) - (names[0] == "self")
        given = [*call.args[position : position + 1], *(each.value for each in call.keywords if each.arg == name)]
        if any(_is_used_later(source, each, call, depth - 1) for each in given):
            return True
    return False


def _is_loaded_after(function: Any, name: str, node: Any) -> bool:
    """Return True if a function reads a variable in a line after a node."""
    return any(
        each.id == name and isinstance(each.ctx, ast.Load) and each.lineno > node.end_lineno
        for each in nodes_in(function, ast.Name)
    )


RULE = Rule(
    required_words=("deepcopy|clone()|state_dict()|save(|save_|topp", "state_dict|deepcopy|save|topp", "if "), find=find
)

BAD = """
import copy

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True) + torch.randn(128, 1)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
best_loss, best_state = float("inf"), None
for epoch in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[:64]), y[:64])
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        val_loss = nn.functional.mse_loss(model(x[64:96]), y[64:96]).item()
    if val_loss < best_loss:
        best_loss = val_loss
        best_state = copy.deepcopy(model.state_dict())
with torch.no_grad():
    print(nn.functional.mse_loss(model(x[96:]), y[96:]).item())
"""

FAILURE = Failure(
    code="CKP012",
    title="The best weights are kept but never used",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "(model.state_dict())\nwith torch.no_grad():": (
                "(model.state_dict())\nmodel.load_state_dict(best_state)\nwith torch.no_grad():"
            )
        },
    ),
    fix="Load the best weights into the model after the training.",
    rule=RULE,
)
