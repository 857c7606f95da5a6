"""GRD010: gradients that are clipped after a step has used them."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(96, 6)
y = 10 * x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
mse = nn.functional.mse_loss
"""

FAULTY = {
    "imported by name": """
for a, b in loader:
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()
    clip_grad_norm_(model.parameters(), 0.1)  # <- GRD010
""",
    "by value, in a class": """
class Trainer:
    def fit(self):
        for a, b in loader:
            loss = mse(model(a), b)
            loss.backward()
            optimizer.step()
            self.clip()
            optimizer.zero_grad()
    def clip(self):
        nn.utils.clip_grad_value_(model.parameters(), clip_value=1e-3)  # <- GRD010
Trainer().fit()
""",
    "accumulation, with a branch": """
def train(limit=0.1):
    for number, (a, b) in enumerate(loader, 1):
        (mse(model(a), b) / 2).backward()
        if number % 2 == 0:
            optimizer.step()
            if limit:
                clip_grad_norm_(model.parameters(), max_norm=limit)  # <- GRD010
            optimizer.zero_grad()
train()
train()
""",
    "two optimizers, one of them clipped too late": """
head = torch.optim.Adam(model[2].parameters(), lr=0.001)
body = torch.optim.SGD(model[0].parameters(), lr=0.001)
for a, b in loader:
    head.zero_grad()
    body.zero_grad()
    mse(model(a), b).backward()
    clip_grad_norm_(model[2].parameters(), 0.1)
    head.step()
    body.step()
    clip_grad_norm_(model[0].parameters(), 0.1)  # <- GRD010
""",
    "through an alias": """
clip = clip_grad_norm_
for a, b in loader:
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()
    clip(list(model.parameters()), 1e-2, norm_type=1.0)  # <- GRD010
""",
}

CORRECT = {
    "clipped before the step": """
for a, b in loader:
    optimizer.zero_grad()
    mse(model(a), b).backward()
    clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
""",
    "a norm that is logged after the step": """
norms = []
for a, b in loader:
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()
    norms.append(clip_grad_norm_(model.parameters(), float("inf")).item())
""",
    "a norm that is logged with a limit that is never reached": """
for a, b in loader:
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()
    print(clip_grad_norm_(model.parameters(), 1e9).item())
""",
    "clipped before the step, measured after it": """
for a, b in loader:
    optimizer.zero_grad()
    mse(model(a), b).backward()
    clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    clip_grad_norm_(model.parameters(), float("inf"))
""",
    "all parameters, between the steps of two optimizers": """
head = torch.optim.SGD(model[2].parameters(), lr=0.001)
body = torch.optim.SGD(model[0].parameters(), lr=0.001)
for a, b in loader:
    head.zero_grad()
    body.zero_grad()
    mse(model(a), b).backward()
    clip_grad_norm_(model[2].parameters(), 0.1)
    head.step()
    clip_grad_norm_(model.parameters(), 0.1)
    body.step()
""",
    "nothing to clip": """
for a, b in loader:
    mse(model(a), b).backward()
    clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    clip_grad_norm_(model.parameters(), 0.1)
""",
}


LONGER = f"{HEAD}loader = [*loader, *loader]\n"
BEFORE = {
    "in a loop": """
for a, b in loader:
    optimizer.zero_grad()
    loss = mse(model(a), b)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # <- GRD010
    loss.backward()
    optimizer.step()
""",
    "in a method": """
class Runner:
    def __init__(self, net, lr):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=lr)
    def training_step(self, batch):
        x, y = batch
        self.opt.zero_grad()
        loss = mse(self.net(x), y)
        clip_grad_norm_(self.net.parameters(), 0.1)  # <- GRD010
        loss.backward()
        self.opt.step()
        return loss.item()
    def fit(self):
        for batch in loader:
            self.training_step(batch)
Runner(model, 0.1).fit()
""",
    "in a function that clears at its end": """
def update(x, y):
    loss = mse(model(x), y)
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)  # <- GRD010
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
for x, y in loader:
    update(x, y)
""",
}
AFTER = {
    "in a method": """
def update(x, y):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
for x, y in loader:
    update(x, y)
""",
    "the gradients of several calls": """
def update(x, y, last):
    (mse(model(x), y) / 2).backward()
    if last:
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
for number, (x, y) in enumerate(loader):
    update(x, y, number % 2)
""",
    "a schedule": """
schedulers = [torch.optim.lr_scheduler.ConstantLR(optimizer)]
def update(x, y):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    schedulers[0].step()
for x, y in loader:
    update(x, y)
""",
}


@pytest.mark.parametrize("script", BEFORE.values(), ids=BEFORE)
def test_lint_reports_clipping_before_the_backward_pass(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("to_none", [True, False], ids=["no gradients", "gradients of zero"])
def test_run_reports_clipping_before_the_backward_pass(run_reports, script, to_none):
    script = script.replace("clip_grad_value_", "clip_grad_norm_")  # which fails without gradients
    run_reports(LONGER + script.replace("zero_grad()", f"zero_grad(set_to_none={to_none})"))


@pytest.mark.parametrize("script", AFTER.values(), ids=AFTER)
def test_run_ignores_clipping_after_the_backward_pass(run_is_clean, script):
    run_is_clean(LONGER + script)


@pytest.mark.parametrize("script", AFTER.values(), ids=AFTER)
def test_lint_ignores_clipping_after_the_backward_pass(lint_is_clean, script):
    lint_is_clean(HEAD + script, "GRD010")


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


# Lint --------------------------------------------------------------------------------------------------------

RUN_ONLY: set[str] = set()
"""Faulty scripts that lint cannot detect."""

LINT_ONLY = {
    "an optimizer passed as an argument": """
def train(net: nn.Module, optimizer: torch.optim.Optimizer, loader, args):
    net.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        output = net(data)
        loss = nn.functional.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        torch.nn.utils.clip_grad_norm_(net.parameters(), args.clip)  # <- GRD010
""",
    "with a GradScaler": """
scaler = torch.cuda.amp.GradScaler()
for a, b in loader:
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.amp.autocast():
        loss = mse(model(a), b)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    clip_grad_norm_(model.parameters(), 1.0)  # <- GRD010
""",
    "with a GradScaler that has unscaled": """
scaler = torch.amp.GradScaler("cuda")
for a, b in loader:
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(mse(model(a), b)).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    # against explosions
    clip_grad_value_(model.parameters(), 1.0)  # <- GRD010
    scaler.update()
""",
    "clipped after clearing": """
class Learner:
    def __init__(self, net: nn.Module):
        self.net = net
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)
    def learn(self, a, b):
        loss = mse(self.net(a), b)
        loss.backward()
        self.opt.step()
        self.opt.zero_grad()
        nn.utils.clip_grad_norm_(self.net.parameters(), 5)  # <- GRD010
""",
}

LINT_CORRECT = {
    "a norm that is used, with a finite limit": """
for a, b in loader:
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()
    norm = clip_grad_norm_(model.parameters(), 1.0)
    print(norm)
""",
    "another model's": """
other = nn.Linear(6, 1)
for a, b in loader:
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()
    clip_grad_norm_(other.parameters(), 1.0)
""",
    "a step in a branch": """
for number, (a, b) in enumerate(loader):
    (mse(model(a), b) / 4).backward()
    if a.mean() > 0:
        optimizer.step()
        optimizer.zero_grad()
    clip_grad_norm_(model.parameters(), 1.0)
""",
    "a backward in another file": """
from elsewhere import backward
for a, b in loader:
    mse(model(a), b).backward()
    optimizer.step()
    optimizer.zero_grad()
    backward(model, a, b)
    clip_grad_norm_(model.parameters(), 1.0)
""",
    "a second backward in between": """
for a, b in loader:
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()
    mse(model(a + 0.1), b).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
    "gradients written by hand": """
for a, b in loader:
    mse(model(a), b).backward()
    optimizer.step()
    grads = torch.autograd.grad(mse(model(a), b), list(model.parameters()))
    for p, g in zip(model.parameters(), grads):
        p.grad = g
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
    "clipped at the start of the iteration": """
def train(model, optimizer, loader):
    for a, b in loader:
        loss = mse(model(a), b)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.zero_grad()
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - RUN_ONLY), *LINT_ONLY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_ONLY}[name])


@pytest.mark.parametrize("name", [*RUN_ONLY, *CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_CORRECT}[name])


def test_fix_moves_the_clipping_and_unscales_first(lint_reports):
    (found,) = lint_reports(HEAD + LINT_ONLY["with a GradScaler"], fixes=True)
    assert found.autofix.safe
    assert "scaler.unscale_(optimizer)" in "".join(edit.text for edit in found.autofix.edits)


def test_fix_does_not_unscale_twice_or_guess_keyword_arguments(lint_reports):
    (found,) = lint_reports(HEAD + LINT_ONLY["with a GradScaler that has unscaled"], fixes=True)
    assert "unscale_" not in "".join(edit.text for edit in found.autofix.edits)
    by_keyword = LINT_ONLY["with a GradScaler"].replace("scaler.step(optimizer)", "scaler.step(optimizer=optimizer)")
    lint_reports(HEAD + by_keyword, fixes=False)


IN_LOSS = {
    "a step of a class": """
class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = model

    def training_step(self, batch):
        a, b = batch
        loss = mse(self.net(a), b)
        clip_grad_norm_(self.parameters(), 1.0)  # <- GRD010
        return loss

task = Task()
for batch in loader:
    loss = task.training_step(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a function with several results": """
def forward_and_loss(a, b):
    outputs = model(a)
    loss = mse(outputs, b)
    nn.utils.clip_grad_value_(model.parameters(), 0.5)  # <- GRD010
    return loss

def train():
    for a, b in loader:
        optimizer.zero_grad()
        loss = forward_and_loss(a, b) / 2
        loss.backward()
        optimizer.step()

train()
""",
    "a direct backward": """
def compute_loss(a, b):
    loss = mse(model(a), b)
    clip_grad_norm_(model.parameters(), 1.0)  # <- GRD010
    return loss

for a, b in loader:
    optimizer.zero_grad()
    compute_loss(a, b).backward()
    optimizer.step()
""",
}
NOT_IN_LOSS = {
    "the function computes the gradients": """
def step(a, b):
    loss = mse(model(a), b)
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    return loss

for a, b in loader:
    optimizer.zero_grad()
    loss = step(a, b)
    optimizer.step()
""",
    "clipped again after the backward pass": """
def compute_loss(a, b):
    clip_grad_norm_(model.parameters(), 1.0)
    loss = mse(model(a), b)
    return loss

for a, b in loader:
    optimizer.zero_grad()
    compute_loss(a, b).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
    "a function for the update": """
def update(loss):
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()

for a, b in loader:
    loss = mse(model(a), b)
    loss.backward()
    update(loss)
""",
    "the norm is measured": """
def compute_loss(a, b):
    norm = clip_grad_norm_(model.parameters(), float("inf"))
    loss = mse(model(a), b)
    return loss

for a, b in loader:
    compute_loss(a, b).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("script", IN_LOSS.values(), ids=IN_LOSS)
def test_lint_reports_clipping_in_a_function_for_the_loss(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", NOT_IN_LOSS.values(), ids=NOT_IN_LOSS)
def test_lint_accepts_clipping_elsewhere(lint_is_clean, script):
    lint_is_clean(HEAD + script, "GRD010")
