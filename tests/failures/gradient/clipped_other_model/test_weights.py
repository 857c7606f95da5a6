"""GRD027: the weights of a generator are clipped in place of those of the critic."""

import pytest

HEAD = """
import torch
from torch import nn
gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
opt_g = torch.optim.RMSprop(gen.parameters(), lr=5e-5)
opt_c = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
LIMIT = 0.01
def real():
    return torch.randn(32, 2) + 1
def clip_weights(net, limit):
    for weight in net.parameters():
        weight.data.clamp_(-limit, limit)
"""
GENERATOR = """
    loss = -critic(gen(torch.randn(32, 4))).mean()
    opt_g.zero_grad()
    loss.backward()
    opt_g.step()
"""
CRITIC = """
for step in range(8):
    opt_c.zero_grad()
    fake = gen(torch.randn(32, 4)).detach()
    (critic(fake).mean() - critic(real()).mean()).backward()
    opt_c.step()
"""

FAULTY = {
    "in one loop": CRITIC
    + """
    for weight in gen.parameters():
        weight.data.clamp_(-LIMIT, LIMIT)  # <- GRD027
"""
    + GENERATOR,
    "without data, named parameters": CRITIC
    + """
    with torch.no_grad():
        for name, w in gen.named_parameters():
            w.clamp_(min=-0.05, max=0.05)  # <- GRD027
"""
    + GENERATOR,
    "several steps of the critic": """
def critic_step():
    with torch.no_grad():
        fake = gen(torch.randn(32, 4))
    loss = torch.mean(critic(fake)) - torch.mean(critic(real()))
    opt_c.zero_grad()
    loss.backward()
    opt_c.step()
    for w in gen.parameters():
        w.data = w.data.clamp(-0.01, 0.01)  # <- GRD027
for step in range(8):
    for _ in range(3):
        critic_step()
"""
    + GENERATOR,
    "a comprehension": CRITIC
    + """
    [w.data.clamp_(-LIMIT, LIMIT) for w in gen.parameters()]  # <- GRD027
"""
    + GENERATOR,
    "after the generator's own step": CRITIC
    + GENERATOR
    + """
    for w in gen.parameters():
        w.data.copy_(torch.clamp(w.data, -0.01, 0.01))  # <- GRD027
""",
    "a class": """
class Game:
    def __init__(self, limit):
        self.g, self.d, self.limit = nn.Linear(4, 2), nn.Linear(2, 1), limit
        self.og = torch.optim.RMSprop(self.g.parameters(), lr=5e-5)
        self.od = torch.optim.RMSprop(self.d.parameters(), lr=5e-5)
    def play(self):
        self.od.zero_grad()
        (self.d(self.g(torch.randn(32, 4)).detach()).mean() - self.d(real()).mean()).backward()
        self.od.step()
        for p in self.g.parameters():
            p.data.clamp_(-self.limit, self.limit)  # <- GRD027
        self.og.zero_grad()
        (-self.d(self.g(torch.randn(32, 4))).mean()).backward()
        self.og.step()
game = Game(0.01)
for step in range(8):
    game.play()
""",
}
HELPER = (
    CRITIC
    + """
    clip_weights(gen, LIMIT)
"""
    + GENERATOR
)

CORRECT = {
    "the critic": CRITIC
    + """
    for weight in critic.parameters():
        weight.data.clamp_(-LIMIT, LIMIT)
"""
    + GENERATOR,
    "the critic, by a function": CRITIC + "    clip_weights(critic, LIMIT)\n" + GENERATOR,
    "the critic, after both steps": CRITIC
    + GENERATOR
    + """
    for weight in critic.parameters():
        weight.data.clamp_(-LIMIT, LIMIT)
""",
    "the critic, before its step": """
for step in range(8):
    for weight in critic.parameters():
        weight.data.clamp_(-LIMIT, LIMIT)
"""
    + CRITIC.replace("for step in range(8):\n", "")
    + GENERATOR,
    "both": CRITIC
    + """
    for net in (critic, gen):
        for weight in net.parameters():
            weight.data.clamp_(-LIMIT, LIMIT)
"""
    + GENERATOR,
    "both, one after the other": CRITIC
    + """
    for weight in critic.parameters():
        weight.data.clamp_(-0.01, 0.01)
    for weight in gen.parameters():
        weight.data.clamp_(-0.5, 0.5)
"""
    + GENERATOR,
    "weights that are not negative": CRITIC
    + """
    for weight in gen.parameters():
        weight.data.clamp_(min=0)
"""
    + GENERATOR,
    "weights of a binary network": """
opt_a, opt_b = torch.optim.SGD(gen.parameters(), lr=0.01), torch.optim.SGD(critic.parameters(), lr=0.01)
for step in range(8):
    loss = (critic(gen(torch.randn(32, 4))) - 1).pow(2).mean()
    opt_a.zero_grad()
    opt_b.zero_grad()
    loss.backward()
    opt_a.step()
    opt_b.step()
    for weight in gen.parameters():
        weight.data.clamp_(-1, 1)
""",
    "gradients": CRITIC
    + """
    for weight in gen.parameters():
        if weight.grad is not None:
            weight.grad.data.clamp_(-1, 1)
"""
    + GENERATOR,
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_clipped_generators(lint_reports, script):
    lint_reports(HEAD + script)


def test_lint_reports_clipped_generators_in_a_function(lint_reports):
    lint_reports(HEAD.replace("(-limit, limit)", "(-limit, limit)  # <- GRD027") + HELPER)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "GRD027")
