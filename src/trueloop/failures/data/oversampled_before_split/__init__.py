"""Rare samples are copied before the split, so copies of one sample are in the training and in the held-out part.

What you see
    The recall of the rare class is nearly perfect on the validation part, and poor on new data.

Why it happens
    Oversampling repeats samples, and SMOTE mixes neighbours. A random split afterwards puts copies of the same sample
    on both sides, and the model is judged by what it has seen in training.

Fix
    Split first, and oversample the training part only:

        x_train, x_val, y_train, y_val = train_test_split(x, y, stratify=y)
        x_train, y_train = RandomOverSampler().fit_resample(x_train, y_train)

    Or do not copy samples, and draw rare ones more often: WeightedRandomSampler, class weights in the loss.

When this is fine
    - The samples are split first.
    - Frequent samples are left out (undersampling), which copies nothing.
    - All copies of a sample are in one group, and the split is by group.

How it is detected
    In a run, the sanitizer compares the values of the samples of evaluations on the CPU with those of the training
    samples. It reports 20 or more that are in both, 5 to 90 % of an evaluation, if at most 2 % of them belong to the
    class with the most different samples, and each sample of the other classes is trained on at least 1.5 times as
    often. Natural duplicates occur in all classes. The finding is at the call that oversamples, if there is one such
    call, or else at the evaluation.

    The linter follows the source code: a variable gets the result of ``fit_resample`` of an oversampler, of
    a function whose name says that it oversamples, or of one that is called upsample or balance and draws rows again.
    It, or ``arange`` of its length, is then passed to ``train_test_split``, ``random_split``, ``cross_val_score``, to
    ``split`` of a KFold, or to a function of the program whose name begins with "split", perhaps in another function.

References
    imbalanced-learn, "Common pitfalls and recommended practices", data leakage,
    https://imbalanced-learn.org/stable/common_pitfalls.html
    Vandewiele et al., "Overly optimistic prediction results on imbalanced data", 2021,
    https://doi.org/10.1016/j.artmed.2020.101987
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import origins, unpacked_call
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.data.oversampled_before_split.copied_samples import (
    OVERSAMPLES,
    RESAMPLING,
    CopiedSamplesDetector,
)
from trueloop.failures.failure import Failure, Rule, Severity, changed

_BALANCES: Final = re.compile(r"up_?sampl|balanc|re_?sampl|augment_(minor|rare|pos)", re.IGNORECASE)
_SPLITS: Final = re.compile(r"^(train_test_split|random_split|cross_val_\w+|cross_validate|_?split(_\w+)?)$")
_KFOLD: Final = re.compile(r"fold|shuffle_?split|^s?kf$|^cv$|splitter", re.IGNORECASE)
_GROUPED: Final = re.compile(r"group", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each split of samples that were oversampled before."""
    for split in source.all_calls:
        read = [name for each in split.args for name in nodes_in(each, ast.Name, ast.Attribute)]
        if not _splits(split):
            continue
        made = next((call for each in read for call in _made_by(source, each) if _oversamples(source, call)), None)
        if made is not None:
            yield Hit(
                message=f"`{ast.unparse(split)}` splits samples that were oversampled before: copies of one sample are "
                "in the training and in the held-out part.",
                node=split,
                related=((made, "oversampled here"),),
            )


def _made_by(source: SourceFile, name: ast.expr) -> Iterator[ast.Call]:
    """Yield the calls that return the value of a variable, alone or among other results, also through functions."""
    for each in origins(source, name):
        call = unpacked_call(source, each) if isinstance(each, ast.Name | ast.Attribute) else each
        if isinstance(call, ast.Call):
            yield call
        match call:
            case ast.Call(func=func, args=[ast.Call(func=ast.Name(id="len"), args=[ast.Name() as rows])]) if last_name(
                func
            ) in ("arange", "range") and rows.id != last_name(name):
                yield from _made_by(source, rows)
            case _:
                pass


def _oversamples(source: SourceFile, call: ast.Call) -> bool:
    """Return True for ``SMOTE().fit_resample(x, y)``, ``sampler.fit_resample(x, y)`` and ``oversample(x, y)``."""
    name = last_name(call.func)
    if not call.args:
        return False
    if name not in RESAMPLING:
        return (bool(OVERSAMPLES.search(name)) and name[0].islower()) or _repeats(source, name)
    owner: Any = call.func.value  # type: ignore[attr-defined]
    if isinstance(owner, ast.Name | ast.Attribute):
        values = assigned_in(source.tree, dotted_name(owner))
        owner = values[0] if len(values) == 1 else owner
    return isinstance(owner, ast.Call) and bool(OVERSAMPLES.search(last_name(owner.func)))


def _repeats(source: SourceFile, name: str) -> bool:
    """Return True for a function of the program, called upsample or balance, that draws rows again and returns them."""
    function = definitions(source).functions.get(name) if _BALANCES.search(name) else None
    if function is None:
        return False
    calls = list(nodes_in(function, ast.Call))
    draws = any(
        last_name(each.func) in ("choice", "choices", "randint", "repeat", "tile", "resample", "sample")
        and _replaces(each)
        for each in calls
    )
    joins = any(
        last_name(each.func) in ("concatenate", "concat", "cat", "append", "vstack", "hstack") for each in calls
    )
    return draws and joins


def _replaces(call: ast.Call) -> bool:
    """Return True for a call that may draw a row twice, by its argument ``replace`` or its default."""
    replace = next((each.value for each in call.keywords if each.arg == "replace"), None)
    default = last_name(call.func) != "sample"  # pandas and random.sample draw without replacement
    return default if replace is None else getattr(replace, "value", True) is not False


def _splits(call: ast.Call) -> bool:
    """Return True for a call that splits its argument at random into parts, not by groups."""
    name = last_name(call.func)
    if isinstance(call.func, ast.Attribute) and name == "split":
        owner = call.func.value
        is_split = bool(_KFOLD.search(last_name(owner.func if isinstance(owner, ast.Call) else owner)))
    else:
        is_split = isinstance(call.func, ast.Name | ast.Attribute) and bool(_SPLITS.match(name))
    is_grouped = any(each.arg == "groups" for each in call.keywords) or _GROUPED.search(ast.unparse(call.func))
    return is_split and not is_grouped


RULE = Rule(required_words=("sampl|smote|SMOTE|ADASYN|duplicate_|balanc", "split|cross_val"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(400, 8)
y = (x[:, 0] > 1.5).long()


def oversample(x, y):
    rare = (y == 1).nonzero().flatten()
    rows = torch.cat([torch.arange(len(y)), rare.repeat(len(y) // len(rare) - 1)])
    return x[rows], y[rows]


def split(x, y):
    order = torch.randperm(len(y))
    cut = len(y) // 4
    return x[order[cut:]], y[order[cut:]], x[order[:cut]], y[order[:cut]]


x, y = oversample(x, y)
x_train, y_train, x_val, y_val = split(x, y)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(30):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x_train), y_train).backward()
    optimizer.step()
with torch.no_grad():
    print("accuracy", (model(x_val).argmax(1) == y_val).float().mean())
"""

FAILURE = Failure(
    code="DAT023",
    title="Rare samples are copied before the split",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "x, y = oversample(x, y)\n": "",
            "x_val, y_val = split(x, y)\n": (
                "x_val, y_val = split(x, y)\nx_train, y_train = oversample(x_train, y_train)\n"
            ),
        },
    ),
    fix="Split first, and oversample the training part only.",
    rule=RULE,
    detector=CopiedSamplesDetector,
)
