"""EVL021: the spread of repeated predictions that are all the same."""

import pytest

HEAD = """
import time
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self, p=0.3):
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(4, 32), nn.Dropout(p), nn.Linear(32, 1)
    def forward(self, x):
        return self.b(self.drop(torch.relu(self.a(x))))
x, y = torch.randn(64, 4), torch.randn(64, 1)
model = Net()
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
"""
FAULTY = {
    "eval after the layers were enabled": """
def enable(net):
    for layer in net.modules():
        if isinstance(layer, nn.Dropout):
            layer.train()
@torch.no_grad()
def predict(model, x, passes=10):
    enable(model)
    model.eval()
    samples = [model(x) for _ in range(passes)]  # <- EVL021
    samples = torch.stack(samples)
    return samples.mean(0), samples.std(0)
print(predict(model, x))
""",
    "a loop that appends": """
def predict(model, x, passes=10):
    model.eval()
    found = []
    with torch.no_grad():
        for _ in range(passes):
            found.append(torch.sigmoid(model(x)))  # <- EVL021
    return torch.stack(found).var(dim=0)
predict(model, x)
""",
    "a class, and a result with a name": """
class Predictor:
    def __init__(self, model):
        self.model = model
    def __call__(self, x):
        self.model.eval()
        outputs = torch.zeros(8, len(x), 1)
        with torch.no_grad():
            for i in range(8):
                out = self.model(x)  # <- EVL021
                outputs[i] = out
        return outputs.mean(0), outputs.std(0)
Predictor(model)(x)
""",
}
ONLY_RUN = {
    "a layer of another class": """
class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop, self.b = nn.Conv1d(1, 8, 3), nn.Dropout1d(0.5), nn.Conv1d(8, 1, 2)
    def forward(self, x):
        return self.b(self.drop(self.a(x[:, None])))[:, 0]
model = Field()
model.eval()
for layer in model.modules():
    if type(layer) is nn.Dropout:
        layer.train()
samples = torch.stack([model(x) for _ in range(10)])
print(samples.std(0))
""",
    "functional dropout that follows the mode": """
class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 1)
    def forward(self, x):
        return self.a(F.dropout(x, 0.5, self.training))
model = Functional()
model.eval()
samples = torch.stack([model(x) for _ in range(10)])
print(samples.std(0))
""",
}
ONLY_LINT = {
    "classes that the model does not have": """
class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop = nn.Linear(4, 8), nn.AlphaDropout(0.1)
def enable(net):
    net.eval()
    for layer in net.modules():
        if isinstance(layer, (nn.Dropout2d, nn.Dropout3d)):  # <- EVL021
            layer.train()
std = 1
""",
}
CORRECT = {
    "layers in train mode": """
def predict(model, x):
    model.eval()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.train()
    samples = torch.stack([model(x) for _ in range(10)])
    return samples.mean(0), samples.std(0)
predict(model, x)
""",
    "a helper that enables them": """
def enable(net):
    for layer in net.modules():
        if layer.__class__.__name__.startswith("Dropout"):
            layer.train()
def predict(model, x):
    model.eval()
    enable(model)
    return torch.stack([model(x) for _ in range(10)]).std(0)
predict(model, x)
""",
    "apply enables them": """
def predict(model, x):
    model.eval()
    model.apply(lambda layer: layer.train() if isinstance(layer, nn.Dropout) else None)
    return torch.stack([model(x) for _ in range(10)]).std(0)
predict(model, x)
""",
    "durations": """
def measure(model, x):
    model.eval()
    durations = []
    with torch.no_grad():
        for _ in range(10):
            start = time.perf_counter()
            model(x)
            durations.append(time.perf_counter() - start)
    return torch.tensor(durations).std()
measure(model, x)
""",
    "durations of an output without use": """
def measure(model, x):
    model.eval()
    durations = []
    with torch.no_grad():
        for _ in range(10):
            start = time.perf_counter()
            _ = model(x)
            durations.append(time.perf_counter() - start)
    return torch.tensor(durations).std()
measure(model, x)
""",
    "a model that draws random numbers": """
class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(4, 2), nn.Dropout(0.1), nn.Linear(2, 1)
    def forward(self, x):
        mean = self.drop(self.a(x))
        return self.b(mean + torch.randn_like(mean))
def predict(model, x):
    model.eval()
    return torch.stack([model(x) for _ in range(10)]).std(0)
predict(Vae(), x)
""",
    "noise on the inputs": """
def predict(model, x):
    model.eval()
    return torch.stack([model(x + 0.1 * torch.randn_like(x)) for _ in range(10)]).std(0)
predict(model, x)
""",
    "an ensemble": """
models = [Net().eval() for _ in range(6)]
print(torch.stack([model(x) for model in models]).std(0))
""",
    "parts of the data": """
model.eval()
parts = [model(x[i : i + 8]) for i in range(0, 64, 8)]
print(torch.cat(parts).std())
""",
    "equal samples": """
model.eval()
same = torch.ones(10, 4)
print(torch.cat([model(row[None]) for row in same]).std())
""",
    "no dropout": """
class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 1)
    def forward(self, x):
        return self.a(x) + self.training * torch.randn(len(x), 1)
def predict(model, x):
    model.a.weight.data.add_(torch.randn_like(model.a.weight))
    return model(x)
noisy = Noisy()
print(torch.stack([predict(noisy, x) for _ in range(10)]).std(0))
""",
    "the passes of an update": """
def evaluate(model, x):
    model.eval()
    with torch.no_grad():
        return model(x)
history = []
for epoch in range(6):
    model.train()
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    history.append(evaluate(model, x))
print(torch.stack(history).std(0))
""",
    "one of the classes": """
def enable(net):
    net.eval()
    for layer in net.modules():
        if isinstance(layer, (nn.Dropout, nn.Dropout2d)):
            layer.train()
enable(model)
print(torch.stack([model(x) for _ in range(10)]).std(0))
""",
}
CONSTANT = """
class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.out = nn.Dropout(), nn.Linear(1, 2)
    def forward(self, x):
        return self.out(self.drop(x[:, :1] * 0))
net = Constant().eval()
outputs = []
for rows in torch.randn(10, 4, 3):
    x = rows
    with torch.no_grad():
        out = net(x)
    outputs.append(out)
print(torch.stack(outputs).std())
"""


def test_equal_answers_for_other_inputs_are_no_equal_passes(run):
    assert "EVL021" not in {each.code for each in run(HEAD + CONSTANT).findings}
    assert "EVL021" in {each.code for each in run(HEAD + CONSTANT.replace("x = rows", "x = torch.ones(4, 3)")).findings}


@pytest.mark.parametrize("script", [*FAULTY.values(), *ONLY_RUN.values()], ids=[*FAULTY, *ONLY_RUN])
def test_equal_passes_are_reported(run, script):
    assert "EVL021" in {each.code for each in run(HEAD + script).findings}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_other_repetitions_are_accepted(run, script):
    assert "EVL021" not in {each.code for each in run(HEAD + script).findings}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_passes_after_eval(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", ONLY_LINT.values(), ids=ONLY_LINT)
def test_lint_reports_other_classes(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_repetitions(lint_is_clean, script):
    lint_is_clean(HEAD + script, "EVL021")
