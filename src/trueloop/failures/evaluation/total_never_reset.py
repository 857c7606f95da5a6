"""A sum over the batches goes on from epoch to epoch, and is divided by the size of one.

What you see
    The loss that is printed grows from epoch to epoch, or falls much more slowly than it does; accuracy climbs past
    100 %. The best epoch is the last one whatever happens, or the first one.

Why it happens
    A number that is added to has to be set to zero where a pass begins. Set once, before the loop over epochs, it
    still is a number, and dividing it by ``len(loader)`` is no error.

Fix
    Set it to zero within the loop over epochs, before the loop over batches; for a metric, call ``reset()`` there.

When this is fine
    A sum that is divided by a count which goes on as well, or by the number of epochs, too; progress counted in
    updates; one that is reset at the end of an epoch, or within a function that is called for each. Reported is a sum
    of losses or of hits over the batches of one loader, in a loop in which nothing sets it again and which divides it
    by the length of that loader or its dataset; and a metric of torchmetrics that such a loop asks for its value and
    never resets. It is found in the text only: a program's sums are numbers like any others.

References
    cleverhans-lab/cleverhans#33, accuracy above 1 in a tutorial, https://github.com/cleverhans-lab/cleverhans/pull/33
    MichiganCOG/ViP#34, "Reset validation accuracy every epoch", https://github.com/MichiganCOG/ViP/issues/34
    vgaraujov/CPC-NLP-PyTorch#2, an accuracy of 2.6, https://github.com/vgaraujov/CPC-NLP-PyTorch/issues/2
    torchmetrics, "Metrics and memory management", https://lightning.ai/docs/torchmetrics/stable/pages/overview.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_means import length_of
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.source_text import Fix, dotted, encloses
from trueloop.failures.failure import Failure, Rule, Severity

_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_PASSING: Final = ("enumerate", "tqdm", "iter", "track", "trange")
"""Functions that give what they are given, by the last part of their name."""


class _Loops(NamedTuple):
    """A statement's two innermost loops."""

    batches: ast.For
    epochs: ast.For | ast.While


def find(source: Source) -> Iterator[Hit]:
    """Yield the divisions of sums, and the questions to metrics, that no epoch begins anew."""
    nodes = source.nodes
    quotients = [each for each in nodes if isinstance(each, ast.BinOp) and dotted(length_of(source, each.right))]
    added = [each for each in nodes if quotients and isinstance(each, ast.AugAssign) and _measures(each)]
    metrics = {name for each in nodes if isinstance(each, ast.Assign) and (name := _metric(source, each))}
    if not added and not metrics:
        return
    for each in added:
        loops, name = _loops(each, source.above), dotted(each.target)
        quotient = loops and _quotient(source, quotients, loops, name)
        if loops and quotient:
            yield Hit(
                message=f"{name} is never reset: from the second epoch on it is a sum over several, divided by the "
                "size of one.",
                node=quotient,
                related=((each, "added up here"),),
                fix=_reset(source, loops, name),
            )
    for name in sorted(metrics):
        yield from _unreset(name, nodes, source.above)


def _measures(added: ast.AugAssign) -> bool:
    """True for the sum of a number that is read out of a tensor, or of hits."""
    if not isinstance(added.op, ast.Add) or not isinstance(added.target, ast.Name):
        return False
    calls = [each.func for each in ast.walk(added.value) if isinstance(each, ast.Call)]
    return any(isinstance(each, ast.Attribute) and (each.attr == "item" or _hits(each)) for each in calls)


def _hits(function: ast.Attribute) -> bool:
    inner = function.value
    equal = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "eq"
    return function.attr == "sum" and (isinstance(inner, ast.Compare) or equal)


def _loops(node: ast.AST, above: dict[int, ast.AST]) -> _Loops | None:
    """Return the loop over batches around a statement, and the loop around that, within one function."""
    found: list[ast.For | ast.While] = []
    while id(node) in above and len(found) < 2:
        node = above[id(node)]
        if isinstance(node, _SCOPES):
            break
        if isinstance(node, ast.For | ast.While):
            found.append(node)
    return _Loops(found[0], found[1]) if len(found) == 2 and isinstance(found[0], ast.For) else None


def _begins(loop: ast.AST, name: str) -> bool:
    """True where a loop gives a name something, other than by adding to it."""
    added = {id(each.target) for each in ast.walk(loop) if isinstance(each, ast.AugAssign)}
    return any(
        isinstance(each, ast.Name) and each.id == name and not isinstance(each.ctx, ast.Load) and id(each) not in added
        for each in ast.walk(loop)
    )


def _quotient(source: Source, quotients: list[ast.BinOp], loops: _Loops, name: str) -> ast.BinOp | None:
    """Return where a sum is divided by the length of what it was taken over, behind the loop over it."""
    over = _through(loops.batches.iter)
    for each in quotients if over else ():
        dividends = {inner.id for inner in ast.walk(each.left) if isinstance(inner, ast.Name)}
        divisor = dotted(length_of(source, each.right))
        of = isinstance(each.op, ast.Div) and name in dividends and divisor in (over, f"{over}.dataset")
        if of and encloses(loops.epochs, each) and not encloses(loops.batches, each):
            anew = _begins(loops.epochs, name) or _begins(loops.epochs, over.partition(".")[0])
            return None if anew else each
    return None


def _through(node: ast.expr) -> str:
    """Return the name of what a loop goes through, also by ``enumerate`` and progress bars."""
    while isinstance(node, ast.Call) and node.args and dotted(node.func).rpartition(".")[2] in _PASSING:
        node = node.args[0]
    return dotted(node)


def _reset(source: Source, loops: _Loops, name: str) -> Fix | None:
    """Return the fix: the sum begins at zero before the loop over batches."""
    if loops.batches not in loops.epochs.body:
        return None
    edit = source.text.before(loops.batches, f"{name} = 0")
    return Fix((edit,), safe=False, words="Begin at zero in every epoch") if edit else None


def _metric(source: Source, node: ast.Assign) -> str:
    """Return the name that a metric of torchmetrics is given; "" for anything else."""
    if len(node.targets) != 1 or not isinstance(node.value, ast.Call):
        return ""
    return dotted(node.targets[0]) if source.name(node.value.func).startswith("torchmetrics.") else ""


def _unreset(name: str, nodes: list[ast.AST], above: dict[int, ast.AST]) -> Iterator[Hit]:
    """Yield the question for the value of a metric that is updated in every epoch, and never reset."""
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    updates = [each for each in calls if dotted(each.func) in (name, f"{name}.update") and each.args]
    uses = [each for each in nodes if dotted(each) == name and isinstance(getattr(each, "ctx", None), ast.Load)]
    known = [each for each in calls if dotted(each.func) in (name, f"{name}.update", f"{name}.compute", f"{name}.to")]
    if not name or len(uses) != len(known):
        return  # reset, or handed on to who may do so
    for update in updates:
        loops = _loops(update, above)
        for each in known if loops and not _begins(loops.epochs, name) else ():
            asked = loops and encloses(loops.epochs, each) and not encloses(loops.batches, each)
            if asked and dotted(each.func) == f"{name}.compute":
                yield Hit(
                    message=f"{name} is never reset: its value is that of all epochs so far.",
                    node=each,
                    related=((update, "updated here"),),
                )
                return


HEAD = """
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
    title="A sum over the batches is never reset",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=HEAD.replace("{before}", "correct = 0\n").replace("{within}", ""),
    good=HEAD.replace("{before}", "").replace("{within}", "correct = 0\n    "),
    fix="Set it to zero where an epoch begins.",
    rule=Rule(
        words=(
            "+=|torchmetrics",
            "/ len(|/len(|torchmetrics",
            ".item()|.sum()|torchmetrics",
            "backward(|no_grad|torchmetrics",
        ),
        find=find,
    ),
)
