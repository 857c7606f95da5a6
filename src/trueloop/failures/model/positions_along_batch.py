"""A positional encoding is added along the batch, while the attention layers read another dimension as time.

What you see
    A Transformer learns what does not depend on order, and fails at everything that does: it cannot tell a sequence
    from its reverse. Its output for a sample depends on the place of the sample in the batch.

Why it happens
    ``x + self.pe[:x.size(0)]`` is written for inputs of shape (time, batch, features). With ``batch_first=True`` the
    first dimension is the batch: sample 3 gets the encoding of position 3 at each of its time steps. The encoding has
    the shape (positions, 1, features), so broadcasting raises no error.

Fix
    Slice the encoding with the length of the sequence, and let it broadcast over the batch:

        pe = pe.unsqueeze(0)  # (1, positions, features)
        ...
        return x + self.pe[:, : x.size(1)]  # x is (batch, time, features)

When this is fine
    - The attention layers are created without ``batch_first=True``, and the input is (time, batch, features).
    - The input is transposed between the encoding and the attention.
    - The encoding has two dimensions, and each input is a single sequence.

How it is detected
    Only the linter finds it, from the source code: the slice of a positional encoding that is added to a tensor and
    ends at the size of its dimension 0, although all attention layers of the program have ``batch_first=True``; or at
    the size of dimension 1, although none has it. Or an embedding of ``torch.arange(x.size(0)).unsqueeze(1)`` is added,
    which numbers the samples of the batch. Nothing is reported if one of the classes involved exchanges the
    first two dimensions.

References
    Language modeling with nn.Transformer, the tutorial whose encoding is time-first,
    https://docs.pytorch.org/tutorials/beginner/transformer_tutorial.html
    torch.nn.TransformerEncoderLayer, ``batch_first``,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, integer, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ATTENTION: Final = frozenset((
    "MultiheadAttention", "Transformer", "TransformerDecoderLayer", "TransformerEncoderLayer",
))  # fmt: skip
_ENCODING: Final = re.compile(r"(^|_)(pe|pos|pos_?(enc|emb)\w*|position\w*)($|_)", re.IGNORECASE)
_KEEPING: Final = frozenset(("Variable", "clone", "detach", "requires_grad_", "to", "type_as"))
_EXCHANGING: Final = frozenset((
    "T", "mT", "movedim", "moveaxis", "permute", "rearrange", "swapaxes", "swapdims", "t", "transpose",
))  # fmt: skip
_AXES: Final = ((1, -1), (0,))
"""Dimension of the batch -> those that ``unsqueeze`` adds for time to the numbers of its samples."""


class _Encoding(NamedTuple):
    """A sum of a tensor and the first positions of an encoding."""

    node: Any
    tensor: str
    encoding: ast.expr
    dimension: int
    """Dimension of the tensor whose size is the number of positions."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each positional encoding that is added along the dimension that attention layers read as the batch."""
    layers = [each for each in source.all_calls if _is_pytorch_attention(source, each)]
    time = _time_dimension(layers)
    if time is None:
        return
    sliced = [each for each in _encodings(source) if each.dimension != time and _broadcasts(source, each)]
    for each in [*sliced, *_embedded_numbers(source, 1 - time)]:
        if _is_exchanged(source, each.node) or all(_is_exchanged_for(source, layer, each.node) for layer in layers):
            continue
        setting = "`batch_first=True`" if time else "no `batch_first=True`"
        yield Hit(
            message=f"`{ast.unparse(each.node)}` adds positions along dimension {each.dimension} of `{each.tensor}`, "
            f"which is the batch for `{last_name(layers[0].func)}` with {setting}: all time steps of a sample get the "
            f"same encoding.",
            node=each.node,
            related=((layers[0], f"time is dimension {time} here"),),
        )


def _is_pytorch_attention(source: SourceFile, call: ast.Call) -> bool:
    """Return True for an attention layer of PyTorch, which a class of the program may have the name of."""
    name = last_name(call.func)
    if name not in _ATTENTION:
        return False
    known = source.qualified_name(call.func)
    own = any(each.name == name for each in source.nodes_of(ast.ClassDef))
    return known.startswith("torch.") or not (known or own)


def _time_dimension(layers: list[ast.Call]) -> int | None:
    """Return the dimension that all attention layers read as time; None if there is none, or it is unknown."""
    found: set[int | None] = set()
    for each in layers:
        keywords = {keyword.arg: keyword.value for keyword in each.keywords}
        value = keywords.get("batch_first", ast.Constant(False))
        known = None not in keywords and isinstance(value, ast.Constant) and len(each.args) < 7
        found.add(int(bool(value.value)) if known and isinstance(value, ast.Constant) else None)
    return found.pop() if len(found) == 1 else None


def _encodings(source: SourceFile) -> Iterator[_Encoding]:
    """Yield the sums of a tensor and the slice of an encoding that ends at a size of this tensor."""
    for node in source.nodes_of(ast.BinOp, ast.AugAssign):
        if not isinstance(node.op, ast.Add):
            continue
        if isinstance(node, ast.BinOp):
            pairs: list[tuple[ast.expr, ast.expr]] = [(node.left, node.right), (node.right, node.left)]
        else:
            pairs = [(node.target, node.value)]
        for tensor, added in pairs:
            encoding = _without_conversions(added)
            if isinstance(encoding, ast.Subscript) and _ENCODING.search(last_name(encoding.value)):
                size = _length(source, encoding)
                if size is not None and any(dotted_name(each) == size[0] for each in walk(tensor)):
                    yield _Encoding(node, size[0], encoding.value, size[1])


def _embedded_numbers(source: SourceFile, batch: int) -> Iterator[_Encoding]:
    """Yield the sums of a tensor and an embedding of ``torch.arange(x.size(0)).unsqueeze(1)``, for the batch's size."""
    for node in source.nodes_of(ast.BinOp):
        for tensor, added in ((node.left, node.right), (node.right, node.left)) if isinstance(node.op, ast.Add) else ():
            calls = [each for each in origins(source, added, 2) if isinstance(each, ast.Call) and len(each.args) == 1]
            sizes = {_numbered_size(source, each, batch) for call in calls for each in origins(source, call.args[0], 2)}
            names = {dotted_name(each) for value in origins(source, tensor, 2) for each in walk(value)}
            yield from (_Encoding(node, size, calls[0], batch) for size in sizes if size and size in names)


def _numbered_size(source: SourceFile, node: ast.expr, batch: int) -> str:
    """Return the tensor whose batch has its samples numbered in a tensor that broadcasts over time; "" if none has."""
    match node:
        case ast.Call(func=ast.Attribute(attr="expand" | "expand_as" | "to" | "long", value=inner)):
            return _numbered_size(source, inner, batch)
        case ast.Call(func=ast.Attribute(attr="unsqueeze", value=inner), args=[axis]) if integer(axis) in _AXES[batch]:
            pass
        case ast.Call(func=ast.Attribute(attr="view" | "reshape", value=inner), args=[*sizes, last]) if [
            integer(each) for each in (*sizes, last)
        ] == ([-1, 1] if batch == 0 else [1, -1]):
            pass
        case ast.Subscript(value=inner, slice=ast.Tuple(elts=[ast.Slice(), ast.Constant(value=None)])) if batch == 0:
            pass
        case ast.Subscript(value=inner, slice=ast.Constant(value=None)) if batch == 1:
            pass
        case ast.Subscript(value=inner, slice=ast.Tuple(elts=[ast.Constant(value=None), ast.Slice()])) if batch == 1:
            pass
        case _:
            return ""
    for each in origins(source, inner, 2):
        if isinstance(each, ast.Call) and last_name(each.func) == "arange" and each.args:
            size = _known_size(source, each.args[-1], (2, 3))
            return size[0] if size is not None and size[1] == batch else ""
    return ""


def _without_conversions(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call) and last_name(node.func) in _KEEPING:
        inner = node.func.value if isinstance(node.func, ast.Attribute) else next(iter(node.args), None)
        if inner is None:
            break
        node = inner
    return node


def _length(source: SourceFile, encoding: ast.Subscript) -> tuple[str, int] | None:
    """Return the tensor and the dimension whose size is the end of the slice; None unless it is one of both first."""
    parts = encoding.slice.elts if isinstance(encoding.slice, ast.Tuple) else [encoding.slice]
    ends = [each.upper for each in parts if isinstance(each, ast.Slice) and each.upper is not None]
    if len(ends) != 1:
        return None
    size = _known_size(source, ends[0], (3,))
    return size if size is not None and size[1] in (0, 1) else None


def _known_size(source: SourceFile, node: ast.expr, ranks: tuple[int, ...]) -> tuple[str, int] | None:
    """Return the tensor and dimension whose size an expression is, also a variable; ``ranks`` as in `_bound_size`."""
    size = _size(node)
    if size is None and isinstance(node, ast.Name):
        function = enclosing_definition(source, node, ast.FunctionDef)
        sizes = [_bound_size(each, node.id, ranks) for each in nodes_in(function, ast.Assign)]
        known = [each for each in sizes if each is not None]
        size = known[0] if len(known) == 1 else None
    return size


def _size(node: ast.expr) -> tuple[str, int] | None:
    """Return tensor and dimension of ``x.size(0)``, ``x.shape[0]`` or ``len(x)``."""
    match node:
        case ast.Call(func=ast.Attribute(attr="size", value=tensor), args=[ast.Constant(value=int(dimension))]):
            return dotted_name(tensor), dimension
        case ast.Subscript(value=ast.Attribute(attr="shape", value=tensor), slice=ast.Constant(value=int(dimension))):
            return dotted_name(tensor), dimension
        case ast.Call(func=ast.Name(id="len"), args=[tensor]):
            return dotted_name(tensor), 0
        case _:
            return None


def _bound_size(statement: ast.Assign, name: str, ranks: tuple[int, ...]) -> tuple[str, int] | None:
    """Return tensor and dimension whose size an assignment binds to a name, as ``n, t, d = x.shape`` does.

    ``ranks`` are the numbers of dimensions that the tensor may have.
    """
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Name):
        return _size(value) if target.id == name else None
    match target, value:
        case ast.Tuple(elts=parts), (
            ast.Attribute(attr="shape", value=tensor) | ast.Call(func=ast.Attribute(attr="size", value=tensor), args=[])
        ):
            names = [getattr(each, "id", "") for each in parts]
            return (dotted_name(tensor), names.index(name)) if name in names and len(parts) in ranks else None
        case _:
            return None


def _broadcasts(source: SourceFile, found: _Encoding) -> bool:
    """Return True if an encoding that is sliced in its first dimension certainly has a dimension for the batch."""
    if found.dimension == 1:
        return True
    name = last_name(found.encoding)
    definition = enclosing_definition(source, found.node, ast.ClassDef)
    values: list[ast.expr] = []
    for each in nodes_in(definition, ast.Assign, ast.Call):
        match each:
            case ast.Assign(targets=[target], value=value) if last_name(target) == name:
                values.append(value)
            case ast.Call(func=ast.Attribute(attr="register_buffer"), args=[ast.Constant(), value, *_]):
                values.append(value)
            case _:
                pass
    return any(_has_middle_dimension(each) for value in values for each in walk(value))


def _has_middle_dimension(node: ast.AST) -> bool:
    """Return True for ``torch.zeros(n, 1, d)``, ``pe.unsqueeze(1)``, ``pe.transpose(0, 1)`` and ``pe[:, None]``."""
    match node:
        case ast.Call(
            func=ast.Attribute(attr="zeros" | "empty" | "randn" | "rand"), args=[_, ast.Constant(value=1), _]
        ):
            return True
        case ast.Call(func=ast.Attribute(attr="unsqueeze"), args=[ast.Constant(value=1)]):
            return True
        case ast.Call(func=ast.Attribute(attr="transpose"), args=[ast.Constant(value=0), ast.Constant(value=1)]):
            return True
        case ast.Subscript(slice=ast.Tuple(elts=[_, ast.Constant(value=None), *_])):
            return True
        case _:
            return False


def _is_exchanged(source: SourceFile, node: ast.AST) -> bool:
    """Return True if the code around an encoding, or around what creates or calls it, may exchange the dimensions."""
    definition = enclosing_definition(source, node, ast.ClassDef)
    around = [definition]
    if isinstance(definition, ast.ClassDef):
        created = [each for each in source.all_calls if last_name(each.func) == definition.name]
        around += [enclosing_definition(source, each, ast.ClassDef) for each in created]
    return any(
        (getattr(each, "attr", "") in _EXCHANGING and getattr(getattr(each, "value", None), "id", "") != "self")
        or getattr(each, "id", "") == "rearrange"
        for scope in around
        for function in nodes_in(scope, ast.FunctionDef)
        if function.name != "__init__"
        for each in walk(function)
    )


def _is_exchanged_for(source: SourceFile, layer: ast.Call, encoding: ast.AST) -> bool:
    """Return True if another class wraps an attention layer and exchanges the dimensions for it."""
    wrapper = enclosing_definition(source, layer, ast.ClassDef)
    is_other = isinstance(wrapper, ast.ClassDef) and wrapper is not enclosing_definition(source, encoding, ast.ClassDef)
    return is_other and _is_exchanged(source, layer)


RULE = Rule(required_words=("Transformer|MultiheadAttention", "pe|pos|arange(", "size|shape|len"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=100):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        rates = torch.exp(torch.arange(0, d_model, 2) * -0.5)
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * rates)
        pe[:, 0, 1::2] = torch.cos(position * rates)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(0)]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = PositionalEncoding(16)
        self.attention = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.attention(self.positions(x)).mean(1))


x = torch.randn(64, 12, 16)
y = (x[:, 0, 0] > x[:, -1, 0]).long()
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
for step in range(20):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL021",
    title="Positional encoding is added along the batch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"self.pe[: x.size(0)]": "self.pe[: x.size(1)].transpose(0, 1)"}),
    fix="Slice the encoding with the sequence length: `x + pe[:, : x.size(1)]` for (batch, time, features).",
    rule=RULE,
)
