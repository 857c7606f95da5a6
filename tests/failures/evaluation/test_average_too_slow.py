"""EVL029: averages of the weights that consist mostly of the first weights."""

import pytest

HEAD = """
import copy
import torch
from torch import nn

x = torch.randn(320, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

class EMA:
    def __init__(self, model, decay):
        self.module = copy.deepcopy(model)
        self.decay = decay
    def update(self, model, decay=None):
        decay = self.decay if decay is None else decay
        with torch.no_grad():
            for e, p in zip(self.module.state_dict().values(), model.state_dict().values()):
                e.copy_(decay * e + (1 - decay) * p)  # <- EVL029

def fit(epochs, after, teacher=None):
    for epoch in range(epochs):
        model.train()
        for start in range(0, 280, 40):
            out = model(x[start : start + 40])
            loss = nn.functional.mse_loss(out, y[start : start + 40])
            if teacher is not None:
                with torch.no_grad():
                    target = teacher(x[start : start + 40])
                loss = loss + 0.1 * nn.functional.mse_loss(out, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after(7 * epoch + start // 40)

def score(net):
    net.eval()
    with torch.no_grad():
        return nn.functional.mse_loss(net(x[280:]), y[280:]).item()
"""
FAULTY = {
    "in a class, at the end": """
ema = EMA(model, 0.999)
fit(20, lambda update: ema.update(model))
print(score(ema.module))
""",
}
CORRECT = {
    "a smaller decay": """
ema = EMA(model, 0.95)
fit(20, lambda update: ema.update(model))
print(score(ema.module))
""",
    "a decay that grows": """
ema = EMA(model, 0.9999)
fit(20, lambda update: ema.update(model, min(0.9999, (1 + update) / (10 + update))))
print(score(ema.module))
""",
    "a teacher": """
ema = EMA(model, 0.999)
fit(20, lambda update: ema.update(model), teacher=ema.module)
""",
    "a test of the program": """
ema = EMA(model, 0.999)
fit(6, lambda update: ema.update(model))
print(score(ema.module))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_slow_averages(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_other_averages(run, script):
    assert not [each for each in run(HEAD + script).findings if each.code == "EVL029"]
