"""An initialisation overwrites the zero row of ``padding_idx``, so padding adds a random vector to every sum.

What you see
    The model is worse than it should be. The prediction for a sample changes with the length of the longest sequence
    in its batch: evaluated one by one, the samples get other answers than in batches.

Why it happens
    ``nn.Embedding(..., padding_idx=0)`` sets row 0 to zero once, when it is created, and from then on keeps gradients
    away from it. An initialisation of all weights, as in ``model.apply(init_weights)``, fills this row with random
    values too. They are never trained, and each padding adds them to the sum or mean over the sequence.

Fix
    Set the row to zero after the initialisation, or leave padding out of the sum with a mask.

        nn.init.normal_(module.weight, std=0.02)
        if module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])

When this is fine
    - The padding is masked, or the sequences are packed.
    - The row is set to zero afterwards.
    - Pretrained vectors are copied, whose row for padding is zero.

How it is detected
    Only the linter finds it, from the source code: an embedding with a ``padding_idx`` whose output is summed or
    averaged over the sequence without a mask, and an initialisation with random values of its weight: by name, of all
    parameters of a model, or of each ``nn.Embedding`` in a function or loop over modules. It is silent if the program
    names a mask, packs sequences, or selects a row of a weight after it.

References
    torch.nn.Embedding, https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
    torch.nn.init, https://docs.pytorch.org/docs/stable/nn.init.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import instances
from trueloop.analysis.queries.possible_values import computed_from, loops_around, origins
from trueloop.analysis.queries.reductions import reduction
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_RANDOM: Final = re.compile(r"^(normal|uniform|trunc_normal|(xavier|kaiming)_(normal|uniform)|orthogonal)_$")
_MASKS: Final = re.compile(r"mask|msk|pack_padded|pack_sequence|_fill_padding_idx_with_zero", re.IGNORECASE)
_WEIGHTS: Final = re.compile(r"unsqueeze|None|softmax|weight|att|alpha|score|gate|coef|view\(|reshape\(|keepdim", re.I)
"""Words of a factor that has one number per position."""
_OVER_TIME: Final = (0, 1, -2)


class _Embedding(NamedTuple):
    """An embedding with a ``padding_idx``."""

    target: ast.expr
    """The variable or attribute that holds it."""
    call: ast.Call


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each random initialisation of an embedding whose padding is summed."""
    embeddings = [each for each in _embeddings(source) if _is_summed(source, each)]
    if not embeddings or _is_masked(source):
        return
    for call in source.all_calls:
        weight = _overwritten(call)
        embedding = None if weight is None else next((e for e in embeddings if _is_weight_of(source, weight, e)), None)
        if embedding is not None:
            name = ast.unparse(embedding.target)
            yield Hit(
                message=f"`{ast.unparse(call)}` fills the row of `{name}` for padding with random values, which are "
                "never trained: each padding adds them to the sum over the sequence.",
                node=call,
                related=((embedding.call, "padding_idx sets the row to zero here"),),
            )


def _embeddings(source: SourceFile) -> Iterator[_Embedding]:
    for each in instances(source):
        padding = next((e.value for e in each.call.keywords if e.arg == "padding_idx"), None)
        is_embedding = last_name(each.call.func) == "Embedding"
        if padding is None and is_embedding and len(each.call.args) > 2:
            padding = each.call.args[2]
        if is_embedding and padding is not None and not (isinstance(padding, ast.Constant) and padding.value is None):
            yield _Embedding(each.target, each.call)


def _is_summed(source: SourceFile, embedding: _Embedding) -> bool:
    """Return True if the output of an embedding is summed or averaged over the sequence."""
    name = dotted_name(embedding.target)
    owner = enclosing_definition(source, embedding.target, ast.ClassDef)
    for each in nodes_in(owner, ast.Call) if name.startswith("self.") else source.all_calls:
        total = reduction(each, ("sum", "mean"))
        if total is None or total.dim is None or integer(total.dim) not in _OVER_TIME:
            continue
        if any(_is_score(source, value) for value in origins(source, total.operand, 2)):
            continue
        calls = [e for e in computed_from(source, total.operand, 3) if isinstance(e, ast.Call)]
        if any(dotted_name(call.func) == name for call in calls):
            return True
    return False


def _is_score(source: SourceFile, product: ast.expr) -> bool:
    """Return True for the products of two vectors, whose sum is over the features: ``(user * item).sum(1)``."""
    match product:
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            factors = [left, right]
        case ast.Call(func=ast.Attribute(attr="mul" | "multiply", value=owner), args=[*given]):
            factors = [owner, *given][-2:]
        case _:
            return False
    values = [each for factor in factors for each in origins(source, factor, 2)]
    return not any(isinstance(each, ast.Constant) or _WEIGHTS.search(ast.unparse(each)) for each in (*factors, *values))


def _is_masked(source: SourceFile) -> bool:
    """Return True if the program names a mask, packs sequences, or selects a row of a weight."""
    names = (last_name(each) for each in source.nodes_of(ast.Name, ast.Attribute, ast.keyword, ast.arg))
    if any(_MASKS.search(each) for each in names if each):
        return True
    return any(
        ast.unparse(each.value).removesuffix(".data").endswith("weight") for each in source.nodes_of(ast.Subscript)
    )


def _overwritten(call: ast.Call) -> ast.expr | None:
    """Return the tensor that a call fills with random values; None for other calls."""
    if not isinstance(call.func, ast.Attribute) or not _RANDOM.match(call.func.attr):
        owner = call.func if isinstance(call.func, ast.Name) and _RANDOM.match(call.func.id) else None
        return call.args[0] if owner is not None and call.args else None
    owner = call.func.value
    if last_name(owner) == "init":
        return call.args[0] if call.args else None
    return owner


def _is_weight_of(source: SourceFile, weight: ast.expr, embedding: _Embedding) -> bool:
    """Return True if a tensor is, or a loop variable becomes, the weight of an embedding."""
    if isinstance(weight, ast.Attribute) and weight.attr == "data":
        weight = weight.value
    if isinstance(weight, ast.Attribute) and weight.attr == "weight":
        owner = weight.value
        name = dotted_name(embedding.target)
        values = [dotted_name(each) for each in origins(source, owner, 3)]
        own = enclosing_definition(source, embedding.target, ast.ClassDef)
        is_here = not name.startswith("self.") or enclosing_definition(source, weight, ast.ClassDef) is own
        is_named = (name in values and is_here) or any(_is_other_name(each, name) for each in values)
        return is_named or _is_any_embedding(source, owner)
    return isinstance(weight, ast.Name) and _is_any_parameter(source, weight, embedding)


def _is_other_name(value: str, name: str) -> bool:
    """Return True for ``model.embedding`` where the class assigns ``self.embedding``."""
    return name.startswith("self.") and not value.startswith("self.") and value.endswith(name.removeprefix("self"))


def _is_any_embedding(source: SourceFile, owner: ast.expr) -> bool:
    """Return True for a module of which a condition around it says that it is an ``nn.Embedding``."""
    node: Any = source.parents.get(id(owner))
    child: Any = owner
    while node is not None and not isinstance(node, ast.FunctionDef | ast.Module):
        if isinstance(node, ast.If) and any(each is child for each in node.body):
            tests = [each for each in nodes_in(node.test, ast.Call) if last_name(each.func) == "isinstance"]
            for test in tests:
                is_same = len(test.args) == 2 and ast.dump(test.args[0]) == ast.dump(owner)
                kinds = [last_name(e) for e in nodes_in(test.args[1], ast.Name, ast.Attribute)] if is_same else []
                if "Embedding" in kinds:
                    return True
        child, node = node, source.parents.get(id(node))
    return False


def _is_any_parameter(source: SourceFile, weight: ast.Name, embedding: _Embedding) -> bool:
    """Return True for the variable of a loop over all parameters of the model that contains an embedding."""
    own = enclosing_definition(source, embedding.target, ast.ClassDef)
    for loop in loops_around(source, weight):
        names = [each.id for each in nodes_in(loop.target, ast.Name)]
        iterated = loop.iter
        if weight.id != names[-1:][0] if names else True:
            continue
        match iterated:
            case ast.Call(func=ast.Attribute(attr="parameters" | "named_parameters", value=owner)):
                pass
            case _:
                return False
        constants = [e for part in getattr(loop, "body", [loop]) for e in nodes_in(part, ast.Constant)]
        texts = [e.value for e in constants if isinstance(e.value, str)]
        if any("weight" not in text and "emb" not in text for text in texts):
            return False
        if last_name(owner) == "self":
            return own is not None and enclosing_definition(source, weight, ast.ClassDef) is own
        made = {last_name(e.func) for e in origins(source, owner) if isinstance(e, ast.Call)}
        is_module = isinstance(function_of(source, embedding.target), ast.Module)
        return (isinstance(own, ast.ClassDef) and own.name in made) or is_module
    return False


RULE = Rule(
    required_words=(
        "padding_idx", "Embedding(", "init.|.uniform_(|.normal_(|uniform_(|normal_(", "sum(|mean("
    ),
    find=find,
)  # fmt: skip

BAD = """
import torch
from torch import nn


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8, padding_idx=0)
        self.head = nn.Linear(8, 2)
        nn.init.normal_(self.words.weight)

    def forward(self, tokens):
        return self.head(self.words(tokens).sum(dim=1))


torch.manual_seed(0)
model = Bag()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    tokens = torch.randint(1, 20, (16, 12))
    lengths = torch.randint(2, 13, (16, 1))
    tokens[torch.arange(12) >= lengths] = 0
    labels = (tokens[:, 0] > 9).long()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(tokens), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="MDL042",
    title="Initialisation overwrites the row for padding",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"        nn.init.normal_(self.words.weight)\n": "        nn.init.normal_(self.words.weight)\n"
                       "        nn.init.zeros_(self.words.weight[0])\n"}),
    fix="Set the row of padding_idx to zero after the initialisation, or mask the padding.",
    rule=RULE,
)  # fmt: skip
