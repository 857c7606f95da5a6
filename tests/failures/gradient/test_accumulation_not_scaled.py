"""GRD003: accumulated losses that are not divided by the number of batches."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=8)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
mse = nn.MSELoss()
K = 4
"""

FAULTY = {
    "plain": """
for i, (a, b) in enumerate(loader):
    loss = mse(model(a), b)
    loss.backward()  # <- GRD003
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "in a class, with cross-entropy and clipping": """
classes = (y[:, 0] > 0).long()
loader = DataLoader(TensorDataset(x, classes), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
class Trainer:
    def __init__(self):
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.count = 0
    def micro(self, a, b):
        nn.functional.cross_entropy(model(a), b).backward()  # <- GRD003
        self.count += 1
        if self.count % 2 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            self.optimizer.step()
            self.optimizer.zero_grad()
trainer = Trainer()
for a, b in loader:
    trainer.micro(a, b)
""",
    "batches by hand": """
for i, part in enumerate(torch.randperm(96).split(8)):
    mse(model(x[part]), y[part]).backward()  # <- GRD003
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "not divided in one of two branches": """
classes = (y[:, 0] > 0).long()
loader = DataLoader(TensorDataset(x, classes), batch_size=4)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters())
ce = nn.CrossEntropyLoss()
for i, (a, b) in enumerate(loader):
    if i % 3 == 0:
        share = 0.3
        order = torch.randperm(len(a))
        out = model(share * a + (1 - share) * a[order])
        loss = share * ce(out, b) + (1 - share) * ce(out, b[order])
    else:
        loss = ce(model(a), b) / K
    loss.backward()  # <- GRD003
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "in nested loops": """
batches = iter(loader)
for update in range(3):
    optimizer.zero_grad()
    for _ in range(K):
        a, b = next(batches)
        mse(model(a), b).backward()  # <- GRD003
    optimizer.step()
""",
    "with a GradScaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for i, (a, b) in enumerate(loader):
    loss = mse(model(a), b)
    scaler.scale(loss).backward()  # <- GRD003
    if (i + 1) % K == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
}

CORRECT = {
    "divided, batches by hand": """
for i, part in enumerate(torch.randperm(96).split(8)):
    (mse(model(x[part]), y[part]) / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "tasks by hand, each with a head and data of its own": """
heads = [nn.Linear(8, 1) for _ in range(2)]
both = torch.optim.Adam([*model.parameters(), *heads[0].parameters(), *heads[1].parameters()])
for start in range(0, 40, 8):
    for head, part in zip(heads, (slice(start, start + 8), slice(start + 48, start + 56))):
        mse(head(model[:2](x[part])), y[part]).backward()
    both.step()
    both.zero_grad()
""",
    "passes over one batch by hand": """
for update in range(4):
    for _ in range(K):
        mse(model(x[:16] + 0.1 * torch.randn(16, 6)), y[:16]).backward()
    for p in model.parameters():
        p.grad /= K
    optimizer.step()
    optimizer.zero_grad()
""",
    "two losses of one batch by hand": """
for part in torch.randperm(96).split(8):
    for target in (y, y.abs()):
        mse(model(x[part]), target[part]).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "labelled and unlabelled batches in one window": """
for i, (a, b) in enumerate(loader):
    if i % 2:
        loss = mse(model(a), b)
    else:
        loss = 0.1 * mse(model(a), model(a + 0.1).detach())
    loss.backward()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "divided": """
for i, (a, b) in enumerate(loader):
    (mse(model(a), b) / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "no accumulation": """
for a, b in loader:
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()
""",
    "several losses of one batch": """
for a, b in loader:
    optimizer.zero_grad()
    hidden = model[1](model[0](a))
    mse(model[2](hidden), b).backward(retain_graph=True)
    nn.functional.l1_loss(model[2](hidden), b).backward()
    optimizer.step()
""",
    "sums divided by their count": """
for i, (a, b) in enumerate(loader):
    (nn.functional.mse_loss(model(a), b, reduction="sum") / (K * len(a))).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "gradients divided by hand": """
for i, (a, b) in enumerate(loader):
    mse(model(a), b).backward()
    if (i + 1) % K == 0:
        for p in model.parameters():
            p.grad /= K
        optimizer.step()
        optimizer.zero_grad()
""",
    "gradients divided through data, then clipped": """
for i, (a, b) in enumerate(loader):
    mse(model(a), b).backward()
    if (i + 1) % K == 0:
        for p in model.parameters():
            p.grad.data.div_(K)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


# Lint --------------------------------------------------------------------------------------------------------

RUN_ONLY = {"batches by hand"}
"""Faulty scripts that lint cannot detect."""

LINT_ONLY = {
    "window size from arguments, last window stepped": """
def train(net: nn.Module, loader, opt: torch.optim.Optimizer, args):
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    opt.zero_grad()
    for step, batch in enumerate(loader):
        logits = net(batch["pixels"])
        loss = criterion(logits, batch["labels"])
        loss.backward()  # <- GRD003
        last = step == len(loader) - 1
        if (step + 1) % args.accumulation_steps == 0 or last:
            torch.nn.utils.clip_grad_norm_(net.parameters(), args.clip)
            opt.step()
            opt.zero_grad(set_to_none=True)
""",
    "continue until the window is full": """
class Fit:
    def __init__(self, net: nn.Module):
        self.net, self.window = net, 8
        self.opt = torch.optim.AdamW(self.net.parameters())

    def epoch(self, loader):
        for i, (a, b) in enumerate(loader, start=1):
            loss = nn.functional.mse_loss(self.net(a), b)
            loss.backward()  # <- GRD003
            if i % self.window != 0:
                continue
            self.opt.step()
            self.opt.zero_grad()
""",
    "mixed precision": """
def train(net: nn.Module, loader, opt: torch.optim.Optimizer, every):
    scaler = torch.cuda.amp.GradScaler()
    for i, (a, b) in enumerate(loader):
        with torch.cuda.amp.autocast():
            loss = mse(net(a), b)
        scaler.scale(loss).backward()  # <- GRD003
        if not (i + 1) % every:
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
""",
}

LINT_CORRECT = {
    "divided where several batches are accumulated": """
class Trainer:
    def __init__(self, args, net):
        self.args, self.net = args, net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    def train(self, loader):
        for i, (a, b) in enumerate(loader):
            loss = mse(self.net(a), b)
            if self.args.n_gpu > 1:
                loss = loss.mean()
            if self.args.accumulate > 1:
                loss = loss / self.args.accumulate
            loss.backward()
            if (i + 1) % self.args.accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
def train(model, optimizer, loader, steps):
    for i, (a, b) in enumerate(loader):
        loss = mse(model(a), b)
        loss = loss / steps if steps != 1 else loss
        loss.backward()
        if (i + 1) % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "divided before backward": """
for i, (a, b) in enumerate(loader):
    loss = mse(model(a), b)
    loss = loss / K
    loss.backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "divided in place": """
for i, (a, b) in enumerate(loader):
    loss = mse(model(a), b)
    loss /= K
    loss.backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "divided by a method": """
for i, (a, b) in enumerate(loader):
    loss = mse(model(a), b)
    loss.div_(K)
    loss.backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "learning rate is divided": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / K)
for i, (a, b) in enumerate(loader):
    mse(model(a), b).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "Accelerate divides itself": """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for i, (a, b) in enumerate(loader):
    accelerator.backward(mse(model(a), b))
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "sums": """
total = nn.MSELoss(reduction="sum")
for i, (a, b) in enumerate(loader):
    total(model(a), b).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "step every fourth pass over one batch": """
for i in range(20):
    mse(model(x), y).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "generator trained every few batches": """
G = nn.Linear(2, 6)
g = torch.optim.Adam(G.parameters())
for i, (a, b) in enumerate(loader):
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()
    if i % 5 == 0:
        g.zero_grad()
        (-model(G(torch.randn(len(a), 2)))).mean().backward()
        g.step()
""",
    "losses of several tasks": """
heads = [nn.Linear(6, 1) for _ in range(3)]
for a, b in loader:
    optimizer.zero_grad()
    for k in range(3):
        mse(model(a) + heads[k](a), b).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - RUN_ONLY), *LINT_ONLY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_ONLY}[name])


@pytest.mark.parametrize("name", [*RUN_ONLY, *CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_CORRECT}[name])
