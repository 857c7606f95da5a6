"""Unix time stamps become float32, which rounds them to multiples of 128 seconds, before phases or differences.

What you see
    A model that gets the phase of a cycle, or the time between two events, learns little. Features that should change
    smoothly are constant for two minutes and then jump. No error is raised.

Why it happens
    A float32 has 24 bits of precision. Unix time is about 1.7e9 seconds, above 2**30, so neighbouring numbers differ by
    128: all seconds within two minutes become one number. A later conversion to float64 does not restore them.

Fix
    Compute phases and differences in float64 or in integers, and convert the small results:

        t = torch.tensor(stamps, dtype=torch.float64)
        phase = (t % 300 / 300).float()
        elapsed = torch.tensor(stamps - stamps[0], dtype=torch.float32)

When this is fine
    - The start was subtracted before the conversion.
    - Features of a day or longer, where two minutes do not matter, and a trend that is scaled to unit variance.
    - Time stamps that are only stored or printed.

How it is detected
    Only the linter finds it, from the source code: a conversion to float32 of a value that is a sum with a number from
    1e9 to 2.2e9, the result of ``timestamp()`` or ``time.time()``, or a column called unix, whose result goes into a
    remainder, a sine or cosine, a floor division, or a difference with another time. A period of half a day or more,
    and a difference with a mean, minimum or maximum are not reported.

References
    torch.finfo, https://docs.pytorch.org/docs/stable/type_info.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

MIN_STAMP: Final = 1e9  # 2001 in seconds
MAX_STAMP: Final = 2.2e9  # 2039
LONG_PERIOD_S: Final = 43_200
_CREATING: Final = frozenset(("tensor", "as_tensor", "array", "asarray", "FloatTensor", "float32", "Tensor"))
_CASTING: Final = frozenset(("to", "astype", "type"))
_SAME_VALUES: Final = frozenset((
    "sort", "sorted", "array", "asarray", "tensor", "as_tensor", "from_numpy", "list", "stack", "cat", "concatenate",
    "to_numpy", "numpy", "reshape", "view", "flatten", "unsqueeze", "squeeze", "float", "double", "int", "copy", "full",
    "arange", "linspace", "integers", "randint", "uniform", "repeat", "expand", "contiguous", "ravel", "round", "floor",
    "cumsum", "astype", "to", "long", "hstack", "tolist",
))  # fmt: skip
"""Functions whose result is of the size of their object or first argument."""
_CYCLES: Final = frozenset(("remainder", "fmod", "mod", "sin", "cos", "diff", "floor_divide", "divmod"))
_OFFSETS: Final = re.compile(r"mean|min|max|median|\[0\]")
_MAX_DEPTH: Final = 8


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each conversion of time stamps to float32 whose result goes into a phase or a difference."""
    for call in source.all_calls:
        operand = _converted(source, call)
        if operand is None or not _is_stamp(source, operand):
            continue
        use = next(_uses(source, call), None)
        if use is not None:
            yield Hit(
                message=f"`{ast.unparse(call)[:80]}` rounds Unix time to multiples of 128 seconds, and "
                f"`{ast.unparse(use)[:80]}` is computed from the rounded numbers. Compute it in float64 first.",
                node=call,
                related=((use, "computed from rounded times"),),
            )


def _converted(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return what a call converts to float32; None for other calls."""
    func, name = call.func, last_name(call.func)
    given = [*call.args, *(each.value for each in call.keywords)]
    if name in _CREATING and call.args:
        return call.args[0] if name in ("FloatTensor", "float32", "Tensor") or _names_float32(given) else None
    if not isinstance(func, ast.Attribute):
        return None
    is_cast = (name == "float" and not given) or (
        name in _CASTING and (_names_float32(given) or "torch.float" in map(ast.unparse, given))
    )
    return func.value if is_cast else None


def _names_float32(arguments: list[ast.expr]) -> bool:
    return any("float32" in ast.unparse(each) or last_name(each) == "FloatTensor" for each in arguments)


def _is_stamp(source: SourceFile, node: ast.expr, depth: int = _MAX_DEPTH) -> bool:
    """Return True for a value of the size of a Unix time."""
    match node:
        case ast.Constant(value=int() | float() as value):
            found = MIN_STAMP <= value < MAX_STAMP
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            found = _is_stamp(source, left, depth) or _is_stamp(source, right, depth)
        case ast.Call():
            found = _is_stamp_call(source, node, depth)
        case ast.Name() | ast.Attribute() if last_name(node) != "values":
            values = possible_values(source, node) if depth else []
            found = bool(values) and all(_is_stamp(source, each, depth - 1) for each in values)
        case _:
            parts = _parts(node)
            found = bool(parts) and all(_is_stamp(source, each, depth) for each in parts)
    return found or _is_unix_column(node)


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the expressions whose size an item, a part or a list of values has."""
    match node:
        case ast.BinOp(op=ast.Sub(), left=left, right=ast.Constant(value=int() | float() as value)):
            return [left] if value < MIN_STAMP else []
        case ast.Subscript(value=inner, slice=index):
            return [] if isinstance(getattr(index, "value", None), str) else [inner]
        case ast.ListComp(elt=inner) | ast.Starred(value=inner) | ast.Attribute(value=inner):
            return [inner]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return elements
        case _:
            return []


def _is_unix_column(node: ast.expr) -> bool:
    """Return True for ``table["unix_time"]``."""
    index = node.slice if isinstance(node, ast.Subscript) else None
    return isinstance(index, ast.Constant) and isinstance(index.value, str) and "unix" in index.value.lower()


def _is_stamp_call(source: SourceFile, call: ast.Call, depth: int) -> bool:
    func, name = call.func, last_name(call.func)
    if name == "timestamp" or (name == "time" and ast.unparse(func) == "time.time"):
        return True
    found = possible_values(source, call) if depth else []
    if found:
        return all(_is_stamp(source, each, depth - 1) for each in found)
    if name not in _SAME_VALUES:
        return False
    inner: list[ast.expr] = call.args[1:2] if name == "full" else call.args[:1]
    if isinstance(func, ast.Attribute):
        inner = [func.value, *inner]
    return any(_is_stamp(source, each, depth) for each in inner)


def _uses(source: SourceFile, converted: ast.expr) -> Iterator[ast.expr]:
    """Yield the phases and differences that are computed from a converted value, or from its variable."""
    queue: list[ast.expr] = [converted]
    statement = source.statement_of(converted)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and dotted_name(statement.targets[0]):
        name, function = dotted_name(statement.targets[0]), function_of(source, converted)
        kinds = ast.Name, ast.Attribute
        read = [
            each for each in nodes_in(function, *kinds) if dotted_name(each) == name and each.lineno > statement.lineno
        ]
        queue += [each for each in read if isinstance(each.ctx, ast.Load) and _still_is(source, each, statement.value)]
    for node in queue:
        parent: Any = source.parents.get(id(node))
        child: Any = node
        while isinstance(parent, ast.expr | ast.keyword):
            if isinstance(parent, ast.expr) and _needs_precision(source, parent, child):
                yield parent
            child, parent = parent, source.parents.get(id(parent))


def _still_is(source: SourceFile, node: ast.expr, value: ast.expr) -> bool:
    found = possible_values(source, node)
    return not found or any(each is value for each in found)


def _needs_precision(source: SourceFile, node: ast.expr, part: ast.expr) -> bool:
    """Return True for a remainder, a sine or a difference of times, of a period below half a day."""
    match node:
        case ast.BinOp(op=ast.Mod() | ast.FloorDiv(), left=left, right=right):
            return left is part and not _is_long(source, right)
        case ast.BinOp(op=ast.Sub(), left=left, right=right):
            other = right if left is part else left
            is_time = isinstance(other, ast.Name | ast.Attribute | ast.Subscript)
            return is_time and not _OFFSETS.search(ast.unparse(node)) and not isinstance(part, ast.BinOp)
        case ast.Call() if last_name(node.func) in _CYCLES and (part in node.args or part is node.func):
            others = [each for each in node.args if each is not part] if part in node.args else list(node.args)
            inside = [e for e in walk(part) if isinstance(e, ast.Constant | ast.Name)]
            return not any(_is_long(source, each) for each in (*others, *inside))
        case _:
            return False


def _is_long(source: SourceFile, node: ast.AST) -> bool:
    """Return True for a number of at least half a day in seconds."""
    values = [node, *(possible_values(source, node) if isinstance(node, ast.Name | ast.Attribute) else [])]
    for each in values:
        if isinstance(each, ast.BinOp):
            numbers = [e.value for e in nodes_in(each, ast.Constant) if isinstance(e.value, int | float)]
            product = 1.0
            for number in numbers:
                product *= number
            if isinstance(each.op, ast.Mult) and LONG_PERIOD_S <= product < MIN_STAMP:
                return True
        value = getattr(each, "value", None) if isinstance(each, ast.Constant) else None
        if isinstance(value, int | float) and LONG_PERIOD_S <= value < MIN_STAMP:
            return True
    return False


_STAMP: Final = re.compile(r"\b1[\d_]{9,}\b|\b[12]\.?\d*e9")


def _has_time(text: str) -> bool:
    """Return True for a text with a number as large as a Unix time, or with a word for one."""
    text = text.lower()
    return any(word in text for word in ("timestamp()", "time.time()", "unix")) or _STAMP.search(text) is not None


RULE = Rule(
    required_words=(
        "float32|.float()|FloatTensor|torch.Tensor(|torch.float",
        "%|remainder|fmod|sin(|cos(|diff(| - |//|divmod|.mod(",
        "torch",
        _has_time,
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
stamps = 1_700_000_000 + torch.randint(0, 86_400, (512,)).sort().values
power = torch.sin(2 * torch.pi * (stamps % 300) / 300)
t = torch.tensor(stamps.tolist(), dtype=torch.float32)
angle = 2 * torch.pi * (t % 300) / 300
x = torch.stack([angle.sin(), angle.cos()], dim=1)
model = nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for step in range(50):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x).squeeze(1), power)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="DAT053",
    title="Time stamps are rounded to float32",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "t = torch.tensor(stamps.tolist(), dtype=torch.float32)": (
                "t = torch.tensor(stamps.tolist(), dtype=torch.float64)"
            ),
            "angle.cos()], dim=1)": "angle.cos()], dim=1).float()",
        },
    ),
    fix="Compute phases and differences of time stamps in float64 or integers, and convert the results to float32.",
    rule=RULE,
)
