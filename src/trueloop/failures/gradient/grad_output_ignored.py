"""``backward`` of a custom autograd function does not multiply by the gradient that it gets.

What you see
    A custom activation or layer works as the last operation before the loss, but deeper in the model the layers below
    it do not learn: they get the same gradient whatever the loss is.

Why it happens
    ``backward(ctx, grad_output)`` gets the gradient of the loss with respect to the output, and has to return the
    gradient with respect to the input. By the chain rule this is ``grad_output`` times the derivative of the function.
    Without the factor, everything that follows the function is forgotten.

Fix
    Multiply by the incoming gradient:

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * (1 - torch.tanh(x) ** 2)

When this is fine
    - The input gets no gradient: ``backward`` returns None or zeros.
    - A loss is always the last operation, with the weight 1.

How it is detected
    Only the linter finds it: a ``backward`` of a class derived from ``torch.autograd.Function`` that nowhere reads the
    gradients that it gets, and returns something that it computes. Classes called a loss are left out.

References
    PyTorch, "Extending PyTorch", https://docs.pytorch.org/docs/stable/notes/extending.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``backward`` that ignores the incoming gradient."""
    for definition in source.nodes_of(ast.ClassDef):
        is_function = any(last_name(each) in ("Function", "InplaceFunction") for each in definition.bases)
        if not is_function or "loss" in definition.name.lower():
            continue
        for method in definition.body:
            if isinstance(method, ast.FunctionDef) and method.name == "backward":
                found = _ignoring_return(method)
                if found is not None:
                    yield Hit(
                        message=f"`{definition.name}.backward` does not use "
                        f"`{', '.join(_gradients(method))}`: it returns the derivative of the function alone, and "
                        "cuts off what follows the function.",
                        node=found,
                        related=((method, "the incoming gradient"),),
                    )


def _gradients(method: ast.FunctionDef) -> list[str]:
    """Return the parameters of ``backward`` for the incoming gradients."""
    arguments = method.args
    return [each.arg for each in arguments.args[1:]] + ([arguments.vararg.arg] if arguments.vararg else [])


def _ignoring_return(method: ast.FunctionDef) -> ast.Return | None:
    """Return the ``return`` of a ``backward`` that computes something without the incoming gradients."""
    gradients = set(_gradients(method))
    if not gradients or any(each.id in gradients for each in nodes_in(method, ast.Name)):
        return None
    returns = [each for each in nodes_in(method, ast.Return) if each.value is not None]
    computed = {
        target.id
        for each in nodes_in(method, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name) and nodes_in(each.value, ast.BinOp)
    }
    for each in returns:
        values = each.value.elts if isinstance(each.value, ast.Tuple) else [each.value]
        if any(isinstance(value, ast.BinOp) or getattr(value, "id", "") in computed for value in values):
            return each
    return None


RULE = Rule(required_words=("Function", "def backward("), find=find)

BAD = """
import torch
from torch import nn


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 1 - torch.tanh(x) ** 2


torch.manual_seed(0)
first, second = nn.Linear(4, 8), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.05)
for step in range(20):
    x = torch.randn(32, 4)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(second(Gate.apply(first(x))), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="GRD025",
    title="A custom backward ignores the incoming gradient",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"return 1 - torch.tanh(x) ** 2": "return grad_output * (1 - torch.tanh(x) ** 2)"}),
    fix="Multiply the derivative by grad_output in backward.",
    rule=RULE,
)
