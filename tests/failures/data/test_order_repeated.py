"""DAT004: a shuffled order that repeats in every epoch."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, WeightedRandomSampler

x = torch.randn(160, 6)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def one_epoch(loader, net=model, opt=optimizer):
    for a, b in loader:
        opt.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        opt.step()
"""

FAULTY = {
    "seeded in each epoch": """
loader = DataLoader(data, 16, shuffle=True)
for epoch in range(3):
    torch.manual_seed(0)  # <- DAT004
    one_epoch(loader)
""",
    "a generator of the loader, seeded again": """
g = torch.Generator()
loader = DataLoader(data, 16, shuffle=True, generator=g)  # <- DAT004
for epoch in range(3):
    g.manual_seed(7)
    one_epoch(loader)
""",
    "a new loader with a new generator in each epoch": """
def make_loader(seed=0):
    return DataLoader(data, 16, shuffle=True, generator=torch.Generator().manual_seed(seed))  # <- DAT004
for epoch in range(3):
    one_epoch(make_loader())
""",
    "in a class, with workers, drawn by weight, accumulated": """
class Trainer:
    def __init__(self, seed):
        self.seed = seed
        sampler = WeightedRandomSampler(torch.rand(160) + 0.1, 160)
        self.loader = DataLoader(data, 8, sampler=sampler, num_workers=1)
    def seed_everything(self):
        torch.manual_seed(self.seed)  # <- DAT004
    def epoch(self):
        self.seed_everything()
        for i, (a, b) in enumerate(self.loader):
            (nn.functional.mse_loss(model(a), b) / 2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
trainer = Trainer(3)
for _ in range(2):
    trainer.epoch()
""",
}

CORRECT = {
    "seeded once": """
torch.manual_seed(0)
loader = DataLoader(data, 16, shuffle=True)
for epoch in range(3):
    one_epoch(loader)
""",
    "seeded by the epoch": """
loader = DataLoader(data, 16, shuffle=True)
for epoch in range(3):
    torch.manual_seed(epoch)
    one_epoch(loader)
""",
    "set_epoch": """
sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=True)
for epoch in range(3):
    sampler.set_epoch(epoch)
    one_epoch(DataLoader(data, 16, sampler=sampler))
""",
    "not shuffled": """
loader = DataLoader(data, 16)
for epoch in range(3):
    torch.manual_seed(0)
    one_epoch(loader)
""",
    "two runs to compare": """
loader = DataLoader(data, 16, shuffle=True)
for rate in (0.1, 0.01, 0.001):
    torch.manual_seed(0)
    net = nn.Linear(6, 1)
    one_epoch(loader, net, torch.optim.SGD(net.parameters(), lr=rate))
""",
    "two models side by side": """
other = nn.Linear(6, 1)
its_optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
loader = DataLoader(data, 16, shuffle=True)
for epoch in range(2):
    torch.manual_seed(epoch)
    one_epoch(loader)
    torch.manual_seed(epoch)
    one_epoch(loader, other, its_optimizer)
""",
    "rolled back": """
loader = DataLoader(data, 16, shuffle=True)
weights = {k: v.clone() for k, v in model.state_dict().items()}
generator = torch.get_rng_state()
one_epoch(loader)
model.load_state_dict(weights)
torch.set_rng_state(generator)
one_epoch(loader)
""",
    "held-out data in the same shuffled order": """
train_loader, val_loader = DataLoader(data, 16, shuffle=True), DataLoader(TensorDataset(x + 1, x), 16, shuffle=True)
for epoch in range(3):
    one_epoch(train_loader)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for a, b in val_loader:
            model(a)
""",
    "one batch": """
loader = DataLoader(TensorDataset(x[:16], x[:16, :1]), 16, shuffle=True)
for epoch in range(5):
    torch.manual_seed(0)
    one_epoch(loader)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


# The rule --------------------------------------------------------------------------------------------------------

LINT_FAULTY = {
    "a function that seeds everything": """
import random
import numpy as np
def seed_everything(seed: int = 42):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # <- DAT004
    torch.cuda.manual_seed_all(seed)
def main(args):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr)
    train_loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=4)
    for epoch in range(args.epochs):
        seed_everything(args.seed)
        net.train()
        for i, (a, b) in enumerate(train_loader):
            opt.zero_grad()
            nn.functional.mse_loss(net(a), b).backward()
            opt.step()
""",
    "it moves before the loop": """
loader = DataLoader(data, 16, shuffle=True)
for epoch in range(30):
    torch.manual_seed(1234)  # <- DAT004 for the noise
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a + torch.randn_like(a)), b).backward()
        optimizer.step()
""",
    "to draw the same samples at the end of each epoch": """
loader = DataLoader(data, 16, sampler=WeightedRandomSampler(torch.ones(160), 160))
def look(net):
    torch.manual_seed(0)  # <- DAT004
    with torch.no_grad():
        print(net(torch.randn(4, 6)))
for epoch in range(30):
    one_epoch(loader)
    look(model)
""",
    "one member, epoch after epoch": """
class Member:
    def __init__(self, seed):
        self.seed, self.net = seed, nn.Linear(6, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.loader = DataLoader(data, 16, shuffle=True)
    def fit(self):
        torch.manual_seed(self.seed)  # <- DAT004
        for a, b in self.loader:
            self.opt.zero_grad()
            nn.functional.mse_loss(self.net(a), b).backward()
            self.opt.step()
member = Member(0)
for fit in range(3):
    member.fit()
""",
}

LINT_CORRECT = {
    "seeded by the epoch, in a function": """
def begin(number, seed=7):
    torch.manual_seed(seed + number)
loader = DataLoader(data, 16, shuffle=True)
for epoch in range(3):
    begin(epoch)
    one_epoch(loader)
""",
    "members of an ensemble, each with its seed": """
class Member:
    def __init__(self, seed):
        self.seed, self.net = seed, nn.Linear(6, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.loader = DataLoader(data, 16, shuffle=True)
    def fit(self):
        torch.manual_seed(self.seed)
        for a, b in self.loader:
            self.opt.zero_grad()
            nn.functional.mse_loss(self.net(a), b).backward()
            self.opt.step()
members = [Member(0), Member(1), Member(2)]
for member in members:
    member.fit()
for number in range(3):
    members[number].fit()
""",
    "another seed in each iteration": """
seeds = iter(range(9))
loader = DataLoader(data, 16, shuffle=True)
def fit(seed):
    torch.manual_seed(seed)
    one_epoch(loader)
for epoch in range(3):
    fit(next(seeds))
""",
    "seeded by a count": """
loader = DataLoader(data, 16, shuffle=True)
number = 0
while number < 10:
    torch.manual_seed(number)
    one_epoch(loader)
    number += 1
""",
    "only in the first epoch": """
loader = DataLoader(data, 16, shuffle=True)
for epoch in range(3):
    if epoch == 0:
        torch.manual_seed(0)
    one_epoch(loader)
""",
    "the state restored after drawing": """
loader = DataLoader(data, 16, shuffle=True)
for epoch in range(3):
    state = torch.get_rng_state()
    torch.manual_seed(0)
    noise = torch.randn(4, 6)
    torch.set_rng_state(state)
    one_epoch(loader)
""",
    "a generator of the loader that continues": """
generator = torch.Generator()
generator.manual_seed(0)
for epoch in range(3):
    torch.manual_seed(0)
    one_epoch(DataLoader(data, 16, shuffle=True, generator=generator))
""",
    "a new run for each seed": """
for seed in (0, 1, 2):
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        one_epoch(DataLoader(data, 16, shuffle=True), model, optimizer)
""",
    "another generator's seed": """
noise = torch.Generator()
loader = DataLoader(data, 16, shuffle=True, generator=torch.Generator())
for epoch in range(3):
    noise.manual_seed(0)
    one_epoch(loader)
""",
    "evaluated with one seed": """
loader, held_out = DataLoader(data, 16, shuffle=True), DataLoader(data, 16, shuffle=True)
for epoch in range(3):
    one_epoch(loader)
for trial in range(3):
    torch.manual_seed(0)
    for a, b in held_out:
        model(a)
""",
}


@pytest.mark.parametrize("name", [*FAULTY, *LINT_FAULTY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_FAULTY}[name])


@pytest.mark.parametrize("name", [*CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_CORRECT}[name])


CYCLES = {
    "next": """
from itertools import cycle
batches = cycle(DataLoader(data, 16, shuffle=True))  # <- DAT004
for step in range(25):
    one_epoch([next(batches)])
""",
    "with an evaluation, in a class": """
import itertools
class Trainer:
    def __init__(self, loader):
        self.batches = itertools.cycle(loader)  # <- DAT004
    def run(self, steps):
        for step, batch in zip(range(steps), self.batches):
            one_epoch([batch])
            if step % 5 == 0:
                with torch.no_grad():
                    for a, b in DataLoader(data, 32):
                        model(a)
Trainer(DataLoader(data, batch_size=16, shuffle=True)).run(25)
""",
}

NO_CYCLES = {
    "a new pass": """
def cycle(loader):
    while True:
        yield from loader
batches = cycle(DataLoader(data, 16, shuffle=True))
for step in range(25):
    one_epoch([next(batches)])
""",
    "no shuffling": """
from itertools import cycle
batches = cycle(DataLoader(data, 16))
for step in range(25):
    one_epoch([next(batches)])
""",
    "in every epoch": """
from itertools import cycle
for epoch in range(3):
    for batch, other in zip(DataLoader(data, 16, shuffle=True), cycle(DataLoader(data, 32, shuffle=True))):
        one_epoch([batch])
""",
    "a cycle of a chosen set": """
from itertools import cycle
support = cycle([next(iter(DataLoader(data, 16, shuffle=True))) for _ in range(3)])
for step in range(25):
    one_epoch([next(support)])
""",
}


@pytest.mark.parametrize("script", CYCLES.values(), ids=CYCLES)
def test_a_cycle_is_reported(run_reports, lint_reports, script: str):
    run_reports(HEAD + script)
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", NO_CYCLES.values(), ids=NO_CYCLES)
def test_other_cycles_are_accepted(run_is_clean, lint_is_clean, script: str):
    run_is_clean(HEAD + script)
    lint_is_clean(HEAD + script, "DAT004")


HELPERS_HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(256, 4), torch.randn(256, 1))
"""
HELPERS = {
    "method of a trainer, every fifth epoch": """
class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
        self.opt = torch.optim.Adam(self.model.parameters())
        self.loader = DataLoader(data, 32, shuffle=True)
    def preview(self):
        torch.manual_seed(1234)  # <- DAT004
        return self.model(torch.randn(8, 4))
    def run(self, epochs):
        for epoch in range(epochs):
            for x, y in self.loader:
                self.opt.zero_grad()
                F.mse_loss(self.model(x), y).backward()
                self.opt.step()
            if epoch % 5 == 0:
                self.preview()
Trainer().run(20)
""",
    "own seed_everything in the evaluation": """
import random
import numpy as np
SEED = 7
def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # <- DAT004
def evaluate(model, loader):
    seed_everything(SEED)
    with torch.no_grad():
        return sum(F.mse_loss(model(x + 0.1 * torch.randn_like(x)), y).item() for x, y in loader)
def train_one(model, opt, x, y):
    noisy = x + 0.2 * torch.randn_like(x)
    loss = F.mse_loss(model(noisy), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
def main(val):
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(data, 32)
    for epoch in range(10):
        for x, y in loader:
            train_one(model, opt, x, y)
        evaluate(model, val)
main(DataLoader(data, 64))
""",
    "closure, permutation": """
def main():
    x, y = data.tensors
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    def draw(n, seed=0):
        torch.manual_seed(seed)  # <- DAT004
        return net(torch.randn(n, 4))
    for epoch in range(30):
        for rows in torch.randperm(len(x)).split(32):
            loss = F.mse_loss(net(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(draw(4))
main()
""",
    "steps without epochs": """
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
def grid(model):
    torch.manual_seed(0)  # <- DAT004
    return model(torch.randn(16, 4))
for step in range(1000):
    x = torch.randn(32, 4)
    loss = net(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        grid(net)
""",
    "two functions deep, while": """
def fixed_noise(n):
    torch.manual_seed(42)  # <- DAT004
    return torch.randn(n, 4)
def report(model, epoch):
    out = model(fixed_noise(16))
    print(epoch, out.mean())
def fit(model, opt, loader):
    epoch = 0
    while epoch < 10:
        for x, y in loader:
            opt.zero_grad()
            F.mse_loss(model(x), y).backward()
            opt.step()
        report(model, epoch)
        epoch += 1
net = nn.Linear(4, 1)
fit(net, torch.optim.Adam(net.parameters()), DataLoader(data, batch_size=16, shuffle=True))
""",
}
HELPERS |= {
    "a generator that is None, batches by index": """
def batch(part, generator=None):
    rows = torch.randint(len(part), (16,), generator=generator)
    return part[rows]
@torch.no_grad()
def estimate(net, part):
    torch.manual_seed(2024)  # <- DAT004
    return sum(net(batch(part)).mean().item() for _ in range(5)) / 5
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())
for it in range(501):
    if it % 25 == 0:
        print(estimate(net, data.tensors[0]))
    if it == 500:
        break
    loss = net(batch(data.tensors[0])).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "a lambda, a counted loader": """
def validate(model, x, y):
    torch.manual_seed(0)  # <- DAT004
    return F.mse_loss(model(x + torch.randn_like(x)), y).item()
model = nn.Linear(4, 1)
opt = torch.optim.Adam(model.parameters())
loader = DataLoader(data, 32, shuffle=True)
check = lambda: validate(model, *data.tensors)
for epoch in range(5):
    for number, (x, y) in enumerate(loader):
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
    print(check())
""",
    "an object that is called, seeds of several splits, chosen steps": """
class Probe:
    def __init__(self, parts):
        self.parts = parts
    def __call__(self, model):
        found = []
        for part in self.parts:
            torch.manual_seed(11)  # <- DAT004
            found.append(model(part[torch.randperm(len(part))[:8]]).mean().item())
        return found
probe = Probe([data.tensors[0][:100], data.tensors[0][100:]])
model = nn.Linear(4, 1)
opt = torch.optim.Adam(model.parameters())
for step in range(400):
    x = torch.rand(32, 4)
    opt.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
    opt.step()
    if step in (50, 100, 200, 300):
        probe(model)
""",
    "NumPy's generator": """
import numpy as np
def sample(n):
    return torch.from_numpy(np.random.choice(256, n))
class Run:
    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), 0.1)
    def check(self):
        np.random.seed(1)  # <- DAT004
        rows = sample(64)
        return F.mse_loss(self.model(data.tensors[0][rows]), data.tensors[1][rows]).item()
    def update(self):
        rows = sample(16)
        self.opt.zero_grad()
        F.mse_loss(self.model(data.tensors[0][rows]), data.tensors[1][rows]).backward()
        self.opt.step()
    def fit(self, steps):
        for step in range(1, steps):
            self.update()
            if not step % 50:
                self.check()
Run().fit(500)
""",
    "an option as the seed, skipped with continue": """
import random
from settings import args
def score(model, seed):
    random.seed(seed)  # <- DAT004
    row = random.randrange(256)
    return model(data.tensors[0][row]).item()
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
for step in range(300):
    row = random.randrange(256)
    opt.zero_grad()
    F.mse_loss(model(data.tensors[0][row]), data.tensors[1][row]).backward()
    opt.step()
    if step % 10:
        continue
    score(model, args.seed)
""",
}
CORRECT_HELPERS = {
    "generator of its own as an argument": """
def batch(part, generator=None):
    return part[torch.randint(len(part), (16,), generator=generator)]
def estimate(net, part):
    generator = torch.Generator().manual_seed(2024)
    return net(batch(part, generator)).mean().item()
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())
for it in range(500):
    if it % 25 == 0:
        print(estimate(net, data.tensors[0]))
    opt.zero_grad()
    net(batch(data.tensors[0])).pow(2).mean().backward()
    opt.step()
""",
    "training has the generator": """
train = torch.Generator().manual_seed(1)
def batch(part, generator=None):
    return part[torch.randint(len(part), (16,), generator=generator)]
def estimate(net, part):
    torch.manual_seed(2024)
    return net(batch(part)).mean().item()
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())
for it in range(500):
    if it % 25 == 0:
        print(estimate(net, data.tensors[0]))
    opt.zero_grad()
    net(batch(data.tensors[0], train)).pow(2).mean().backward()
    opt.step()
""",
    "a fork of the generators": """
def estimate(net):
    with torch.random.fork_rng():
        torch.manual_seed(2024)
        return net(torch.randn(4, 4)).mean().item()
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())
for it in range(500):
    if it % 25 == 0:
        print(estimate(net))
    opt.zero_grad()
    net(torch.randn(8, 4)).pow(2).mean().backward()
    opt.step()
""",
    "a new seed from the step, after a fixed one": """
def estimate(net, step):
    torch.manual_seed(2024)
    value = net(torch.randn(4, 4)).mean().item()
    torch.manual_seed(step)
    return value
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())
for it in range(500):
    if it % 25 == 0:
        print(estimate(net, it))
    opt.zero_grad()
    net(torch.randn(8, 4)).pow(2).mean().backward()
    opt.step()
""",
    "a seed that counts, of an object": """
class Probe:
    def __init__(self):
        self.seed = 0
    def __call__(self, net):
        self.seed += 1
        torch.manual_seed(self.seed)
        return net(torch.randn(4, 4)).mean().item()
probe = Probe()
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())
for it in range(500):
    opt.zero_grad()
    net(torch.randn(8, 4)).pow(2).mean().backward()
    opt.step()
    if it % 25 == 0:
        probe(net)
""",
    "another library's generator": """
import numpy as np
def estimate(net):
    np.random.seed(3)
    return net(torch.from_numpy(np.random.rand(4, 4)).float()).mean().item()
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())
for it in range(500):
    opt.zero_grad()
    net(torch.randn(8, 4)).pow(2).mean().backward()
    opt.step()
    if it % 25 == 0:
        estimate(net)
""",
    "NumPy's new generators": """
import numpy as np
rng = np.random.default_rng(0)
def estimate(net):
    np.random.seed(3)
    return net(torch.from_numpy(np.random.rand(4, 4)).float()).mean().item()
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())
for it in range(500):
    rows = rng.choice(256, 16)
    opt.zero_grad()
    net(data.tensors[0][rows]).pow(2).mean().backward()
    opt.step()
    if it % 25 == 0:
        estimate(net)
""",
    "at the end of the training": """
def estimate(net):
    torch.manual_seed(3)
    return net(torch.randn(4, 4)).mean().item()
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())
for it in range(500):
    opt.zero_grad()
    net(torch.randn(8, 4)).pow(2).mean().backward()
    opt.step()
    if it == 499:
        estimate(net)
    if it % 100 == 0 and it > 400:
        estimate(net)
        break
""",
    "repeated runs": """
def run(rate):
    torch.manual_seed(3)
    net = nn.Linear(4, 1)
    opt = torch.optim.Adam(net.parameters(), rate)
    for it in range(500):
        opt.zero_grad()
        net(torch.randn(8, 4)).pow(2).mean().backward()
        opt.step()
for rate in (0.1, 0.01):
    run(rate)
""",
    "generator, restored, other seed, once": """
def draw(model, n, seed=0):
    g = torch.Generator().manual_seed(seed)
    return model(torch.randn(n, 4, generator=g))
def shuffle_for(epoch):
    torch.manual_seed(epoch)
    return torch.randperm(256)
def final(model):
    torch.manual_seed(0)
    return model(torch.randn(8, 4))
def main():
    torch.manual_seed(3)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    loader = DataLoader(data, 32, shuffle=True)
    for epoch in range(10):
        shuffle_for(epoch)
        for x, y in loader:
            opt.zero_grad()
            F.mse_loss(net(x), y).backward()
            opt.step()
        draw(net, 8)
        if epoch == 9:
            final(net)
    final(net)
main()
""",
    "another training for each seed, restored": """
def build():
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    return net, torch.optim.SGD(net.parameters(), 0.1)
for rate in (0.1, 0.01):
    net, opt = build()
    for x, y in DataLoader(data, 32, shuffle=True):
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()
""",
    "state is restored": """
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
def draw(n):
    state = torch.get_rng_state()
    torch.manual_seed(0)
    out = net(torch.randn(n, 4))
    torch.set_rng_state(state)
    return out
for epoch in range(10):
    for x, y in DataLoader(data, 32, shuffle=True):
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()
    draw(4)
""",
    "training draws nothing": """
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
loader = DataLoader(data, 32, shuffle=True, generator=torch.Generator().manual_seed(0))
def draw(n):
    torch.manual_seed(0)
    return net(torch.randn(n, 4))
for epoch in range(10):
    for x, y in loader:
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()
    draw(4)
""",
}


@pytest.mark.parametrize("script", HELPERS.values(), ids=HELPERS)
def test_lint_reports_a_seed_that_a_called_function_sets(lint_reports, script):
    lint_reports(HELPERS_HEAD + script)


@pytest.mark.parametrize("script", CORRECT_HELPERS.values(), ids=CORRECT_HELPERS)
def test_lint_accepts_generators_and_single_seeds(lint_is_clean, script):
    lint_is_clean(HELPERS_HEAD + script)
