"""GRD037: inner steps that start from the first weights."""

import pytest

HEAD = """
import torch
from torch.func import functional_call

net, inputs, targets, lr = torch.nn.Linear(4, 1), torch.randn(8, 4), torch.randn(8, 1), 0.1

def objective(weights):
    return (functional_call(net, weights, (inputs,)) - targets).pow(2).mean()

def listed(weights):
    return (torch.nn.functional.linear(inputs, *weights) - targets).pow(2).mean()
"""
FAULTY = {
    "a dictionary": """
start = dict(net.named_parameters())
fast = dict(start)
for _ in range(5):
    grads = torch.autograd.grad(objective(fast), list(fast.values()))
    fast = {k: w - lr * g for (k, w), g in zip(start.items(), grads)}  # <- GRD037
""",
    "a list, from the model": """
def adapt(steps):
    weights = list(net.parameters())
    step = 0
    while step < steps:
        loss = listed(weights)
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        weights = [p - lr * g for p, g in zip(net.parameters(), gradients)]  # <- GRD037
        step += 1
    return weights
""",
    "a lambda": """
def adapt(steps):
    fast = list(map(lambda p: p[1] - lr * p[0], zip(torch.autograd.grad(listed(list(net.parameters())),
        list(net.parameters())), net.parameters())))
    for k in range(1, steps):
        loss = listed(fast)
        grad = torch.autograd.grad(loss, fast)
        fast = list(map(lambda p: p[1] - lr * p[0], zip(grad, net.parameters())))  # <- GRD037
    return fast
""",
    "an attack": """
def attack(x, y):
    adversarial = x.clone().requires_grad_()
    for _ in range(10):
        loss = (net(adversarial) - y).pow(2).mean()
        (gradient,) = torch.autograd.grad(loss, [adversarial])
        adversarial = (x + 0.01 * gradient.sign()).clamp(0, 1).detach().requires_grad_()  # <- GRD037
    return adversarial
""",
    "by name": """
def adapt(params):
    fast = params
    for _ in range(5):
        grads = torch.autograd.grad(objective(fast), tuple(fast.values()))
        named = dict(zip(fast, grads))
        fast = {name: params[name] - lr * grad for name, grad in zip(params, grads)}  # <- GRD037
    return fast
""",
}
CORRECT = {
    "from the current weights": FAULTY["a dictionary"].replace("zip(start.items()", "zip(fast.items()"),
    "a lambda over the current weights": FAULTY["a lambda"].replace("zip(grad, net.parameters())", "zip(grad, fast)"),
    "one step": FAULTY["a dictionary"].replace("range(5)", "range(1)"),
    "a loop over tasks": """
start = dict(net.named_parameters())
for task in range(5):
    grads = torch.autograd.grad(objective(start), list(start.values()))
    fast = {k: w - lr * g for (k, w), g in zip(start.items(), grads)}
    print(objective(fast))
""",
    "weights set back for each task": FAULTY["a dictionary"].replace(
        "    grads =", "    fast = dict(start)\\n    grads =".replace("\\n", "\n")
    ),
    "gradients added up": """
start = torch.randn(4)
current, total = start.clone().requires_grad_(), torch.zeros(4)
for _ in range(5):
    (gradient,) = torch.autograd.grad(current.pow(2).sum(), [current])
    total = total + gradient
    current = (start - lr * total).requires_grad_()
""",
    "the start is moved": """
start = torch.randn(4)
current = start.clone().requires_grad_()
for _ in range(5):
    (gradient,) = torch.autograd.grad(current.pow(2).sum(), [current])
    current = (start - lr * gradient).detach().requires_grad_()
    start = current.detach()
""",
    "a penalty": """
def penalty(x):
    for _ in range(5):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(net(x).sum(), [x], create_graph=True)
        loss = 1 - gradient.norm()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_steps_from_the_start(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script.replace("  # <- GRD037", ""), "GRD037")
