"""OPT006: an optimizer whose step is never called."""

import pytest

HEAD = """
import torch
from torch import nn

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
mse = nn.functional.mse_loss
"""
OPTIMIZER = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
TWO_OPTIMIZERS = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
critic = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
second = torch.optim.Adam(critic.parameters(), lr=0.01)
"""

CORRECT = {
    "a window of many batches, of which the run ends in the first": OPTIMIZER
    + """
for number in range(20):
    mse(model(x), y).backward()
    if number == 63:
        optimizer.step()
        optimizer.zero_grad()
""",
    "a generator that is updated later than its critic": TWO_OPTIMIZERS
    + """
for number in range(20):
    optimizer.zero_grad()
    second.zero_grad()
    (critic(model(x)).mean() - critic(y).mean()).backward()
    second.step()
    if number > 50:
        optimizer.zero_grad()
        (-critic(model(x)).mean()).backward()
        optimizer.step()
""",
    "two optimizers in phases, stepped by one line": TWO_OPTIMIZERS
    + """
both = [second, optimizer]
for number in range(20):
    for each in both:
        each.zero_grad()
    critic(model(x)).pow(2).mean().backward()
    both[number // 50].step()
""",
    "two optimizers in phases, stepped by one function": TWO_OPTIMIZERS
    + """
def update(opt, loss):
    opt.zero_grad()
    loss.backward()
    opt.step()
optimizer.zero_grad()
for number in range(20):
    update(second if number < 50 else optimizer, critic(model(x)).pow(2).mean())
""",
    "built to load a checkpoint, and saliency": OPTIMIZER
    + """
optimizer.load_state_dict(optimizer.state_dict())
maps = []
for row in x[:20]:
    one = row[None].clone().requires_grad_()
    optimizer.zero_grad()
    model(one).sum().backward()
    maps.append(one.grad.abs())
""",
    "Fisher information": OPTIMIZER
    + """
fisher = [torch.zeros_like(p) for p in model.parameters()]
for row, goal in zip(x[:20], y):
    optimizer.zero_grad()
    mse(model(row[None]), goal[None]).backward()
    for total, p in zip(fisher, model.parameters()):
        total += p.grad ** 2
""",
    "norms of gradients": OPTIMIZER
    + """
norms = []
for row, goal in zip(x[:20], y):
    optimizer.zero_grad()
    mse(model(row[None]), goal[None]).backward()
    norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
""",
    "gradients taken by hooks": OPTIMIZER
    + """
kept = []
model[2].weight.register_hook(kept.append)
for row, goal in zip(x[:20], y):
    optimizer.zero_grad()
    mse(model(row[None]), goal[None]).backward()
""",
    "a step inside backward": """
each = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
def step_on(p):
    each[p].step()
    each[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(step_on)
for _ in range(20):
    mse(model(x), y).backward()
""",
    "weights changed by hand": OPTIMIZER
    + """
for _ in range(20):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad
""",
    "weights changed by hand with noise": OPTIMIZER
    + """
for _ in range(20):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    for p in model.parameters():
        p.data.add_(torch.randn_like(p), alpha=1e-3)
""",
    "another optimizer over the same parameters": OPTIMIZER
    + """
adam = torch.optim.Adam(model.parameters())
for number in range(20):
    mse(model(x), y).backward()
    if number % 10 == 9:
        adam.step()
        optimizer.zero_grad()
""",
    "the optimizer of a frozen critic": TWO_OPTIMIZERS
    + """
for number in range(20):
    optimizer.zero_grad()
    mse(critic(model(x)), y).backward()
    optimizer.step()
""",
    "a closure": """
lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)
def closure():
    lbfgs.zero_grad()
    loss = mse(model(x), y)
    loss.backward()
    return loss
for _ in range(8):
    lbfgs.step(closure)
""",
    "scaled": OPTIMIZER
    + """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for _ in range(12):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "stepped by a wrapper": OPTIMIZER
    + """
class Wrapper:
    def __init__(self, inner):
        self.inner = inner
    def advance(self):
        self.inner.step()
wrapper = Wrapper(optimizer)
for number in range(20):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    if number > 50:
        wrapper.advance()
""",
    "stepped through globals()": OPTIMIZER
    + """
for number in range(20):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    if number > 50:
        globals()["optimizer"].step()
""",
    "weights set by vector_to_parameters": OPTIMIZER
    + """
for _ in range(20):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    nn.utils.vector_to_parameters(torch.randn(65), model.parameters())
""",
    "a probe": OPTIMIZER
    + """
for _ in range(5):
    optimizer.zero_grad()
    mse(model(x), y).backward()
""",
    "stepped through its scheduler, later": OPTIMIZER
    + """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for number in range(20):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    if number > 50:
        schedule.optimizer.step()
""",
}

FAULTY = {
    "cleared but never stepped": OPTIMIZER
    + """
for _ in range(20):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    loss.backward()  # <- OPT006
""",
    "without parentheses": OPTIMIZER
    + """
for _ in range(20):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step  # <- OPT006
""",
    "neither stepped nor cleared": OPTIMIZER
    + """
for _ in range(20):
    mse(model(x), y).backward()  # <- OPT006
""",
    "one of two optimizers": TWO_OPTIMIZERS
    + """
for _ in range(20):
    second.zero_grad()
    (critic(model(x).detach()).mean() - critic(y).mean()).backward()  # <- OPT006
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
""",
    "the other optimizer is stepped": TWO_OPTIMIZERS
    + """
for _ in range(20):
    second.zero_grad()
    critic(y).pow(2).mean().backward()  # <- OPT006
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
""",
    "in a function that gets everything as arguments": """
def train(network, opt, updates):
    total = 0.0
    for _ in range(updates):
        opt.zero_grad()
        loss = mse(network(x), y)
        loss.backward()  # <- OPT006
        total += loss.item()
    return total
def main():
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(4):
        print(epoch, train(model, optimizer, updates=8))
main()
""",
    "with a rate set by hand": OPTIMIZER
    + """
def adjust(opt, epoch):
    for group in opt.param_groups:
        group["lr"] = 0.1 / (1 + epoch)
for epoch in range(20):
    adjust(optimizer, epoch)
    optimizer.zero_grad()
    mse(model(x), y).backward()  # <- OPT006
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
    "scaled, and only the scale is updated": OPTIMIZER
    + """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for _ in range(20):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = mse(model(x).float(), y)
    scaler.scale(loss).backward()  # <- OPT006
    scaler.unscale_(optimizer)
    scaler.update()
""",
    "accumulated": OPTIMIZER
    + """
for number in range(40):
    (mse(model(x), y) / 4).backward()  # <- OPT006
    if (number + 1) % 4 == 0:
        optimizer.zero_grad()
""",
}

RUN_ONLY = {
    "in an object": """
class Learner:
    def __init__(self, net):
        self.net = net
        self.opt_of_it = torch.optim.SGD(net.parameters(), lr=0.01)
    def learn(self):
        self.opt_of_it.zero_grad()
        mse(self.net(x), y).backward()  # <- OPT006
learner = Learner(model)
for _ in range(20):
    learner.learn()
""",
    "built elsewhere, where nothing steps but a schedule": """
def build(net):
    return net, torch.optim.AdamW(net.parameters())
def epoch(net, opt, schedule):
    for _ in range(5):
        opt.zero_grad()
        mse(net(x), y).backward()  # <- OPT006
    schedule.step()
network, it = build(model)
schedule = torch.optim.lr_scheduler.StepLR(it, 2)
for _ in range(4):
    epoch(network, it, schedule)
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_and_lint_ignore_correct_programs(run, lint_is_clean, script):
    assert not [each.message for each in run(HEAD + script).findings if each.code == "OPT006"]
    lint_is_clean(HEAD + script, "OPT006")


@pytest.mark.filterwarnings("ignore:Detected call of")  # PyTorch warns about the scheduler step too
@pytest.mark.parametrize("script", [*FAULTY.values(), *RUN_ONLY.values()], ids=[*FAULTY, *RUN_ONLY])
def test_run_reports_the_marked_line(run, script):
    marked = {n for n, line in enumerate((HEAD + script).splitlines(), 1) if "<- OPT006" in line}
    ran = run(HEAD + script)
    assert {line for code, line in ran.reported_lines if code == "OPT006"} == marked


def test_run_reports_a_loop_in_another_file(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "going_module.py").write_text("""
def go(net, opt, loss_of, updates=20):
    for _ in range(updates):
        opt.zero_grad()
        loss_of(net).backward()
""")
    script = HEAD + OPTIMIZER + "from going_module import go\ngo(model, optimizer, lambda net: mse(net(x), y))\n"
    assert [each.code for each in run(script).findings] == ["OPT006"]


def test_run_reports_it_if_another_file_only_sets_the_rate(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rate_module.py").write_text("""
def adjust(opt, rate):
    for group in opt.param_groups:
        group["lr"] = rate
""")
    script = (
        HEAD
        + OPTIMIZER
        + """
from rate_module import adjust
for number in range(20):
    adjust(optimizer, 0.1)
    optimizer.zero_grad()
    mse(model(x), y).backward()
"""
    )
    assert [each.code for each in run(script).findings] == ["OPT006"]


def test_run_ignores_an_optimizer_that_another_file_may_step(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "late_module.py").write_text("def late(opt):\n    opt.step()\n")
    script = (
        HEAD
        + OPTIMIZER
        + """
from late_module import late
for number in range(20):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    if number > 50:
        late(optimizer)
"""
    )
    assert not run(script).findings


def test_the_finding_comes_after_eight_backwards(run):
    (found,) = run(HEAD + FAULTY["cleared but never stepped"]).findings
    assert "although 8 backward passes computed its gradients" in found.message


def test_a_short_probe_is_not_judged(run):
    (verdict,) = (each for each in run(HEAD + CORRECT["a probe"]).report.verdicts if each.code == "OPT006")
    assert verdict.reason == "no optimizer stepped"


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_the_marked_line(lint_reports, script):
    lint_reports(HEAD + script)


# Cleared only -----------------------------------------------------------------------------------------------------

CLEARED_ONLY_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

CLEARED_ONLY = {
    "one of two optimizers of a class": """
class Agent:
    def __init__(self):
        self.actor, self.critic = nn.Linear(6, 1), nn.Linear(6, 1)
        self.actor_opt = torch.optim.Adam(self.actor.parameters())
        self.critic_opt = torch.optim.Adam(self.critic.parameters())  # <- OPT006

    def learn(self, a, b):
        self.actor_opt.zero_grad()
        self.critic_opt.zero_grad()
        (nn.functional.mse_loss(self.actor(a), b) + nn.functional.mse_loss(self.critic(a), b)).backward()
        self.actor_opt.step()

agent = Agent()
for k in torch.randperm(96).split(16):
    agent.learn(x[k], y[k])
""",
}

CLEARED_ONLY_FINE = {
    "both are stepped in a loop": """
class Agent:
    def __init__(self):
        self.actor, self.critic = nn.Linear(6, 1), nn.Linear(6, 1)
        self.actor_opt = torch.optim.Adam(self.actor.parameters())
        self.critic_opt = torch.optim.Adam(self.critic.parameters())

    def learn(self, a, b):
        for each in (self.actor_opt, self.critic_opt):
            each.zero_grad()
        (nn.functional.mse_loss(self.actor(a), b) + nn.functional.mse_loss(self.critic(a), b)).backward()
        for each in (self.actor_opt, self.critic_opt):
            each.step()

agent = Agent()
for k in torch.randperm(96).split(16):
    agent.learn(x[k], y[k])
""",
}


@pytest.mark.parametrize("name", CLEARED_ONLY)
def test_lint_reports_cleared_only(lint_reports, name):
    lint_reports(CLEARED_ONLY_HEAD + CLEARED_ONLY[name])


@pytest.mark.parametrize("name", CLEARED_ONLY_FINE)
def test_lint_accepts_cleared_only(lint_is_clean, name):
    lint_is_clean(CLEARED_ONLY_HEAD + CLEARED_ONLY_FINE[name])


CLEARED_FOR_STEP = {
    "one of two optimizers that a function gets": """
def update(opt_d, opt_g, loss_d, loss_g):
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.zero_grad()  # <- OPT006
    return loss_d.item()
""",
    "with clipping, in a class that also logs": """
class Learner:
    def __init__(self, actor, critic, actor_optim, critic_optim):
        self.actor, self.critic, self.actor_optim, self.critic_optim = actor, critic, actor_optim, critic_optim

    def learn(self, critic_loss, actor_loss):
        self.critic_optim.zero_grad()
        critic_loss.backward()
        nn.utils.clip_grad_norm_(self.critic.parameters(), 1.0)
        self.critic_optim.zero_grad()  # <- OPT006
        print(critic_loss.item())
        self.actor_optim.zero_grad()
        actor_loss.backward()
        self.actor_optim.step()
""",
    "optimizers in a dictionary": """
def update(optimizers, losses):
    optimizers["value"].zero_grad()
    losses["value"].backward(retain_graph=True)
    optimizers["value"].zero_grad(set_to_none=True)  # <- OPT006

    optimizers["policy"].zero_grad()
    losses["policy"].backward()
    optimizers["policy"].step()
""",
    "optimizers of the file": """
actor, critic = nn.Linear(6, 1), nn.Linear(6, 1)
actor_opt = torch.optim.Adam(actor.parameters())
critic_opt = torch.optim.Adam(critic.parameters())
for k in torch.randperm(96).split(16):
    critic_loss = nn.functional.mse_loss(critic(x[k]), y[k])
    critic_opt.zero_grad()
    critic_loss.backward()  # <- OPT006
    critic_opt.zero_grad()
    actor_loss = -critic(actor(x[k]).expand(-1, 6)).mean()
    actor_opt.zero_grad()
    actor_loss.backward()
    actor_opt.step()
""",
}

CLEARED_FOR_STEP_FINE = {
    "gradients of the loss that another optimizer steps are removed": """
def update(opt_d, opt_g, loss_d, loss_g):
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    opt_d.zero_grad()
    loss_g.backward()
    opt_d.zero_grad()
    opt_g.step()
""",
    "gradients are read": """
def update(net, opt, probe, loss, other):
    probe.zero_grad()
    loss.backward()
    norms = [p.grad.norm() for p in net.parameters()]
    probe.zero_grad()
    opt.zero_grad()
    other.backward()
    opt.step()
    return norms
""",
    "a step in between, through a scaler": """
def update(scaler, opt, critic_opt, loss, other):
    critic_opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(critic_opt)
    critic_opt.zero_grad()
    opt.zero_grad()
    other.backward()
    opt.step()
""",
    "a function that uses the gradients": """
def update(stats, opt, probe, loss, other):
    probe.zero_grad()
    loss.backward()
    stats.collect(probe)
    probe.zero_grad()
    opt.zero_grad()
    other.backward()
    opt.step()
""",
    "cleared at both ends": """
def update(opt, critic_opt, loss, other):
    opt.zero_grad()
    critic_opt.zero_grad()
    (loss + other).backward()
    opt.step()
    critic_opt.step()
    opt.zero_grad()
    critic_opt.zero_grad()
""",
}


@pytest.mark.parametrize("name", CLEARED_FOR_STEP)
def test_lint_reports_a_clearing_that_is_written_for_a_step(lint_reports, name):
    lint_reports(CLEARED_ONLY_HEAD + CLEARED_FOR_STEP[name], fixes=True)


@pytest.mark.parametrize("name", CLEARED_FOR_STEP_FINE)
def test_lint_accepts_other_clearings(lint_is_clean, name):
    lint_is_clean(CLEARED_ONLY_HEAD + CLEARED_FOR_STEP_FINE[name])
