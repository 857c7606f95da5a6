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

How it is detected
    Only the linter finds it, from the source code: a loop over a loader with ``shuffle=True`` that does not use the
    labels of its batches collects outputs, directly, in a comprehension or in a function that gets the loader. The
    outputs are then compared, or passed to a call such as ``fit`` or ``accuracy_score``, together with the labels of
    the dataset from which the loader was built, or with labels that a second loop over the loader has collected.

References
    PyTorch forum, "How to retrieve the sample indices of a mini-batch",
    https://discuss.pytorch.org/t/how-to-retrieve-the-sample-indices-of-a-mini-batch/7948
    torch.utils.data.DataLoader, ``shuffle``, https://docs.pytorch.org/docs/stable/data.html
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in, with_bound_arguments
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LABELS: Final = frozenset(("label", "labels", "target", "targets", "y"))
_COLLECTING: Final = frozenset(("append", "extend"))
_PRINTING: Final = frozenset(("debug", "info", "log", "print", "save", "savez"))
_PASSING: Final = frozenset(("enumerate", "tqdm"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each expression that pairs outputs of a shuffling loader with the labels of its dataset or another pass."""
    for loader, call in _shuffling_loaders(source):
        in_order, again = _labels_of(source, call.args[0]), set(_labels_of_another_pass(source, loader))
        outputs = set(_outputs(source, loader)) - again if in_order or again else set[str]()
        for labels, order in ((in_order, "the order of the dataset"), (again, "that of another pass, shuffled again")):
            hit = _paired(source, call, loader, outputs, labels, order) if outputs and labels else None
            if hit is not None:
                yield hit
                break


def _paired(
    source: SourceFile, loader: ast.Call, name: str, outputs: set[str], labels: set[str], order: str
) -> Hit | None:
    """Return the first expression that pairs outputs with labels in another order."""
    for node in source.nodes:
        parts = _operands(node) if getattr(node, "lineno", 0) > loader.lineno else []
        paired = [part for part in parts if _mentions_any(part, labels)]
        collected = [part for part in parts if _mentions_any(part, outputs)]
        if paired and collected and paired[0] is not collected[0]:
            output = next(each for each in sorted(outputs) if _mentions_any(collected[0], {each}))
            return Hit(
                message=f"`{output}` is in the shuffled order of `{name}`, and `{ast.unparse(paired[0])}` in {order}: "
                "each output is paired with the label of another sample.",
                node=node,
                related=((loader, "the loader shuffles"),),
            )
    return None


def _labels_of_another_pass(source: SourceFile, loader: str) -> Iterator[str]:
    """Yield the variables that hold the labels of a pass of their own: ``torch.cat([y for _, y in loader])``."""
    for each in source.nodes_of(ast.Assign):
        for made in nodes_in(each.value, ast.ListComp):
            match made.generators:
                case [ast.comprehension(target=ast.Tuple(elts=[ast.Name(), ast.Name(id=label)]), iter=iterable)] if (
                    dotted_name(iterable) == loader
                ):
                    read = {name.id for name in nodes_in(made.elt, ast.Name)}
                    calls_model = any(isinstance(call.func, ast.Name) for call in nodes_in(made.elt, ast.Call))
                    target = dotted_name(each.targets[0])
                    if label in read and target and not calls_model:
                        yield target
                case _:
                    pass


def _shuffling_loaders(source: SourceFile) -> Iterator[tuple[str, ast.Call]]:
    """Yield name and call of each loader that shuffles, and that is the only value of its name."""
    for each in source.nodes_of(ast.Assign):
        if len(each.targets) == 1 and isinstance(each.value, ast.Call):
            name, call = dotted_name(each.targets[0]), _made_by_function(source, each.value)
            call = with_bound_arguments(source, call)
            is_loader = bool(name and call.args) and last_name(call.func) == "DataLoader" and _shuffles(call)
            if is_loader and len(assigned_in(source.tree, name)) == 1:
                yield name, call


def _made_by_function(source: SourceFile, call: ast.Call) -> ast.Call:
    """Return the call that a function of the program returns, for a call of it; else the call itself."""
    function = definitions(source).functions.get(last_name(call.func))
    returned = [each.value for each in nodes_in(function, ast.Return)] if function is not None else []
    return returned[0] if len(returned) == 1 and isinstance(returned[0], ast.Call) else call


def _shuffles(call: ast.Call) -> bool:
    value = next((each.value for each in call.keywords if each.arg == "shuffle"), None)
    value = call.args[2] if value is None and len(call.args) > 2 else value
    return isinstance(value, ast.Constant) and value.value is True


def _labels_of(source: SourceFile, dataset: ast.expr) -> set[str]:
    """Return the expressions that are the labels of a dataset, in its order."""
    name = dotted_name(dataset)
    values = assigned_in(source.tree, name) if name else [dataset]
    found = {f"{name}.{each}" for each in _LABELS} | {f"{name}.tensors[1]"} if name and len(values) < 2 else set[str]()
    for method in source.nodes_of(ast.FunctionDef) if found else ():
        if method.name == "__getitem__":  # return self.inputs[i], self.classes[i]
            for each in nodes_in(method, ast.Return):
                match each.value:
                    case ast.Tuple(elts=[_, ast.Subscript(value=ast.Attribute(value=ast.Name(), attr=label))]):
                        found.add(f"{name}.{label}")
                    case _:
                        pass
    made = values[0] if len(values) == 1 else None
    if isinstance(made, ast.Call) and last_name(made.func) == "TensorDataset" and len(made.args) == 2:
        label = made.args[1]
        if isinstance(label, ast.Name | ast.Attribute) and len(assigned_in(source.tree, ast.unparse(label))) < 2:
            found.add(ast.unparse(label))
    return found


def _outputs(source: SourceFile, loader: str) -> Iterator[str]:
    """Yield the variables that hold what loops over a loader collect, and what is computed from them alone."""
    names = set(_collected_by_loops(source, loader))
    assignments = [each for each in source.nodes_of(ast.Assign) if len(each.targets) == 1]
    for each in assignments:
        target = dotted_name(each.targets[0])
        if not target:
            continue
        is_result = isinstance(each.value, ast.Call) and _collects_in_function(source, each.value, loader)
        if is_result or _collects_in_comprehension(each.value, loader):
            names.add(target)
        elif isinstance(each.value, ast.Call | ast.Subscript) and _mentions_any(each.value, names):
            names.add(target)  # features = torch.cat(features)
    yield from names


def _collected_by_loops(source: SourceFile, loader: str) -> Iterator[str]:
    for each in source.nodes_of(ast.For):
        if _loops_over(each, loader) and _ignores_labels(each):
            yield from _lists_filled(each)


def _collects_in_function(source: SourceFile, call: ast.Call, loader: str) -> bool:
    """Return True for a call of a function of the program that collects the outputs of the loader that it gets."""
    positions = [number for number, each in enumerate(call.args) if dotted_name(each) == loader]
    name = last_name(call.func)
    functions: list[Any] = [e for e in source.nodes_of(ast.FunctionDef) if e.name == name]
    if len(positions) != 1 or len(functions) != 1:
        return False
    parameters = [each.arg for each in functions[0].args.args if each.arg != "self"]
    if positions[0] >= len(parameters):
        return False
    loops = [e for e in nodes_in(functions[0], ast.For) if _loops_over(e, parameters[positions[0]])]
    returned = [e.value for e in nodes_in(functions[0], ast.Return)]
    lists = set(_lists_filled(loops[0])) if len(loops) == 1 and _ignores_labels(loops[0]) else set[str]()
    return len(returned) == 1 and returned[0] is not None and _mentions_any(returned[0], lists)


def _collects_in_comprehension(value: ast.expr, loader: str) -> bool:
    """Return True for outputs in a list: ``torch.cat([model(x) for x, _ in loader])``."""
    if isinstance(value, ast.Call) and last_name(value.func) in ("sum", "len", "mean", "max", "min", "all", "any"):
        return False
    for each in nodes_in(value, ast.ListComp, ast.GeneratorExp):
        first = each.generators[0]
        match first.target:
            case ast.Tuple(elts=[_, ast.Name(id=label)]) if dotted_name(first.iter) == loader:
                read = {name.id for name in nodes_in(each.elt, ast.Name)}
                return label not in read and bool(nodes_in(each.elt, ast.Call))
            case _:
                pass
    return False


def _loops_over(loop: ast.For, loader: str) -> bool:
    iterable = loop.iter
    while isinstance(iterable, ast.Call) and last_name(iterable.func) in _PASSING and iterable.args:
        iterable = iterable.args[0]
    return dotted_name(iterable) == loader


def _ignores_labels(loop: ast.For) -> bool:
    """Return True for a loop over pairs that uses the first one only."""
    target = loop.target
    if isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(target.elts[1], ast.Tuple):
        target = target.elts[1]  # of enumerate
    if not isinstance(target, ast.Tuple) or len(target.elts) != 2 or not isinstance(target.elts[1], ast.Name):
        return False
    label = target.elts[1].id
    return not any(isinstance(e, ast.Name) and e.id == label for statement in loop.body for e in walk(statement))


def _lists_filled(loop: ast.For) -> Iterator[str]:
    for each in nodes_in(loop, ast.Call):
        if isinstance(each.func, ast.Attribute) and each.func.attr in _COLLECTING:
            yield dotted_name(each.func.value)


def _operands(node: ast.AST) -> list[ast.expr]:
    """Return the arguments of a call, or both sides of a comparison."""
    if isinstance(node, ast.Call) and last_name(node.func) not in _PRINTING:
        return [*node.args, *(each.value for each in node.keywords)]
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    return []


def _mentions_any(node: ast.AST, names: set[str]) -> bool:
    """Return True if an expression reads one of some variables for more than its length."""
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and ast.unparse(node) in names:
        return True
    if (isinstance(node, ast.Call) and last_name(node.func) in ("len", "size")) or getattr(node, "attr", "") == "shape":
        return False
    return any(_mentions_any(each, names) for each in ast.iter_child_nodes(node))


RULE = Rule(required_words=("DataLoader", "shuffle|True", "append|extend|for "), find=find)

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
