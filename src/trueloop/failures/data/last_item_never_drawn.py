"""The last item of a list is never drawn: the upper bound of the random index is exclusive, and one is subtracted.

What you see
    Nothing, or one sample, file or class less than there should be. A list of two items gives always the first one, so
    pairs of a person with two pictures never contain the second.

Why it happens
    ``random.randint(0, n)`` of Python includes ``n``. ``np.random.randint(0, n)``, ``rng.integers(n)``,
    ``torch.randint(n, size)`` and ``random.randrange(n)`` do not, so ``len(x) - 1`` as their bound leaves out the last
    index.

Fix
    Pass the length:

        i = np.random.randint(0, len(files))

When this is fine
    - The item after the drawn one is used as well: ``x[i]`` and ``x[i + 1]``.
    - The number is moved past an index that may not be drawn: ``if j >= i: j += 1``.
    - ``random.randint(0, len(x) - 1)`` includes its upper bound.

How it is detected
    Only the linter finds it, from the source code: such a call with the bound ``len(x) - 1`` or ``x.shape[0] - 1``,
    whose result, directly or as a variable, is used for nothing but to index ``x`` and to be compared.

References
    numpy.random.randint, https://numpy.org/doc/stable/reference/random/generated/numpy.random.randint.html
    torch.randint, https://docs.pytorch.org/docs/stable/generated/torch.randint.html
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_EXCLUSIVE: Final = frozenset(("numpy.random.randint", "np.random.randint", "torch.randint", "random.randrange"))
_OWNERS: Final = frozenset(("rng", "generator", "rand", "random_state", "gen"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each random index that is drawn below the length minus one."""
    for call in source.all_calls:
        bound = _bound(call) if _is_exclusive(source, call) else None
        subject = _shortened(source, bound) if bound is not None else None
        if bound is not None and subject is not None and _only_indexes(source, call, subject):
            yield Hit(
                message=f"`{ast.unparse(call)}` never draws the last index of `{subject}`: its upper bound is "
                "exclusive.",
                node=call,
                fix=_fix(source, bound),
            )


def _is_exclusive(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a function that draws integers below its upper bound."""
    if source.qualified_name(call.func) in _EXCLUSIVE or ast.unparse(call.func) in _EXCLUSIVE:
        return True
    owner = getattr(call.func, "value", None)
    includes = any(each.arg == "endpoint" for each in call.keywords)
    return last_name(call.func) == "integers" and last_name(owner).lower() in _OWNERS and not includes


def _bound(call: ast.Call) -> ast.expr | None:
    """Return the upper bound of a range of integers that begins at 0; None for other ranges."""
    given = {each.arg: each.value for each in call.keywords}
    low = call.args[0] if call.args else given.get("low")
    high = given.get("high") or (call.args[1] if len(call.args) > 1 else None)
    if high is None or isinstance(high, ast.Tuple | ast.List):  # torch.randint(n, size)
        return low
    is_whole = low is None or integer(low) == 0
    return high if is_whole else None


def _shortened(source: SourceFile, bound: ast.expr) -> str | None:
    """Return the text of ``x`` for a bound ``len(x) - 1``, also in a variable."""
    for each in origins(source, bound, 2):
        match each:
            case ast.BinOp(op=ast.Sub(), right=ast.Constant(value=1), left=length):
                pass
            case _:
                continue
        match length:
            case ast.Call(func=ast.Name(id="len"), args=[subject]):
                return ast.unparse(subject)
            case ast.Subscript(value=ast.Attribute(attr="shape", value=subject), slice=ast.Constant(value=0)):
                return ast.unparse(subject)
            case ast.Call(func=ast.Attribute(attr="size", value=subject), args=[ast.Constant(value=0)]):
                return ast.unparse(subject)
            case _:
                return None
    return None


def _only_indexes(source: SourceFile, call: ast.Call, subject: str) -> bool:
    """Return True if a drawn number is used as an index of its list, and for nothing else but comparisons."""
    parent = source.parents.get(id(call))
    if not isinstance(parent, ast.Assign):
        return _indexed(source, call) == subject
    target = parent.targets[0]
    if len(parent.targets) != 1 or not isinstance(target, ast.Name):
        return False
    names = [each for each in nodes_in(function_of(source, call), ast.Name) if each.id == target.id]
    reads = [each for each in names if isinstance(each.ctx, ast.Load)]
    indexed = [_indexed(source, each) for each in reads]
    stored = [each for each in names if not isinstance(each.ctx, ast.Load)]
    is_moved = any(not isinstance(source.statement_of(each), ast.Assign) for each in stored)
    compared = [isinstance(source.parents.get(id(each)), ast.Compare) for each in reads]
    return subject in indexed and not is_moved and all(a or b for a, b in zip(indexed, compared, strict=True))


def _indexed(source: SourceFile, node: ast.expr) -> str:
    """Return the text of ``x`` for the index of ``x[i]`` or ``x.iloc[i]``; "" for other uses."""
    parent: Any = source.parents.get(id(node))
    if not isinstance(parent, ast.Subscript) or parent.slice is not node:
        return ""
    return ast.unparse(parent.value).removesuffix(".iloc").removesuffix(".values")


def _fix(source: SourceFile, bound: ast.expr) -> Fix | None:
    """Return the fix that passes the length; None if the bound is a variable."""
    if not isinstance(bound, ast.BinOp):
        return None
    edit = source.text.replace(bound, source.text.segment(bound.left))
    return Fix((edit,), safe=False, description="Draw the last index too")


RULE = Rule(required_words=("randint(|integers(|randrange(", "len(|.shape[0]|.size(0)", "- 1|-1"), find=find)

BAD = """
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
faces = [torch.randn(2, 8) + 3 * person for person in range(4)]  # two pictures of each person
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(40):
    people = np.random.randint(0, 4, size=16)
    pictures = torch.stack([faces[person][np.random.randint(0, len(faces[person]) - 1)] for person in people])
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(pictures), torch.as_tensor(people)).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="DAT058",
    title="The last item is never drawn",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"len(faces[person]) - 1": "len(faces[person])"}),
    fix="Pass the length as the upper bound: np.random.randint(0, len(x)).",
    rule=RULE,
)
