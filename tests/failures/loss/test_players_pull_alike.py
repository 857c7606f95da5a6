"""LOS033: generators and actors whose loss has the wrong sign."""

import pytest

GAN = """
import torch
opt_d, opt_g = RMSprop(D.parameters()), RMSprop(G.parameters())
for real in loader:
    fake = G(torch.randn(len(real), 16))
    d_loss = {critic}
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    g_loss = {generator}
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
"""
CRITIC = "-(D(real).mean() - D(fake.detach()).mean())"
DDPG = """
import torch
import torch.nn.functional as F
actor_opt, critic_opt = Adam(actor.parameters()), Adam(critic.parameters())
for step in range(1000):
    s, a, r, s2, done = buffer.sample(64)
    with torch.no_grad():
        target = {reward} + gamma * (1 - done) * target_critic(s2, target_actor(s2))
    critic_loss = F.mse_loss(critic(s, a), target)
    critic_opt.zero_grad()
    critic_loss.backward()
    critic_opt.step()
    actor_loss = {actor}
    actor_opt.zero_grad()
    {backward}
    actor_opt.step()
"""


def ddpg(actor: str, reward: str = "r", backward: str = "actor_loss.backward()") -> str:
    return DDPG.format(actor=actor, reward=reward, backward=backward)


BCE = """
import torch
from torch import nn
D, G = nn.Linear(16, 1), nn.Linear(8, 16)
d_optimizer, g_optimizer = torch.optim.Adam(D.parameters()), torch.optim.Adam(G.parameters())
criterion = nn.BCEWithLogitsLoss()
def step(real):
    ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
    fake = G(torch.randn(len(real), 8))
    d_loss = criterion(D(real), ones) + criterion(D(fake.detach()), zeros)
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    g_loss = {generator}
    g_optimizer.zero_grad()
    g_loss.backward()
    g_optimizer.step()
"""
FAULTY = {
    "binary cross-entropy": BCE.format(generator="criterion(D(fake), zeros)  # <- LOS033"),
    "binary cross-entropy with a new label": BCE.format(
        generator="criterion(D(fake), torch.zeros_like(D(fake)))  # <- LOS033"
    ),
    "Wasserstein": GAN.format(critic=CRITIC, generator="D(G(torch.randn(8, 16))).mean()  # <- LOS033"),
    "the reverse signs": GAN.format(
        critic="D(real).mean() - D(fake.detach()).mean()", generator="-torch.mean(D(G(noise)))  # <- LOS033"
    ),
    "softplus": GAN.format(
        critic="softplus(-D(real)).mean() + softplus(D(fake.detach())).mean()",
        generator="softplus(D(G(torch.randn(8, 16)))).mean()  # <- LOS033",
    ),
    "logsigmoid": GAN.format(
        critic="-(F.logsigmoid(D(real)) + F.logsigmoid(-D(fake.detach()))).mean()",
        generator="-F.logsigmoid(-D(fake)).mean()  # <- LOS033",
    ),
    "logarithms of probabilities": GAN.format(
        critic="-(torch.log(D(real)) + torch.log(1 - D(fake.detach()))).mean()",
        generator="-torch.log(1 - D(fake)).mean()  # <- LOS033",
    ),
    "methods of a module that holds both": """
from torch.nn.functional import softplus
class Game(Module):
    def __init__(self):
        super().__init__()
        self.g, self.d = Linear(2, 1), Linear(1, 1)
    def fakes(self, n):
        return self.g(torch.randn(n, 2))
    def judge_loss(self, real):
        with torch.no_grad():
            fake = self.fakes(len(real))
        return softplus(-self.d(real)).mean() + softplus(self.d(fake)).mean()
    def maker_loss(self, n):
        return softplus(self.d(self.fakes(n))).mean()  # <- LOS033
game = Game()
first, second = Adam(game.d.parameters()), Adam(game.g.parameters())
for real in loader:
    jl = game.judge_loss(real)
    jl.backward()
    first.step()
    ml = game.maker_loss(96)
    ml.backward()
    second.step()
""",
    "in a class": """
import torch

class WGAN:
    def __init__(self):
        self.opt_c = Adam(self.critic.parameters())
        self.opt_g = Adam(self.gen.parameters())

    def critic_step(self, real):
        fake = self.gen(self.noise(len(real))).detach()
        real_score, fake_score = self.critic(real), self.critic(fake)
        loss = fake_score.mean() - real_score.mean() + 10 * self.penalty(real, fake)
        self.opt_c.zero_grad()
        loss.backward()
        self.opt_c.step()

    def generator_step(self, n):
        samples = self.gen(self.noise(n))
        loss = self.critic(samples).mean()  # <- LOS033
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
""",
    "hinge": GAN.format(
        critic="torch.relu(1 - D(real)).mean() + torch.relu(1 + D(fake.detach())).mean()",
        generator="D(fake).mean()  # <- LOS033",
    ),
    "DDPG": ddpg("critic(s, actor(s)).mean()  # <- LOS033"),
    "the concatenated input": """
import torch
oq, op = Adam(q.parameters()), Adam(pi.parameters())
for step in range(100):
    reward = env_reward(s, a)
    loss_q = ((q(torch.cat([s, a], 1)) - reward) ** 2).mean()
    loss_q.backward()
    oq.step()
    action = torch.tanh(pi(s))
    loss_pi = q(torch.cat([s, action], dim=1)).mean()  # <- LOS033
    loss_pi.backward()
    op.step()
""",
    "TD3 in a class": """
import torch.nn.functional as F

class TD3:
    def __init__(self):
        self.actor_optimizer = Adam(self.actor.parameters())
        self.critic_optimizer = Adam(self.critic.parameters())

    def train(self, batch):
        state, action, next_state, reward, not_done = batch
        target_Q = reward + not_done * self.discount * self.critic_target(next_state, next_action)
        current_Q1, current_Q2 = self.critic(state, action)
        critic_loss = F.mse_loss(current_Q1, target_Q) + F.mse_loss(current_Q2, target_Q)
        critic_loss.backward()
        actor_loss = self.critic.Q1(state, self.actor(state)).mean()  # <- LOS033
        actor_loss.backward()
""",
}
TRAINER = """
class {name}:
    def __init__(self):
        self.D, self.G = Critic(), Generator()
        self.d_opt, self.g_opt = RMSprop(self.D.parameters()), RMSprop(self.G.parameters())
    def train(self, loader):
        one = torch.tensor(1.0)
        mone = one * -1
        for real in loader:
            self.d_opt.zero_grad()
            d_real = self.D(real).mean()
            d_real.backward({real})
            fake = self.G(torch.randn(len(real), 16))
            d_fake = self.D(fake.detach()).mean()
            d_fake.backward({fake})
            self.d_opt.step()
            self.g_opt.zero_grad()
            g_loss = self.D(self.G(torch.randn(len(real), 16)))
            g_loss = g_loss.mean()
            g_loss.backward({own})
            self.g_opt.step()
"""
CORRECT = {
    "two trainers with opposite signs": "import torch\n"
    + TRAINER.format(name="Clipped", real="one", fake="mone", own="one")
    + TRAINER.format(name="Penalised", real="mone", fake="one", own="mone"),
    "binary cross-entropy": BCE.format(generator="criterion(D(fake), ones)"),
    "softplus": GAN.format(
        critic="softplus(-D(real)).mean() + softplus(D(fake.detach())).mean()",
        generator="softplus(-D(fake)).mean()",
    ),
    "logarithms of probabilities": GAN.format(
        critic="-(torch.log(D(real)) + torch.log(1 - D(fake.detach()))).mean()",
        generator="-torch.log(D(fake)).mean()",
    ),
    "the saturating loss": GAN.format(
        critic="-(D(real).log() + (1 - D(fake.detach())).log()).mean()",
        generator="(1 - D(fake)).log().mean()",
    ),
    "a saturating loss": BCE.format(generator="-criterion(D(fake), zeros)"),
    "an unknown label": BCE.format(generator="criterion(D(fake), labels_of(fake))"),
    "Wasserstein": GAN.format(critic=CRITIC, generator="-D(G(torch.randn(8, 16))).mean()"),
    "reversed in both": GAN.format(critic="D(real).mean() - D(fake.detach()).mean()", generator="D(G(noise)).mean()"),
    "hinge": GAN.format(
        critic="torch.relu(1 - D(real)).mean() + torch.relu(1 + D(fake.detach())).mean()", generator="-D(fake).mean()"
    ),
    "the critic's parts have a backward each": """
import torch
opt_d, opt_g = RMSprop(D.parameters()), RMSprop(G.parameters())
for real in loader:
    fake = G(noise)
    opt_d.zero_grad()
    real_loss = -D(real).mean()
    real_loss.backward()
    fake_loss = D(fake.detach()).mean()
    fake_loss.backward()
    d_loss = real_loss + fake_loss
    opt_d.step()
    g_loss = -D(fake).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
""",
    "the encoder lowers the distance": GAN.format(critic=CRITIC, generator="D(real).mean() - D(G(noise)).mean()"),
    "maximize": GAN.format(critic=CRITIC, generator="D(G(noise)).mean()").replace(
        "G.parameters()", "G.parameters(), maximize=True"
    ),
    "gradient reversal": "from layers import GradientReversal\n"
    + GAN.format(critic=CRITIC, generator="D(G(n)).mean()"),
    "an argument of backward": GAN.format(critic=CRITIC, generator="D(G(noise)).mean()").replace(
        "g_loss.backward()", "g_loss.backward(minus_one)"
    ),
    "DDPG": ddpg("-critic(s, actor(s)).mean()"),
    "a minus later": ddpg("critic(s, actor(s)).mean()", backward="(-actor_loss).backward()"),
    "a minus in the next line": ddpg(
        "critic(s, actor(s))", backward="actor_loss = -actor_loss.mean()\n    actor_loss.backward()"
    ),
    "costs": ddpg("critic(s, actor(s)).mean()", reward="cost"),
    "negated rewards": ddpg("critic(s, actor(s)).mean()", reward="-r"),
    "soft actor-critic": ddpg("(alpha * log_prob - critic(s, actor(s))).mean()"),
    "a conservative critic": ddpg("-critic(s, actor(s)).mean()").replace(
        "F.mse_loss(critic(s, a), target)",
        "F.mse_loss(critic(s, a), target) + (critic(s, actor(s)) - critic(s, a)).mean()",
    ),
    "a perceptual loss": """
opt = Adam(model.parameters())
net.eval()
reward = 1
loss = net(model(x)).mean() + ((model(x) - y) ** 2).mean()
loss.backward()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_wrong_sign(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS033")


SEVERAL = """
import torch
one = torch.tensor(1.0)
mone = -1 * one
opt_d, opt_g = RMSprop(D.parameters()), RMSprop(G.parameters())
for real in loader:
    fake = G(torch.randn(len(real), 16))
    opt_d.zero_grad()
    D(real).mean().backward(mone)
    D(fake.detach()).mean().backward(one)
    opt_d.step()
    opt_g.zero_grad()
    D(fake).mean().backward({gradient})
    opt_g.step()
"""
LABELS = """
import torch
from torch import nn
bce = nn.BCEWithLogitsLoss()
opt_d, opt_g = Adam(D.parameters()), Adam(G.parameters())
for real in loader:
    fake = G(torch.randn(len(real), 16))
    opt_d.zero_grad()
    bce(D(real), torch.ones(len(real), 1)).backward()
    bce(D(fake.detach()), torch.zeros(len(real), 1)).backward()
    opt_d.step()
    opt_g.zero_grad()
    loss = bce(D(fake), torch.{label}(len(real), 1))
    loss.backward()
    opt_g.step()
"""


def test_lint_reports_several_backward_passes(lint_reports):
    faulty = "D(fake).mean().backward(one)"
    lint_reports(
        SEVERAL.format(gradient="one").replace(f"    {faulty}\n    opt_g", f"    {faulty}  # <- LOS033\n    opt_g")
    )
    faulty = "loss = bce(D(fake), torch.zeros(len(real), 1))"
    lint_reports(LABELS.format(label="zeros").replace(faulty, f"{faulty}  # <- LOS033"), fixes=False)


@pytest.mark.parametrize("script", [SEVERAL.format(gradient="mone"), LABELS.format(label="ones")], ids=["WGAN", "GAN"])
def test_lint_accepts_several_backward_passes(lint_is_clean, script):
    lint_is_clean(script, "LOS033")
