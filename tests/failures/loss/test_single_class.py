"""LOS010: cross-entropy of one output."""

import pytest

FAULTY = {
    "a class with one output": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)
    def forward(self, x):
        return self.fc(x)
model = Net()
criterion = nn.CrossEntropyLoss()
for x, y in loader:
    loss = criterion(model(x), y)  # <- LOS010
    loss.backward()
""",
    "a sequential, the function": """
model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
for x, y in loader:
    F.cross_entropy(model(x), y).backward()  # <- LOS010
""",
    "a map of one class": """
head = nn.Conv2d(16, 1, kernel_size=1)
for x, y in loader:
    F.cross_entropy(head(x), y).backward()  # <- LOS010
""",
}

CORRECT = {
    "one output or several": """
model = nn.Linear(8, 1)
for x, y in loader:
    out = model(x)
    if out.shape[1] > 1:
        loss = F.cross_entropy(out, y)
    else:
        loss = F.binary_cross_entropy_with_logits(out[:, 0], y.float())
    loss.backward()
""",
    "scores of candidates": """
score = nn.Linear(8, 1)
for x, y in loader:
    F.cross_entropy(score(x).squeeze(-1), y).backward()
""",
    "two outputs": """
model = nn.Linear(8, 2)
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
""",
    "the number of outputs is a variable": """
model = nn.Linear(8, classes)
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
""",
    "the binary loss": """
model = nn.Linear(8, 1)
for x, y in loader:
    F.binary_cross_entropy_with_logits(model(x), y).backward()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)


SOFTMAX_HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
x = torch.randn(64, 6)
y = (x.sum(1) > 0).float()
def train(net, loss_of):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(net(x)).backward()
        optimizer.step()
"""
SOFTMAX_OF_ONE = {
    "in a Sequential": """
net = nn.Sequential(
    nn.Linear(6, 1),
    nn.Softmax(dim=1),  # <- LOS010
)
train(net, lambda out: F.binary_cross_entropy(out.squeeze(1), y))
""",
    "in a forward": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 1)
    def forward(self, x):
        return torch.softmax(self.fc(x), dim=1)  # <- LOS010
train(Net(), lambda out: nn.BCELoss()(out, y.unsqueeze(1)))
""",
    "over the last dimension": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 1)
    def forward(self, x):
        score = self.fc(x)
        return score.softmax(-1) * 2  # <- LOS010
train(Net(), lambda out: F.mse_loss(out, y[:, None]))
""",
    "a map with one channel": """
class Segment(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Conv2d(3, 1, 1)
    def forward(self, x):
        return F.softmax(self.out(x), dim=1)  # <- LOS010
Segment()(torch.randn(2, 3, 4, 4))
""",
}
UNET = """
class UNet(nn.Module):
    def __init__(self, classes=1):
        super().__init__()
        self.classes = classes
        self.out = nn.Conv2d(3, classes, 1)
    def forward(self, x):
        {}
net = UNet()
net(torch.randn(2, 3, 4, 4))
"""
SOFTMAX_OF_ONE["a condition on something else"] = UNET.format("""x = self.out(x)
        if x.shape[0] > 1:
            print("a batch")
        return F.log_softmax(x, dim=1)  # <- LOS010""")
SOFTMAX_OF_MORE = {
    "under a condition": UNET.format("""if self.classes > 1:
            out = F.log_softmax(self.out(x), dim=1)
        else:
            out = self.out(x)
        return out"""),
    "in the other arm": UNET.format("""x = self.out(x)
        if self.classes == 1:
            x = torch.sigmoid(x)
        else:
            x = F.softmax(x, dim=1)
        return x"""),
    "in an expression": UNET.format(
        "x = self.out(x)\n        return F.softmax(x, dim=1) if self.classes >= 2 else x.sigmoid()"
    ),
    "after a return": UNET.format("""x = self.out(x)
        if self.classes < 2:
            return x.sigmoid()
        return torch.softmax(x, dim=1)"""),
    "attention": """
class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.out = nn.Linear(6, 1), nn.Linear(6, 1)
    def forward(self, x):
        h = x.unsqueeze(1).repeat(1, 3, 1)
        weights = torch.softmax(self.score(h), dim=1)
        return self.out((weights * h).sum(1))
train(Pool(), lambda out: F.mse_loss(out.squeeze(1), y))
""",
    "attention as a Sequential": """
score = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1), nn.Softmax(dim=1))
h = x.unsqueeze(1).repeat(1, 3, 1)
pooled = (score(h) * h).sum(1)
""",
    "squeezed before": """
weights = F.softmax(nn.Linear(6, 1)(x).squeeze(-1), dim=-1)
""",
    "two outputs": """
train(nn.Sequential(nn.Linear(6, 2), nn.Softmax(dim=1)), lambda out: F.binary_cross_entropy(out[:, 1], y))
""",
    "positions of a map": """
conv = nn.Conv2d(3, 1, 1)
heat = conv(torch.randn(2, 3, 4, 4))
where = F.softmax(heat.view(2, 1, -1), dim=-1)
""",
}


@pytest.mark.parametrize("script", SOFTMAX_OF_ONE.values(), ids=SOFTMAX_OF_ONE)
def test_lint_reports_a_softmax_of_one_output(lint_reports, script):
    lint_reports(SOFTMAX_HEAD + script)


@pytest.mark.parametrize("script", SOFTMAX_OF_MORE.values(), ids=SOFTMAX_OF_MORE)
def test_lint_accepts_other_softmaxes(lint_is_clean, script):
    lint_is_clean(SOFTMAX_HEAD + script, "LOS010")


RUN_HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
policy = nn.Linear(4, 3)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for step in range(30):
    state = torch.randn({states}, 4)
    {scores}
    loss = -(torch.distributions.Categorical(probabilities).log_prob(torch.tensor(1)) * state[0, 0]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
RUN_FAULTY = {
    "a function": (1, "probabilities = F.softmax(policy(state), dim=0)"),
    "a layer": (1, "probabilities = nn.Softmax(0)(policy(state))"),
}
RUN_CORRECT = {
    "over the actions": (1, "probabilities = F.softmax(policy(state), dim=-1)"),
    "one dimension": (1, "probabilities = F.softmax(policy(state[0]), dim=0)"),
    "several states, over the batch": (5, "probabilities = F.softmax(policy(state), dim=0)"),
    "one state now and then": ("1 + step % 4", "probabilities = F.softmax(policy(state), dim=0)"),
    "without gradients": (1, "F.softmax(policy(state).detach(), dim=0); probabilities = policy(state).softmax(1)"),
}


@pytest.mark.parametrize(("states", "scores"), RUN_FAULTY.values(), ids=RUN_FAULTY)
def test_run_reports_a_softmax_over_a_dimension_of_size_one(run, states, scores):
    script = RUN_HEAD.replace("{states}", str(states)).replace("{scores}", scores)
    [found] = [each for each in run(script).findings if each.code == "LOS010"]
    assert found.severity == "warning"
    assert "had the size 1 in all 30 calls" in found.message


@pytest.mark.parametrize(("states", "scores"), RUN_CORRECT.values(), ids=RUN_CORRECT)
def test_run_accepts_other_dimensions(run, states, scores):
    script = RUN_HEAD.replace("{states}", str(states)).replace("{scores}", scores)
    assert "LOS010" not in {each.code for each in run(script).findings}
