"""A sinusoidal positional encoding has other frequencies than intended: its exponent is doubled or has no minus.

What you see
    The model trains, but the encoding tells positions apart worse than it should. With a doubled exponent, half of its
    columns hardly change within 10,000 positions. With a missing minus, neighbouring positions get unrelated numbers.

Why it happens
    The formula of the paper has 2i in the exponent, where i counts pairs of columns: ``10000 ** (2 * i / d)`` for
    columns 2i and 2i + 1. A loop ``for i in range(0, d, 2)`` counts columns, so its i is the 2i of the paper. Doubled
    once more, the exponent goes from 0 to 2 rather than to 1. Written with ``exp``, the frequencies need a minus, or a
    division of the position by them.

Fix
    Let the exponent go from 0 to 1, and the frequencies fall:

        pe[pos, i] = math.sin(pos / 10000 ** (2 * i / d))  # wrong for i in range(0, d, 2)
        pe[pos, i] = math.sin(pos / 10000 ** (i / d))  # right

        frequencies = torch.exp(torch.arange(0, d, 2) * (math.log(10000.0) / d))  # wrong
        frequencies = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))  # right

When this is fine
    - The index counts pairs: ``2 * i / d`` for i in ``range(d // 2)``, or ``2 * (i // 2) / d`` for all columns.
    - Frequencies that grow on purpose, as powers of 2 for coordinates.

How it is detected
    Only the linter finds it, in files with a sine and a cosine: a power of 10,000, or of a variable called base, theta
    or temperature, or an ``exp`` with the logarithm of one, whose exponent goes up to 2 at the end of the ``range`` or
    ``arange`` in it; and a sine or cosine of a position times such a number with a positive exponent, or divided by one
    with a negative exponent.

References
    Vaswani et al., "Attention Is All You Need", 2017, section 3.5, https://arxiv.org/abs/1706.03762
"""

import ast
import math
import operator
import re
import zlib
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import known_constant, loops_around, origins, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name
from trueloop.failures.failure import Failure, Rule, Severity, changed

_BASES: Final = re.compile(r"base|theta|temperature|period|timescale|^n$", re.IGNORECASE)
_KEEPING: Final = frozenset((
    "float", "int", "tensor", "as_tensor", "float32", "to", "unsqueeze", "view", "reshape", "double", "expand", "cuda",
    "type", "astype", "numpy", "array", "FloatTensor", "from_numpy", "repeat",
))  # fmt: skip
_MODULES: Final = ("torch", "np", "numpy", "math", "jnp")
_OPERATIONS: Final[dict[type[ast.operator], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.truediv,
}  # fmt: skip
_LOG_BASE: Final = math.log(10_000)
_MIN_BASE: Final = 100
_TOLERANCE: Final = 0.05  # (i + 1) / d and half - 1


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each power with a doubled exponent, and each angle that grows."""
    reported = set[int]()
    for node in source.nodes_of(ast.BinOp, ast.Call):
        if abs(_last_exponent(source, node)) == 2 and id(function_of(source, node)) not in reported:
            reported.add(id(function_of(source, node)))
            yield Hit(
                message=f"The exponent of `{ast.unparse(node)}` goes up to 2, not to 1: the index already counts "
                "columns, so it is not doubled again.",
                node=node,
            )
    for call in source.all_calls:
        angle = call.args[0] if call.args else getattr(call.func, "value", call)  # torch.sin(x), x.sin()
        for each in origins(source, angle, 2) if last_name(call.func) in ("sin", "cos", "sin_", "cos_") else ():
            found = _positive_power(source, each)
            if found is not None and id(found) not in reported:
                reported.add(id(found))
                yield Hit(
                    message=f"The frequencies grow with the index, up to that of `{ast.unparse(found)}`: a position is "
                    "divided by it, or its exponent needs a minus.",
                    node=found,
                    related=((each, "the angle"),),
                )


def _positive_power(source: SourceFile, angle: ast.expr) -> ast.expr | None:
    """Return the power in an angle ``position * power`` whose exponent rises to 1."""
    if not isinstance(angle, ast.BinOp) or not isinstance(angle.op, ast.Mult | ast.Div):
        return None
    sign = -1 if isinstance(angle.op, ast.Div) else 1
    for side in (angle.right,) if sign < 0 else (angle.left, angle.right):
        values = [(each, _last_exponent(source, each)) for each in origins(source, side, 2)]
        known = [(each, exponent) for each, exponent in values if exponent]
        if known and all(exponent * sign > 0 for _, exponent in known):
            return known[0][0]
    return None


def _last_exponent(source: SourceFile, node: ast.AST) -> int:
    """Return to which of 1, 2, -1 and -2 the exponent of a power goes with the range in it; 0 if to none of these."""
    is_exp = False
    match node:
        case (
            ast.BinOp(op=ast.Pow(), left=base, right=exponent)
            | ast.Call(func=ast.Attribute(attr="power" | "pow"), args=[base, exponent])
            | ast.Call(func=ast.Name(id="pow"), args=[base, exponent])
        ) if _is_base(source, base):
            pass
        case ast.Call(func=ast.Attribute(attr="exp"), args=[exponent]):
            is_exp = True
        case ast.BinOp(op=ast.Div(), left=ast.Constant(), right=power):
            return -_last_exponent(source, power)
        case _:
            return 0
    once, twice = (_end(source, exponent, factor) / (_LOG_BASE if is_exp else 1) for factor in (1, 2))
    is_known = math.isclose(twice, 2 * once, rel_tol=_TOLERANCE) and math.isclose(once, round(once), rel_tol=_TOLERANCE)
    return round(once) if is_known and abs(round(once)) in (1, 2) else 0


def _is_base(source: SourceFile, node: ast.expr) -> bool:
    """Return True for 10000, or a variable that is called base, theta or the like."""
    value = known_constant(source, node)
    return value >= _MIN_BASE if isinstance(value, int | float) else bool(_BASES.search(last_name(node)))


def _end(source: SourceFile, node: ast.expr, factor: int, depth: int = 8) -> float:
    """Return an expression at the end of the range in it, which is multiplied by a factor; NaN if it is unknown.

    Each variable of unknown value has a number of its own, so what is left if all of them cancel does not depend on it.
    """
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_end(source, inner, factor, depth)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATIONS:
            values = [_end(source, each, factor, depth) for each in (left, right)]
            return _OPERATIONS[type(op)](*values) if values[1] else math.nan
        case ast.Call() | ast.Subscript(value=ast.Call()) if depth:
            return _end_of_call(source, node.value if isinstance(node, ast.Subscript) else node, factor, depth - 1)
        case ast.Name() | ast.Attribute() if depth:
            return _end_of_variable(source, node, factor, depth - 1)
        case _:
            return math.nan


def _end_of_call(source: SourceFile, call: Any, factor: int, depth: int) -> float:
    name, owner = last_name(call.func), getattr(call.func, "value", None)
    is_method = isinstance(owner, ast.expr) and dotted_name(owner) not in _MODULES
    kept = owner if is_method else next(iter(call.args), None)
    if name in ("range", "arange") and call.args:
        return factor * _end(source, call.args[min(len(call.args), 2) - 1], factor, depth)
    if name == "log" and isinstance(kept, ast.expr):
        while isinstance(kept, ast.Call) and kept.args:  # torch.log(torch.tensor(10000.0))
            kept = kept.args[0]
        return _LOG_BASE if _is_base(source, kept) else math.nan
    return _end(source, kept, factor, depth) if name in _KEEPING and isinstance(kept, ast.expr) else math.nan


def _end_of_variable(source: SourceFile, node: ast.Name | ast.Attribute, factor: int, depth: int) -> float:
    for loop in loops_around(source, node) if isinstance(node, ast.Name) else ():
        if last_name(loop.target) == last_name(node):
            return _end(source, loop.iter, factor, depth)
    ends = {_end(source, each, factor, depth) for each in possible_values(source, node)}
    known = {each for each in ends if not math.isnan(each)}
    number = 5000.0 + zlib.crc32(last_name(node).encode()) % 4999
    return known.pop() if len(ends) == len(known) == 1 else math.nan if known else number


RULE = Rule(required_words=("sin(|sin_(", "cos(|cos_(", "10000|10_000|1e4|theta|base|temperature|2]|::2"), find=find)

BAD = """
import math

import torch
from torch import nn


class PositionalEncoding(nn.Module):
    def __init__(self, width, positions=50):
        super().__init__()
        table = torch.zeros(positions, width)
        for position in range(positions):
            for i in range(0, width, 2):
                angle = position / 10000 ** (2 * i / width)
                table[position, i], table[position, i + 1] = math.sin(angle), math.cos(angle)
        self.register_buffer("table", table)

    def forward(self, x):
        return x + self.table[: x.shape[1]]


tokens = torch.randint(20, (256, 12))
targets = (tokens[:, 0] > tokens[:, -1]).long()
model = nn.Sequential(nn.Embedding(20, 16), PositionalEncoding(16), nn.Flatten(), nn.Linear(12 * 16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
for step in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(tokens), targets)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL047",
    title="A sinusoidal encoding has wrong frequencies",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"10000 ** (2 * i / width)": "10000 ** (i / width)"}),
    fix="Let the exponent go from 0 to 1: `i / d` for i in range(0, d, 2).",
    rule=RULE,
)
