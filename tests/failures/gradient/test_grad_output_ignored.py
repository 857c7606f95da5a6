"""GRD025: ``backward`` of a custom function that ignores the incoming gradient."""

import pytest

HEAD = """
import torch
from torch.autograd import Function
"""
FAULTY = {
    "an activation": """
class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)
    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        s = torch.sigmoid(x)
        return s * (1 + x * (1 - s))  # <- GRD025
""",
    "a variable": """
class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        grad = 2 * x
        return grad  # <- GRD025
""",
    "two inputs": """
class Product(Function):
    @staticmethod
    def forward(ctx, a, b, scale):
        ctx.save_for_backward(a, b)
        ctx.scale = scale
        return scale * a * b
    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return ctx.scale * b, ctx.scale * a, None  # <- GRD025
""",
    "any number of gradients": """
class Twice(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, *gradients):
        return 2 * torch.ones(3)  # <- GRD025
""",
}
CORRECT = {
    "multiplied": """
class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        return grad_output * 2 * x
""",
    "changed in place": """
class Reverse(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad_output):
        output = grad_output.neg() * ctx.alpha
        return output, None
""",
    "no gradient": """
class Round(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()
    @staticmethod
    def backward(ctx, grad_output):
        return None
""",
    "a stored gradient of a loss": """
class Loss(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.grads = 2 * x / x.numel()
        return (x * x).mean()
    @staticmethod
    def backward(ctx, grad_output):
        return ctx.grads
""",
    "a loss": """
class SquareLoss(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum()
    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        return 2 * x
""",
    "not supported": """
class Hard(Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).float()
    @staticmethod
    def backward(ctx, grad_output):
        raise NotImplementedError("no second derivative")
""",
    "another backward": """
class Layer:
    def backward(self, inputs):
        return 2 * self.weight
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_return(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "GRD025")
