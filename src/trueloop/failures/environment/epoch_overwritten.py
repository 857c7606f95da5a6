"""The loop over batches uses the variable of the loop over epochs, and later code takes its value for the epoch.

What you see
    ``if epoch % 10 == 0`` is true in every epoch or in none, all checkpoints have one name and overwrite each other,
    the log shows the same epoch again and again, or a scheduler jumps to the end.

Why it happens
    A loop has no scope of its own: in a function, one name is one variable. An inner ``for i, batch in
    enumerate(loader)`` leaves the index of its last batch in ``i``; the outer loop still runs the right number of
    times, since ``range`` counts.

Fix
    Give the loops variables of different names.

        for epoch in range(epochs):
            for step, (x, y) in enumerate(loader):

When this is fine
    - The variable is not read after the inner loop, or is assigned before it is read.
    - The number of batches is meant: ``total / (i + 1)``.

How it is detected
    Only the linter finds it, from the source code: a loop over ``range`` or ``enumerate``, in which the program trains,
    contains a loop that assigns the same variable, and a later statement of the outer loop reads it before it is
    assigned again. A read in a product or quotient, or in a statement that names batches or
    steps, is not reported.

References
    Python, "The for statement", https://docs.python.org/3/reference/compound_stmts.html#the-for-statement
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from trueloop.analysis.queries.loop_variables import stored_names
from trueloop.analysis.queries.method_chains import without_calls
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TRANSPARENT: Final = frozenset(("tqdm", "list", "reversed", "track", "iter", "progress_bar"))
_COUNTING: Final = frozenset(("range", "trange", "count", "tnrange", "arange"))
_EPOCH: Final = re.compile(r"epoch|episode|round", re.IGNORECASE)
_TRAINING: Final = re.compile(r"backward|train|fit|step|update", re.IGNORECASE)
_BATCHES: Final = re.compile(r"batch|iter|step|sample|count|seen|number", re.IGNORECASE)
_SCOPES: Final = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each inner loop that overwrites the variable of the loop around it, which is read later."""
    for outer in source.nodes_of(ast.For):
        name = _counter(outer)
        if not name.strip("_") or not _is_over_epochs(outer):
            continue
        for inner in nodes_in(outer, ast.For):
            if inner is outer or name not in stored_names(inner.target):
                continue
            read = _read_after(source, outer, inner, name)
            if read is not None and _is_in_scope(source, outer, inner):
                yield Hit(
                    message=f"The loop over `{ast.unparse(inner.iter)}` overwrites `{name}`, the variable of the loop "
                    f"over `{ast.unparse(outer.iter)}`, which is read after it.",
                    node=inner,
                    related=((outer, "the outer loop"), (read, f"reads the last `{name}` of the inner loop")),
                )


def _counter(loop: ast.For) -> str:
    """Return the variable that counts the iterations of a loop; "" if there is none."""
    call = without_calls(loop.iter, _TRANSPARENT)
    if not isinstance(call, ast.Call):
        return ""
    name = last_name(call.func)
    if name in _COUNTING and isinstance(loop.target, ast.Name):
        return loop.target.id
    if name == "enumerate" and isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[0], ast.Name):
        return loop.target.elts[0].id
    return ""


def _is_over_epochs(loop: ast.For) -> bool:
    """Return True for a loop that is called one over epochs, or in which the program trains."""
    if _EPOCH.search(f"{ast.unparse(loop.target)} {ast.unparse(loop.iter)}"):
        return True
    return any(_TRAINING.search(last_name(each.func)) for each in nodes_in(loop, ast.Call))


def _is_in_scope(source: SourceFile, outer: ast.For, inner: ast.For) -> bool:
    """Return True if no function lies between two loops."""
    parent = source.parents.get(id(inner))
    while parent is not outer:
        if parent is None or isinstance(parent, _SCOPES):
            return False
        parent = source.parents.get(id(parent))
    return True


def _read_after(source: SourceFile, outer: ast.For, inner: ast.For, name: str) -> ast.AST | None:
    """Return where the outer loop reads the variable after an inner loop; None if it is assigned before."""
    statement: Any = inner
    while statement is not None and statement is not outer:
        following = source.following(statement)
        for each in following:
            read = _first_read(source, each, name)
            if read is not None:
                return read
            if name in stored_names(each):
                return None
        if any(isinstance(each, ast.Break | ast.Return | ast.Continue | ast.Raise) for each in following):
            return None
        statement = source.statement_of(source.parents[id(statement)])
        if isinstance(statement, ast.For | ast.While) and statement is not outer:
            return None
    return None


def _first_read(source: SourceFile, statement: ast.stmt, name: str) -> ast.AST | None:
    """Return where a statement reads a variable as an epoch; None if it assigns it first, or reads it as a count."""
    if isinstance(statement, ast.For) and name in stored_names(statement.target):
        return None
    own = {
        id(n)
        for each in nodes_in(statement, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
        for n in walk(each)
    }
    for each in nodes_in(statement, ast.Name):
        if each.id == name and isinstance(each.ctx, ast.Load) and not (id(each) in own and _is_bound(statement, name)):
            return None if _is_count(source, each) else each
    return None


def _is_bound(statement: ast.stmt, name: str) -> bool:
    """Return True if a comprehension in a statement has a variable of this name."""
    return any(name in stored_names(each.target) for each in nodes_in(statement, ast.comprehension))


def _is_count(source: SourceFile, node: ast.Name) -> bool:
    """Return True if a variable is read as a number of batches: in a divisor, or in a text about batches."""
    child: ast.AST = node
    parent = source.parents.get(id(node))
    while parent is not None:
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div | ast.FloorDiv) and parent.right is child:
            return True
        if isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.Div):
            return True
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult):
            return True  # i * batch_size
        if isinstance(parent, ast.stmt):
            return _says_batches(parent)
        child, parent = parent, source.parents.get(id(parent))
    return False


def _says_batches(statement: ast.stmt) -> bool:
    """Return True if a statement names batches and no epoch."""
    if isinstance(statement, ast.If | ast.While):
        return False
    targets: Sequence[ast.AST] = statement.targets if isinstance(statement, ast.Assign) else []
    texts = [e.value for e in nodes_in(statement, ast.Constant) if isinstance(e.value, str)]
    words = " ".join([*texts, *(ast.unparse(each) for each in targets)])
    return bool(_BATCHES.search(words)) and not _EPOCH.search(words)


RULE = Rule(required_words=("for ", "range(|enumerate(", "backward()|.backward(|train_step|.fit("), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(10):
    for i, rows in enumerate(torch.randperm(256).split(32)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
    if i % 2 == 0:
        print(i, loss.item())
"""

FAILURE = Failure(
    code="ENV009",
    title="The loop over batches overwrites the epoch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"for i, rows": "for step, rows"}),
    fix="Give the two loops variables of different names.",
    rule=RULE,
)
