"""A sum over batches, or a metric, is not reset before each pass, so it also contains the batches of earlier passes.

What you see
    The printed loss rises from epoch to epoch although the model learns, or the printed accuracy exceeds 100 %. The
    best epoch is always the first one (for a loss) or the last one (for an accuracy). Or the validation score follows
    the training score, and overfitting is not visible.

Why it happens
    The sum is set to zero only once, before the loop over epochs, so it also contains the batches of all previous
    epochs. It is divided by ``len(loader)``, the number of batches of one epoch. Or it is reset once in an epoch, but
    updated in training and in validation, so the validation score is mostly the training score. Or the sum is in the
    default value of a parameter, ``def evaluate(model, loader, totals={})``, which Python makes only once.

Fix
    Set the sum to 0 at the start of each epoch, and again before validation. For a metric, call ``metric.reset()``.

        for epoch in range(epochs):
            total = 0.0  # not before the loop over epochs
            for inputs, targets in loader:
                total += train_step(inputs, targets).item()
            print(total / len(loader))

When this is fine
    - You divide by a number that also grows, or by the number of all batches so far.
    - The sum counts updates or samples since the start of training.
    - The default value of a parameter is a cache or a history, of which no mean is computed.
    - The sum is reset at the end of an epoch, or in a function that is called for each epoch.
    - A meter of durations, or a mean over the whole training: read it once, after the loop over epochs.

How it is detected
    Only the linter finds it, from the source code, in five cases. (1) A loop over batches adds losses or correct
    predictions to a sum, and the loop over epochs around it divides the sum by the length of the loader or its dataset
    but never resets it. (2) A metric of torchmetrics, or an object of a class of the program that adds up losses,
    predictions or scores, is created before the loop over epochs, updated for each batch and read after the batches of
    each epoch, and no method that resets it is ever called, also where these steps are in several functions, or one
    method of the class has the loop over batches and reads the value. (3) In one
    iteration of the loop over epochs, a sum, list or metric is updated by a loop over batches that trains and by one
    that does not, is read after both, and nothing resets it between them. (4) A function adds to the default value of a
    parameter in a loop, divides it or passes it to a metric, and is called several times. (5) A loop over batches
    divides a sum by the number of batches between two reports, ``total / 100`` under ``if i % 100 == 99``, and never
    resets it.

References
    cleverhans-lab/cleverhans#33, accuracy above 1 in a tutorial, https://github.com/cleverhans-lab/cleverhans/pull/33
    MichiganCOG/ViP#34, "Reset validation accuracy every epoch", https://github.com/MichiganCOG/ViP/issues/34
    vgaraujov/CPC-NLP-PyTorch#2, an accuracy of 2.6, https://github.com/vgaraujov/CPC-NLP-PyTorch/issues/2
    torchmetrics, "Metrics and memory management", https://lightning.ai/docs/torchmetrics/stable/pages/overview.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeGuard

from trueloop.analysis.queries.batch_loops import dataset_of
from trueloop.analysis.queries.batch_means import len_argument
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix, dotted_name, encloses, nodes_in
from trueloop.failures.evaluation.total_never_reset.default_arguments import find_default_arguments
from trueloop.failures.evaluation.total_never_reset.mixed_passes import find_mixed_passes
from trueloop.failures.evaluation.total_never_reset.unreset_meters import find_unreset_evaluators, find_unreset_meters
from trueloop.failures.failure import Failure, Rule, Severity

_WINDOW: Final = re.compile(r"if .*%.*:")
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_WRAPPERS: Final = ("enumerate", "tqdm", "iter", "track", "trange")
"""Functions that iterate over their argument, by the last part of their name."""


class _Loops(NamedTuple):
    """The two innermost loops around a statement."""

    batches: ast.For
    epochs: ast.For | ast.While


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the divisions of sums and the reads of metrics that no epoch resets."""
    quotients = [each for each in source.nodes_of(ast.BinOp) if dotted_name(len_argument(source, each.right))]
    added = [each for each in source.nodes_of(ast.AugAssign) if quotients and _sums_up_results(each)]
    for each in added:
        loops, name = _loops(each, source.parents), dotted_name(each.target)
        quotient = loops and _quotient(source, quotients, loops, name)
        if loops and quotient:
            yield Hit(
                message=f"`{name}` is never reset: from the second epoch on it is a sum over several epochs, but it is "
                "divided by the size of one epoch.",
                node=quotient,
                related=((each, "summed up here"),),
                fix=_insert_reset(source, loops, name),
            )
    yield from _windows(source)
    yield from find_unreset_meters(source)
    yield from find_unreset_evaluators(source)
    yield from find_mixed_passes(source)
    yield from find_default_arguments(source)


def _windows(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``total / 100`` under ``if i % 100 == 0`` in a loop that never sets the total to 0."""
    for loop in source.nodes_of(ast.For) if source.mentions(_WINDOW) else ():
        for condition in (each for each in loop.body if isinstance(each, ast.If)):
            sizes = {ast.unparse(e.right) for e in nodes_in(condition.test, ast.BinOp) if isinstance(e.op, ast.Mod)}
            added = {dotted_name(each.target): each for each in loop.body if _is_sum(each)}
            for each in nodes_in(condition, ast.BinOp) if sizes and added else ():
                name = dotted_name(each.left)
                is_mean = isinstance(each.op, ast.Div) and name in added and ast.unparse(each.right) in sizes
                if is_mean and not _assigns(loop, name):
                    yield Hit(
                        message=f"`{name}` is never reset in the loop, but it is divided by {ast.unparse(each.right)}, "
                        "the number of batches since the last time: it is a sum over all batches so far.",
                        node=each,
                        related=((added[name], "summed up here"),),
                    )


def _is_sum(statement: ast.stmt) -> TypeGuard[ast.AugAssign]:
    return isinstance(statement, ast.AugAssign) and _sums_up_results(statement)


def _sums_up_results(added: ast.AugAssign) -> bool:
    """Return True for a sum of ``item()`` values or of correct predictions."""
    if not isinstance(added.op, ast.Add) or not isinstance(added.target, ast.Name):
        return False
    calls = [each.func for each in nodes_in(added.value, ast.Call)]
    return any(isinstance(each, ast.Attribute) and (each.attr == "item" or _counts_correct(each)) for each in calls)


def _counts_correct(function: ast.Attribute) -> bool:
    inner = function.value
    equal = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "eq"
    return function.attr == "sum" and (isinstance(inner, ast.Compare) or equal)


def _loops(node: ast.AST, parents: dict[int, ast.AST]) -> _Loops | None:
    """Return the loop over batches around a statement, and the loop around that, within one function."""
    loops: list[ast.For | ast.While] = []
    while id(node) in parents and len(loops) < 2:
        node = parents[id(node)]
        if isinstance(node, _SCOPES):
            break
        if isinstance(node, ast.For | ast.While):
            loops.append(node)
    return _Loops(loops[0], loops[1]) if len(loops) == 2 and isinstance(loops[0], ast.For) else None


def _assigns(loop: ast.AST, name: str) -> bool:
    """Return True if a loop assigns to a name other than by adding to it."""
    added = {id(each.target) for each in nodes_in(loop, ast.AugAssign)}
    return any(
        each.id == name and not isinstance(each.ctx, ast.Load) and id(each) not in added
        for each in nodes_in(loop, ast.Name)
    )


def _quotient(source: SourceFile, quotients: list[ast.BinOp], loops: _Loops, name: str) -> ast.BinOp | None:
    """Return the division of a sum by the length of its loader or dataset, after the loop over the loader."""
    loader = _unwrap_loader(loops.batches.iter)
    dataset = dataset_of(source, ast.Name(id=loader))
    sizes = (loader, f"{loader}.dataset", "" if dataset is None else dotted_name(dataset))
    for each in quotients if loader else ():
        dividends = {inner.id for inner in nodes_in(each.left, ast.Name)}
        divisor = dotted_name(len_argument(source, each.right))
        divides = isinstance(each.op, ast.Div) and name in dividends and divisor and divisor in sizes
        if divides and encloses(loops.epochs, each) and not encloses(loops.batches, each):
            is_reset = _assigns(loops.epochs, name) or _assigns(loops.epochs, loader.partition(".")[0])
            return None if is_reset else each
    return None


def _unwrap_loader(node: ast.expr) -> str:
    """Return the name of the iterable of a loop, inside of ``enumerate`` and progress bars."""
    while isinstance(node, ast.Call) and node.args and dotted_name(node.func).rpartition(".")[2] in _WRAPPERS:
        node = node.args[0]
    return dotted_name(node)


def _insert_reset(source: SourceFile, loops: _Loops, name: str) -> Fix | None:
    """Return the fix: set the sum to zero before the loop over batches."""
    if loops.batches not in loops.epochs.body:
        return None
    edit = source.text.insert_before(loops.batches, f"{name} = 0")
    return Fix((edit,), safe=False, description="Reset the sum in every epoch") if edit else None


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(128, 8)
y = x.sum(1).gt(0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}for epoch in range(3):
    {within}for inputs, targets in loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        nn.functional.cross_entropy(outputs, targets).backward()
        optimizer.step()
        correct += (outputs.argmax(1) == targets).sum().item()
    print(epoch, correct / len(loader.dataset))
"""

FAILURE = Failure(
    code="EVL009",
    title="A running sum or metric is not reset in each epoch",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{before}", "correct = 0\n").replace("{within}", ""),
    good=SCRIPT.replace("{before}", "").replace("{within}", "correct = 0\n    "),
    fix="Set the sum to 0 (or call metric.reset()) at the start of each epoch.",
    rule=Rule(
        required_words=(
            "+=|append(|extend(|torchmetrics|torcheval",
            "/ len(|/len(|% |class |torchmetrics|torcheval|={|=[|= {|= []|=dict(|=defaultdict(",
            ".item()|.sum()|.update(|.add(|append(|extend(|torchmetrics|torcheval",
            "backward(|no_grad|inference_mode|torchmetrics|torcheval",
        ),
        find=find,
    ),
)
