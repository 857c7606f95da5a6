"""Teacher forcing is the wrong way round: with the given probability the decoder gets its own prediction.

What you see
    With a ratio near 1 the training is slow and unstable, like training without it, and a smaller ratio makes
    the training loss better. A ratio that falls during training, as planned, leads to more correct tokens, not fewer:
    the training loss is good at the end, and the sequences that the model generates on its own are bad.

Why it happens
    The teacher forcing ratio is the probability with which the decoder reads the correct token of the previous step.
    With exchanged branches, or ``>`` instead of ``<``, it is the probability of its own prediction. Both tokens have
    the same shape.

Fix
    Give the target in the branch that the ratio selects:

        use_teacher = random.random() < teacher_forcing_ratio
        token = target[:, t] if use_teacher else logits.argmax(1)

When this is fine
    - The number is the probability of the decoder's own prediction, as in scheduled sampling, and is called so.
    - Comparison and branches are both exchanged: ``random.random() > ratio`` selects the prediction.

How it is detected
    Only the linter finds it, from the source code: a random number compared with a teacher forcing ratio, or a flag
    called teacher forcing, that selects between the target and a prediction in an ``if``, a conditional expression,
    ``torch.where`` or a sum of two products with a mask. A prediction comes from ``argmax``, ``topk`` or a similar
    call or from a call of a layer, a target is an item of a parameter or is called so.

References
    Williams and Zipser, 1989, "A learning algorithm for continually running fully recurrent neural networks",
    https://doi.org/10.1162/neco.1989.1.2.270
    Bengio et al., 2015, "Scheduled sampling for sequence prediction with recurrent neural networks", arXiv:1506.03099
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.method_chains import without_methods
from trueloop.analysis.queries.possible_values import origins, unpacked_call
from trueloop.analysis.queries.signed_terms import factors
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TEACHER: Final = re.compile(
    r"teacher|forcing_?(ratio|prob|rate)|(^|_)tf_?(ratio|prob|rate)|^(use_)?tf$|force_teacher", re.IGNORECASE
)
_FLAG: Final = re.compile(r"teacher_?forc|force_?teacher|^(use_)?tf$", re.IGNORECASE)
_OTHER: Final = re.compile(r"(^|_)(no|not|non|without|free|disable|own|self)(_|$)|sampl|student", re.IGNORECASE)
_UNIFORM: Final = frozenset(("random", "rand", "uniform", "rand_like", "random_sample"))
_PICKS: Final = frozenset(("argmax", "topk", "multinomial", "sample", "gumbel_softmax", "max", "softmax", "predict"))
_TARGET: Final = re.compile(r"target|trg|tgt|label|truth|gold|(^|_)(ys?|gt)(_|$|\d)", re.IGNORECASE)
_OWN: Final = re.compile(r"pred|out|top|best|generat|logit|hat(_|$)|(^|_)own", re.IGNORECASE)
_CONVERSIONS: Final = frozenset(
    ("float", "bool", "to", "unsqueeze", "view", "item", "expand", "reshape", "expand_as", "long", "int")
)
_MAX_DEPTH: Final = 4


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each choice that gives the decoder its own prediction where it should get the target."""
    for node in source.nodes_of(ast.If, ast.IfExp, ast.Call, ast.BinOp):
        for test, chosen, other in _choices(source, node):
            forces = _forces(source, test, _MAX_DEPTH)
            first, second = (chosen, other) if forces else (other, chosen)
            if forces is None or _kind(source, first) != "own" or _kind(source, second) != "target":
                continue
            yield Hit(
                message=f"With teacher forcing the decoder gets its own prediction `{ast.unparse(first)}`, and without "
                f"it the target `{ast.unparse(second)}`: the two are exchanged.",
                node=test,
                related=((first, "its own prediction"), (second, "the target")),
            )
            break


def _choices(source: SourceFile, node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """Yield test, the value that is selected if it is true, and the other value."""
    match node:
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield test, body, orelse
        case ast.Call(func=ast.Attribute(attr="where"), args=[test, body, orelse]):
            yield test, body, orelse
        case ast.BinOp(op=ast.Add(), left=ast.BinOp(op=ast.Mult()) as left, right=ast.BinOp(op=ast.Mult()) as right):
            first, second = factors(left)[1], factors(right)[1]
            for mask, body in (first, first[::-1]) if len(first) == len(second) == 2 else ():
                for inverse, orelse in (second, second[::-1]):
                    inner = _inverted(inverse)
                    if inner is not None and ast.unparse(inner) == ast.unparse(mask):
                        yield mask, body, orelse
        case ast.If(test=test, body=body):
            chosen, other = _stored(body), _stored(node.orelse)
            if not node.orelse:
                other = _around(source, node, chosen)
            yield from ((test, value, other[name]) for name, value in chosen.items() if name in other)
        case _:
            pass


def _stored(statements: Sequence[ast.stmt]) -> dict[str, ast.expr]:
    """Return what statements store in variables or return, by name."""
    found: dict[str, ast.expr] = {}
    for statement in statements:
        for each in nodes_in(statement, ast.Assign, ast.Return, ast.Expr):
            match each:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    found[name] = value
                case ast.Return(value=ast.expr() as value):
                    found["return"] = value
                case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append", value=ast.Name(id=name)), args=[value])):
                    found[f"{name}.append"] = value
                case _:
                    pass
    return found


def _around(source: SourceFile, node: ast.If, chosen: dict[str, ast.expr]) -> dict[str, ast.expr]:
    """Return what is stored before an ``if`` without ``else`` that replaces it, or is returned after it."""
    block = source.block(node)
    position = block.index(node) if node in block else 0
    before = [each for each in block[:position] if isinstance(each, ast.Assign)]
    after = [each for each in block[position + 1 :] if isinstance(each, ast.Return)]
    return {name: value for name, value in {**_stored(before), **_stored(after[:1])}.items() if name in chosen}


def _inverted(node: ast.expr) -> ast.expr | None:
    """Return x of ``not x``, ``~x`` and ``1 - x``; None for other expressions."""
    match node:
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=inner):
            return inner
        case ast.BinOp(op=ast.Sub(), left=ast.Constant(value=1 | 1.0), right=inner):
            return inner
        case _:
            return None


def _forces(source: SourceFile, test: ast.expr, depth: int) -> bool | None:
    """Return True for a condition that is true with the teacher forcing ratio, False with the rest, None for others."""
    inner = _inverted(test)
    if inner is not None:
        found = _forces(source, inner, depth)
        return None if found is None else not found
    found: bool | None = None
    match test:
        case ast.BoolOp(values=values):
            results = [each for value in values if (each := _forces(source, value, depth)) is not None]
            found = results[0] if len(results) == 1 else None
        case ast.IfExp(test=condition, body=ast.Constant(value=bool() as value), orelse=ast.Constant(value=bool())):
            found = _forces(source, condition, depth)
            found = found if value or found is None else not found
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            found = _compares(left, operator, right)
        case ast.Call(func=ast.Attribute(attr=name, value=inner)) if name in _CONVERSIONS:
            found = _forces(source, inner, depth)
        case ast.Call(args=[probability, *_]) if last_name(test.func) == "bernoulli":
            is_plain = not nodes_in(probability, ast.Sub)
            found = True if is_plain and any(map(_is_ratio, nodes_in(probability, ast.Name, ast.Attribute))) else None
        case ast.Name() | ast.Attribute():
            found = _flag(source, test, depth)
        case _:
            pass
    return found


def _flag(source: SourceFile, test: ast.Name | ast.Attribute, depth: int) -> bool | None:
    """Return what a variable stands for: that which its condition does, or teacher forcing if it is called so."""
    for value in list(origins(source, test, 2))[1:] if depth else ():
        if isinstance(value, ast.Compare | ast.IfExp | ast.BoolOp | ast.Call | ast.UnaryOp):
            found = _forces(source, value, depth - 1)
            if found is not None or isinstance(value, ast.Compare):
                return found
    return True if _is_ratio(test) and _FLAG.search(last_name(test)) else None


def _compares(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool | None:
    """Return True for ``random() < ratio``, False for ``random() > ratio``, None for other comparisons."""
    is_less = isinstance(operator, ast.Lt | ast.LtE)
    if not is_less and not isinstance(operator, ast.Gt | ast.GtE):
        return None
    if _is_uniform(right):
        left, right, is_less = right, left, not is_less
    inner = _inverted(right)
    if not _is_uniform(left) or not _is_ratio(right if inner is None else inner):
        return None
    return is_less if inner is None else not is_less


def _is_uniform(node: ast.expr) -> bool:
    node = without_methods(node, _CONVERSIONS)
    return isinstance(node, ast.Call) and last_name(node.func) in _UNIFORM


def _is_ratio(node: ast.expr) -> bool:
    name = last_name(node)
    return bool(_TEACHER.search(name)) and not _OTHER.search(name)


def _kind(source: SourceFile, node: ast.expr, depth: int = _MAX_DEPTH) -> str:
    """Return "own" for a prediction, "target" for a target, "" for anything else."""
    parts = list(walk(node))
    if any(_TEACHER.search(each.id) for each in nodes_in(node, ast.Name)):
        return ""  # of a teacher model
    calls = [each for each in parts if isinstance(each, ast.Call)]
    functions = {id(each.func) for each in calls}
    indices = {id(inner) for each in parts if isinstance(each, ast.Subscript) for inner in walk(each.slice)}
    read = [e for e in parts if isinstance(e, ast.Name) and id(e) not in functions | indices and e.id not in _MODULES]
    kinds = {_kind_of_name(source, each, depth) for each in read}
    if "target" in kinds:
        return "" if "own" in kinds else "target"
    return "own" if "own" in kinds or any(last_name(each.func) in _PICKS for each in calls) else ""


_MODULES: Final = frozenset(("self", "torch", "F", "nn", "np"))


def _kind_of_name(source: SourceFile, name: ast.Name, depth: int) -> str:
    """Return the kind of a variable: of what it is computed from, or else what its name says."""
    function = function_of(source, name)
    values = assigned_in(function, name.id)
    unpacked = unpacked_call(source, name)
    made: list[Any] = [*values, *([unpacked] if unpacked is not None else [])]
    parameters = {each.arg for each in nodes_in(function, ast.arg)}
    if not made and name.id in parameters and isinstance(source.parents.get(id(name)), ast.Subscript):
        return "target"
    picked = [each for each in made if any(last_name(e.func) in _PICKS for e in nodes_in(each, ast.Call))]
    if picked and depth:
        return _kind(source, picked[-1], depth - 1)
    if _OWN.search(name.id):
        return "own"
    if _TARGET.search(name.id):
        return "target"
    before = [each for each in made if each.lineno <= name.lineno]
    if any(isinstance(each, ast.Call) and _is_layer_call(each) for each in before):
        return "" if name.id in parameters else "own"
    kinds = {_kind(source, each, depth - 1) for each in before} if depth else set[str]()
    return kinds.pop() if len(kinds) == 1 else ""


def _is_layer_call(call: ast.Call) -> bool:
    """Return True for ``self.out(h)`` and ``decoder(x)``, not for ``torch.zeros(3)`` or ``x.view(-1)``."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="self")):
            return True
        case ast.Name(id=name):
            return bool(re.search(r"decod|model|net|rnn|cell|head|fc", name, re.IGNORECASE))
        case _:
            return False


RULE = Rule(
    required_words=(
        "teacher|Teacher|forcing|tf_",
        "torch",
        "argmax|topk|max(|multinomial|sample(|self.",
        "rand|teacher",
    ),
    find=find,
)

BAD = """
import random
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(20, 16), nn.GRUCell(16, 32), nn.Linear(32, 20)

    def forward(self, state, target, teacher_forcing_ratio=0.9):
        token, steps = torch.zeros(len(state), dtype=torch.long), []
        for t in range(target.shape[1]):
            state = self.cell(self.embed(token), state)
            logits = self.head(state)
            steps.append(logits)
            use_teacher = random.random() < teacher_forcing_ratio
            token = logits.argmax(1) if use_teacher else target[:, t]
        return torch.stack(steps, 1)


random.seed(0)
torch.manual_seed(0)
encoder, decoder = nn.Sequential(nn.Linear(8, 32), nn.Tanh()), Decoder()
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.003)
inputs, targets = torch.randn(256, 8), torch.randint(1, 20, (256, 6))
for epoch in range(3):
    for rows in torch.randperm(256).split(32):
        scores = decoder(encoder(inputs[rows]), targets[rows])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), targets[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="LOS056",
    title="Teacher forcing is the wrong way round",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD, {"logits.argmax(1) if use_teacher else target[:, t]": "target[:, t] if use_teacher else logits.argmax(1)"}
    ),
    fix="Give the decoder the target if the random number is less than the teacher forcing ratio.",
    rule=RULE,
)
