"""GRD001: a step uses gradients that an earlier step has used."""

import re

import pytest

HEAD = """
import torch
from torch import nn

x = torch.randn(64, 6)
y = (x[:, :1] > 0).float()
def net():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
def loss_of(model, rows=slice(0, 16)):
    return nn.functional.mse_loss(model(x[rows]), y[rows])
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
"""

FAULTY = {
    "closure of LBFGS that clears nothing": """
second = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)
def closure():
    loss = loss_of(model)
    loss.backward()
    return loss
for _ in range(4):
    second.zero_grad()
    second.step(closure)  # <- GRD001
""",
    "plain": """
for _ in range(4):
    loss_of(model).backward()
    optimizer.step()  # <- GRD001
""",
    "in a class": """
class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
    def fit(self, steps):
        for step in range(steps):
            self.one(step)
    def one(self, step):
        loss = loss_of(self.model)
        loss.backward()
        self.optimizer.step()  # <- GRD001
Trainer(model, torch.optim.AdamW(model.parameters())).fit(4)
""",
    "cleared in a branch that is never taken": """
debug = False
for _ in range(4):
    if debug:
        optimizer.zero_grad()
    loss_of(model).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()  # <- GRD001
""",
    "the wrong one of two optimizers is cleared": """
other = net()
other_optimizer = torch.optim.Adam(other.parameters())
for _ in range(4):
    other_optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()  # <- GRD001
    loss_of(other).backward()
    other_optimizer.step()
""",
    "half of the model is cleared": """
for _ in range(4):
    model[0].zero_grad()
    loss_of(model).backward()
    optimizer.step()  # <- GRD001
""",
    "accumulation that never clears": """
for i in range(12):
    (loss_of(model) / 3).backward()
    if i % 3 == 2:
        optimizer.step()  # <- GRD001
""",
    "only cleared once per epoch": """
def batches():
    for i in range(4):
        yield slice(16 * i, 16 * i + 16)
for epoch in range(2):
    optimizer.zero_grad()
    for rows in batches():
        loss_of(model, rows).backward()
        optimizer.step()  # <- GRD001
""",
    "with a GradScaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
for _ in range(4):
    scaler.scale(loss_of(model)).backward()
    scaler.step(optimizer)  # <- GRD001
    scaler.update()
""",
}

CORRECT = {
    "closure of LBFGS that clears by hand": """
second = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)
def closure():
    for p in model.parameters():
        p.grad = None
    loss = loss_of(model)
    loss.backward()
    return loss
for _ in range(4):
    second.step(closure)
""",
    "closure of LBFGS that adds two losses": """
second = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)
def closure():
    second.zero_grad()
    loss = loss_of(model)
    loss.backward()
    other = loss_of(model, slice(16, 32))
    other.backward()
    return loss + other
for _ in range(4):
    second.step(closure)
""",
    "closure of LBFGS with one iteration": """
second = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=1)
def closure():
    loss = loss_of(model)
    loss.backward()
    return loss
for _ in range(4):
    second.zero_grad()
    second.step(closure)
""",
    "closure of Adam": """
second = torch.optim.Adam(model.parameters(), lr=0.01)
def closure():
    loss = loss_of(model)
    loss.backward()
    return loss
for _ in range(4):
    second.zero_grad()
    second.step(closure)
""",
    "cleared before": "for _ in range(4):\n    optimizer.zero_grad(); loss_of(model).backward(); optimizer.step()\n",
    "cleared after": "for _ in range(4):\n    loss_of(model).backward(); optimizer.step(); optimizer.zero_grad()\n",
    "by the model": "for _ in range(4):\n    model.zero_grad(); loss_of(model).backward(); optimizer.step()\n",
    "replaced by hand after a backward pass that added to them": """
source, critic = net(), nn.Linear(1, 1)
first = torch.optim.Adam(source.parameters(), lr=0.01)
second = torch.optim.Adam(critic.parameters(), lr=0.01)
for _ in range(6):
    score = critic(source(x))
    first.zero_grad()
    score.mean().backward(retain_graph=True)  # also adds to the gradients of the critic
    gradients = torch.autograd.grad((score - y).square().mean(), list(critic.parameters()))
    for parameter, gradient in zip(critic.parameters(), gradients):
        parameter.grad = gradient
    first.step()
    second.step()
""",
    "by hand": """
for _ in range(4):
    loss_of(model).backward()
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None
""",
    "by data": """
for _ in range(4):
    loss_of(model).backward()
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad.data.zero_()
""",
    "accumulation": """
optimizer.zero_grad()
for i in range(12):
    (loss_of(model) / 3).backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "a GAN": """
G, D = nn.Linear(2, 6), net()
g, d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
bce = nn.functional.binary_cross_entropy_with_logits
for _ in range(6):
    d.zero_grad()
    fake = G(torch.randn(16, 2))
    (bce(D(x[:16]), torch.ones(16, 1)) + bce(D(fake.detach()), torch.zeros(16, 1))).backward()
    d.step()
    g.zero_grad()
    bce(D(fake), torch.ones(16, 1)).backward()
    g.step()
""",
    "a GAN that clears by hand": """
G, D = nn.Linear(2, 6), net()
g, d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for _ in range(6):
    for p in D.parameters():
        if p.grad is not None:
            p.grad.zero_()
    fake = G(torch.randn(16, 2))
    (D(fake.detach()).mean() - D(x[:16]).mean()).backward()
    d.step()
    g.zero_grad(set_to_none=False)
    (-D(fake).mean()).backward()
    g.step()
""",
    "LBFGS": """
lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=4)
def closure():
    lbfgs.zero_grad()
    loss = loss_of(model)
    loss.backward()
    return loss
for _ in range(4):
    lbfgs.step(closure)
""",
    "a closure": """
def closure():
    optimizer.zero_grad()
    loss = loss_of(model)
    loss.backward()
    return loss
for _ in range(4):
    optimizer.step(closure)
""",
    "SAM": """
for _ in range(4):
    loss_of(model).backward()
    ascent = [0.05 * p.grad for p in model.parameters()]
    with torch.no_grad():
        for p, e in zip(model.parameters(), ascent): p.add_(e)
    optimizer.zero_grad()
    loss_of(model).backward()
    with torch.no_grad():
        for p, e in zip(model.parameters(), ascent): p.sub_(e)
    optimizer.step()
    optimizer.zero_grad()
""",
    "decayed gradients": """
for _ in range(4):
    loss_of(model).backward()
    optimizer.step()
    for p in model.parameters():
        p.grad.mul_(0.9)
""",
    "two optimizers for one model": """
first = torch.optim.SGD(model[0].parameters(), lr=0.1)
second = torch.optim.SGD(model[2].parameters(), lr=0.1)
for _ in range(4):
    first.zero_grad(); second.zero_grad()
    loss_of(model).backward()
    first.step(); second.step()
""",
    "a step that raises": """
class Bad(torch.optim.SGD):
    fails = True
    def step(self, closure=None):
        if self.fails:
            self.fails = False
            raise RuntimeError("no")
        return super().step(closure)
bad = Bad(model.parameters(), lr=0.1)
for _ in range(4):
    bad.zero_grad()
    loss_of(model).backward()
    try:
        bad.step()
    except RuntimeError:
        pass
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


def test_evidence_has_the_numbers_and_the_line_of_backward(run):
    ran = run(HEAD + FAULTY["plain"])
    (finding,) = (found for found in ran.findings if found.code == "GRD001")
    assert "used all 4 gradients from an earlier step again" in finding.message
    (related,) = finding.related
    assert related[0].line == finding.location.line - 1
    assert finding.count == 3


def test_norms_are_compared_within_one_optimizer(run):
    ran = run(
        HEAD
        + """
other = net()
other_optimizer = torch.optim.SGD(other.parameters(), lr=1e-9)
for _ in range(3):
    loss_of(model).backward(); optimizer.step(); optimizer.zero_grad()
    (1000 * loss_of(other)).backward(); other_optimizer.step()
"""
    )
    (finding,) = (found for found in ran.findings if found.code == "GRD001")
    first, second = re.findall(r"[\d.e+]+\d", finding.message.partition("norm grew")[2])
    assert float(second) == pytest.approx(2 * float(first), rel=0.01)


# Lint --------------------------------------------------------------------------------------------------------

RUN_ONLY = {"cleared in a branch that is never taken"}
"""Faulty scripts that lint cannot detect."""

LINT_ONLY = {
    "annotated arguments": """
def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader):
    for inputs, targets in loader:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()  # <- GRD001
""",
    "a Lightning Trainer with a hand-written loop": """
import torch.optim as optim

class Fit:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(8, 1))
        self.opt = optim.AdamW([{"params": self.net.parameters(), "lr": 1e-3}])

    def one(self, inputs, targets):
        loss = ((self.net(inputs) - targets) ** 2).mean()
        loss.backward()
        self.opt.step()  # <- GRD001
        return loss.item()

    def run(self, loader):
        return [self.one(inputs, targets) for inputs, targets in loader]
""",
    "with arguments, tqdm and a scheduler": """
from tqdm import tqdm
def main(args):
    net = nn.DataParallel(nn.Sequential(nn.Linear(6, 3)))
    opt = torch.optim.SGD(net.parameters(), args.lr, momentum=args.momentum)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=30)
    for epoch in range(args.epochs):
        net.train()
        for images, target in tqdm(loader, desc=f"epoch {epoch}"):
            images = images.cuda(non_blocking=True)
            loss = nn.functional.cross_entropy(net(images), target)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()  # <- GRD001
        scheduler.step()
""",
    "a helper for the update": """
def update(loss, opt):
    loss.backward()
    opt.step()  # <- GRD001
net_a = nn.Linear(6, 1)
adam = torch.optim.Adam(net_a.parameters())
for k in range(4):
    update(nn.functional.mse_loss(net_a(x), y), adam)
""",
    "an epoch that is cut short": """
for epoch in range(4):
    for rows in (slice(0, 16), slice(16, 32)):
        loss_of(model, rows).backward()
        optimizer.step()  # <- GRD001
        break
""",
    "a conditional break": """
while True:
    loss_of(model).backward()
    optimizer.step()  # <- GRD001
    if x.sum() > 0:
        continue
    break
""",
    "another optimizer over the same model": """
for lr in (0.1, 0.01):
    mine = torch.optim.SGD(model.parameters(), lr=lr)
    loss_of(model).backward()
    mine.step()  # <- GRD001
""",
    "weights that are set by hand": """
def start(m):
    if isinstance(m, nn.Linear):
        nn.init.zeros_(m.weight)
for _ in range(4):
    model.apply(start)
    loss_of(model).backward()
    optimizer.step()  # <- GRD001
""",
}

ONCE = """
for rows in (slice(0, 16), slice(16, 32)):
    loss_of(model, rows).backward()
    optimizer.step()
"""

LINT_CORRECT = {
    "one iteration": """
for _ in range(1):
    loss_of(model).backward()
    optimizer.step()
""",
    "break after one iteration": ONCE + "    break",
    "returned from": """
def one():
    for rows in (slice(0, 16), slice(16, 32)):
        loss_of(model, rows).backward()
        optimizer.step()
        return rows
one()
""",
    "a new model in each iteration": """
for fold in range(3):
    mine = nn.Linear(6, 1)
    own = torch.optim.Adam(mine.parameters())
    loss_of(mine).backward()
    own.step()
""",
    "a model from a function in each iteration": """
for fold in range(3):
    mine = net()
    own = torch.optim.Adam(mine.parameters())
    loss_of(mine).backward()
    own.step()
""",
    "a copy of the model in each iteration": """
import copy
for fold in range(3):
    mine = copy.deepcopy(model)
    own = torch.optim.Adam(mine.parameters())
    loss_of(mine).backward()
    own.step()
""",
    "another model in each iteration": """
for mine in [net(), net()]:
    own = torch.optim.Adam(mine.parameters())
    loss_of(mine).backward()
    own.step()
""",
    "another model in each iteration, by name": """
for name, mine in {"a": net(), "b": net()}.items():
    own = torch.optim.Adam(mine.parameters())
    loss_of(mine).backward()
    own.step()
""",
    "another pair in each iteration": """
models = [net(), net()]
optimizers = [torch.optim.Adam(each.parameters()) for each in models]
for mine, own in zip(models, optimizers):
    loss_of(mine).backward()
    own.step()
""",
    "cleared by a hook": """
optimizer.register_step_post_hook(lambda own, *rest: own.zero_grad())
for _ in range(4):
    loss_of(model).backward()
    optimizer.step()
""",
    "cleared by apply": """
def clear(part):
    for each in part.parameters(recurse=False):
        each.grad = None
for _ in range(4):
    model.apply(clear)
    loss_of(model).backward()
    optimizer.step()
""",
    "deleted": """
for _ in range(4):
    loss_of(model).backward()
    optimizer.step()
    for each in model.parameters():
        del each.grad
""",
    "zeroed with foreach": """
for _ in range(4):
    loss_of(model).backward()
    optimizer.step()
    torch._foreach_zero_([each.grad for each in model.parameters()])
""",
    "a new image in each iteration": """
features = nn.Linear(8, 1).requires_grad_(False)
for inputs, targets in loader:
    image = inputs.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([image], lr=0.1)
    nn.functional.mse_loss(features(image), targets).backward()
    optimizer.step()
""",
    "cleared by a function of another file": """
from elsewhere import update
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    loss = nn.functional.mse_loss(model(inputs), targets)
    update(loss, optimizer)
    loss.backward()
    optimizer.step()
""",
    "cleared in a function called from the loop": """
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def clear():
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
for inputs, targets in loader:
    clear()
    model(inputs).sum().backward()
    optimizer.step()
""",
    "a window that ends after its iterations": """
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(4):
    optimizer.zero_grad()
    for inputs, targets in loader:
        (nn.functional.mse_loss(model(inputs), targets) / 8).backward()
    optimizer.step()
""",
    "a meta-learner's inner and outer steps": """
import copy
outer = torch.optim.Adam(model.parameters())
for task in range(4):
    inner_model = copy.deepcopy(model)
    inner = torch.optim.SGD(inner_model.parameters(), lr=0.1)
    for _ in range(3):
        inner.zero_grad()
        loss_of(inner_model).backward()
        inner.step()
    outer.zero_grad()
    loss_of(inner_model).backward()
    for p, q in zip(model.parameters(), inner_model.parameters()):
        p.grad = q.grad.clone()
    outer.step()
""",
    "Accelerate's": """
from accelerate import Accelerator
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, targets in loader:
    with accelerator.accumulate(model):
        accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
""",
    "reinforcement learning, in functions": """
policy = nn.Linear(4, 2)
adam = torch.optim.Adam(policy.parameters(), lr=1e-2)
def finish_episode(log_probs, returns):
    loss = torch.cat([-p * r for p, r in zip(log_probs, returns)]).sum()
    adam.zero_grad()
    loss.backward()
    adam.step()
def main():
    for episode in range(100):
        log_probs, returns = play(policy)
        finish_episode(log_probs, returns)
main()
""",
    "by groups": """
for inputs, targets in loader:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
""",
    "Lightning does it": """
import lightning as L
class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(6, 1)
    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters())
    def training_step(self, batch, number):
        opt = self.optimizers()
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        opt.zero_grad()
        self.manual_backward(loss)
        opt.step()
""",
}


# Lightning modules with manual optimization ------------------------------------------------------------------------

MODULE = """
import lightning as L
from helpers import polish
class Module(L.LightningModule):
    def __init__(self, by_hand=True):
        super().__init__()
        self.automatic_optimization = False
        self.net, self.other = nn.Linear(6, 1), nn.Linear(6, 1)
    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters())
    def loss(self, batch):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])
    def training_step(self, batch, number):
        opt = self.optimizers()
        loss = self.loss(batch)
        self.manual_backward(loss)
        opt.step()  # <- GRD001
        self.log("loss", loss)
"""
OFF = "self.automatic_optimization = False"
STEP = "opt.step()  # <- GRD001"


def changed(*pairs):
    text = MODULE
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


MANUAL = {
    "plain": MODULE,
    "pytorch_lightning": changed(("import lightning as L", "import pytorch_lightning as L")),
    "in a method of its own": changed((STEP, "self.advance()")) + f"""
    def advance(self):
        self.optimizers().{STEP[4:]}
""",
    "two, toggled": changed(
        ("opt = self.optimizers()", "opt, second = self.optimizers()\n        self.toggle_optimizer(opt)"),
        (STEP, f"{STEP}\n        self.untoggle_optimizer(opt)\n        second.{STEP[4:]}"),
        ("return torch.optim.Adam(self.net.parameters())",
         "return [torch.optim.Adam(each.parameters()) for each in (self.net, self.other)]"),
    ),
    "accumulated": changed((STEP, f"if number % 4 == 3:\n            {STEP}")),
}  # fmt: skip

CLEARED_OR_UNKNOWN = {
    "automatic": changed((OFF, "self.automatic_optimization = True")),
    "not set": changed((OFF, "pass")),
    "set by an argument": changed((OFF, "self.automatic_optimization = not by_hand")),
    "set under a condition": changed((OFF, f"if by_hand: {OFF}")),
    "cleared in another hook": MODULE + """
    def on_train_batch_start(self, batch, number):
        self.optimizers().zero_grad()
""",
    "cleared in a method of its own": changed(("opt = self.optimizers()", "opt = self.cleared()")) + """
    def cleared(self):
        opt = self.optimizers()
        opt.zero_grad(set_to_none=True)
        return opt
""",
    "the model is cleared": changed((STEP, "opt.step()\n        self.zero_grad()")),
    "by hand": changed((STEP, "opt.step()\n        for p in self.parameters(): p.grad = None")),
    "in a callback": MODULE + """
class Clear(L.Callback):
    def on_train_batch_end(self, trainer, module, *rest):
        module.optimizers().zero_grad()
""",
    "unknown code gets the optimizer": changed((STEP, "opt.step()\n        polish(opt)")),
    "unknown code gets the module": changed((STEP, "opt.step()\n        polish(self)")),
    "unknown code gets the network": changed((STEP, "opt.step()\n        polish(model=self.net)")),
    "unknown code gets an optimizer of a list": changed(
        ("opt = self.optimizers()", "opts = self.optimizers()\n        opt = opts[0]"),
        (STEP, "opt.step()\n        polish(opt)"),
    ),
    "an optimizer of another library": changed(("torch.optim.Adam(", "polish(")),
    "DeepSpeed steps": MODULE + 'L.Trainer(strategy="deepspeed_stage_2").fit(Module())\n',
    "a closure": changed((STEP, "opt.step(lambda: self.again(batch))")),
    "a mixin": changed(("L.LightningModule", "polish, L.LightningModule")),
    "no backward": changed(("self.manual_backward(loss)", "pass")),
}  # fmt: skip


@pytest.mark.parametrize("name", MANUAL)
def test_lint_reports_manual_optimization_without_clearing(lint_reports, name):
    lint_reports(HEAD + MANUAL[name])


@pytest.mark.parametrize("name", CLEARED_OR_UNKNOWN)
def test_lint_accepts_modules_that_may_clear_elsewhere(lint_is_clean, name):
    lint_is_clean(HEAD + CLEARED_OR_UNKNOWN[name])


@pytest.mark.parametrize("name", [*(FAULTY.keys() - RUN_ONLY), *LINT_ONLY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_ONLY}[name])


@pytest.mark.parametrize("name", [*RUN_ONLY, *CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_CORRECT}[name])


# Lint: gradients of another player's loss ----------------------------------------------------------------------

PLAYERS = {
    "classes, methods": """
class Gen(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)
    def forward(self, z):
        return self.net(z)
class Disc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 1)
    def forward(self, x):
        return self.net(x)
class Gan:
    def __init__(self):
        self.g, self.d = Gen(), Disc()
        self.og = torch.optim.Adam(self.g.parameters())
        self.od = torch.optim.Adam(self.d.parameters())
    def train_d(self, real):
        fake = self.g(torch.randn(len(real), 4)).detach()
        loss = F.softplus(-self.d(real)).mean() + F.softplus(self.d(fake)).mean()
        loss.backward()
        self.od.step()  # <- GRD001
        self.od.zero_grad()
    def train_g(self, n):
        self.og.zero_grad()
        loss = F.softplus(-self.d(self.g(torch.randn(n, 4)))).mean()
        loss.backward()
        self.og.step()
    def fit(self, loader):
        for real in loader:
            self.train_d(real)
            self.train_g(len(real))
Gan().fit(torch.utils.data.DataLoader(torch.randn(64, 2), 8))
""",
    "functions, critic steps": """
def main(loader):
    actor, critic = nn.Linear(3, 1), nn.Linear(4, 1)
    a_opt = torch.optim.Adam(actor.parameters(), 1e-4)
    c_opt = torch.optim.Adam(critic.parameters(), 1e-3)
    for s, a, y in loader:
        q = critic(torch.cat([s, a], 1))
        critic_loss = F.mse_loss(q, y)
        critic_loss.backward()
        c_opt.step()  # <- GRD001
        c_opt.zero_grad()
        actor_loss = -critic(torch.cat([s, actor(s)], 1)).mean()
        a_opt.zero_grad()
        actor_loss.backward()
        a_opt.step()
""",
    "generator first": """
def train(loader):
    G = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    D = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
    og, od = torch.optim.RMSprop(G.parameters()), torch.optim.RMSprop(D.parameters())
    bce = nn.BCELoss()
    for epoch in range(10):
        for x in loader:
            z = torch.randn(x.size(0), 4)
            fake = G(z)
            og.zero_grad()
            od.zero_grad()
            bce(D(fake), torch.ones(x.size(0), 1)).backward()
            og.step()
            d = bce(D(x), torch.ones(x.size(0), 1)) + bce(D(fake.detach()), torch.zeros(x.size(0), 1))
            d.backward()
            od.step()  # <- GRD001
""",
    "several critic steps": """
gen, critic = nn.Linear(4, 2), nn.Linear(2, 1)
og, oc = torch.optim.Adam(gen.parameters()), torch.optim.Adam(critic.parameters())
for step in range(100):
    for _ in range(5):
        real = torch.randn(16, 2)
        with torch.no_grad():
            fake = gen(torch.randn(16, 4))
        loss = critic(fake).mean() - critic(real).mean()
        loss.backward()
        oc.step()  # <- GRD001
        oc.zero_grad()
    g_loss = -critic(gen(torch.randn(16, 4))).mean()
    g_loss.backward()
    og.step()
    og.zero_grad()
""",
    "domain adversary, modules in a dictionary": """
nets = {"enc": nn.Linear(6, 4), "adv": nn.Linear(4, 2)}
opts = {"enc": torch.optim.SGD(nets["enc"].parameters(), 0.1), "adv": torch.optim.SGD(nets["adv"].parameters(), 0.1)}
def confuse(x, d):
    return -F.cross_entropy(nets["adv"](nets["enc"](x)), d)
def detect(x, d):
    with torch.no_grad():
        h = nets["enc"](x)
    return F.cross_entropy(nets["adv"](h), d)
for x, d in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 6), torch.zeros(8).long())):
    detect(x, d).backward()
    opts["adv"].step()  # <- GRD001
    opts["adv"].zero_grad()
    confuse(x, d).backward()
    opts["enc"].step()
    opts["enc"].zero_grad()
""",
}
CORRECT_PLAYERS = {
    "joint and heads": """
enc, h1, h2 = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
oE, oH = torch.optim.SGD(enc.parameters(), 0.1), torch.optim.SGD(h1.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.randn(8, 1), torch.randn(8, 1))
for x, y, t in torch.utils.data.DataLoader(data):
    oE.zero_grad()
    oH.zero_grad()
    F.mse_loss(h1(enc(x)), y).backward()
    oE.step()
    oH.step()
""",
    "two heads one after the other": """
enc, h1, h2 = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
oe = torch.optim.SGD(enc.parameters(), 0.1)
o1, o2 = torch.optim.SGD(h1.parameters(), 0.1), torch.optim.SGD(h2.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.randn(8, 1), torch.randn(8, 1))
for x, y, t in torch.utils.data.DataLoader(data):
    oe.zero_grad()
    o1.zero_grad()
    F.mse_loss(h1(enc(x)), y).backward()
    o1.step()
    o2.zero_grad()
    F.mse_loss(h2(enc(x)), t).backward()
    o2.step()
    oe.step()
""",
    "right gan, clears before, model zero_grad": """
G, D = nn.Linear(4, 2), nn.Linear(2, 1)
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for step in range(100):
    D.zero_grad()
    fake = G(torch.randn(16, 4))
    (D(fake.detach()).mean() - D(torch.randn(16, 2)).mean()).backward()
    od.step()
    og.zero_grad()
    (-D(fake).mean()).backward()
    og.step()
""",
    "frozen discriminator": """
G, D = nn.Linear(4, 2), nn.Linear(2, 1)
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for step in range(100):
    for p in D.parameters():
        p.requires_grad_(True)
    fake = G(torch.randn(16, 4))
    (D(fake.detach()).mean() - D(torch.randn(16, 2)).mean()).backward()
    od.step()
    od.zero_grad()
    for p in D.parameters():
        p.requires_grad_(False)
    (-D(fake).mean()).backward()
    og.step()
    og.zero_grad()
""",
    "frozen by module, inputs given": """
G, D = nn.Linear(4, 2), nn.Linear(2, 1)
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for step in range(100):
    fake = G(torch.randn(16, 4))
    (D(fake.detach()).mean() - D(torch.randn(16, 2)).mean()).backward()
    od.step()
    od.zero_grad()
    (-D(fake).mean()).backward(inputs=list(G.parameters()))
    og.step()
    og.zero_grad()
for step in range(100):
    D.requires_grad_(True)
    fake = G(torch.randn(16, 4))
    (D(fake.detach()).mean() - D(torch.randn(16, 2)).mean()).backward()
    od.step()
    od.zero_grad()
    D.requires_grad_(False)
    (-D(fake).mean()).backward()
    og.step()
    og.zero_grad()
""",
    "clears both after the generator": """
G, D = nn.Linear(4, 2), nn.Linear(2, 1)
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
def clear():
    for o in (og, od):
        o.zero_grad()
for step in range(100):
    fake = G(torch.randn(16, 4))
    (D(fake.detach()).mean() - D(torch.randn(16, 2)).mean()).backward()
    od.step()
    clear()
    if step % 5 == 0:
        (-D(G(torch.randn(16, 4))).mean()).backward()
        og.step()
        clear()
""",
}
NAMES = "import torch, torch.nn as nn\nimport torch.nn.functional as F\n"


@pytest.mark.parametrize("script", PLAYERS.values(), ids=PLAYERS)
def test_lint_reports_gradients_that_another_loss_left(lint_reports, script):
    assert lint_reports(NAMES + script)[0].severity == "warning"


@pytest.mark.parametrize("script", CORRECT_PLAYERS.values(), ids=CORRECT_PLAYERS)
def test_lint_accepts_players_whose_gradients_are_cleared_or_shared(lint_is_clean, script):
    lint_is_clean(NAMES + script)
