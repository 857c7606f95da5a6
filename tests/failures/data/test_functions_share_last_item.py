"""DAT061: functions made in a loop that read its variables later."""

import pytest

HEAD = """
import functools
import torch
import torch.nn.functional as F
from torch import nn

net = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
criterion = {"a": F.mse_loss, "b": F.l1_loss}
weights = {"a": 1.0, "b": 2.0}
features = {}
"""
FAULTY = {
    "a dictionary of losses": """
losses = {}
for task, w in weights.items():
    losses[task] = lambda out, target: w * criterion[task](out[task], target[task])  # <- DAT061
""",
    "a list": """
terms = []
for k in range(3):
    terms.append(lambda x: x[:, k].mean())  # <- DAT061
""",
    "a comprehension": """
schedules = {name: (lambda epoch: 0.9 ** (epoch * weights[name])) for name in weights}  # <- DAT061
""",
    "hooks": """
for name, layer in net.named_modules():
    layer.register_forward_hook(lambda module, given, out: features.update({name: out}))  # <- DAT061
""",
    "a hook with a name": """
for name, layer in net.named_modules():
    def keep(module, given, out):
        features[name] = out.detach()
    layer.register_forward_hook(keep)  # <- DAT061
""",
    "in a method": """
class Multi:
    def __init__(self, tasks):
        self.losses = []
        for i, task in enumerate(tasks):
            def loss(out, target):
                return criterion[task](out[i], target[i])
            self.losses.append(loss)  # <- DAT061
""",
}
CORRECT = {
    "a default argument": """
losses = {}
for task, w in weights.items():
    losses[task] = lambda out, target, task=task, w=w: w * criterion[task](out[task], target[task])
""",
    "a function that makes it": """
def hook_for(name):
    def keep(module, given, out):
        features[name] = out.detach()
    return keep
for name, layer in net.named_modules():
    layer.register_forward_hook(hook_for(name))
""",
    "partial": """
losses = [functools.partial(criterion[task], reduction="sum") for task in weights]
""",
    "called at once": """
rows = []
for k in range(3):
    rows.append(sorted(range(9), key=lambda i: i % (k + 1)))
    total = sum(map(lambda x: x * k, range(4)))
""",
    "a list of the iteration": """
for k in range(3):
    steps = []
    steps.append(lambda x: x * k)
    print([step(1) for step in steps])
""",
    "no variable of the loop": """
hooks = []
for layer in net.values():
    hooks.append(layer.register_forward_hook(lambda module, given, out: features.setdefault(module, []).append(out)))
""",
    "another variable of the same name": """
losses = {}
for task in weights:
    losses[task] = lambda out: sum(out[task] for task in weights)
    losses[task + "_"] = lambda task: task.mean()
""",
    "the only one": """
found = []
for name, layer in net.named_modules():
    if name == "b":
        found.append(lambda: name)
    break
""",
    "a hook for one iteration": """
for name, layer in net.named_modules():
    handle = layer.register_forward_hook(lambda module, given, out: features.update({name: out}))
    net["a"](torch.randn(2, 4))
    handle.remove()
""",
    "replaced in each iteration": """
table = {}
for k in range(3):
    table["f"] = lambda x: x * k
    print(table["f"](2))
""",
    "one optimizer step": """
optimizer = torch.optim.LBFGS(net.parameters())
for x in torch.randn(3, 8, 4):
    def closure():
        optimizer.zero_grad()
        loss = net["a"](x).mean()
        loss.backward()
        return loss
    optimizer.step(closure)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_functions_that_read_the_last_item(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_functions(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT061")
