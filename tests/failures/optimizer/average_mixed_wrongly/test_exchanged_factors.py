"""OPT010: averages with exchanged weights."""

import pytest

FAULTY = {
    "an unknown tau of a critic": """
def update(critic, target_critic, tau):
    for p, t in zip(critic.parameters(), target_critic.parameters()):
        t.data.copy_(tau * t.data + (1 - tau) * p.data)  # <- OPT010
""",
    "an option": """
parser.add_argument("--ema-decay", type=float, default=0.999)
for p, e in zip(model.parameters(), ema.parameters()):
    e.data.copy_((1 - args.ema_decay) * e.data + args.ema_decay * p.data)  # <- OPT010
""",
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
    "tau for the average, as a default": """
class Byol:
    def __init__(self, tau=0.99):
        self.tau = tau
    def update(self):
        for o, t in zip(self.online.parameters(), self.target.parameters()):
            t.data = t.data * self.tau + o.data * (1.0 - self.tau)
""",
    "an unknown tau": """
def update(online, target, tau):
    for o, t in zip(online.parameters(), target.parameters()):
        t.data = t.data * tau + o.data * (1.0 - tau)
""",
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


HEAD_OF_AVERAGED = """
import torch
from torch.optim.swa_utils import AveragedModel
"""
FAULTY_FUNCTIONS = {
    "a lambda": """
decay = 0.999
avg_fn = lambda average, weight, number: (1 - decay) * average + decay * weight  # <- OPT010
ema = AveragedModel(model, avg_fn=avg_fn)
""",
    "a function": """
def mix(averaged, current, num_averaged):
    return averaged * 0.01 + current * 0.99  # <- OPT010
ema = AveragedModel(model, "cpu", mix)
""",
    "a config": """
def build(model, config):
    ema_decay = config["EMA_DECAY"]
    mix = lambda a, m, n: (1 - ema_decay) * a + ema_decay * m  # <- OPT010
    return AveragedModel(model, avg_fn=mix)
""",
    "in the call": """
ema = AveragedModel(model, avg_fn=lambda a, m, n: 0.001 * a + 0.999 * m)  # <- OPT010
""",
}
CORRECT_FUNCTIONS = {
    "the usual way": "ema = AveragedModel(model, avg_fn=lambda a, m, n: 0.999 * a + 0.001 * m)\n",
    "as in the documentation": "ema = AveragedModel(model, avg_fn=lambda a, m, n: 0.1 * a + 0.9 * m)\n",
    "an equal mean": "ema = AveragedModel(model)\n",
    "a share of the new weights": """
tau = 0.01
ema = AveragedModel(model, avg_fn=lambda a, m, n: (1 - tau) * a + tau * m)
""",
}


@pytest.mark.parametrize("script", FAULTY_FUNCTIONS.values(), ids=FAULTY_FUNCTIONS)
def test_lint_reports_averaging_functions(lint_reports, script):
    lint_reports(HEAD_OF_AVERAGED + "model = torch.nn.Linear(4, 1)\n" + script)


@pytest.mark.parametrize("script", CORRECT_FUNCTIONS.values(), ids=CORRECT_FUNCTIONS)
def test_lint_accepts_averaging_functions(lint_is_clean, script):
    lint_is_clean(HEAD_OF_AVERAGED + "model = torch.nn.Linear(4, 1)\n" + script, "OPT010")
