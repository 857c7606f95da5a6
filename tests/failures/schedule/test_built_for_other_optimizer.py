"""SCH012: a second scheduler for one optimizer, while another optimizer has none."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import StepLR, CosineAnnealingLR, LinearLR, SequentialLR, ChainedScheduler, ExponentialLR
gen, critic = nn.Linear(4, 2), nn.Linear(2, 1)
opt_g = torch.optim.Adam(gen.parameters(), lr=2e-4)
opt_c = torch.optim.Adam(critic.parameters(), lr=2e-4)
bce = nn.BCEWithLogitsLoss()
def update():
    fake = gen(torch.randn(8, 4))
    opt_c.zero_grad()
    bce(critic(torch.cat([torch.randn(8, 2), fake.detach()])), torch.ones(16, 1)).backward()
    opt_c.step()
    opt_g.zero_grad()
    bce(critic(fake), torch.ones(8, 1)).backward()
    opt_g.step()
"""
FAULTY = {
    "plain": """
sched_g = StepLR(opt_g, 5, 0.5)
sched_c = StepLR(opt_g, 5, 0.5)  # <- SCH012
for epoch in range(20):
    update()
    sched_g.step()
    sched_c.step()
""",
    "a list": """
schedulers = [lr_scheduler.ExponentialLR(opt_c, 0.99), lr_scheduler.ExponentialLR(opt_c, gamma=0.98)]  # <- SCH012
for epoch in range(20):
    update()
    for each in schedulers:
        each.step()
""",
    "in a function": """
def fit(epochs):
    first = CosineAnnealingLR(opt_g, T_max=epochs)
    second = CosineAnnealingLR(opt_g, T_max=epochs, eta_min=1e-6)  # <- SCH012
    for epoch in range(epochs):
        update()
        first.step()
        second.step()
fit(10)
""",
    "in a class": """
class Trainer:
    def __init__(self, a, b):
        self.a, self.b = a, b
        self.enc_opt = torch.optim.SGD(a.parameters(), lr=0.1)
        self.dec_opt = torch.optim.SGD(b.parameters(), lr=0.1)
        self.enc_sched = lr_scheduler.MultiStepLR(self.enc_opt, [10, 20])
        self.dec_sched = lr_scheduler.MultiStepLR(self.enc_opt, [10, 20])  # <- SCH012
    def fit(self, data):
        for epoch in range(30):
            for x in data:
                self.enc_opt.zero_grad()
                self.dec_opt.zero_grad()
                self.b(self.a(x)).mean().backward()
                self.enc_opt.step()
                self.dec_opt.step()
            self.enc_sched.step()
            self.dec_sched.step()
trainer = Trainer(gen, critic)
trainer.fit([torch.randn(8, 4)])
""",
    "a comprehension": """
scheds = [StepLR(opt_g, 5) for opt in (opt_g, opt_c)]  # <- SCH012
for epoch in range(20):
    update()
    for each in scheds:
        each.step()
""",
}
CORRECT = {
    "each its own": """
sched_g, sched_c = StepLR(opt_g, 5), StepLR(opt_c, 5)
for epoch in range(20):
    update()
    sched_g.step()
    sched_c.step()
""",
    "comprehension": """
scheds = [StepLR(opt, 5) for opt in (opt_g, opt_c)]
for epoch in range(20):
    update()
    for each in scheds:
        each.step()
""",
    "warm-up and decay, the other one without a schedule": """
warm, decay = LinearLR(opt_g, 0.1, total_iters=5), CosineAnnealingLR(opt_g, 20)
for epoch in range(20):
    update()
    warm.step()
    decay.step()
""",
    "two linear ones that follow each other": """
warm, decay = LinearLR(opt_g, 0.1, total_iters=5), LinearLR(opt_g, 1.0, 0.1, total_iters=20)
for epoch in range(20):
    update()
    warm.step()
    decay.step()
""",
    "sequential": """
parts = [StepLR(opt_g, 5), StepLR(opt_g, 2)]
schedule = SequentialLR(opt_g, parts, milestones=[10])
for epoch in range(20):
    update()
    schedule.step()
""",
    "chained": """
schedule = ChainedScheduler([ExponentialLR(opt_g, 0.9), ExponentialLR(opt_g, 0.99)])
for epoch in range(20):
    update()
    schedule.step()
""",
    "one optimizer": """
both = torch.optim.Adam([*gen.parameters(), *critic.parameters()])
first, second = StepLR(both, 5), StepLR(both, 7)
for epoch in range(20):
    both.zero_grad()
    bce(critic(gen(torch.randn(8, 4))), torch.ones(8, 1)).backward()
    both.step()
    first.step()
    second.step()
""",
    "one scheduler": """
schedule = StepLR(opt_g, 5)
for epoch in range(20):
    update()
    schedule.step()
""",
    "phases": """
schedule = StepLR(opt_g, 5)
for epoch in range(10):
    update()
    schedule.step()
schedule = StepLR(opt_g, 5)
for epoch in range(10):
    update()
    schedule.step()
""",
    "either or": """
import sys
if len(sys.argv) > 5:
    schedule = StepLR(opt_g, 5)
else:
    schedule = StepLR(opt_g, 10)
for epoch in range(20):
    update()
    schedule.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_second_scheduler(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run_is_clean, lint_is_clean, script):
    run_is_clean(HEAD + script)
    lint_is_clean(HEAD + script, "SCH012")
