"""GRD002: gradients that are cleared before a step uses them."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(240, 6)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=8)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
"""

FAULTY = {
    "cleared between backward and step": """
for a, b in loader:
    mse(model(a), b).backward()
    optimizer.zero_grad()  # <- GRD002
    optimizer.step()
""",
    "by the model, in a function": """
def update(a, b):
    loss = mse(model(a), b)
    loss.backward()
    model.zero_grad()  # <- GRD002
    optimizer.step()
for a, b in loader:
    update(a, b)
""",
    "in the clean-up of a class": """
class Learner:
    def __init__(self):
        self.optimizer = torch.optim.Adam(model.parameters())
    def backward(self, loss):
        loss.backward()
        self.clean()
    def clean(self):
        self.optimizer.zero_grad(set_to_none=True)  # <- GRD002
    def step(self):
        self.optimizer.step()
learner = Learner()
for a, b in loader:
    learner.backward(mse(model(a), b))
    learner.step()
""",
    "cleared for every micro-batch": """
for i, (a, b) in enumerate(loader):
    optimizer.zero_grad()  # <- GRD002
    (mse(model(a), b) / 2).backward()
    if i % 2 == 1:
        optimizer.step()
""",
    "cleared for every micro-batch, with Adam and clipping": """
adam = torch.optim.AdamW(model.parameters())
def micro(a, b):
    adam.zero_grad()  # <- GRD002
    loss = mse(model(a), b) / 3
    loss.backward()
for i, (a, b) in enumerate(loader):
    micro(a, b)
    if (i + 1) % 3 == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
""",
    "cleared between the losses of two tasks": """
second = nn.Linear(6, 1)
both = torch.optim.Adam([*model.parameters(), *second.parameters()])
for a, b in loader:
    for net in (model, second):
        both.zero_grad()  # <- GRD002
        mse(net(a), b).backward()
    both.step()
""",
    "cleared between two losses, batches by hand": """
for part in torch.randperm(240).split(20):
    optimizer.zero_grad()
    mse(model(x[part]), y[part]).backward()
    optimizer.zero_grad()  # <- GRD002
    model(x[part]).abs().mean().backward()
    optimizer.step()
""",
    "cleared for every micro-batch, batches by hand": """
for i in range(0, 240, 8):
    optimizer.zero_grad()  # <- GRD002
    (mse(model(x[i:i + 8]), y[i:i + 8]) / 2).backward()
    if i // 8 % 2:
        optimizer.step()
""",
}

CORRECT = {
    "sharpness-aware minimisation": """
for a, b in loader:
    mse(model(a), b).backward()
    with torch.no_grad():
        moves = [0.05 * p.grad / p.grad.norm() for p in model.parameters()]
        for p, move in zip(model.parameters(), moves):
            p.add_(move)
    optimizer.zero_grad()
    mse(model(a), b).backward()
    with torch.no_grad():
        for p, move in zip(model.parameters(), moves):
            p.sub_(move)
    optimizer.step()
    optimizer.zero_grad()
""",
    "a loss that trains the generator and reaches the discriminator": """
G = nn.Linear(2, 6)
g = torch.optim.Adam(G.parameters())
for a, b in loader:
    fake = G(torch.randn(len(a), 2))
    g.zero_grad()
    (-model(fake).mean()).backward()
    optimizer.zero_grad()
    (model(fake.detach()).mean() - model(a).mean()).backward()
    g.step()
    optimizer.step()
""",
    "a loss that is measured for the log, in some updates": """
for i, (a, b) in enumerate(loader):
    if i % 3 == 0:
        optimizer.zero_grad()
        mse(model(a), b).backward()
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()
""",
    "a probe before each update": """
for a, b in loader:
    mse(model(a), b).backward()
    norms = [p.grad.norm().item() for p in model.parameters()]
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "batches that are skipped": """
for i, (a, b) in enumerate(loader):
    optimizer.zero_grad()
    mse(model(a), b).backward()
    if i in (1, 3, 5, 6, 9, 11, 13, 15, 17):
        optimizer.zero_grad()
        continue
    optimizer.step()
""",
    "gradients of two tasks, combined by hand": """
from itertools import islice
batches = iter(loader)
while pair := list(islice(batches, 2)):
    stored = []
    for a, b in pair:
        mse(model(a), b).backward()
        stored.append([p.grad.clone() for p in model.parameters()])
        optimizer.zero_grad()
    for p, one, two in zip(model.parameters(), *stored):
        p.grad = one + two
    optimizer.step()
    optimizer.zero_grad()
""",
    "per-sample gradients": """
for a, b in loader:
    total = [torch.zeros_like(p) for p in model.parameters()]
    for one, target in zip(a, b):
        mse(model(one[None]), target[None]).backward()
        for t, p in zip(total, model.parameters()):
            t.add_(p.grad / p.grad.norm().clamp(min=1.0))
        optimizer.zero_grad()
    for t, p in zip(total, model.parameters()):
        p.grad = t / len(a)
    optimizer.step()
    optimizer.zero_grad()
""",
    "a generator's pass through the frozen discriminator, both steps at the end": """
G = nn.Linear(2, 6)
g = torch.optim.Adam(G.parameters())
def freeze(net, frozen):
    for p in net.parameters():
        p.requires_grad_(not frozen)
for a, b in loader:
    fake = G(torch.randn(len(a), 2))
    freeze(model, True)
    g.zero_grad()
    (-model(fake).mean()).backward()
    freeze(model, False)
    optimizer.zero_grad()
    (model(fake.detach()).mean() - model(a).mean()).backward()
    optimizer.step()
    g.step()
""",
    "a generator's pass through the discriminator": """
G = nn.Linear(2, 6)
g = torch.optim.Adam(G.parameters())
for a, b in loader:
    fake = G(torch.randn(len(a), 2))
    g.zero_grad()
    (-model(fake).mean()).backward()
    g.step()
    optimizer.zero_grad()
    (model(fake.detach()).mean() - model(a).mean()).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


# Lint --------------------------------------------------------------------------------------------------------

RUN_ONLY = {
    "cleared for every micro-batch, batches by hand",
}
"""Faulty scripts that lint cannot detect."""

LINT_ONLY = {
    "an optimizer passed as an argument, with a GradScaler": """
def train(net: nn.Module, opt: torch.optim.Optimizer, loader):
    scaler = torch.cuda.amp.GradScaler()
    for a, b in loader:
        with torch.cuda.amp.autocast():
            loss = mse(net(a), b)
        scaler.scale(loss).backward()
        opt.zero_grad(set_to_none=True)  # <- GRD002
        scaler.step(opt)
        scaler.update()
""",
    "window size from arguments, in a class": """
class Trainer:
    def __init__(self, net: nn.Module, args):
        self.net = nn.DataParallel(net)
        self.opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
        self.every = args.every

    def epoch(self, loader):
        for i, (a, b) in enumerate(loader):
            self.opt.zero_grad()  # <- GRD002
            loss = nn.functional.cross_entropy(self.net(a), b) / self.every
            loss.backward()
            ready = (i + 1) % self.every == 0 or i + 1 == len(loader)
            if ready:
                self.opt.step()
""",
    "methods of a class, a model that computes the loss from a dictionary": """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, inputs, labels=None):
        scores = self.head(inputs)
        loss = None if labels is None else nn.functional.cross_entropy(scores, labels)
        return {"loss": loss, "scores": scores}

class Trainer:
    def __init__(self, model, args):
        self.model, self.args = model, args
        self.opt = torch.optim.AdamW(model.parameters(), lr=args.lr)

    def training_step(self, batch):
        self.opt.zero_grad()  # <- GRD002
        loss = self.model(**batch)["loss"] / self.args.every
        loss.backward()
        return loss.item()

    def update(self):
        self.opt.step()

    def train(self, loader):
        for i, batch in enumerate(loader, start=1):
            self.training_step(batch)
            if i % self.args.every == 0:
                self.update()

Trainer(Classifier(), arguments()).train(loader)
""",
    "cleared at the end of every iteration": """
for i, (a, b) in enumerate(loader):
    (mse(model(a), b) / 4).backward()
    if (i + 1) % 4:
        optimizer.zero_grad()
        continue
    optimizer.zero_grad()  # <- GRD002
    optimizer.step()
""",
}

LINT_CORRECT = {
    "a step before training": """
for epoch in range(2):
    optimizer.zero_grad()
    optimizer.step()
    for a, b in loader:
        optimizer.zero_grad()
        mse(model(a), b).backward()
        optimizer.step()
""",
    "alternating optimizers": """
other = torch.optim.SGD(model[0].parameters(), lr=0.1)
for i, (a, b) in enumerate(loader):
    optimizer.zero_grad()
    other.zero_grad()
    mse(model(a), b).backward()
    if i % 2 == 0:
        optimizer.step()
    else:
        other.step()
""",
    "steps in every second epoch": """
for epoch in range(4):
    for a, b in loader:
        optimizer.zero_grad()
        mse(model(a), b).backward()
        if epoch % 2 == 0:
            optimizer.step()
""",
    "a critic that is trained more often than its generator": """
G = nn.Linear(2, 6)
g = torch.optim.Adam(G.parameters())
for i, (a, b) in enumerate(loader):
    optimizer.zero_grad()
    g.zero_grad()
    fake = G(torch.randn(len(a), 2))
    (model(fake).mean() - model(a).mean()).backward()
    optimizer.step()
    if i % 5 == 0:
        g.zero_grad()
        (-model(G(torch.randn(len(a), 2)))).mean().backward()
        g.step()
""",
    "a step that is skipped if the loss is not finite": """
for a, b in loader:
    optimizer.zero_grad()
    loss = mse(model(a), b)
    loss.backward()
    if torch.isfinite(loss):
        optimizer.step()
""",
    "gradients that come from elsewhere": """
from elsewhere import gather
for a, b in loader:
    mse(model(a), b).backward()
    optimizer.zero_grad()
    gather(model)
    optimizer.step()
""",
    "Accelerate's accumulation": """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for i, (a, b) in enumerate(loader):
    with accelerator.accumulate(model):
        accelerator.backward(mse(model(a), b))
        if i % 2:
            pass
        optimizer.step()
        optimizer.zero_grad()
""",
    "optimizers that are attributes of the actor and the critic": """
class Agent:
    def __init__(self, actor, critic, buffer):
        self.actor, self.critic, self.buffer = actor, critic, buffer

    def train(self, steps):
        for _ in range(steps):
            batch = self.buffer.sample(64)
            actions, log_prob = self.actor.act(batch.states)
            critic_loss = mse(self.critic(batch.states, batch.actions), batch.targets)
            self.critic.optimizer.zero_grad()
            critic_loss.backward()
            self.critic.optimizer.step()
            actor_loss = (log_prob - self.critic(batch.states, actions)).mean()
            self.actor.optimizer.zero_grad()
            actor_loss.backward()
            self.actor.optimizer.step()
""",
    "another part of the model is cleared": """
body = torch.optim.SGD(model[0].parameters(), lr=0.1)
for a, b in loader:
    body.zero_grad()
    mse(model(a), b).backward()
    model[2].zero_grad()
    body.step()
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - RUN_ONLY), *LINT_ONLY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_ONLY}[name])


@pytest.mark.parametrize("name", [*RUN_ONLY, *CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_CORRECT}[name])
