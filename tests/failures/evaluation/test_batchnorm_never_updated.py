"""EVL010: an averaged model whose BatchNorm layers keep their initial statistics."""

import pytest

DATA = """
import copy
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

x = 3 + 2 * torch.randn(120, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
optimizer = optim.Adam(model.parameters(), lr=0.01)
def train(after=lambda: None, steps=5):
    model.train()
    for rows in torch.randperm(100).split(100 // steps):
        optimizer.zero_grad()
        F.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
        after()
@torch.no_grad()
def evaluate(net):
    net.eval()
    return F.mse_loss(net(x[100:]), y[100:]).item()
"""

GAN = """
critic = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
second = optim.Adam(critic.parameters(), lr=0.01)
bce = nn.BCEWithLogitsLoss()
ema = copy.deepcopy(model).eval()
for step in range(20):
    fake = model(torch.randn(32, 6))
    loss = bce(critic(y[:32]), torch.ones(32, 1)) + bce(critic(fake.detach()), torch.zeros(32, 1))
    second.zero_grad()
    loss.backward()
    second.step()
    optimizer.zero_grad()
    bce(critic(fake), torch.ones(32, 1)).backward()
    optimizer.step()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), model.parameters()):
            e.mul_(0.95).add_(p, alpha=0.05)
"""

FAULTY = {
    "the generator of a GAN": GAN
    + """
with torch.no_grad():
    ema(torch.randn(64, 6))  # <- EVL010
""",
    "an EMA class": """
class ModelEma:
    def __init__(self, model, decay=0.9):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)
    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.parameters(), model.parameters()):
            e.mul_(self.decay).add_(p, alpha=1 - self.decay)
ema = ModelEma(model)
for epoch in range(4):
    train(lambda: ema.update(model))
    evaluate(model)
    with torch.no_grad():
        print(F.mse_loss(ema.module(x[100:]), y[100:]).item())  # <- EVL010
""",
    "weights averaged by name, on a loader": """
average = copy.deepcopy(model)
held_out = DataLoader(TensorDataset(x[100:], y[100:]), batch_size=10)
def update():
    weights = dict(model.named_parameters())
    for name, p in average.named_parameters():
        p.data.copy_(0.8 * p.data + 0.2 * weights[name].data)
for epoch in range(4):
    train(update)
    average.eval()
    with torch.no_grad():
        print(sum(F.mse_loss(average(a), b).item() for a, b in held_out))  # <- EVL010
""",
    "a target network with soft updates": """
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    def forward(self, inputs):
        return self.net(inputs)
critic, target = Critic(), Critic().eval()
target.load_state_dict(critic.state_dict())
opt = optim.Adam(critic.parameters())
for step in range(12):
    rows = torch.randint(0, 120, (32,))
    with torch.no_grad():
        value = y[rows] + 0.9 * target(x[rows])  # <- EVL010
    opt.zero_grad()
    F.mse_loss(critic(x[rows]), value).backward()
    opt.step()
    for old, new in zip(target.parameters(), critic.parameters()):
        old.data.lerp_(new.data, 0.05)
""",
}

CORRECT = {
    "the generator of a GAN, with its buffers": GAN
    + """
        for e, b in zip(ema.buffers(), model.buffers()):
            e.copy_(b)
with torch.no_grad():
    ema(torch.randn(64, 6))
""",
    "buffers are copied": """
ema = copy.deepcopy(model).eval()
@torch.no_grad()
def update():
    for e, p in zip(ema.parameters(), model.parameters()):
        e.lerp_(p, 0.1)
    for e, b in zip(ema.buffers(), model.buffers()):
        e.copy_(b)
for epoch in range(4):
    train(update)
    evaluate(ema)
""",
    "the state_dict is averaged": """
ema = copy.deepcopy(model).eval()
@torch.no_grad()
def update():
    for e, p in zip(ema.state_dict().values(), model.state_dict().values()):
        e.copy_(0.9 * e + 0.1 * p if e.is_floating_point() else p)
for epoch in range(4):
    train(update)
    evaluate(ema)
""",
    "buffers of an averaged model": """
averaged = AveragedModel(model, use_buffers=True)
for epoch in range(3):
    train(lambda: averaged.update_parameters(model))
    evaluate(averaged)
""",
    "an averaged model, whose buffers follow the model": """
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
for epoch in range(3):
    train(lambda: averaged.update_parameters(model))
    evaluate(averaged)
""",
    "update_bn": """
averaged = AveragedModel(model)
for epoch in range(3):
    train(lambda: averaged.update_parameters(model))
update_bn(DataLoader(x[:100], batch_size=20), averaged)
evaluate(averaged)
""",
    "a teacher in train mode": """
teacher = copy.deepcopy(model)
@torch.no_grad()
def update():
    for e, p in zip(teacher.parameters(), model.parameters()):
        e.lerp_(p, 0.1)
for epoch in range(3):
    model.train()
    teacher.train()
    for rows in torch.randperm(100).split(25):
        with torch.no_grad():
            soft = teacher(x[rows])
        optimizer.zero_grad()
        out = model(x[rows])
        (F.mse_loss(out, y[rows]) + F.mse_loss(out, soft)).backward()
        optimizer.step()
        update()
    evaluate(teacher)
""",
    "a random network that never changes": """
target = copy.deepcopy(model).eval().requires_grad_(False)
for step in range(12):
    rows = torch.randint(0, 120, (32,))
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), target(x[rows])).backward()
    optimizer.step()
""",
    "the model itself": """
for epoch in range(3):
    train()
    evaluate(model)
""",
    "the initial model as a baseline": """
initial = copy.deepcopy(model)
for epoch in range(3):
    train()
    print(evaluate(initial), evaluate(model))
""",
    "averaged weights in the trained model": """
shadow = [p.detach().clone() for p in model.parameters()]
def update():
    for s, p in zip(shadow, model.parameters()):
        s.lerp_(p.detach(), 0.1)
for epoch in range(3):
    train(update)
    kept = [p.detach().clone() for p in model.parameters()]
    for s, p in zip(shadow, model.parameters()):
        p.data.copy_(s)
    evaluate(model)
    for k, p in zip(kept, model.parameters()):
        p.data.copy_(k)
""",
    "another normalisation": """
model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 1))
optimizer = optim.Adam(model.parameters(), lr=0.01)
ema = copy.deepcopy(model).eval()
@torch.no_grad()
def update():
    for e, p in zip(ema.parameters(), model.parameters()):
        e.lerp_(p, 0.1)
for epoch in range(4):
    train(update)
    evaluate(ema)
""",
    "a pretrained network with statistics": """
train()
frozen = copy.deepcopy(model).eval().requires_grad_(False)
@torch.no_grad()
def update():
    for e, p in zip(frozen.parameters(), model.parameters()):
        e.lerp_(p, 0.01)
for epoch in range(3):
    train(update)
    evaluate(frozen)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script: str):
    run_reports(DATA + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(DATA + script)


LINT_HEAD = """
import copy
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
"""
LINT_FAULTY = {
    "a loop": """
ema = copy.deepcopy(model)
ema.eval()

def follow(decay=0.99):
    with torch.no_grad():
        for average, weight in zip(ema.parameters(), model.parameters()):  # <- EVL010
            average.mul_(decay).add_(weight, alpha=1 - decay)
""",
    "a class": """
class Ema:
    def __init__(self, net, decay):
        self.net, self.decay = net, decay
        self.average = copy.deepcopy(net).eval()

    def step(self):
        for a, w in zip(self.average.parameters(), self.net.parameters()):  # <- EVL010
            a.data = self.decay * a.data + (1 - self.decay) * w.data
""",
    "the trained model first": """
class Updater:
    @staticmethod
    def make(student):
        teacher = copy.deepcopy(student)
        return teacher.eval()

    @torch.no_grad()
    def update(self, student, teacher, tau=0.99):
        for s, t in zip(student.parameters(), teacher.parameters()):  # <- EVL010
            t.mul_(tau).add_(s, alpha=1 - tau)
""",
    "a function with other names": """
@torch.no_grad()
def blend(slow, fast, rate):
    for p, q in zip(slow.parameters(), fast.parameters()):  # <- EVL010
        p.data.copy_(rate * p.data + (1 - rate) * q.data)

shadow = copy.deepcopy(model)
shadow.eval()
blend(shadow, model, 0.99)
""",
    "parameters by name": """
mean_net = copy.deepcopy(model).eval()

def follow(momentum):
    for (name, new), (_, old) in zip(model.named_parameters(), mean_net.named_parameters()):  # <- EVL010
        old.data.lerp_(new.data, 1 - momentum)
""",
    "a new model with the same weights": """
teacher = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
teacher.load_state_dict(model.state_dict())
teacher.eval()

def follow(decay=0.99):
    with torch.no_grad():
        for average, weight in zip(list(teacher.parameters()), list(model.parameters())):  # <- EVL010
            average.mul_(decay).add_(weight, alpha=1 - decay)
""",
    "all parameters in one call": """
ema = copy.deepcopy(model).eval()

@torch.no_grad()
def follow(decay=0.99):
    torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1 - decay)  # <- EVL010
""",
}
LINT_FAULTY |= {
    "looked up by name, in a class": """
class Average:
    def __init__(self, net, decay=0.99):
        self.module = copy.deepcopy(net)
        self.module.eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, net):
        own = dict(self.module.named_parameters())
        for name, parameter in net.named_parameters():  # <- EVL010
            own[name].mul_(self.decay).add_(parameter.detach(), alpha=1 - self.decay)
""",
    "two tables": """
slow = copy.deepcopy(model).eval()

def accumulate(slow, fast, decay=0.999):
    first, second = dict(slow.named_parameters()), dict(fast.named_parameters())
    for k in first.keys():  # <- EVL010
        first[k].data.mul_(decay).add_(second[k].data, alpha=1 - decay)

accumulate(slow, model)
""",
    "items of a table, assigned": """
from collections import OrderedDict
ema = copy.deepcopy(model)
ema.eval()

def follow(decay):
    new = OrderedDict(model.named_parameters())
    for key, old in OrderedDict(ema.named_parameters()).items():  # <- EVL010
        old.data = decay * old.data + (1 - decay) * new[key].data
""",
    "copied from a mixture": """
ema = copy.deepcopy(model).eval()

@torch.no_grad()
def follow(decay):
    weights = {name: each for name, each in model.named_parameters()}
    for name, average in ema.named_parameters():  # <- EVL010
        average.copy_(average * decay + weights[name] * (1 - decay))
""",
}
LINT_CORRECT = {
    "by name, with the buffers": """
ema = copy.deepcopy(model).eval()

@torch.no_grad()
def follow(decay):
    own, kept = dict(ema.named_parameters()), dict(ema.named_buffers())
    for name, parameter in model.named_parameters():
        own[name].lerp_(parameter, 1 - decay)
    for name, buffer in model.named_buffers():
        kept[name].copy_(buffer)
""",
    "shadow values that are put into the trained model": """
class Shadow:
    def __init__(self, net):
        self.values = {name: each.detach().clone() for name, each in net.named_parameters()}
    def update(self, net):
        for name, each in net.named_parameters():
            self.values[name].mul_(0.99).add_(each.detach(), alpha=0.01)
    def apply(self, net):
        for name, each in net.named_parameters():
            each.data.copy_(self.values[name])
backup = copy.deepcopy(model).eval()
""",
    "all values of the state": """
ema = copy.deepcopy(model).eval()

@torch.no_grad()
def follow(decay):
    own = ema.state_dict()
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            own[name].mul_(decay).add_(value, alpha=1 - decay)
        else:
            own[name].copy_(value)
""",
    "a plain copy by name": """
target = copy.deepcopy(model).eval()

@torch.no_grad()
def sync():
    own = dict(target.named_parameters())
    for name, parameter in model.named_parameters():
        own[name].copy_(parameter)
""",
    "a teacher that is called in both modes": """
ema = copy.deepcopy(model)

def score(x):
    ema.eval()
    return ema(x)

def follow(x, decay=0.99):
    ema.train()
    with torch.no_grad():
        ema(x)
        for average, weight in zip(ema.parameters(), model.parameters()):
            average.mul_(decay).add_(weight, alpha=1 - decay)
""",
    "a model that is loaded again in every epoch": """
teacher = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
teacher.eval()
for epoch in range(3):
    teacher.load_state_dict(model.state_dict())
    with torch.no_grad():
        for average, weight in zip(teacher.parameters(), model.parameters()):
            average.mul_(0.9).add_(weight, alpha=0.1)
""",
    "the first model is the copy of another": """
frozen = copy.deepcopy(model).eval()
other = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))

def follow():
    with torch.no_grad():
        for a, b in zip(other.parameters(), model.parameters()):
            a.mul_(0.9).add_(b, alpha=0.1)
""",
    "the distance to the start": """
start = copy.deepcopy(model).eval()

def penalty():
    total = 0
    for old, new in zip(start.parameters(), model.parameters()):
        total = total + 0.1 * (new - old).pow(2).sum()
    return total
""",
    "buffers, too": LINT_FAULTY["a loop"].replace("  # <- EVL010", "")
    + """
        for average, buffer in zip(ema.buffers(), model.buffers()):
            average.copy_(buffer)
""",
    "a teacher in train mode": LINT_FAULTY["a loop"].replace("  # <- EVL010", "").replace("ema.eval()\n", ""),
    "no BatchNorm": LINT_FAULTY["a loop"].replace("  # <- EVL010", ""),
    "copied, not averaged": """
target = copy.deepcopy(model).eval()
for old, new in zip(target.parameters(), model.parameters()):
    old.data.copy_(new.data)
""",
    "compared": """
frozen = copy.deepcopy(model).eval()
for old, new in zip(frozen.parameters(), model.parameters()):
    print((old - new).abs().max())
""",
}


IN_CLASSES = """
class Average:
    def __init__(self, net):
        self.model = copy.deepcopy(net).eval()

    @torch.no_grad()
    def step_end(self, trainer):
        for own, p in zip(self.model.parameters(), trainer.model.parameters()):  # <- EVL010
            own.mul_(0.9).add_(p, alpha=0.1)

class Trainer:
    def __init__(self, net):
        self.model = net

    def fit(self):
        self.model.train()
        self.optimizer.step()
"""
LINT_FAULTY |= {"another class trains an attribute of the same name": IN_CLASSES}
LINT_CORRECT |= {
    "a method of the same class trains it": IN_CLASSES.replace("  # <- EVL010", "").replace(
        "class Trainer", "    def begin(self):\n        self.model.train()\n\nclass Trainer"
    ),
    "a class that inherits trains it": IN_CLASSES.replace("  # <- EVL010", "").replace(
        "class Trainer:", "class Trainer(Average):"
    ),
}


@pytest.mark.parametrize("script", LINT_FAULTY.values(), ids=LINT_FAULTY)
def test_lint_reports_an_average_of_the_parameters_alone(lint_reports, script):
    lint_reports(LINT_HEAD + script)


@pytest.mark.parametrize("name", LINT_CORRECT)
def test_lint_accepts_other_copies(lint_is_clean, name):
    head = LINT_HEAD.replace("nn.BatchNorm1d(16)", "nn.LayerNorm(16)") if name == "no BatchNorm" else LINT_HEAD
    lint_is_clean(head + LINT_CORRECT[name])
