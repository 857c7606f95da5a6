"""OPT018: the generator's optimizer holds the discriminator's parameters too."""

import pytest

HEAD = """
import itertools
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
G = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
def draw():
    return torch.randn(16, 2) + 3
"""
GAME = """
def play(opt_g, opt_d):
    for step in range(40):
        fake = G(torch.randn(16, 8))
        d_loss = bce(D(draw()), ones) + bce(D(fake.detach()), zeros)
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        g_loss = bce(D(fake), ones)
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
"""

FAULTY = {
    "a chain": GAME
    + """
opt_g = torch.optim.Adam(itertools.chain(G.parameters(), D.parameters()), lr=2e-4)  # <- OPT018
play(opt_g, torch.optim.Adam(D.parameters(), lr=2e-4))
""",
    "an adversarial autoencoder, whose encoder is in a third optimizer with the decoder": """
encoder, decoder = nn.Linear(4, 2), nn.Linear(2, 4)
opt_ae = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4)
opt_g = torch.optim.Adam([*encoder.parameters(), *D.parameters()], lr=2e-4)  # <- OPT018
for step in range(40):
    x = torch.randn(16, 4)
    opt_ae.zero_grad()
    F.mse_loss(decoder(encoder(x)), x).backward()
    opt_ae.step()
    with torch.no_grad():
        code = encoder(x)
    opt_d.zero_grad()
    (bce(D(draw()), ones) + bce(D(code), zeros)).backward()
    opt_d.step()
    opt_g.zero_grad()
    bce(D(encoder(x)), ones).backward()
    opt_g.step()
""",
    "a sum of lists": GAME
    + """
first = torch.optim.RMSprop(list(G.parameters()) + list(D.parameters()), lr=2e-4)  # <- OPT018
second = torch.optim.RMSprop(D.parameters(), lr=2e-4)
play(first, second)
""",
    "groups, separate backward passes": """
opt_g = torch.optim.Adam([{"params": G.parameters()}, {"params": D.parameters(), "lr": 1e-4}], lr=2e-4)  # <- OPT018
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4)
for step in range(40):
    opt_d.zero_grad()
    bce(D(draw()), ones).backward()
    with torch.no_grad():
        made = G(torch.randn(16, 8))
    bce(D(made), zeros).backward()
    opt_d.step()
    opt_g.zero_grad()
    bce(D(G(torch.randn(16, 8))), ones).backward()
    opt_g.step()
""",
    "a module with both players": """
class Game(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker, self.judge = nn.Linear(8, 2), nn.Linear(2, 1)
game = Game()
opt_a = torch.optim.SGD(game.parameters(), lr=1e-3)  # <- OPT018
opt_b = torch.optim.SGD(game.judge.parameters(), lr=1e-3)
for step in range(40):
    fake = game.maker(torch.randn(16, 8))
    opt_b.zero_grad()
    (bce(game.judge(draw()), ones) + bce(game.judge(fake.detach()), zeros)).backward()
    opt_b.step()
    opt_a.zero_grad()
    bce(game.judge(fake), ones).backward()
    opt_a.step()
""",
}
WASSERSTEIN = """
opt_g = torch.optim.RMSprop([*G.parameters(), *D.parameters()], lr=5e-5)  # <- OPT018
opt_d = torch.optim.RMSprop(D.parameters(), lr=5e-5)
for step in range(40):
    fake = G(torch.randn(16, 8))
    opt_d.zero_grad()
    (D(fake.detach()).mean() - D(draw()).mean()).backward()
    opt_d.step()
    for weight in D.parameters():
        weight.data.clamp_(-0.01, 0.01)
    opt_g.zero_grad()
    (-D(fake).mean()).backward()
    opt_g.step()
"""

CORRECT = {
    "an adversarial autoencoder": """
encoder, decoder = nn.Linear(4, 2), nn.Linear(2, 4)
opt_ae = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
opt_d, opt_g = torch.optim.Adam(D.parameters(), lr=2e-4), torch.optim.Adam(encoder.parameters(), lr=2e-4)
for step in range(40):
    x = torch.randn(16, 4)
    opt_ae.zero_grad()
    F.mse_loss(decoder(encoder(x)), x).backward()
    opt_ae.step()
    opt_d.zero_grad()
    (bce(D(draw()), ones) + bce(D(encoder(x).detach()), zeros)).backward()
    opt_d.step()
    opt_g.zero_grad()
    bce(D(encoder(x)), ones).backward()
    opt_g.step()
""",
    "an optimizer each": GAME
    + """
play(torch.optim.Adam(G.parameters(), lr=2e-4), torch.optim.Adam(D.parameters(), lr=2e-4))
""",
    "a third optimizer": """
opt_g, opt_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
opt_info = torch.optim.Adam(itertools.chain(G.parameters(), D.parameters()))
for step in range(40):
    fake = G(torch.randn(16, 8))
    opt_d.zero_grad()
    (bce(D(draw()), ones) + bce(D(fake.detach()), zeros)).backward()
    opt_d.step()
    opt_g.zero_grad()
    bce(D(fake), ones).backward()
    opt_g.step()
    opt_info.zero_grad()
    code = torch.randn(16, 8)
    F.mse_loss(D(G(code)), code[:, :1]).backward()
    opt_info.step()
""",
    "two phases": """
opt_all, opt_head = torch.optim.Adam([*G.parameters(), *D.parameters()]), torch.optim.Adam(D.parameters())
x = torch.linspace(-1, 1, 128).view(16, 8)
y = (x[:, :1] > 0).float()
for step in range(40):
    opt_all.zero_grad()
    bce(D(G(x)), y).backward()
    opt_all.step()
for step in range(40):
    opt_head.zero_grad()
    bce(D(G(x).detach()), y).backward()
    opt_head.step()
""",
    "a head that is also trained alone": """
opt_all, opt_head = torch.optim.Adam([*G.parameters(), *D.parameters()]), torch.optim.Adam(D.parameters())
for step in range(40):
    x = torch.randn(16, 8)
    y = (x[:, :1] > 0).float()
    features = G(x)
    opt_head.zero_grad()
    bce(D(features.detach()), y).backward()
    opt_head.step()
    opt_all.zero_grad()
    bce(D(features), y).backward()
    opt_all.step()
""",
    "a shared encoder": """
body, first, second = nn.Linear(8, 4), nn.Linear(4, 1), nn.Linear(4, 1)
opt_a = torch.optim.Adam([*body.parameters(), *first.parameters()])
opt_b = torch.optim.Adam([*body.parameters(), *second.parameters()])
for step in range(40):
    x = torch.randn(16, 8)
    opt_a.zero_grad()
    bce(first(body(x)), (x[:, :1] > 0).float()).backward()
    opt_a.step()
    opt_b.zero_grad()
    bce(second(body(x)), (x[:, 1:2] > 0).float()).backward()
    opt_b.step()
""",
    "centers of classes": """
head, centers = nn.Linear(2, 3), nn.Embedding(3, 2)
opt_model = torch.optim.SGD([*G.parameters(), *head.parameters()], lr=0.01)
opt_center = torch.optim.SGD(centers.parameters(), lr=0.1)
for step in range(40):
    x = torch.randn(16, 8)
    y = x[:, :3].argmax(1)
    features = G(x)
    loss = F.cross_entropy(head(features), y) + 0.01 * (features - centers(y)).pow(2).mean()
    opt_model.zero_grad()
    opt_center.zero_grad()
    loss.backward()
    opt_model.step()
    opt_center.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_optimizers_of_both_players(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", [*FAULTY.values(), WASSERSTEIN], ids=[*FAULTY, "Wasserstein"])
def test_lint_reports_optimizers_of_both_players(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "OPT018")
