"""A gradient reversal layer returns the gradient without a minus, so nothing is reversed.

What you see
    The domain classifier of a domain-adversarial network becomes better and better, up to 100 %. The features of source
    and target stay apart, and the accuracy on the target domain is that of a model without adaptation, or worse.

Why it happens
    The layer is the identity in ``forward``, and multiplies the gradient by ``-lambda`` in ``backward``. Without the
    minus it scales the gradient. The features are then trained to help the domain classifier, and every shape is right.

Fix
    Return the negative gradient:

        @staticmethod
        def backward(ctx, grad_output):
            return -ctx.lambd * grad_output, None

When this is fine
    - The factor itself is negative, where it is stored or where ``apply`` is called.
    - The layer scales gradients on purpose, and does not say in its name that it reverses them.
    - A reversible layer, or one that reverses a sequence: its ``forward`` is not the identity.

How it is detected
    Only the linter finds it, from the source code: a class derived from ``torch.autograd.Function`` that is called a
    reversal, whose ``forward`` returns its input and whose ``backward`` returns the gradient with a positive factor; or
    a function called a reversal of gradients that registers such a hook. The signs of factors are followed to where
    they are stored and passed.

References
    Ganin et al., "Domain-Adversarial Training of Neural Networks", 2016, arXiv:1505.07818
    PyTorch, "Extending PyTorch", https://docs.pytorch.org/docs/stable/notes/extending.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import origins, possible_values
from trueloop.analysis.queries.signed_terms import factors
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_REVERSAL: Final = re.compile(
    r"revers|grl|rev_?grad|grad\w*_?(rev|flip|neg|inver)|(neg|flip|inver)\w*_?grad", re.IGNORECASE
)
_SAME_SIGN: Final = frozenset((
    "clone", "view", "view_as", "to", "float", "double", "detach", "contiguous", "reshape", "type_as", "expand_as",
    "half", "cuda", "cpu",
))  # fmt: skip
_OF_ARGUMENT: Final = frozenset(("new_tensor", "tensor", "as_tensor", "float", "abs"))
_MAX_DEPTH: Final = 12


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each reversal of gradients that keeps their sign."""
    for definition in source.nodes_of(ast.ClassDef):
        is_function = any(last_name(each) in ("Function", "InplaceFunction") for each in definition.bases)
        methods = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
        forward, backward = methods.get("forward"), methods.get("backward")
        if not is_function or forward is None or backward is None or not _REVERSAL.search(definition.name):
            continue
        returned = _first_result(backward)
        gradients = {each.arg for each in backward.args.args[1:]}
        is_reversal = _is_identity(source, forward) and returned is not None
        if returned is None or not is_reversal or _sign(source, returned, gradients, _MAX_DEPTH) != 1:
            continue
        if _uses_gradient(source, returned, gradients) and not _has_negative_factor(source, definition, forward):
            yield Hit(
                message=f"`{definition.name}.backward` returns `{ast.unparse(returned)}`, with the sign of the "
                "gradient that it gets: nothing is reversed.",
                node=returned,
                fix=_negate(source, returned),
            )
    for function in source.nodes_of(ast.FunctionDef):
        if _REVERSAL.search(function.name) and "grad" in function.name.lower():
            yield from _hooks(source, function)


def _hooks(source: SourceFile, function: ast.FunctionDef) -> Iterator[Hit]:
    """Yield each hook of a function that reverses gradients by its name, but keeps their sign."""
    for call in nodes_in(function, ast.Call):
        match call:
            case ast.Call(func=ast.Attribute(attr="register_hook"), args=[ast.Lambda(args=arguments, body=body)]):
                gradients = {each.arg for each in arguments.args}
            case _:
                continue
        names = [each.arg for each in function.args.args]
        is_positive = _sign(source, body, gradients, _MAX_DEPTH) == 1 and _uses_gradient(source, body, gradients)
        if is_positive and not any(_is_negated(source.text.source, each) for each in names):
            yield Hit(
                message=f"`{function.name}` replaces the gradient by `{ast.unparse(body)}`, with the same sign: "
                "nothing is reversed.",
                node=body,
                fix=_negate(source, body),
            )


def _first_result(method: ast.FunctionDef) -> ast.expr | None:
    """Return the gradient that a ``backward`` returns for its first input; None if it has several ``return``."""
    returns = [each.value for each in nodes_in(method, ast.Return) if each.value is not None]
    if len(returns) != 1:
        return None
    return returns[0].elts[0] if isinstance(returns[0], ast.Tuple) and returns[0].elts else returns[0]


def _is_identity(source: SourceFile, forward: ast.FunctionDef) -> bool:
    """Return True if a ``forward`` returns its input, perhaps as a view or a copy."""
    inputs = {each.arg for each in forward.args.args[1:]}
    result = _first_result(forward)
    for _ in range(_MAX_DEPTH):
        match result:
            case ast.Name(id=name) if name in inputs:
                return True
            case ast.Name():
                values = possible_values(source, result)
                result = values[0] if len(values) == 1 else None
            case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _SAME_SIGN or attr == "identity":
                result = inner
            case ast.BinOp(op=ast.Mult(), left=inner, right=ast.Constant(value=1 | 1.0)):
                result = inner
            case _:
                return False
    return False


def _sign(source: SourceFile, node: Any, gradients: set[str], depth: int) -> int:
    """Return the sign of an expression if all gradients and coefficients are positive; 0 if it is unknown."""
    sign = 0
    match node if depth else None:
        case ast.Constant(value=int() | float() as number):
            sign = (number > 0) - (number < 0)
        case ast.Name(id=name):
            sign = _sign_of_variable(source, node, name, gradients, depth)
        case ast.Attribute():
            sign = _sign_of_stored(source, node)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            sign = -_sign(source, inner, gradients, depth - 1)
        case ast.BinOp(op=ast.Mult() | ast.Div(), left=left, right=right):
            sign = _sign(source, left, gradients, depth - 1) * _sign(source, right, gradients, depth - 1)
        case ast.Call():
            sign = _sign_of_call(source, node, gradients, depth)
        case _:
            pass
    return sign


def _sign_of_variable(source: SourceFile, node: ast.Name, name: str, gradients: set[str], depth: int) -> int:
    function = function_of(source, node)
    for each in nodes_in(function, ast.Call, ast.AugAssign):
        target = each.target if isinstance(each, ast.AugAssign) else getattr(each.func, "value", None)
        is_in_place = isinstance(each, ast.AugAssign) or last_name(each.func).endswith("_")
        if is_in_place and dotted_name(target) == name:
            return 0
    values = [] if isinstance(node.ctx, ast.Store) else possible_values(source, node)
    signs = {_sign(source, each, gradients, depth - 1) for each in values}
    if name in gradients and not signs:
        return 1
    return 1 if not signs else signs.pop() if len(signs) == 1 else 0


def _sign_of_stored(source: SourceFile, node: ast.Attribute) -> int:
    """Return the sign of ``ctx.factor``, by what any method stores under this name."""
    stored = [
        each.value
        for each in source.nodes_of(ast.Assign)
        if any(isinstance(target, ast.Attribute) and target.attr == node.attr for target in each.targets)
    ]
    return 0 if any(factors(each)[0] < 0 for each in stored) else 1


def _sign_of_call(source: SourceFile, call: ast.Call, gradients: set[str], depth: int) -> int:
    name, values = last_name(call.func), list(call.args)
    is_method = isinstance(call.func, ast.Attribute) and last_name(call.func.value) not in ("torch", "F")
    if is_method and isinstance(call.func, ast.Attribute) and name not in _OF_ARGUMENT:
        values = [call.func.value, *values]
    signs = [_sign(source, each, gradients, depth - 1) for each in values[:2]]
    if name in ("neg", "negative") and signs:
        return -signs[0]
    if name in ("mul", "multiply", "div") and len(signs) == 2:
        return signs[0] * signs[1]
    return signs[0] if signs and name in _SAME_SIGN | _OF_ARGUMENT else 0


def _uses_gradient(source: SourceFile, node: ast.expr, gradients: set[str]) -> bool:
    names = [each for value in origins(source, node) for each in nodes_in(value, ast.Name)]
    names += [inner for each in list(names) for value in origins(source, each) for inner in nodes_in(value, ast.Name)]
    return any(each.id in gradients for each in names)


def _has_negative_factor(source: SourceFile, definition: ast.ClassDef, forward: ast.FunctionDef) -> bool:
    """Return True if the factor of a reversal may be negative, by its name or by what ``apply`` gets."""
    names = {each.arg for each in forward.args.args[2:]}
    for call in source.all_calls:
        match call:
            case ast.Call(func=ast.Attribute(attr="apply", value=owner), args=[_, *given]) if last_name(
                owner
            ) == definition.name or _is_alias(source, owner, definition):
                pass
            case ast.Call(func=ast.Name() as alias, args=[_, *given]) if _is_alias(source, alias, definition):
                pass
            case _:
                continue
        given += [each.value for each in call.keywords]
        names |= {last_name(each) for each in given} - {""}
        if any(factors(value)[0] < 0 for each in given for value in origins(source, each)):
            return True
    others = source.text.source.replace(source.text.segment(definition), "")
    return any(_is_negated(others, each) for each in names)


def _is_alias(source: SourceFile, node: ast.expr, definition: ast.ClassDef) -> bool:
    """Return True for a variable that is the class, or its ``apply``."""
    names = {definition.name, f"{definition.name}.apply"}
    return any(dotted_name(each) in names for each in origins(source, node, 2))


def _is_negated(text: str, name: str) -> bool:
    """Return True if a text gives a factor of this name a minus anywhere."""
    word = re.escape(name)
    pattern = rf"\b{word}['\"]?\s*(:\s*\w+\s*)?[=:]\s*-|[=(,\[]\s*-\s*(\w+\.)*{word}\b|{word}\s*\*=\s*-"
    return bool(re.search(pattern, text))


def _negate(source: SourceFile, node: ast.expr) -> Fix:
    text = source.text.segment(node)
    new = f"-{text}" if isinstance(node, ast.Name | ast.BinOp | ast.Call | ast.Attribute) else f"-({text})"
    return Fix((source.text.replace(node, new),), safe=False, description="Return the negative gradient")


RULE: Final = Rule(
    required_words=("Function&def backward(|register_hook", "evers|GRL|grl|RevGrad|rev_grad|Flip|Neg"),
    find=find,
    depends_on_users=True,
)

BAD = """
import torch
from torch import nn


class GradientReversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.factor * grad_output, None


torch.manual_seed(0)
features = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
classes, domains = nn.Linear(32, 2), nn.Linear(32, 2)
optimizer = torch.optim.Adam([*features.parameters(), *classes.parameters(), *domains.parameters()], lr=0.001)
for step in range(20):
    source, target = torch.randn(32, 8), torch.randn(32, 8) + 1
    labels = (source[:, 0] > 0).long()
    inner = features(torch.cat([source, target]))
    loss = nn.functional.cross_entropy(classes(inner[:32]), labels)
    scores = domains(GradientReversal.apply(inner, 0.5))
    loss = loss + nn.functional.cross_entropy(scores, torch.arange(2).repeat_interleave(32))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD031",
    title="A gradient reversal keeps the sign",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"return ctx.factor * grad_output": "return -ctx.factor * grad_output"}),
    fix="Return the negative gradient from backward.",
    rule=RULE,
)
