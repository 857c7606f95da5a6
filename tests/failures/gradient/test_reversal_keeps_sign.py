"""GRD031: gradient reversal layers without a minus."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.autograd import Function
"""
LAYER = """
class GradReverse(Function):
    @staticmethod
    def forward(ctx, x, lambd):
        ctx.lambd = lambd
        return {forward}
    @staticmethod
    def backward(ctx, grad_output):
{backward}
features = GradReverse.apply(net(x), {factor})
loss = criterion(domain(features), labels)
loss.backward()
"""


def layer(backward: str, forward: str = "x.view_as(x)", factor: str = "0.5") -> str:
    return LAYER.format(backward=backward, forward=forward, factor=factor)


FAULTY = {
    "a product": layer("        return grad_output * ctx.lambd, None  # <- GRD031"),
    "a method": layer("        return grad_output.mul(ctx.lambd), None  # <- GRD031", "x.clone()"),
    "a variable": layer("        grad = ctx.lambd * grad_output.clone()\n        return grad, None  # <- GRD031", "x"),
    "unchanged": layer("        return grad_output, None  # <- GRD031", "x * 1"),
    "two minuses": layer("        return -grad_output * -ctx.lambd, None  # <- GRD031"),
    "negated twice": layer("        return grad_output.neg() * (-ctx.lambd), None  # <- GRD031"),
    "a saved tensor, behind a module": """
class GRL(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, alpha):
        ctx.save_for_backward(input, alpha)
        output = input
        return output
    @staticmethod
    def backward(ctx, grads):
        grad_input = None
        _, alpha = ctx.saved_tensors
        grad_input = alpha * grads
        return grad_input, None  # <- GRD031
revgrad = GRL.apply
class Reversal(nn.Module):
    def __init__(self, alpha):
        super().__init__()
        self.alpha = torch.tensor(alpha, requires_grad=False)
    def forward(self, x):
        return revgrad(x, self.alpha)
model = nn.Sequential(nn.Linear(4, 8), Reversal(alpha=1.0), nn.Linear(8, 2))
""",
    "the schedule of the paper": layer(
        "        return ctx.lambd * grad_output, None  # <- GRD031", factor="alpha"
    ).replace("features =", "alpha = 2.0 / (1.0 + torch.exp(-10 * p)) - 1\nfeatures ="),
    "a hook": """
def reverse_gradient(x, scale):
    x = x.clone()
    x.register_hook(lambda g: g * scale)  # <- GRD031
    return x
loss = criterion(domain(reverse_gradient(net(x), 0.1)), labels)
loss.backward()
""",
}

CORRECT = {
    "a minus": layer("        return -ctx.lambd * grad_output, None"),
    "neg": layer("        return grad_output.neg() * ctx.lambd, None"),
    "in place": layer("        grad = grad_output.clone()\n        grad.neg_()\n        return grad * ctx.lambd, None"),
    "a factor": layer("        return (grad_output * -1.0) * ctx.lambd, None"),
    "a variable": layer("        grad = grad_output.neg()\n        return grad * ctx.lambd, None"),
    "multiplied": layer("        return torch.mul(grad_output, -ctx.lambd), None"),
    "a negative argument": layer("        return grad_output * ctx.lambd, None", factor="-0.5"),
    "a negated argument": layer("        return grad_output * ctx.lambd, None", factor="-alpha"),
    "a negative variable": layer("        return grad_output * ctx.lambd, None", factor="weight").replace(
        "features =", "weight = -0.3\nfeatures ="
    ),
    "stored with a minus": layer("        return grad_output * ctx.lambd, None").replace("= lambd", "= -lambd"),
    "a layer that scales": layer("        return grad_output * ctx.lambd, None").replace("GradReverse", "GradScale"),
    "a reversed sequence": layer("        return grad_output.flip(0), None", "x.flip(0)").replace("GradR", "SequenceR"),
    "a reversible block": layer("        return grad_output, None", "block(x)").replace("GradReverse", "Reversible"),
    "a hook": """
def reverse_gradient(x, scale):
    x = x.clone()
    x.register_hook(lambda g: -g * scale)
    return x
""",
    "a negative default": """
def grad_reverse(x, scale=-1.0):
    return GradReverse.apply(x, scale)
class GradReverse(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.scale, None
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_reversals_that_keep_the_sign(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_layers(lint_is_clean, script):
    lint_is_clean(HEAD + script, "GRD031")
