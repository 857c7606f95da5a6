"""The parts of a split are assigned in the wrong order, so the model is trained on the held-out part, or on mixed rows.

What you see
    With five folds, the training uses a fifth of the samples, and the validation score is worse than expected. If
    inputs and labels are mixed up, the loss does not fall, or the shapes do not match.

Why it happens
    A split returns its parts in a fixed order, whatever the variables are called. ``KFold.split`` yields the training
    rows first. ``train_test_split(X, y)`` returns both parts of ``X``, then both parts of ``y``. ``random_split``
    returns the parts in the order of their sizes.

Fix
    Assign the parts in the order in which they are returned:

        for train_idx, val_idx in KFold(5).split(X): ...
        X_train, X_test, y_train, y_test = train_test_split(X, y)
        train_set, test_set = random_split(dataset, [0.8, 0.2])

When this is fine
    - The variables are used against their names later: ``train_set = Subset(dataset, val_idx)``.
    - The held-out part is meant to be the larger one: ``test_size=0.9``.
    - The sizes are in the order of the variables: ``val_set, train_set = random_split(dataset, [0.2, 0.8])``.

How it is detected
    Only the linter finds it, by the names of the variables: a held-out part is in the place of the training part, or
    inputs and labels alternate, or ``Subset`` or a sampler gives each of two variables the part of the other one. For
    ``random_split`` it compares the names with the sizes or with their names.

References
    sklearn.model_selection.KFold, https://scikit-learn.org/1.3/modules/generated/sklearn.model_selection.KFold.html
    torch.utils.data, on random_split, https://docs.pytorch.org/docs/stable/data.html
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING, is_held_out, is_training
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SPLITTER: Final = re.compile(r"fold|^s?kf\d?$|^cv$|splitter|^[gs]?ss+$|tscv|KFold|ShuffleSplit|TimeSeriesSplit", re.I)
_ITERATED: Final = frozenset(("enumerate", "list", "next", "iter", "tqdm", "tuple"))
_SELECTING: Final = ("Subset", "SubsetRandomSampler")
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


class _Part(NamedTuple):
    """A variable that gets a part of a split: its name without the word for the part, and this word."""

    base: tuple[str, ...]
    role: str


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each assignment of the parts of a split in another order."""
    for node in source.nodes_of(ast.For, ast.comprehension):
        target: Any = node.target
        if isinstance(target, ast.Tuple) and isinstance(target.elts[-1], ast.Tuple):
            target = target.elts[-1]  # for fold, (train, val) in enumerate(...)
        yield from _folds(source, target, node.iter)
    for node in source.nodes_of(ast.Assign):
        for target, value in assigned_pairs(node):
            if not isinstance(target, ast.Tuple | ast.List):
                continue
            call = value if isinstance(value, ast.Call) else None
            name = last_name(call.func) if call is not None else ""
            if call is None or name not in ("train_test_split", "random_split"):
                yield from _folds(source, target, value)
            elif name not in definitions(source).functions:
                parts = _of_arrays(call, target) if name == "train_test_split" else _of_sizes(source, call, target)
                yield from parts
    for scope in (*source.nodes_of(ast.FunctionDef), source.tree):
        yield from _exchanged(source, scope)


def _exchanged(source: SourceFile, scope: ast.AST) -> Iterator[Hit]:
    """Yield ``train_set = Subset(data, val_idx)`` if ``val_set = Subset(data, train_idx)`` follows or precedes it."""
    found: dict[tuple[str, bool], tuple[ast.expr, ast.Assign, set[str]]] = {}
    """Name of the call, and whether the variable is called held-out -> variable, statement and names that are read."""
    for each in nodes_in(scope, ast.Assign):
        for target, value in assigned_pairs(each) if function_of(source, each) is scope else ():
            if not isinstance(value, ast.Call) or last_name(value.func) not in _SELECTING:
                continue
            read = [part for part in nodes_in(value, ast.Name) if is_held_out(part) or is_training(part)]
            roles = {is_held_out(part) for part in read}
            if len(roles) == 1 and (is_held_out(target) or is_training(target)) and is_held_out(target) not in roles:
                found[last_name(value.func), is_held_out(target)] = target, each, {part.id for part in read}
    for name in _SELECTING:
        training, held_out = found.get((name, False)), found.get((name, True))
        if training is None or held_out is None or _is_reversed_before(scope, training[2], held_out[2]):
            continue
        yield Hit(
            message=f"`{ast.unparse(training[0])}` gets the held-out part `{', '.join(sorted(training[2]))}`, and "
            f"`{ast.unparse(held_out[0])}` gets the training part: they are exchanged.",
            node=training[1],
            related=((held_out[1], "the other part"),),
        )


def _is_reversed_before(scope: ast.AST, held_out: set[str], training: set[str]) -> bool:
    """Return True if the variables get their parts against their names, too, as in ``val_idx, train_idx = split``."""
    for each in nodes_in(scope, ast.Assign, ast.For):
        targets = each.targets if isinstance(each, ast.Assign) else [each.target]
        for target in targets:
            names = [part.id for part in nodes_in(target, ast.Name)]
            first = next((name for name in names if name in held_out | training), "")
            if first in held_out and training & set(names):
                return True
    return False


def _folds(source: SourceFile, target: ast.expr, value: ast.expr) -> Iterator[Hit]:
    """Yield a hit if the rows of ``KFold.split`` are assigned as (held-out, training)."""
    if not isinstance(target, ast.Tuple | ast.List) or len(target.elts) != 2:
        return
    held_out, training = target.elts
    if not is_held_out(held_out) or not is_training(training):
        return
    call = _split_call(source, value)
    if call is None or _is_used_reversed(source, held_out, training):
        return
    yield Hit(
        message=f"`{ast.unparse(call)}` yields the training rows first: `{ast.unparse(held_out)}` gets them, and "
        f"`{ast.unparse(training)}` gets the held-out rows.",
        node=target,
    )


def _split_call(source: SourceFile, value: ast.expr, depth: int = 4) -> ast.Call | None:
    """Return the call of ``split`` of a splitter whose items a value has; None if there is none."""
    while True:
        match value:
            case ast.Call(func=func, args=[inner, *_]) if last_name(func) in _ITERATED:
                value = inner
            case ast.Subscript(value=inner):
                value = inner
            case _:
                break
    if isinstance(value, ast.Call) and last_name(value.func) == "split" and isinstance(value.func, ast.Attribute):
        return value if value.args and _is_splitter(source, value.func.value) else None
    found = [_split_call(source, each, depth - 1) for each in possible_values(source, value)] if depth else []
    return next((each for each in found if each is not None), None)


def _is_splitter(source: SourceFile, owner: ast.expr) -> bool:
    """Return True for a splitter of scikit-learn that does not hold out most of the rows."""
    values = [owner, *possible_values(source, owner)]
    calls = [each for each in values if isinstance(each, ast.Call)]
    if any(last_name(each.func) in definitions(source).classes or _holds_out_most(each) for each in calls):
        return False
    return any(_SPLITTER.search(last_name(each.func if isinstance(each, ast.Call) else each)) for each in values)


def _holds_out_most(call: ast.Call) -> bool:
    """Return True for ``test_size=0.9`` or ``train_size=0.1``."""
    sizes = {each.arg: each.value.value for each in call.keywords if isinstance(each.value, ast.Constant)}
    test, train = sizes.get("test_size"), sizes.get("train_size")
    return (isinstance(test, float) and test >= 0.5) or (isinstance(train, float) and train <= 0.5)


def _is_used_reversed(source: SourceFile, held_out: ast.expr, training: ast.expr) -> bool:
    """Return True if a function assigns training data from the rows that are called held-out, or the reverse."""
    names = ast.unparse(held_out), ast.unparse(training)
    for each in nodes_in(function_of(source, held_out), ast.Assign):
        for target, value in assigned_pairs(each):
            used = {ast.unparse(e) for e in nodes_in(value, ast.Name, ast.Attribute)}
            if (is_training(target) and used & set(names) == {names[0]}) or (
                is_held_out(target) and used & set(names) == {names[1]}
            ):
                return True
    return False


def _of_arrays(call: ast.Call, target: ast.Tuple | ast.List) -> Iterator[Hit]:
    """Yield a hit if the results of ``train_test_split`` are assigned in another order."""
    names = [last_name(each) for each in target.elts]
    count = len([each for each in call.args if not isinstance(each, ast.Starred)])
    if not all(names) or len(names) != 2 * count or len(call.args) != count:
        return
    parts = [_part(name) for name in names]
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    roles, bases = {each.role for each in parts}, Counter(each.base for each in parts)
    array, text = ast.unparse(call.args[0]), ast.unparse(call)
    if "" in roles:
        return
    alternate = all(count == 2 for count in bases.values()) and any(a.base != b.base for a, b in pairs)
    if alternate and any(a.base != b.base and a.role == b.role for a, b in pairs):
        yield Hit(
            message=f"`{text}` returns both parts of `{array}` first: `{names[1]}` is the second part of `{array}`.",
            node=target,
        )
    elif all((a.role in HELD_OUT and b.role in TRAINING) for a, b in pairs) and not _holds_out_most(call):
        yield Hit(
            message=f"`{text}` returns the training part first: `{names[0]}` gets it, and `{names[1]}` gets the "
            "held-out part.",
            node=target,
        )


def _part(name: str) -> _Part:
    """Return the parts of a name: (("x",), "train") for ``X_train`` and ``xtrain``."""
    base, role = list[str](), ""
    for word in (each.lower() for each in _WORD.findall(name)):
        prefix = word[:1] if word[:1] in "xy" and word[1:] in HELD_OUT | TRAINING else ""
        if word[len(prefix) :] in HELD_OUT | TRAINING:
            role = word[len(prefix) :]
            base += [prefix] if prefix else []
        else:
            base.append(word)
    return _Part(tuple(base), role)


def _of_sizes(source: SourceFile, call: ast.Call, target: ast.Tuple | ast.List) -> Iterator[Hit]:
    """Yield a hit if the results of ``random_split`` do not fit the sizes or the names of the sizes."""
    lengths = argument_node(call, "lengths", 1)
    if isinstance(lengths, ast.Name | ast.Attribute):
        values = possible_values(source, lengths)
        lengths = values[0] if len(values) == 1 else None
    if not isinstance(lengths, ast.List | ast.Tuple) or len(lengths.elts) != len(target.elts):
        return
    pairs = list(zip(target.elts, lengths.elts, strict=True))
    named = [each for each in pairs if isinstance(each[1], ast.Name | ast.Attribute)]
    wrong = [(a, b) for a, b in named if (is_held_out(a) and is_training(b)) or (is_training(a) and is_held_out(b))]
    if not wrong and len(pairs) == 2 and is_held_out(target.elts[0]) and is_training(target.elts[1]):
        share = _share(lengths.elts[0], lengths.elts[1])
        wrong = pairs[:1] if share is not None and share > 0.5 else []
    for part, size in wrong[:1]:
        yield Hit(
            message=f"`{ast.unparse(part)}` gets the part of size `{ast.unparse(size)}`: `random_split` returns the "
            "parts in the order of their sizes.",
            node=target,
        )


def _share(first: ast.expr, second: ast.expr) -> float | None:
    """Return the share of the first part; None if the text does not show it."""
    one, other = _number(first), _number(second)
    if one is not None and other is not None and one + other > 0:
        return one / (one + other)
    return one if one is not None and one < 1 else None if other is None or other >= 1 else 1 - other


def _number(size: ast.expr) -> float | None:
    """Return a constant size, or 0.8 for ``int(0.8 * len(dataset))``."""
    if isinstance(size, ast.Call) and last_name(size.func) in ("int", "round", "floor", "ceil") and size.args:
        return _number(size.args[0])
    if isinstance(size, ast.BinOp) and isinstance(size.op, ast.Mult):
        known = [each for each in (_number(size.left), _number(size.right)) if each is not None and each < 1]
        return known[0] if len(known) == 1 else None
    value = size.value if isinstance(size, ast.Constant) else None
    return float(value) if isinstance(value, int | float) else None


RULE = Rule(required_words=("split(|Subset(|SubsetRandomSampler(", "train|trn|tr_|_tr|tr,"), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
x = torch.randn(200, 8)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
test_set, train_set = random_split(dataset, [160, 40])
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    for inputs, targets in DataLoader(train_set, batch_size=20, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
model.eval()
with torch.no_grad():
    rows = torch.tensor(test_set.indices)
    print(nn.functional.mse_loss(model(x[rows]), dataset.tensors[1][rows]).item())
"""

FAILURE = Failure(
    code="DAT030",
    title="The parts of a split are assigned in the wrong order",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"test_set, train_set =": "train_set, test_set ="}),
    fix="Assign the parts in the order in which the split returns them.",
    rule=RULE,
)
