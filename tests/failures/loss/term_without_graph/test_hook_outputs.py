"""LOS009: losses of outputs that a hook detached, in the source."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body, self.head = nn.Linear(4, width), nn.Linear(width, 3)
    def forward(self, x):
        return self.head(torch.relu(self.body(x)))

kept = {}
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""
LOOP = """
for x, y in batches:
    loss = F.cross_entropy(net(x), y) + 0.01 * penalty()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAULTY = {
    "a penalty": """
def keep(module, args, output):
    kept["hidden"] = output.detach()  # <- LOS009
net.body.register_forward_hook(keep)
def penalty():
    return kept["hidden"].abs().mean()
"""
    + LOOP,
    "a lambda and a list": """
outputs = []
net.body.register_forward_hook(lambda module, args, out: outputs.append(out.detach()))  # <- LOS009
for x, y in batches:
    outputs.clear()
    logits = net(x)
    sparsity = torch.cat(outputs).abs().mean()
    loss = F.cross_entropy(logits, y) + sparsity
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a function that returns what its hook stored": """
def outputs_of(model, x):
    found = {}
    def hook(module, args, output):
        found["body"] = output.detach()  # <- LOS009
    handle = model.body.register_forward_hook(hook)
    logits = model(x)
    handle.remove()
    return found
for x, y in batches:
    found = outputs_of(net, x)
    loss = F.cross_entropy(net(x), y) + found["body"].abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a class of features": """
class Features:
    def __init__(self, model):
        self.value = None
        model.body.register_forward_hook(self.store)
    def store(self, module, args, output):
        self.value = output.data  # <- LOS009
    def spread(self):
        return -self.value.std(0).mean()

features = Features(net)
for x, y in batches:
    out = net(x)
    loss = F.cross_entropy(out, y) + features.spread()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "features of two networks": """
big = Net(16)
def saver(name):
    def hook(m, i, o):
        kept[name] = o.detach()  # <- LOS009
    return hook
big.body.register_forward_hook(saver("big"))
net.body.register_forward_hook(saver("small"))
for x, y in batches:
    with torch.no_grad():
        big(x)
    loss = F.cross_entropy(net(x), y) + F.mse_loss(kept["small"], kept["big"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a model that returns what its hook stored": """
class Embedder(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.found = model, None
        self.model.body.register_forward_hook(self.remember)
    def remember(self, module, args, output):
        self.found = output.detach().clone()  # <- LOS009
    def forward(self, x):
        self.model(x)
        return self.found

embedder, probe = Embedder(net), nn.Linear(16, 3)
opt = torch.optim.Adam([*embedder.parameters(), *probe.parameters()])
for x, y in batches:
    loss = F.cross_entropy(probe(embedder(x)), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
}

CORRECT = {
    "with its graph": """
def keep(module, args, output):
    kept["hidden"] = output
net.body.register_forward_hook(keep)
def penalty():
    return kept["hidden"].abs().mean()
"""
    + LOOP,
    "only for a plot": """
def keep(module, args, output):
    kept["hidden"] = output.detach()
net.body.register_forward_hook(keep)
for x, y in batches:
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(kept["hidden"].std())
""",
    "features of a teacher": """
teacher = Net(16)
def keep(module, args, output):
    kept["teacher"] = output.detach()
teacher.body.register_forward_hook(keep)
for x, y in batches:
    teacher(x)
    hidden = net.body(x)
    loss = F.cross_entropy(net.head(hidden.relu()), y) + F.mse_loss(hidden, kept["teacher"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "deep features are the target of another layer": """
def keep(module, args, output):
    kept["deep"] = output.detach()
net.head.register_forward_hook(keep)
small = nn.Linear(16, 3)
for x, y in batches:
    out = net(x)
    shallow = small(net.body(x))
    loss = F.cross_entropy(out, y) + F.mse_loss(shallow, kept["deep"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "outputs for inspection, with the name of a parameter elsewhere": """
def outputs_of(model, x, names):
    hidden = {}
    def keep(name):
        def hook(module, args, output):
            hidden[name] = output.detach()
        return hook
    handles = [getattr(model, name).register_forward_hook(keep(name)) for name in names]
    model(x)
    for each in handles:
        each.remove()
    return hidden
def penalty_of(hidden):
    return hidden.abs().mean()
def penalty():
    hidden = net.body(torch.randn(2, 4))
    return penalty_of(hidden)
print(outputs_of(net, torch.randn(2, 4), ["body"]))
"""
    + LOOP,
    "detached only for the log": """
def keep(module, args, output):
    kept["live"] = output
    kept["log"] = output.detach()
net.body.register_forward_hook(keep)
def penalty():
    return kept["live"].abs().mean()
"""
    + LOOP,
    "a linear probe on frozen features": """
backbone, probe = Net(), nn.Linear(16, 3)
def keep(module, args, output):
    kept["hidden"] = output.detach()
backbone.body.register_forward_hook(keep)
opt = torch.optim.Adam(probe.parameters())
for x, y in batches:
    backbone(x)
    loss = F.cross_entropy(probe(kept["hidden"]), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_losses_of_detached_outputs(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_other_hooks(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS009")
