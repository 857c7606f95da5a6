"""The cumulative products of the previous steps are not shifted by one step, or shifted the wrong way.

What you see
    A diffusion model learns as it should, its noise loss is good, and still its samples are too noisy or collapse. The
    formula of the posterior looks like the one in the paper.

Why it happens
    The posterior of step t needs the cumulative product of step t - 1, and the one before the first step is 1. So the 1
    belongs in front of the others. ``F.pad(bar[:-1], (0, 1), value=1.0)`` appends it instead: everything stays at its
    place, and the last entry is 1. The two numbers of ``pad`` count what is added before and after.

Fix
    Put the 1 in front of all but the last product.

        previous = F.pad(alphas_cumprod[:-1], (1, 0), value=1.0)
        previous = torch.cat([torch.ones(1), alphas_cumprod[:-1]])  # the same

When this is fine
    - The products of the next steps, which end with 0: ``torch.cat([alphas_cumprod[1:], torch.zeros(1)])``.
    - Products that run from the end to the start, made with ``flip``.
    - A table with one entry more than there are steps.

How it is detected
    Only the linter finds it: a result of ``cumprod`` without its last or first item is joined with a 1 by ``pad``,
    ``cat``, ``append`` and the like, and the 1 is at the end, or takes the place of the first item.

References
    Ho et al., "Denoising Diffusion Probabilistic Models", 2020, equation 7, arXiv:2006.11239
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, integer
from trueloop.failures.failure import Failure, Rule, Severity, changed

_JOINS: Final = frozenset(("cat", "concat", "concatenate", "hstack", "append"))
_NEW: Final = frozenset(("ones", "tensor", "array", "new_ones", "asarray", "as_tensor"))
_REVERSED: Final = re.compile(r"flip|\[::-1\]|revers")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each cumulative product that is joined with a 1 at the wrong side."""
    for call in source.all_calls:
        parts = _padded(call) if last_name(call.func) == "pad" else _joined(call)
        for products, is_one_in_front in parts:
            drops_first = _drops_first(products)
            if (
                drops_first is None
                or (is_one_in_front and not drops_first)
                or _REVERSED.search(ast.unparse(source.statement_of(call)))
            ):
                continue
            if not _is_cumulative(source, products.value) or _replaces_itself(source, call, products.value):
                continue
            what = "replaces the first one" if is_one_in_front else "is behind them"
            yield Hit(
                message=f"`{ast.unparse(call)}` should hold the products of the previous steps, but the 1 {what}: put "
                f"it in front of `{ast.unparse(products.value)}[:-1]`.",
                node=call,
            )


def _padded(call: ast.Call) -> Iterator[tuple[ast.Subscript, bool]]:
    """Yield the part that ``F.pad(part, (1, 0), value=1.0)`` gets, and whether the 1 is added in front of it."""
    pads, value = argument_node(call, "pad", 1), argument_node(call, "value", 3)
    match call.args[:1], pads, value:
        case (
            [ast.Subscript() as part],
            ast.Tuple(elts=[before, after]) | ast.List(elts=[before, after]),
            ast.Constant(value=1 | 1.0),
        ) if {integer(before), integer(after)} == {0, 1}:
            yield part, integer(before) == 1
        case _:
            pass


def _joined(call: ast.Call) -> Iterator[tuple[ast.Subscript, bool]]:
    """Yield the part that ``torch.cat([torch.ones(1), part])`` joins with a 1, and whether the 1 is in front."""
    if last_name(call.func) not in _JOINS:
        return
    match call.args[:2]:
        case [ast.Tuple(elts=[first, second]) | ast.List(elts=[first, second]), *_] | [first, second]:
            if isinstance(second, ast.Subscript) and _is_one(first):
                yield second, True
            elif isinstance(first, ast.Subscript) and _is_one(second):
                yield first, False
        case _:
            pass


def _is_one(node: ast.expr) -> bool:
    """Return True for 1, ``[1.0]``, ``torch.ones(1)`` and ``torch.tensor([1.0])``."""
    match node:
        case ast.Constant(value=1 | 1.0):
            return True
        case ast.List(elts=[inner]) | ast.Tuple(elts=[inner]):
            return _is_one(inner)
        case ast.Call(func=func, args=[inner, *_]):  # torch.ones(1), torch.ones_like(bar[:1])
            is_part = last_name(func) == "ones_like" and isinstance(inner, ast.Subscript)
            return is_part or (last_name(func) in _NEW and _is_one(inner))
        case _:
            return False


def _drops_first(node: ast.Subscript) -> bool | None:
    """Return True for ``x[1:]``, False for ``x[:-1]``, and None for any other part."""
    match node.slice:
        case ast.Slice(lower=lower, upper=None, step=None) if integer(lower) == 1:
            return True
        case ast.Slice(lower=None, upper=upper, step=None) if integer(upper) == -1:
            return False
        case _:
            return None


def _is_cumulative(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a variable that certainly holds a cumulative product, in the order of the steps."""
    made = [each for each in origins(source, node) if isinstance(each, ast.Call)]
    return bool(made) and all(last_name(e.func) == "cumprod" and not _REVERSED.search(ast.unparse(e)) for e in made)


def _replaces_itself(source: SourceFile, call: ast.Call, products: ast.expr) -> bool:
    """Return True for ``bar = cat([ones(1), bar[1:]])``, which sets the first product to 1."""
    targets = getattr(source.statement_of(call), "targets", [])
    return dotted_name(products) in map(dotted_name, targets)


RULE = Rule(required_words=("cumprod", "[:-1]|[1:]", "pad(|cat(|concat|append(|hstack("), find=find)

BAD = """
import torch
import torch.nn.functional as F

betas = torch.linspace(1e-3, 0.1, 50)
bar = torch.cumprod(1 - betas, dim=0)
previous = F.pad(bar[:-1], (0, 1), value=1.0)
deviation = (betas * (1 - previous) / (1 - bar)).sqrt()
print(deviation)
"""

FAILURE = Failure(
    code="LOS075",
    title="The cumulative products of the previous steps are not shifted",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(0, 1)": "(1, 0)"}),
    fix="Put the 1 in front: torch.cat([torch.ones(1), alphas_cumprod[:-1]]).",
    rule=RULE,
)
