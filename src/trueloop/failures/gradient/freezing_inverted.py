"""A setting that should freeze a part of a model trains it, or the other way round: the flag is inverted.

What you see
    Embeddings that you ask to train keep their first values, or a backbone that should be frozen is trained. The option
    seems to make things worse, and switching it off helps.

Why it happens
    ``requires_grad`` is True for what is trained, and an option called ``freeze`` is True for the opposite. It is easy
    to forget the ``not``, and nothing fails.

Fix
    Negate the setting, or exchange the branches:

        layer.weight.requires_grad = trainable
        layer.weight.requires_grad = not freeze
        nn.Embedding.from_pretrained(vectors, freeze=not trainable)

When this is fine
    - The flag is the present state, and its branch changes it: ``if self.frozen: self.unfreeze()``.
    - One part is frozen and another one is trained under the same condition.
    - The setting means another part: ``if train_head: backbone.requires_grad_(False)``.

How it is detected
    Only the linter finds it, from the source code: a setting called ``trainable`` or ``learnable`` whose branch sets
    ``requires_grad`` to False and nothing to True, or one called ``freeze`` or ``frozen`` whose branch does the
    opposite; ``requires_grad`` or ``freeze`` that gets such a setting where its negation is meant.

References
    torch.nn.Embedding.from_pretrained,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TRAINS: Final = re.compile(r"(is_|are_|be_|make_)?(\w*_)?(trainable|learnable|unfrozen|unfreeze)", re.IGNORECASE)
_FREEZES: Final = re.compile(r"(is_|are_|be_)?((\w*_)?(freeze|frozen)|freeze_\w+)", re.IGNORECASE)
_NEGATED: Final = re.compile(r"(^|_)(not?|non|un|except|dont|never)_?", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each setting that has the opposite effect of its name."""
    for branch in source.nodes_of(ast.If):
        wanted = None if _is_state(source, branch) else _trains(branch.test)
        for block, trains in ((branch.body, wanted), (branch.orelse, None if wanted is None else not wanted)):
            changes = [pair for each in block for pair in _changes(each)]
            if trains is not None and changes and all(value is not trains for _, value in changes):
                yield _hit(branch.test, changes[0][0])
                break
    for node in source.nodes_of(ast.Assign):
        if last_name(node.targets[0]) == "requires_grad" and _trains(node.value) is False:
            yield _hit(node.value, node)
    for call in source.all_calls:
        for word in call.keywords:
            is_frozen = word.arg == "freeze" and last_name(call.func) == "from_pretrained"
            is_trained = word.arg == "requires_grad"
            if (is_frozen and _trains(word.value)) or (is_trained and _trains(word.value) is False):
                yield _hit(word.value, call)


def _is_state(source: SourceFile, branch: ast.If) -> bool:
    """Return True if a flag is what is true now, and its branch changes it: ``if self.frozen: self.unfreeze()``."""
    names = {last_name(each) for each in nodes_in(branch.test, ast.Name, ast.Attribute)}
    stored = {last_name(t) for each in nodes_in(branch, ast.Assign) for t in each.targets}
    function = getattr(function_of(source, branch), "name", "")
    return bool(names & stored) or re.search(r"^_*(un)?freeze|thaw|toggle|switch", function) is not None


def _hit(setting: ast.expr, node: Any) -> Hit:
    return Hit(
        message=f"`{ast.unparse(node)}` does the opposite of what the name of `{ast.unparse(setting)}` says: "
        "`requires_grad` is True for parameters that are trained.",
        node=node,
    )


def _trains(setting: ast.expr) -> bool | None:
    """Return whether a setting that is on means training, by its name; None if it is no such setting."""
    match setting:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            meaning = _trains(inner)
            return None if meaning is None else not meaning
        case ast.Name() | ast.Attribute():
            name = last_name(setting)
            if _TRAINS.fullmatch(name):
                return None if _NEGATED.match(name) and not name.startswith("un") else True
            return False if _FREEZES.fullmatch(name) and not _NEGATED.search(name) else None
        case _:
            return None


def _changes(statement: ast.stmt) -> Iterator[tuple[Any, bool]]:
    """Yield each change of ``requires_grad`` in a statement that is no further condition, with its value."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return
    for node in nodes_in(statement, ast.Assign, ast.Call):
        match node:
            case ast.Assign(targets=[ast.Attribute(attr="requires_grad")], value=ast.Constant(value=bool() as value)):
                yield node, value
            case ast.Call(func=ast.Attribute(attr="requires_grad_"), args=[ast.Constant(value=bool() as value)]):
                yield node, value
            case ast.Call(func=ast.Attribute(attr="requires_grad_"), args=[], keywords=[]):
                yield node, True
            case _:
                pass


RULE: Final = Rule(required_words=("requires_grad|freeze=", "rainable|earnable|freeze|frozen|Freeze"), find=find)

BAD = """
import torch
from torch import nn


def embedding(vectors, trainable=True):
    layer = nn.Embedding(*vectors.shape)
    layer.weight.data.copy_(vectors)
    if trainable:
        layer.weight.requires_grad = False
    return layer


torch.manual_seed(0)
model = nn.Sequential(embedding(torch.randn(10, 4)), nn.Linear(4, 1))
optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
for step in range(20):
    words = torch.randint(10, (32,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(words), words[:, None].float())
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="GRD036",
    title="A setting freezes what it should train, or the other way round",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"if trainable:": "if not trainable:"}),
    fix="Negate the setting.",
    rule=RULE,
)
