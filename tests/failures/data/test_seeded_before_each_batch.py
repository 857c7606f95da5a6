"""DAT024: the same seed before every batch."""

import pytest

HEAD = """
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
data = torch.randn(200, 8)
labels = data.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def update(x, y):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
"""
LOOP = """
for step in range(20):
    x, y = make_batch(32)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FAULTY = {
    "the default of a parameter": """
def draw(size, seed=0):
    rng = np.random.RandomState(seed){lint}
    rows = rng.randint(0, 200, size)
    return data[rows], labels[rows]

for step in range(30):
    inputs, targets = draw(16)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
    "a function for all seeds": """
def set_seed(seed=1234):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed){run}

def make_batch(n):
    set_seed(){lint}
    x = torch.randn(n, 8)
    return x, x.sum(1, keepdim=True)
"""
    + LOOP,
    "numpy indices": """
SEED = 7
def make_batch(n):
    np.random.seed(SEED){run}{lint}
    rows = np.random.choice(200, n, replace=False)
    return data[rows], labels[rows]
"""
    + LOOP,
    "in the loop": """
for step in range(20):
    torch.manual_seed(0){run}{lint}
    rows = torch.randint(200, (32,))
    loss = F.mse_loss(model(data[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "Python's generator": """
def make_batch(n):
    random.seed(3){run}{lint}
    rows = random.sample(range(200), n)
    return data[rows], labels[rows]
"""
    + LOOP,
    "in a class, with a setting": """
class Sampler:
    def __init__(self, seed):
        self.seed = seed
    def __iter__(self):
        while True:
            torch.manual_seed(self.seed){run}
            rows = torch.randperm(200)[:32]
            yield data[rows], labels[rows]
for step, (x, y) in enumerate(Sampler(3)):
    update(x, y)
    if step == 20:
        break
""",
    "a generator in each call": """
def make_batch(n):
    rng = np.random.default_rng(0){lint}
    x = torch.tensor(rng.standard_normal((n, 8)), dtype=torch.float32)
    return x, x.sum(1, keepdim=True)
"""
    + LOOP,
    "a generator with the seed of a setting, and gradients of a function": """
from dataclasses import dataclass
from torch.func import functional_call, grad_and_value
@dataclass
class Settings:
    seed: int = 3
def corrupt(samples, settings):
    generator = torch.Generator().manual_seed(settings.seed){lint}
    rows = torch.randint(len(samples), (32,), generator=generator)
    noise = torch.randn(32, 8, generator=generator)
    return samples[rows] + noise, noise
def objective(weights, x, noise):
    return ((functional_call(model, weights, (x,)) - noise) ** 2).mean()
weights = {key: each.detach() for key, each in model.named_parameters()}
differentiate = grad_and_value(objective)
settings = Settings()
for step in range(20):
    slopes, loss = differentiate(weights, *corrupt(data, settings))
    weights = {key: each - 0.01 * slopes[key] for key, each in weights.items()}
""",
    "a method of a class": """
class Fitter:
    def __init__(self, seed=5):
        self.seed = seed
    def batch(self):
        generator = torch.Generator()
        generator.manual_seed(self.seed){lint}
        rows = torch.randperm(len(data), generator=generator)[:16]
        return data[rows], labels[rows]
    def step(self):
        x, y = self.batch()
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    def fit(self):
        for _ in range(20):
            self.step()
Fitter().fit()
""",
    "gradients of torch.autograd.grad": """
def noise_levels(count, settings):
    return random.Random(settings["seed"]).choices(range(10), k=count){lint}
options = {"seed": 4}
weights = list(model.parameters())
for step in range(20):
    levels = torch.tensor(noise_levels(200, options)) / 10
    loss = F.mse_loss(model(data * levels[:, None]), labels)
    slopes = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        for weight, slope in zip(weights, slopes):
            weight -= 0.01 * slope
""",
    "a closure": """
def batches_of(size, seed):
    def draw():
        rng = np.random.default_rng(seed){lint}
        rows = rng.integers(0, 200, size)
        return data[rows], labels[rows]
    return draw
draw = batches_of(16, 8)
for step in range(20):
    x, y = draw()
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    "a generator function": """
def stream(size, seed=1):
    while True:
        rows = torch.randint(200, (size,), generator=torch.Generator().manual_seed(seed)){lint}
        yield data[rows], labels[rows]
for step, (x, y) in enumerate(stream(16)):
    update(x, y)
    if step == 20:
        break
""",
    "noise in a function that the step calls": """
def jitter(x, scale):
    rng = torch.Generator().manual_seed(11){lint}
    return x + scale * torch.randn(x.shape, generator=rng)
for step in range(20):
    rows = torch.randint(200, (32,))
    y = labels[rows]
    noisy = jitter(data[rows], 0.1)
    loss = F.mse_loss(model(noisy), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}
CORRECT = {
    "a generator that goes on": """
def draw(generator):
    rows = torch.randint(200, (32,), generator=generator)
    return data[rows], labels[rows]
generator = torch.Generator().manual_seed(0)
for step in range(20):
    loss = F.mse_loss(*map(lambda pair: pair, [model(draw(generator)[0]), draw(generator)[1]]))
    x, y = draw(generator)
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    "a seed from the number of the step in a class": """
class Source:
    def __init__(self, seed):
        self.seed = seed
        self.drawn = 0
    def draw(self):
        self.drawn += 1
        generator = torch.Generator().manual_seed(self.seed + self.drawn)
        rows = torch.randint(200, (32,), generator=generator)
        return data[rows], labels[rows]
source = Source(3)
for _ in range(20):
    x, y = source.draw()
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    "the same split in each epoch": """
def split(x, y, seed=0):
    order = np.random.default_rng(seed).permutation(len(x))
    return x[order[:150]], y[order[:150]], x[order[150:]], y[order[150:]]
for epoch in range(20):
    x, y, held_out_x, held_out_y = split(data, labels)
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    "a fixed projection and a fixed mask": """
def project(x):
    weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    return x @ weight
def hide(x):
    mask = torch.rand(8, generator=torch.Generator().manual_seed(0)) < 0.5
    return x * mask
for step in range(20):
    rows = torch.randint(200, (32,))
    optimizer.zero_grad()
    F.mse_loss(model(hide(project(data[rows]))), labels[rows]).backward()
    optimizer.step()
""",
    "a batch of the same function to train and to evaluate": """
def draw(generator):
    rows = torch.randint(200, (32,), generator=generator)
    return data[rows], labels[rows]
generator = torch.Generator().manual_seed(0)
for step in range(20):
    x, y = draw(generator)
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        x, y = draw(torch.Generator().manual_seed(0))
        print(F.mse_loss(model(x), y).item())
""",
    "a seed for each epoch in a function": """
def epoch_batches(epoch):
    rng = np.random.default_rng((5, epoch))
    for rows in np.array_split(rng.permutation(200), 10):
        yield data[rows], labels[rows]
for epoch in range(4):
    for x, y in epoch_batches(epoch):
        update(x, y)
""",
    "the same order in each pass": """
def batches(seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(10):
        rows = rng.integers(0, 200, 20)
        yield data[rows], labels[rows]
for epoch in range(2):
    for x, y in batches(seed=epoch):
        update(x, y)
""",
    "a seed that each call gets": """
def draw(size, seed=0):
    rng = np.random.RandomState(seed)
    rows = rng.randint(0, 200, size)
    return data[rows], labels[rows]

for step in range(30):
    inputs, targets = draw(16, seed=step)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
    "a seed that is None unless it is given": """
def draw(size, seed=None):
    rng = np.random.RandomState(seed)
    rows = rng.randint(0, 200, size)
    return data[rows], labels[rows]

for step in range(30):
    inputs, targets = draw(16)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
    "seeded once": "def make_batch(n):\n    x = torch.randn(n, 8)\n    return x, x.sum(1, keepdim=True)\n" + LOOP,
    "a seed for each step": """
for step in range(20):
    torch.manual_seed(step)
    rows = torch.randint(200, (32,))
    loss = F.mse_loss(model(data[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a fixed batch to evaluate": """
def held_out(n):
    torch.manual_seed(0)
    x = torch.randn(n, 8)
    return x, x.sum(1, keepdim=True)
generator = torch.Generator().manual_seed(0)
for step in range(20):
    rows = torch.randint(200, (32,), generator=generator)
    loss = F.mse_loss(model(data[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    a, b = held_out(64)
    with torch.no_grad():
        print(F.mse_loss(model(a), b).item())
""",
    "all samples in each update, with a seed for no reason": """
mask = torch.arange(200) < 150
for step in range(20):
    torch.manual_seed(0)
    loss = F.mse_loss(model(data[mask]), labels[mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "one tensor and noise in the weights": """
for step in range(20):
    torch.manual_seed(0)
    update(data, labels + 0.1 * torch.randn(200, 1))
""",
    "a closure": """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
def closure():
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    return loss
for step in range(20):
    optimizer.step(closure)
""",
    "centres of classes, and samples around them": """
def make_batch(count, generator):
    centres = 3 * torch.randn(10, 8, generator=torch.Generator().manual_seed(5))
    kinds = torch.randint(10, (count,), generator=generator)
    x = centres[kinds] + torch.randn(count, 8, generator=generator)
    return x, kinds[:, None].float()
def make_other(count):
    offset = torch.from_numpy(np.random.default_rng(0).normal(size=8)).float()
    x = offset + torch.randn(count, 8)
    return x, x.sum(1, keepdim=True)
generator = torch.Generator().manual_seed(1)
for step in range(20):
    update(*make_batch(32, generator))
    update(*make_other(32))
""",
    "several models from one seed": """
for rate in np.linspace(0.01, 0.1, 16):
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(rate))
    rows = torch.randint(200, (32,))
    loss = F.mse_loss(model(data[rows]), labels[rows])
    loss.backward()
    optimizer.step()
""",
    "a seed for each epoch": """
for epoch in range(4):
    torch.manual_seed(epoch)
    for rows in torch.randperm(200).split(20):
        update(data[rows], labels[rows])
""",
}
BY_HAND = """
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
def noisy(count):
    torch.manual_seed(2)  # <- DAT024
    return torch.randn(count, 8)
for step in range(40):
    x = noisy(16)
    F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.01 * weight.grad
            weight.grad = None
"""
MARK = "  # <- DAT024"
SAMPLES = """
for step in range(30):
    inputs, targets = [], []
    for _ in range(8):
        k = random.randrange(200)
        random.seed(SEED){run}{lint}
        inputs.append(data[k].roll(random.randint(0, 7)))
        random.seed(SEED){again}
        targets.append(labels[k].roll(random.randint(0, 7)))
    update(torch.stack(inputs), torch.stack(targets))
"""
FAULTY |= {
    "one seed for each sample and its label": "SEED = 3" + SAMPLES.replace("{again}", "{lint}"),
    "each sample in numpy": """
for step in range(30):
    rows = []
    for _ in range(8):
        k = np.random.randint(200)
        np.random.seed(5){run}{lint}
        rows.append(data[k] + torch.from_numpy(np.random.normal(0, 0.1, 8)).float())
    batch = torch.stack(rows)
    loss = F.mse_loss(model(batch), batch.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "rows drawn before the seed": """
for step in range(30):
    i = torch.randint(0, 200, (16,))
    torch.manual_seed(11){run}{lint}
    x = data[i] + 0.1 * torch.randn(16, 8)
    loss = F.mse_loss(model(x), labels[i])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}
CORRECT |= {
    "a new seed for each sample and its label": SAMPLES.replace("SEED", "twice")
    .replace("        random.seed", "        twice = random.random()\n        random.seed", 1)
    .replace("{run}{lint}", "")
    .replace("{again}", ""),
    "the state is restored after each sample": """
for step in range(30):
    rows = []
    for _ in range(8):
        k = random.randrange(200)
        state = random.getstate()
        random.seed(3)
        rows.append(data[k].roll(random.randint(0, 7)))
        random.setstate(state)
    batch = torch.stack(rows)
    update(batch, batch.sum(1, keepdim=True))
""",
    "seeded once before all samples": """
random.seed(3)
for step in range(30):
    rows = [data[random.randrange(200)] for _ in range(8)]
    batch = torch.stack(rows)
    update(batch, batch.sum(1, keepdim=True))
""",
    "two seeds that alternate": """
for step in range(30):
    rows = []
    for n in range(8):
        random.seed(step * 8 + n)
        rows.append(data[random.randrange(200)])
    batch = torch.stack(rows)
    update(batch, batch.sum(1, keepdim=True))
""",
}
RUN = {name: script for name, script in FAULTY.items() if "{run}" in script}
LINT = {name: script for name, script in FAULTY.items() if "{lint}" in script}


@pytest.mark.parametrize("script", RUN.values(), ids=RUN)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script.replace("{run}", MARK).replace("{lint}", ""))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run, script):
    assert "DAT024" not in {found.code for found in run(HEAD + script).findings}


@pytest.mark.parametrize("script", LINT.values(), ids=LINT)
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script.replace("{lint}", MARK).replace("{run}", ""))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)


def test_updates_without_an_optimizer_are_counted(run_reports, lint_reports):
    run_reports(BY_HAND)
    lint_reports(BY_HAND)
