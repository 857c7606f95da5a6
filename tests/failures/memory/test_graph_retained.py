"""MEM002: retain_graph=True without a second backward."""

import pytest

HEAD = """
import torch
from torch import nn

x = torch.rand(96, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
"""

FAULTY = {
    "a plain loop": """
for step in range(16):
    optimizer.zero_grad()
    mse(model(x), y).backward(retain_graph=True)  # <- MEM002
    optimizer.step()
""",
    "a class, by position": """
class Trainer:
    def update(self):
        optimizer.zero_grad()
        self.loss = mse(model(x), y)
        self.loss.backward(None, True)  # <- MEM002
        optimizer.step()
trainer = Trainer()
for step in range(16):
    trainer.update()
""",
    "a closure": """
def closure():
    optimizer.zero_grad()
    loss = mse(model(x), y)
    torch.autograd.backward([loss], retain_graph=True)  # <- MEM002
    return loss
for step in range(16):
    optimizer.step(closure)
""",
    "a recurrent net whose state is cut off": """
cell, out = nn.GRUCell(6, 8), nn.Linear(8, 1)
adam = torch.optim.Adam([*cell.parameters(), *out.parameters()], lr=0.01)
hidden = torch.zeros(96, 8)
for step in range(16):
    hidden = cell(x, hidden.detach())
    loss = mse(out(hidden), y)
    adam.zero_grad()
    loss.backward(retain_graph=True)  # <- MEM002
    adam.step()
""",
    "accumulation": """
for step in range(32):
    loss = mse(model(x[step % 2 :: 2]), y[step % 2 :: 2]) / 2
    loss.backward(retain_graph=True)  # <- MEM002
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "of two losses also the last": """
second = nn.Linear(8, 1)
both = torch.optim.SGD([*model.parameters(), *second.parameters()], lr=0.01)
for step in range(16):
    both.zero_grad()
    h = model[:2](x)
    first, other = mse(model[2](h), y), mse(second(h), -y)
    first.backward(retain_graph=True)
    other.backward(retain_graph=True)  # <- MEM002
    both.step()
""",
}

CORRECT = {
    "all losses but the last": """
second = nn.Linear(8, 1)
both = torch.optim.SGD([*model.parameters(), *second.parameters()], lr=0.01)
for step in range(30):
    both.zero_grad()
    h = model[:2](x)
    losses = mse(model[2](h), y), mse(second(h), -y)
    for k, loss in enumerate(losses):
        loss.backward(retain_graph=k < 1)
    both.step()
""",
    "all losses, by one line": """
second = nn.Linear(8, 1)
both = torch.optim.SGD([*model.parameters(), *second.parameters()], lr=0.01)
for step in range(30):
    both.zero_grad()
    h = model[:2](x)
    for loss in (mse(model[2](h), y), mse(second(h), -y)):
        loss.backward(retain_graph=True)
    both.step()
""",
    "create_graph": """
for step in range(30):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    loss.backward(retain_graph=True, create_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    del loss
""",
    "a generator that goes through its fakes again": """
judge = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
judging = torch.optim.SGD(judge.parameters(), lr=0.01)
for step in range(30):
    fake = model(x)
    judging.zero_grad()
    (judge(fake).mean() - judge(y).mean()).backward(retain_graph=True)
    judging.step()
    optimizer.zero_grad()
    (-judge(fake)).mean().backward()
    optimizer.step()
""",
    "a graph built once": """
table = nn.Parameter(torch.randn(96, 8))
encoded = table.tanh() * 2
head = nn.Linear(8, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for step in range(30):
    optimizer.zero_grad()
    mse(head(encoded), y).backward(retain_graph=True)
    optimizer.step()
""",
    "a later torch.autograd.grad": """
norms = []
for step in range(30):
    optimizer.zero_grad()
    out = model(x)
    loss = mse(out, y)
    loss.backward(retain_graph=True)
    norms.append(torch.autograd.grad(loss, out)[0].norm().item())
    optimizer.step()
""",
    "a second pass now and then": """
for step in range(40):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    loss.backward(retain_graph=True)
    if step % 10 == 9:
        (0.1 * loss).backward()
    optimizer.step()
""",
    "a few times only": """
for step in range(30):
    optimizer.zero_grad()
    mse(model(x), y).backward(retain_graph=step < 8)
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


def test_graphs_are_freed_at_the_same_time(run):
    ran = run(f"""{HEAD}
import gc, weakref
gc.disable()
class Canary: pass
for step in range(5):
    out = model(x)
    loss = mse(out, y)
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    canary = Canary()
    alive = weakref.ref(canary)
    out.grad_fn.metadata["canary"] = canary
    del canary
    assert alive() is not None
    del out, loss
    assert alive() is None
gc.enable()
""")
    assert not ran.findings
    (judged,) = (each for each in ran.report.verdicts if each.code == "MEM002")
    assert "fewer than 13" in judged.reason


# The rule --------------------------------------------------------------------------------------------------------

RUN_ONLY: set[str] = set()
"""Of these the text cannot tell."""

LINT_FAULTY = {
    "a trainer class with a network": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 20, 5)
        self.fc = nn.Linear(500, 10)
    def forward(self, x):
        x = torch.relu(self.conv(x))
        return self.fc(torch.flatten(x, 1))
def main(args, train_loader):
    net = Net().cuda()
    criterion = nn.CrossEntropyLoss()
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        total = 0.0
        for i, (images, labels) in enumerate(train_loader):
            opt.zero_grad()
            loss = criterion(net(images.cuda()), labels.cuda())
            loss.backward(retain_graph=True)  # <- MEM002
            opt.step()
            total += loss.item()
""",
    "with a scaler": """
scaler = torch.amp.GradScaler("cuda")
for step in range(16):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    scaler.scale(loss).backward(retain_graph=True)  # <- MEM002
    scaler.step(optimizer)
    scaler.update()
""",
}

LINT_CORRECT = {
    "a recurrent net that goes on": """
cell, out = nn.GRUCell(6, 8), nn.Linear(8, 1)
adam = torch.optim.Adam([*cell.parameters(), *out.parameters()], lr=0.01)
hidden = torch.zeros(96, 8)
for step in range(16):
    hidden = cell(x, hidden)
    loss = mse(out(hidden), y)
    adam.zero_grad()
    loss.backward(retain_graph=True)
    adam.step()
""",
    "a state in the net": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 8)
        self.hidden = torch.zeros(96, 8)
    def forward(self, x):
        self.hidden = self.cell(x, self.hidden)
        return self.hidden.mean(1, keepdim=True)
net = Net()
adam = torch.optim.Adam(net.parameters())
for step in range(16):
    adam.zero_grad()
    mse(net(x), y).backward(retain_graph=True)
    adam.step()
""",
    "a net of another file": """
from nets import SpikingNet
def train(net: nn.Module, loader, opt: torch.optim.Optimizer):
    for a, b in loader:
        opt.zero_grad()
        mse(net(a), b).backward(retain_graph=True)
        opt.step()
spiking = SpikingNet()
for step in range(16):
    optimizer.zero_grad()
    mse(spiking(x), y).backward(retain_graph=True)
    optimizer.step()
""",
    "a running total": """
total = 0
for step in range(16):
    total = total + mse(model(x), y)
    total.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
""",
    "a total that is added to": """
total = 0
for step in range(16):
    total += mse(model(x), y)
    total.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
""",
    "stored in a list": """
memory = []
for step in range(16):
    optimizer.zero_grad()
    memory.append(mse(model(x), y))
    torch.stack(memory).mean().backward(retain_graph=True)
    optimizer.step()
""",
    "passed to unknown code": """
from elsewhere import penalty
for step in range(16):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    loss.backward(retain_graph=True)
    penalty(loss)
    optimizer.step()
""",
    "an embedding computed once": """
embedding = nn.Embedding(96, 8)
encoded = embedding(torch.arange(96))
head = nn.Linear(8, 1)
heading = torch.optim.SGD(head.parameters(), lr=0.1)
for step in range(16):
    heading.zero_grad()
    mse(head(encoded), y).backward(retain_graph=True)
    heading.step()
""",
    "no loop": """
def step(a, b):
    loss = mse(model(a), b)
    loss.backward(retain_graph=True)
    return loss
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - RUN_ONLY), *LINT_FAULTY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_FAULTY}[name])


@pytest.mark.parametrize("name", [*RUN_ONLY, *CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_CORRECT}[name])
