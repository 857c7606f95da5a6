"""The best weights are chosen on the test set although there is a validation set.

What you see
    The reported test accuracy is better than on new data: it is the best of as many tries as there are epochs.

Why it happens
    The test set chooses the epoch, so it is no longer independent of the model. Often the loaders were mixed up, and
    the validation set is never used.

Fix
    Choose by the validation set, and judge the chosen weights once on the test set.

        val_acc = evaluate(model, val_loader)
        if val_acc > best_acc:
            best_acc = val_acc
            torch.save(model.state_dict(), "best.pt")

When this is fine
    - Both are followed, and the weights that are chosen by the validation set are the ones that are reported.
    - There are only two parts, and the one that is called test serves for validation.
    - The best test value is only printed: no weights are saved by it.

How it is detected
    Only the linter finds it: a comparison with the best value so far that saves the model, or an object for early
    stopping, gets a value whose name, or whose evaluation, is that of test data, while the program creates validation
    data and chooses nothing by it. It also reports a call that passes one test set as the validation and as the test
    data of a function or class that stops early or keeps the best weights.

References
    Prechelt, "Automatic early stopping using cross validation: quantifying the criteria", 1998,
    https://doi.org/10.1016/S0893-6080(98)00010-0
    Cawley and Talbot, "On Over-fitting in Model Selection and Subsequent Selection Bias in Performance Evaluation",
    Journal of Machine Learning Research 11, 2010
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of, single_assignments
from trueloop.analysis.queries.best_values import choices
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING, data_words
from trueloop.analysis.queries.loop_variables import stored_names
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import parameters_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TEST: Final = frozenset(("test", "testing", "tst"))
_CHOOSING: Final = re.compile(r"(?i)early_?stop|patience|best_(val|loss|acc|score|model|metric|epoch|f1|weight|state)")
_VALIDATION: Final = frozenset(("val", "valid", "validation", "vali", "dev", "holdout"))
_DATA: Final = frozenset((
    "loader", "dataloader", "set", "dataset", "data", "dl", "ds", "iter", "iterator", "x", "xs", "images", "db",
    "batches", "split", "files", "idx", "indices",
))  # fmt: skip


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each choice by a test value although there is validation data, and test data that is passed as both."""
    yield from _chosen_by_test_value(source)
    yield from _passed_as_both(source)


def _passed_as_both(source: SourceFile) -> Iterator[Hit]:
    """Yield each test set that a call passes as validation data, too, to code that stops or saves by a best value."""
    for call in source.all_calls:
        function = called_function(source, call)
        if function is None or any(isinstance(each, ast.Starred) for each in call.args):
            continue
        names = [each.arg for each in parameters_of(function)]
        names = names[1:] if names[:1] == ["self"] else names
        given = dict(zip(names, call.args, strict=False)) | {e.arg: e.value for e in call.keywords if e.arg}
        parts = {
            (bool(name_words(name) & _VALIDATION), ast.unparse(value)): (name, value)
            for name, value in given.items()
            if dotted_name(value) and data_words(value) & _TEST and name_words(name) & (_TEST | _VALIDATION)
        }
        both = next((text for is_validation, text in parts if is_validation and (False, text) in parts), "")
        owner = source.parents.get(id(function))
        if both and _CHOOSING.search(ast.unparse(owner if isinstance(owner, ast.ClassDef) else function)):
            name, value = parts[True, both]
            yield Hit(
                message=f"`{both}` is passed as `{name}` and as `{parts[False, both][0]}`: the test set also decides "
                "when the training stops or which weights are kept.",
                node=value,
                related=((parts[False, both][1], "passed as test data here"),),
            )


def _chosen_by_test_value(source: SourceFile) -> Iterator[Hit]:
    """Yield each choice by a test value in a program that creates validation data and chooses nothing by it."""
    found = [(node, value, _part(source, value)) for node, value in choices(source)]
    if not any(part == "test" for *_, part in found) or any(part == "validation" for *_, part in found):
        return
    if any({"best"} < data_words(each) & ({"best"} | _VALIDATION) for each in source.nodes_of(ast.Compare, ast.Call)):
        return  # it is compared in another way: is_best = val_acc > best_acc
    made = _validation_data(source)
    for node, value, part in found:
        if part == "test" and made is not None:
            yield Hit(
                message=f"`{ast.unparse(node)}` chooses by test data, so `{ast.unparse(value)}` of the chosen weights "
                f"is the best of many tries. Choose by `{ast.unparse(made)}`.",
                node=node,
                related=((made, "the validation data"),),
            )


def _part(source: SourceFile, value: ast.expr) -> str:
    """Return "test" or "validation" for a value of such data, by its name or by what its evaluation gets."""
    words = data_words(value)
    if not words & (_TEST | _VALIDATION):
        words = words & TRAINING
        for each in nodes_in(function_of(source, value), ast.Assign):
            is_value = last_name(value) in {name for target in each.targets for name in stored_names(target)}
            calls = nodes_in(each.value, ast.Call) if is_value else ()
            words |= {w for call in calls for given in (*call.args, *_values(call)) for w in data_words(given)}
            words |= {w for call in calls for w in name_words(last_name(call.func))}
    if words & _VALIDATION or words & TRAINING:
        return "validation" if words & _VALIDATION else ""
    return "test" if words & _TEST else ""


def _values(call: ast.Call) -> list[ast.expr]:
    return [each.value for each in call.keywords]


def _validation_data(source: SourceFile) -> ast.expr | None:
    """Return a variable for validation data; None if there is none, or if one part may be another name of the other."""
    found: ast.expr | None = None
    for target, value in single_assignments(source.tree):
        for each in nodes_in(target, ast.Name, ast.Attribute):
            words = name_words(last_name(each))
            if not words & _DATA or not words & (_TEST | _VALIDATION) or isinstance(value, ast.Constant):
                continue
            other = _VALIDATION if words & _TEST else _TEST
            texts = {w for t in nodes_in(value, ast.Constant) if isinstance(t.value, str) for w in name_words(t.value)}
            is_tuple = isinstance(target, ast.Tuple)
            if (
                not is_tuple
                and (data_words(value) | texts) & other
                and not (data_words(value) | texts) & words & HELD_OUT
            ):
                return None
            if words & _VALIDATION and not words & _TEST:
                found = found or each
    return found


RULE: Final = Rule(
    required_words=("test", "val|dev|holdout", "best|Best|stop", "save|copy|state_dict|patien|stop", "torch"), find=find
)

BAD = """
import copy
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(300, 8)
y = (x[:, 0] + torch.randn(300) > 0).long()
x_train, x_val, x_test = x.split(100)
y_train, y_val, y_test = y.split(100)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def accuracy(inputs, labels):
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).float().mean().item()


best_acc, best_state = 0.0, None
for epoch in range(8):
    for rows in torch.randperm(100).split(25):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x_train[rows]), y_train[rows]).backward()
        optimizer.step()
    acc = accuracy(x_test, y_test)
    if acc > best_acc:
        best_acc, best_state = acc, copy.deepcopy(model.state_dict())
model.load_state_dict(best_state)
print("test accuracy", accuracy(x_test, y_test))
"""

FAILURE = Failure(
    code="EVL035",
    title="The best weights are chosen on the test set",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"    acc = accuracy(x_test, y_test)": "    acc = accuracy(x_val, y_val)"}),
    fix="Choose the weights by the validation set, and judge them once on the test set.",
    rule=RULE,
)
