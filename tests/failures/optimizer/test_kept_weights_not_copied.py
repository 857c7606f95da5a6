"""OPT016: averages and old weights that share memory with the model."""

import pytest

HEAD = """
import copy
from collections import OrderedDict
import torch
import torch.nn.functional as F
from torch import nn
x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def update(penalty=None):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    if penalty is not None:
        loss = loss + penalty()
    loss.backward()
    optimizer.step()
"""
EMA = """
class EMA:
    def __init__(self, net, decay=0.9):
        self.net, self.decay = net, decay
        {keep}
    @torch.no_grad()
    def update(self, net):
        for name, p in net.named_parameters():
            {mix}
ema = EMA(model)
for _ in range(6):
    update()
    ema.update(model)
"""
VIEWS = "self.shadow = {n: v.detach() for n, v in net.named_parameters()}{lint}"
AVERAGES = {
    "lerp_": (VIEWS, "self.shadow[name].lerp_(p.detach(), 1 - self.decay){run}"),
    "mul_ and add_": (VIEWS, "self.shadow[name].mul_(self.decay).add_(p.data, alpha=1 - self.decay){run}"),
    "two statements": (
        "self.shadow = OrderedDict((n, v.data) for n, v in net.state_dict().items()){lint}",
        "self.shadow[name].mul_(self.decay)\n            self.shadow[name].add_((1 - self.decay) * p.data){run}",
    ),
    "a weighted sum": (
        "self.shadow = net.state_dict(){lint}",
        "self.shadow[name].copy_(self.decay * self.shadow[name] + (1 - self.decay) * p){run}",
    ),
    "a view for each parameter": (
        "self.shadow = {}\n        for n, v in net.named_parameters():\n            self.shadow[n] = v.data{lint}",
        "old = self.shadow[name]\n            old.lerp_(p, 0.1){run}",
    ),
}
FAULTY = {
    **{name: EMA.replace("{keep}", keep).replace("{mix}", mix) for name, (keep, mix) in AVERAGES.items()},
    "a list": """
slow = [p.data for p in model.parameters()]{lint}
for step in range(6):
    update()
    for s, p in zip(slow, model.parameters()):
        s.mul_(0.9).add_(p.detach(), alpha=0.1){run}
""",
    "functions": """
def keep(net):
    return {n: p.detach() for n, p in net.named_parameters()}{lint}
@torch.no_grad()
def average(target, net, tau):
    for n, p in net.named_parameters():
        target[n].lerp_(p, tau){run}
target = keep(model)
for step in range(6):
    update()
    average(target, model, 0.1)
""",
    "a late average": """
for epoch in range(3):
    for step in range(8):
        update()
    if epoch == 0:
        swa = {n: p.detach() for n, p in model.named_parameters()}{lint}
    else:
        with torch.no_grad():
            for (n, s), p in zip(swa.items(), model.parameters()):
                s.lerp_(p, 1 / (epoch + 1)){run}
for step in range(2):
    update()
""",
}
ONLY_IN_TEXT = {
    "all tensors together": """
slow = [p.detach() for p in model.parameters()]{lint}
for step in range(6):
    update()
    torch._foreach_lerp_(slow, [p.detach() for p in model.parameters()], 0.1)
""",
    "a loss of the weights": """
before = copy.copy(model.state_dict()){lint}
for step in range(6):
    update(lambda: sum(F.mse_loss(p, before[n]) for n, p in model.named_parameters()))
""",
}
DIFFERENCES = {
    "a penalty": """
anchor = {n: p.detach() for n, p in model.named_parameters()}{lint}
def penalty():
    total = 0.0
    for n, p in model.named_parameters():
        total = total + ((p - anchor[n]) ** 2).sum(){run}
    return 0.1 * total
for step in range(6):
    update(penalty)
""",
    "elastic weights": """
class Consolidation:
    def __init__(self, net):
        self.net = net
        self.importance = {n: torch.ones_like(p) for n, p in net.named_parameters()}
        self.means = {n: p.data for n, p in net.named_parameters()}{lint}
    def loss(self):
        return sum((self.importance[n] * (p - self.means[n]) ** 2).sum() for n, p in self.net.named_parameters()){run}
for step in range(6):
    update()
consolidation = Consolidation(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for step in range(6):
    update(consolidation.loss)
""",
    "an inner loop": """
start = list(model.parameters()){lint}
for step in range(6):
    update()
    if step % 3 == 2:
        with torch.no_grad():
            moved = [(p.data - s.data).norm() for p, s in zip(model.parameters(), start)]{run}
""",
}
CORRECT = {
    "clones": EMA.replace("{keep}", "self.shadow = {n: v.detach().clone() for n, v in net.named_parameters()}").replace(
        "{mix}", "self.shadow[name].lerp_(p, 0.1)"
    ),
    "a deep copy of the state": EMA.replace("{keep}", "self.shadow = copy.deepcopy(net.state_dict())").replace(
        "{mix}", "self.shadow[name].mul_(0.9).add_(p, alpha=0.1)"
    ),
    "assigned, not in place": EMA.replace("{keep}", VIEWS.replace("{lint}", "")).replace(
        "{mix}", "self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * p.detach()"
    ),
    "views of a copy": EMA.replace("ema = EMA(model)", "ema = EMA(copy.deepcopy(model))")
    .replace("{keep}", VIEWS.replace("{lint}", ""))
    .replace("{mix}", "self.shadow[name].lerp_(p, 0.1)"),
    "views of another model": """
target = copy.deepcopy(model)
slow = [p.data for p in target.parameters()]
for step in range(6):
    update()
    for s, p in zip(slow, model.parameters()):
        s.mul_(0.9).add_(p.data, alpha=0.1)
    distance = sum((s - p.data).norm() for s, p in zip(slow, model.parameters()))
""",
    "reads only": """
views = {n: p.detach() for n, p in model.named_parameters()}
for step in range(6):
    update()
    norms = {n: v.norm().item() for n, v in views.items()}
    total = sum((v ** 2).sum() for v in views.values()) - sum(v.mean() for v in views.values())
""",
    "updated by hand": """
views = [p.data for p in model.parameters()]
for step in range(6):
    F.mse_loss(model(x), y).backward()
    for v, p in zip(views, model.parameters()):
        v.mul_(1 - 0.001).add_(p.grad, alpha=-0.01)
        v.add_(p.data, alpha=-0.001)
        v.sub_(0.01 * (p.grad + 0.001 * v))
        v.clamp_(-2, 2)
        p.grad = None
""",
    "a swap for an evaluation": """
slow = {n: p.detach().clone() for n, p in model.named_parameters()}
for step in range(6):
    update()
    backup = {n: p.data for n, p in model.named_parameters()}
    for n, p in model.named_parameters():
        slow[n].lerp_(p.data, 0.1)
        p.data = slow[n].clone()
    with torch.no_grad():
        model(x)
    for n, p in model.named_parameters():
        p.data = backup[n]
""",
    "weights of two models": """
base = {n: p.data for n, p in model.named_parameters()}
for step in range(3):
    update()
tuned = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
vector = {n: p.data - base[n] for n, p in tuned.named_parameters()}
""",
    "the same name, built again": """
def build():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
net = build()
base = {n: p.data for n, p in net.named_parameters()}
for step in range(3):
    update()
net = build()
vector = {n: p.data - base[n] for n, p in net.named_parameters()}
""",
    "a straight-through estimate": """
weights = list(model.parameters())
for step in range(6):
    update(lambda: sum((p - p.detach()).sum() for p in weights))
""",
    "tied weights": """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight
    def forward(self, x):
        return self.b(self.a(x))
tied = Tied()
views = [p.data for p in tied.parameters()]
own = torch.optim.SGD(tied.parameters(), lr=0.01)
for step in range(4):
    own.zero_grad()
    tied(x).square().mean().backward()
    own.step()
    assert not (tied.a.weight.data - tied.b.weight.data).any()
""",
}


def _marked(script: str, kind: str) -> str:
    for each in ("lint", "run"):
        script = script.replace("{" + each + "}", "  # <- OPT016" if each == kind else "")
    return HEAD + script


@pytest.mark.parametrize(
    "script", [*FAULTY.values(), *ONLY_IN_TEXT.values(), *DIFFERENCES.values()],
    ids=[*FAULTY, *ONLY_IN_TEXT, *DIFFERENCES],
)  # fmt: skip
def test_lint_reports_the_collection(lint_reports, script):
    lint_reports(_marked(script, "lint"))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "OPT016")


@pytest.mark.parametrize("script", [*FAULTY.values(), *DIFFERENCES.values()], ids=[*FAULTY, *DIFFERENCES])
def test_run_reports_the_mixture(run, script):
    result = run(_marked(script, "run"))
    marked = {number for number, line in enumerate(_marked(script, "run").splitlines(), 1) if "<- OPT016" in line}
    assert {line for code, line in result.reported_lines if code == "OPT016"} == marked
    assert {each.severity for each in result.findings if each.code == "OPT016"} == {
        "warning" if script in DIFFERENCES.values() else "error"
    }


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_programs(run, script):
    assert "OPT016" not in {each.code for each in run(HEAD + script).findings}


def test_parameters_that_a_module_holds_itself_are_no_kept_weights(run):
    script = """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.layer = nn.Linear(6, 1)

    def forward(self, x):
        return self.layer(x * self.scale)

scaled = Scaled()
own = torch.optim.SGD(scaled.parameters(), lr=0.1)
unwatched = torch.Tensor.sub
for _ in range(6):
    assert torch.Tensor.sub is unwatched, "operations are followed, which costs time"
    own.zero_grad()
    scaled(x).square().mean().backward()
    own.step()
"""
    assert not run(HEAD + script).reported_lines
