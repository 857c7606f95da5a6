"""OPT010: averages with exchanged weights."""

import pytest

FAULTY = {
    "the target of a value network": """
def soft_update(local, target, tau=0.005):
    for p, t in zip(local.parameters(), target.parameters()):
        t.data.copy_(tau * t.data + (1.0 - tau) * p.data)  # <- OPT010
""",
    "an average of the weights": """
decay = 0.999
for weight, mean in zip(model.parameters(), ema.parameters()):
    mean.data = decay * weight.data + (1 - decay) * mean.data  # <- OPT010
""",
    "the states": """
class Average:
    def __init__(self, model, decay=0.9999):
        self.shadow = {name: value.clone() for name, value in model.state_dict().items()}
        self.decay = decay
    def update(self, model):
        for name, value in model.state_dict().items():
            self.shadow[name] = (1.0 - self.decay) * self.shadow[name] + self.decay * value  # <- OPT010
""",
    "in place": """
for mean, weight in zip(ema.parameters(), model.parameters()):
    mean.data.mul_(1 - 0.999).add_(weight.data, alpha=0.999)  # <- OPT010
""",
    "interpolation": """
for mean, weight in zip(ema.parameters(), model.parameters()):
    mean.lerp_(weight, 0.999)  # <- OPT010
""",
}

CORRECT = {
    "the target of a value network": """
def soft_update(local, target, tau=0.005):
    for p, t in zip(local.parameters(), target.parameters()):
        t.data.copy_(tau * p.data + (1.0 - tau) * t.data)
""",
    "momentum encoder": """
class MoCo:
    def __init__(self, m=0.999):
        self.m = m
    def update(self):
        for q, k in zip(self.q.parameters(), self.k.parameters()):
            k.data = k.data * self.m + q.data * (1.0 - self.m)
""",
    "in place": """
for mean, weight in zip(ema.parameters(), model.parameters()):
    mean.data.mul_(0.999).add_(weight.data, alpha=1 - 0.999)
""",
    "a copy": """
tau = 1.0
for p, t in zip(model.parameters(), target.parameters()):
    t.data.copy_(tau * p.data + (1.0 - tau) * t.data)
""",
    "tau for the average": """
tau = 0.995
for p, t in zip(model.parameters(), target.parameters()):
    t.data.copy_(tau * t.data + (1 - tau) * p.data)
""",
    "a running loss": """
decay = 0.05
for x in loader:
    mean = decay * mean + (1 - decay) * loss.item()
""",
    "unknown weights": """
def update(local, target, beta):
    for p, t in zip(local.parameters(), target.parameters()):
        t.data.copy_(beta * t.data + (1 - beta) * p.data)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)
