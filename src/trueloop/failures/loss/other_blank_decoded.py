"""The decoder of a CTC model drops another class than the blank of its loss.

What you see
    The CTC loss falls to a low value, but the character error rate stays high: the texts have a wrong symbol between
    all others, or one symbol never occurs in them.

Why it happens
    A CTC model emits the blank, "no symbol", at most frames. A decoder removes repeated classes and then the blank. The
    blank is class 0 for many programs, and for ``nn.CTCLoss()``, and the last class for others. If the decoder drops
    class 0, but the loss was given ``blank=len(alphabet)``, it drops a symbol and keeps the blanks.

Fix
    Use one variable for both.

        criterion = nn.CTCLoss(blank=blank)
        ids = [k for k, _ in itertools.groupby(path) if k != blank]

When this is fine
    - The decoder also drops the blank, and in addition the padding.
    - The classes are shifted before they are decoded.
    - Losses of the program have different blanks.

How it is detected
    Only the linter finds it: a function that removes repetitions, by a comparison with the previous class, ``groupby``
    or ``unique_consecutive``, keeps what is ``!=`` a class, or skips what is ``==`` to it. That class and the blank of
    each CTC loss must be known: a number, or one that follows from the size of an alphabet, such as ``len(chars)``, and
    so is not 0.

References
    Graves et al., "Connectionist Temporal Classification", 2006, https://doi.org/10.1145/1143844.1143891
    torch.nn.CTCLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CTCLoss.html
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.loop_invariance import names_in
from trueloop.analysis.queries.batch_loops import assigned_in, assigned_pairs, function_of
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import default_of, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_COLLAPSING: Final = frozenset(("groupby", "unique_consecutive"))
_LAST: Final = -1
"""Stands for a class whose number follows from the size of an alphabet."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each comparison by which a decoder drops a class that is not the blank of the loss."""
    losses = [each for each in source.all_calls if last_name(each.func) in ("CTCLoss", "ctc_loss")]
    blanks = {_blank_of(source, each) for each in losses}
    blank = blanks.pop() if len(blanks) == 1 else None
    if blank is None:
        return
    for node, dropped in _dropped(source):
        number = _number(source, dropped)
        if number is not None and number != blank and (0 in (number, blank) or _LAST not in (number, blank)):
            yield Hit(
                message=f"`{ast.unparse(node)}` drops class `{ast.unparse(dropped)}`, but the blank of the CTC loss is "
                f"{'the class behind all symbols' if blank == _LAST else blank}: the decoder keeps the blanks, and "
                "never returns one of the symbols.",
                node=node,
                related=((losses[0], "the blank of the loss"),),
            )


def _blank_of(source: SourceFile, call: ast.Call) -> int | None:
    blank = argument_node(call, "blank", 0 if last_name(call.func) == "CTCLoss" else 4)
    return 0 if blank is None else _number(source, blank)


def _number(source: SourceFile, node: ast.expr) -> int | None:
    """Return the number of a class, or that it follows from the size of an alphabet; None if it is unknown."""
    values = list(origins(source, node))
    default = default_of(source, node)
    values += origins(source, default) if default is not None and len(values) == 1 else ()
    if isinstance(node, ast.Attribute) and len(values) == 1:  # vocab.blank, which a class of the program assigns
        values += [
            value
            for each in source.nodes_of(ast.Assign)
            for target, value in assigned_pairs(each)
            if isinstance(target, ast.Attribute) and target.attr == node.attr
        ]
    found = {number for each in values if (number := _known(each)) is not None}
    return found.pop() if len(found) == 1 else None


def _known(node: ast.expr) -> int | None:
    match node:
        case ast.Call(func=ast.Name(id="len")):
            return _LAST
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=ast.Call(func=ast.Name(id="len")), right=ast.Constant()):
            return _LAST
        case _:
            number = integer(node)
            return number if number is not None and number >= 0 else None


def _dropped(source: SourceFile) -> Iterator[tuple[ast.Compare, ast.expr]]:
    """Yield each ``k != blank`` of a function that collapses repetitions, with the class that is dropped."""
    found: dict[tuple[int, str], list[ast.Compare]] = {}
    for each in source.nodes_of(ast.Compare):
        operator, statement = each.ops[0], source.statement_of(each)
        skips = isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Continue)
        if len(each.ops) == 1 and (isinstance(operator, ast.NotEq) or (skips and isinstance(operator, ast.Eq))):
            found.setdefault((id(function_of(source, each)), ast.unparse(each.left)), []).append(each)
    for compares in found.values():
        repeated = [each for each in compares if _is_previous(source, each)]
        others = [each for each in compares if each not in repeated]
        if len(others) == 1 and (repeated or _collapses(source, others[0])):
            yield others[0], others[0].comparators[0]


def _is_previous(source: SourceFile, compare: ast.Compare) -> bool:
    """Return True for ``k != previous``, where ``previous = k`` stands in the loop, and for ``k != row[i - 1]``."""
    left, right = ast.unparse(compare.left), compare.comparators[0]
    if isinstance(right, ast.Subscript):
        return isinstance(right.slice, ast.BinOp) and isinstance(right.slice.op, ast.Sub)
    values = assigned_in(function_of(source, compare), right.id) if isinstance(right, ast.Name) else []
    return left in map(ast.unparse, values)


def _collapses(source: SourceFile, compare: ast.Compare) -> bool:
    """Return True if the compared classes come from a call that removes repetitions."""
    names, function = names_in(compare.left), function_of(source, compare)
    pairs: list[tuple[Any, Any]] = [(e.target, e.iter) for e in nodes_in(function, ast.For, ast.comprehension)]
    pairs += [(target, each.value) for each in nodes_in(function, ast.Assign) for target in each.targets]
    made = [value for target, value in pairs if names & names_in(target)]
    return any(last_name(call.func) in _COLLAPSING for value in made for call in nodes_in(value, ast.Call))


RULE = Rule(required_words=("CTCLoss|ctc_loss", "!=|=="), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
alphabet = "abcdef"
criterion = nn.CTCLoss(blank=len(alphabet))


def decode(path):
    ids, previous = [], None
    for k in path:
        if k != previous and k != 0:
            ids.append(k)
        previous = k
    return ids


scores = torch.randn(12, 16, len(alphabet) + 1).log_softmax(2)
targets = torch.randint(len(alphabet), (16, 4))
print(criterion(scores, targets, torch.full((16,), 12), torch.full((16,), 4)))
print(decode(scores.argmax(2)[:, 0].tolist()))
"""

FAILURE = Failure(
    code="LOS076",
    title="The CTC decoder drops another class than the blank",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"k != 0": "k != len(alphabet)"}),
    fix="Use the blank of the loss in the decoder, too.",
    rule=RULE,
)
