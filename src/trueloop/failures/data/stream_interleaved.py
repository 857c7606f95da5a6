"""The columns of a batched token stream do not contain consecutive tokens.

What you see
    A language model trains without an error, but its loss stays near that of single-token frequencies, and the text
    that it generates is noise.

Why it happens
    ``tokens.view(n, batch_size)`` fills the rows first: the tokens of a column are ``batch_size`` apart, and the next
    row is not the next token. The shape is the expected one.

Fix
    Give each column a consecutive part of the stream:

        data = tokens[: n * batch_size].view(batch_size, n).t().contiguous()

    For batches first, leave out the transposition and slice the second dimension.

When this is fine
    - The second dimension holds the features of a time step.
    - Rows are whole sequences, and inputs and targets are shifted within a row: ``rows[:, :-1]`` and ``rows[:, 1:]``.

How it is detected
    Only the linter finds it: a stream that was cut to a multiple of the batch size is viewed in two dimensions, one of
    them the batch size by its name, and inputs and targets are slices that are shifted by one position along the
    dimension in which the tokens do not follow each other. The view is followed through variables, attributes,
    parameters, functions and transpositions.

References
    PyTorch word language model, batchify, https://github.com/pytorch/examples/tree/main/word_language_model
    torch.Tensor.view, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.view.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import computed_from, origins, without_cycles
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_BATCH: Final = re.compile(
    r"batch|bsz|^bs$|^n?b$|stream|lanes|parallel|columns|(n|num)_?(cols|seqs|sequences)$", re.IGNORECASE
)
_VIEWS: Final = frozenset(("view", "reshape", "unflatten"))
_UNCHANGED: Final = frozenset(("contiguous", "to", "long", "clone", "cuda", "cpu", "int", "numpy", "copy", "detach"))
_LIBRARIES: Final = frozenset(("torch", "np", "numpy"))


class _Part(NamedTuple):
    """A slice or item of a tensor along one dimension."""

    node: ast.expr
    of: ast.expr
    dim: int
    start: str


class _View(NamedTuple):
    """A stream that is viewed in two dimensions."""

    call: ast.Call
    rows: ast.expr
    columns: ast.expr
    consecutive: int
    """Dimension along which the tokens follow each other: 1, or 0 after a transposition."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each view of a token stream whose next position is not the next token."""
    parts: dict[tuple[int, str, int], list[_Part]] = {}
    for node in source.nodes_of(ast.Subscript, ast.Call):
        part = _part(node)
        if part is not None:
            key = id(function_of(source, node)), ast.unparse(part.of), part.dim
            parts.setdefault(key, []).append(part)
    reported = set[int]()
    for same in parts.values():
        starts = {each.start: each for each in same}
        for inputs in same:
            targets = starts.get(_following(inputs.start))
            view = _view(source, inputs.of) if targets is not None else None
            if targets is None or view is None or view.consecutive == inputs.dim or id(view.call) in reported:
                continue
            if any(map(_is_batch_size, _sizes(source, view))) and _is_cut(source, view.call):
                reported.add(id(view.call))
                yield _hit(view, targets)


def _hit(view: _View, targets: _Part) -> Hit:
    rows, columns = ast.unparse(view.rows), ast.unparse(view.columns)
    return Hit(
        message=f"`{ast.unparse(view.call)}` puts consecutive tokens in rows of length `{columns}`, but inputs and "
        f"targets are shifted along its {'first' if view.consecutive else 'second'} dimension, where the next position "
        f"is `{columns}` tokens away. Divide the stream into `{rows if not _is_batch_size(view.columns) else columns}` "
        "consecutive parts.",
        node=view.call,
        related=((targets.node, "the targets are the next position"),),
    )


def _part(node: ast.expr) -> _Part | None:
    """Return a slice of a tensor: ``x[i:j]``, ``x[:, i:j]``, ``x[i]``, ``x.narrow(0, i, n)``; None for other nodes."""
    match node:
        case ast.Subscript(value=of, slice=ast.Tuple(elts=[ast.Slice(lower=None, upper=None), index]), ctx=ast.Load()):
            dim = 1
        case ast.Subscript(value=of, slice=ast.Tuple(elts=[index, *_]) | index, ctx=ast.Load()):
            dim = 0
        case ast.Call(func=ast.Attribute(value=of, attr="narrow"), args=[dimension, start, _]):
            number = integer(dimension)
            return _Part(node, of, number, ast.unparse(start)) if number is not None else None
        case _:
            return None
    if isinstance(index, ast.Slice):
        is_plain = index.step is None and (index.lower is not None or index.upper is not None)
        return _Part(node, of, dim, "0" if index.lower is None else ast.unparse(index.lower)) if is_plain else None
    return _Part(node, of, dim, ast.unparse(index)) if isinstance(index, ast.Name | ast.BinOp) else None


def _following(start: str) -> str:
    """Return the start of the slice after the next: "i + 1" for "i", "1" for "0"."""
    return "1" if start == "0" else f"{start} + 1"


@without_cycles(None)
def _view(source: SourceFile, node: ast.expr) -> _View | None:
    """Return the view in two dimensions that a variable has; None if there is none, or if it is not the only one."""
    found: list[_View | None] = []
    for each in origins(source, node):
        transposed, inner = _without_conversions(each)
        inner_view = _view(source, inner) if inner is not each and not isinstance(inner, ast.Call) else None
        view = inner_view or _two_dimensions(inner)
        if view is not None:
            found.append(view._replace(consecutive=view.consecutive ^ transposed))
    calls = {(id(each.call), each.consecutive) for each in found if each is not None}
    return found[0] if len(calls) == 1 else None


def _without_conversions(node: ast.expr) -> tuple[bool, ast.expr]:
    """Return what an expression transposes or converts, and whether it exchanges the two dimensions."""
    transposed = False
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _UNCHANGED:
                node = inner
            case ast.Attribute(value=inner, attr="T" | "mT"):
                node, transposed = inner, not transposed
            case ast.Call(func=ast.Attribute(value=inner, attr="t" | "transpose" | "permute" | "swapaxes")):
                if last_name(inner) in _LIBRARIES:
                    return transposed, node
                node, transposed = inner, not transposed
            case ast.Subscript(value=inner) if _part(node) is not None and not isinstance(node.slice, ast.Name):
                node = inner
            case _:
                return transposed, node


def _two_dimensions(node: ast.expr) -> _View | None:
    """Return the view that ``x.view(a, b)`` or ``torch.reshape(x, (a, b))`` is; None for other expressions."""
    if not isinstance(node, ast.Call) or last_name(node.func) not in _VIEWS or not isinstance(node.func, ast.Attribute):
        return None
    arguments = node.args[1 if last_name(node.func.value) in _LIBRARIES or node.func.attr == "unflatten" else 0 :]
    if len(arguments) == 1 and isinstance(arguments[0], ast.Tuple | ast.List):
        arguments = arguments[0].elts
    return _View(node, *arguments, consecutive=1) if len(arguments) == 2 else None


def _sizes(source: SourceFile, view: _View) -> Iterator[ast.expr]:
    """Yield the sizes of the two dimensions, and the variables from which they have their value."""
    for size in (view.rows, view.columns):
        yield from (each for each in origins(source, size, 3) if isinstance(each, ast.Name | ast.Attribute))


def _is_batch_size(node: ast.expr) -> bool:
    return bool(_BATCH.search(last_name(node)))


def _is_cut(source: SourceFile, call: ast.Call) -> bool:
    """Return True if a viewed stream was cut to a multiple of a size: ``tokens[: n * size]``."""
    stream: Any = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if last_name(stream) in _LIBRARIES and call.args:
        stream = call.args[0]
    for each in computed_from(source, stream, 3):
        match each:
            case ast.Subscript(slice=ast.Slice(lower=None, upper=ast.expr() as end)):
                pass
            case ast.Call(func=ast.Attribute(attr="narrow"), args=[_, _, end]):
                pass
            case _:
                continue
        is_product = any(nodes_in(value, ast.Mult) for value in origins(source, end, 2))
        if is_product or any(nodes_in(value, ast.Mod) for value in origins(source, end, 2)):
            return True
    return False


RULE: Final = Rule(
    required_words=(
        "view(|reshape(|unflatten(",
        "[:|narrow(",
        "batch|BATCH|bsz|b|B|stream|lanes|columns|seqs|SEQ",
        "+ 1|+1|[1:|1 +",
        "torch",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
tokens = torch.arange(2000) % 9
batch_size, length = 8, 20


def batchify(stream):
    n = len(stream) // batch_size
    return stream[: n * batch_size].view(n, batch_size)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 16)
        self.lstm = nn.LSTM(16, 32)
        self.head = nn.Linear(32, 9)

    def forward(self, x, state=None):
        out, state = self.lstm(self.embedding(x), state)
        return self.head(out), state


data = batchify(tokens)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
state = None
for i in range(0, len(data) - length - 1, length):
    x, y = data[i : i + length], data[i + 1 : i + 1 + length]
    logits, state = model(x, state)
    state = tuple(each.detach() for each in state)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="DAT051",
    title="Columns of a batched token stream are not consecutive",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {".view(n, batch_size)": ".view(batch_size, n).t().contiguous()"}),
    fix="View the stream as (batch_size, n) and transpose it, so that each column is a consecutive part.",
    rule=RULE,
)
