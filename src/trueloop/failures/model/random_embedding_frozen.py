"""``nn.Embedding.from_pretrained`` gets random numbers and freezes them, so the embedding is never trained.

What you see
    The model learns slowly and stops at a worse score than with ``nn.Embedding(n, d)``: similar words never get
    similar vectors.

Why it happens
    ``from_pretrained`` is made for vectors that were trained before, so ``freeze`` is True by default: the weight gets
    no gradient, and the optimizer leaves it out. Random numbers, once a placeholder for real vectors, stay random.

Fix
    Train the table, or load vectors.

        self.embedding = nn.Embedding(vocabulary, dim)
        self.embedding = nn.Embedding.from_pretrained(vectors, freeze=False)

When this is fine
    - Rows are replaced by loaded vectors, and only missing words are random.
    - A random projection, random features or a hash are meant to stay random: name them so.
    - The weight is unfrozen later.

How it is detected
    Only the linter finds it, from the source code of a program that trains: ``from_pretrained`` of ``nn.Embedding`` or
    ``nn.EmbeddingBag`` without ``freeze``, whose table is the result of a random function or initialiser. The table
    must not be changed elsewhere, and nothing in the program may set ``requires_grad`` to True.

References
    torch.nn.Embedding.from_pretrained, https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import default_of, enclosing_nodes, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_RANDOM: Final = re.compile(
    r"randn?(_like)?|normal_?|uniform_?|(standard|truncated|trunc|multivariate)_normal_?|(xavier|kaiming)_\w+_|orthogonal_"
    r"|random_sample|standard_normal|random"
)
_CONVERSIONS: Final = frozenset((
    "tensor", "as_tensor", "from_numpy", "FloatTensor", "Tensor", "array", "asarray", "Parameter", "stack", "cat",
))  # fmt: skip
_METHODS: Final = frozenset(("float", "to", "cuda", "cpu", "double", "astype", "clone", "half", "type", "mul_", "div_"))
_CHANGING: Final = frozenset(("copy_", "index_copy_", "load_state_dict", "append", "index_put_"))
_WANTED: Final = re.compile(
    r"project|random|rand_|feature|fourier|hash|fixed|frozen|freeze|static|reservoir|ablation|baseline|control|sin|pos",
    re.IGNORECASE,
)
_UNFROZEN: Final = re.compile(
    r"requires_grad\s*=\s*(?!False)|requires_grad_\((?!\s*False)|requires_grad\W+True|unfreez"
)
_TRAINS: Final = re.compile(r"\.backward\(|\.fit\(|training_step|Trainer\(")
_MAX_DEPTH: Final = 6


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each embedding of random numbers that is never trained."""
    text = source.text.source
    if not _TRAINS.search(text) or _UNFROZEN.search(text):
        return
    for call in source.all_calls:
        match call:
            case ast.Call(func=ast.Attribute(attr="from_pretrained", value=owner)) if last_name(owner) in (
                "Embedding",
                "EmbeddingBag",
            ):
                table = argument_node(call, "embeddings", 0)
                freeze = argument_node(call, "freeze", 1)
                is_open = any(each.arg is None for each in call.keywords)
                if table is None or freeze is not None or is_open or _is_wanted(source, call, table):
                    continue
                drawn = _random_origin(source, table, _MAX_DEPTH)
                if drawn is not None:
                    yield Hit(
                        message=f"`{ast.unparse(call)}` freezes random numbers: the embedding is never trained.",
                        node=call,
                        related=((drawn, "drawn here"),),
                        fix=_train(source, call),
                    )
            case _:
                pass


def _is_wanted(source: SourceFile, call: ast.Call, table: ast.expr) -> bool:
    """Return True if names say that the table is to stay random."""
    names = [ast.unparse(table)] if isinstance(table, ast.Name | ast.Attribute) else []
    for each in enclosing_nodes(source, call):
        if isinstance(each, ast.Assign):
            names += [dotted_name(target) for target in each.targets]
        elif isinstance(each, ast.ClassDef):
            names.append(each.name)
    return any(_WANTED.search(name) for name in names)


def _random_origin(source: SourceFile, node: ast.expr, depth: int) -> ast.expr | None:
    """Return the expression that draws all values of a table; None if some may come from elsewhere."""
    inner: Any = None
    match node:
        case ast.Call(func=func) if _RANDOM.fullmatch(last_name(func)):
            return node
        case ast.Call(func=func, args=[inner, *_]) if last_name(func) in _CONVERSIONS:
            pass
        case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _METHODS:
            pass
        case (
            ast.BinOp(op=ast.Mult() | ast.Div() | ast.Sub(), left=inner, right=other)
            | ast.BinOp(op=ast.Mult(), left=other, right=inner)
        ) if isinstance(other, ast.Constant):
            pass
        case ast.ListComp(elt=inner):
            pass
        case ast.Attribute(attr="data" | "weight", value=inner):
            pass
        case ast.Name() | ast.Attribute() | ast.Call():
            return _of_values(source, node, depth)
        case _:
            pass
    return None if inner is None or not depth else _random_origin(source, inner, depth - 1)


def _of_values(source: SourceFile, node: ast.expr, depth: int) -> ast.expr | None:
    """Return the draw of a variable or the result of a function, if all its values are random."""
    if isinstance(node, ast.Name | ast.Attribute) and _is_changed(source, last_name(node)):
        return None
    values = possible_values(source, node)
    if isinstance(node, ast.Name) and values and all(map(_is_empty, values)):
        return _filled(source, values[0], node.id)
    if not values or not depth or default_of(source, node) is not None:
        return None
    found = [_random_origin(source, each, depth - 1) for each in values]
    return found[0] if all(each is not None for each in found) else None


def _is_empty(node: ast.expr) -> bool:
    """Return True for a tensor that is to be filled."""
    return isinstance(node, ast.Call) and last_name(node.func) in ("empty", "zeros", "Tensor", "FloatTensor")


def _filled(source: SourceFile, creation: ast.expr, name: str) -> ast.expr | None:
    """Return the statement that fills a tensor with random numbers: ``w.normal_()``, ``nn.init.uniform_(w)``."""
    for call in nodes_in(function_of(source, creation), ast.Call):
        if _RANDOM.fullmatch(last_name(call.func)) and isinstance(call.func, ast.Attribute):
            filled = [call.func.value, *call.args[:1]]
            if any(last_name(each) == name or ast.unparse(each) == f"{name}.data" for each in filled):
                return call
    return None


def _is_changed(source: SourceFile, name: str) -> bool:
    """Return True if items of a variable are assigned, or a method changes it."""
    items = (each for each in source.nodes_of(ast.Subscript) if isinstance(each.ctx, ast.Store))
    methods = (each for each in source.nodes_of(ast.Attribute) if each.attr in _CHANGING)
    return any(last_name(each.value) == name for each in (*items, *methods))


def _train(source: SourceFile, call: ast.Call) -> Fix | None:
    """Return the fix that adds ``freeze=False``."""
    arguments = [*call.args, *(each.value for each in call.keywords)]
    last = max(arguments, key=lambda each: (each.lineno, each.col_offset))
    end, close = source.text.span(last)[1], source.text.span(call)[1]
    if source.text.content[end:close] != b")":
        return None
    return Fix((Edit(end, end, ", freeze=False"),), safe=False, description="Train the embedding")


RULE = Rule(required_words=("from_pretrained(", "rand|normal|uniform|xavier|kaiming", "Embedding"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
vectors = torch.randn(50, 8)
model = nn.Sequential(nn.Embedding.from_pretrained(vectors), nn.Flatten(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    tokens = torch.randint(50, (64, 4))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens), (tokens.float().mean(1) > 25).long()).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL037",
    title="A random embedding is frozen",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(vectors)": "(vectors, freeze=False)"}),
    fix="Pass freeze=False, or create an nn.Embedding.",
    rule=RULE,
)
