"""The family LRN: causes of runs that do not learn, and correct runs that learn slowly, or cannot learn."""

import pytest

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
x = torch.randn(512, 8)
y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()
"""
TRAIN = """
for step in range({steps}):
    rows = torch.randint(len(x), (32,))
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def train(loss, steps=200):
    """Return a training loop with this loss."""
    return TRAIN.replace("{steps}", str(steps)).replace("{loss}", loss)


INITIALISED = """
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
for layer in model:
    if isinstance(layer, nn.Linear):
        {initialise}
optimizer = torch.optim.{optimizer}
"""


def initialised(how, optimizer="Adam(model.parameters(), lr=1e-3)"):
    """Return a model whose layers are initialised in this way."""
    return INITIALISED.replace("{initialise}", how).replace("{optimizer}", optimizer)


HEALTHY = {
    "sigmoid at the end, labels with noise": """
target = (x[:, :1] > 0).float() + 0.05 * torch.randn(len(x), 1)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
    + train("F.mse_loss(model(x[rows]), target[rows])", 200),
    "large weights of a run that learns": initialised(
        "nn.init.normal_(layer.weight)", "Adam(model.parameters(), lr=0.1)"
    )
    + train("F.cross_entropy(model(x[rows]) / 100, y[rows])", 300),
    "random labels, Kaiming's initialisation": "y = torch.randint(10, (512,))"
    + initialised("nn.init.kaiming_normal_(layer.weight)")
    + train("F.cross_entropy(model(x[rows]), y[rows])"),
    "random labels, orthogonal with gain 2": "y = torch.randint(10, (512,))"
    + initialised("nn.init.orthogonal_(layer.weight, gain=2.0)")
    + train("F.cross_entropy(model(x[rows]), y[rows])"),
    "an embedding, of which nothing can be learned": """
ids, y = torch.randint(50, (512, 4)), torch.randint(10, (512,))
model = nn.Sequential(nn.Embedding(50, 64), nn.Flatten(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
    + train("F.cross_entropy(model(ids[rows]), y[rows])"),
    "noise far from zero, which has no relation to the inputs": """
target = 5 + torch.randn(512, 1)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
"""
    + train("F.mse_loss(model(x[rows]), target[rows])"),
    "40 % of the labels are wrong": """
y = torch.where(torch.rand(512) < 0.4, 1 - y, y)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
"""
    + train("F.cross_entropy(model(x[rows]), y[rows])"),
    "random labels": """
y = torch.randint(10, (512,))
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
"""
    + train("F.cross_entropy(model(x[rows]), y[rows])", 400),
    "random targets and AdamW": """
target = torch.randn(512, 1)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
"""
    + train("F.mse_loss(model(x[rows]), target[rows])", 400),
    "parity of eight bits": """
x = torch.randint(0, 2, (512, 8)).float()
target = (x.sum(1, keepdim=True) % 2)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
    + train("F.binary_cross_entropy_with_logits(model(x[rows]), target[rows])"),
    "one label of several classes after a softmax": """
labels = F.one_hot(x[:, :4].argmax(1), 4).float()
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4), nn.Softmax(dim=1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
    + train("F.binary_cross_entropy(model(x[rows]), labels[rows])"),
    "shares after a softmax": """
shares = torch.softmax(3 * x[:, :4], 1)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4), nn.Softmax(dim=1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
    + train("F.mse_loss(model(x[rows]), shares[rows])"),
    "rare words in rows of length 1": """
x = torch.zeros(512, 8000)
x[torch.arange(512)[:, None], torch.randint(8000, (512, 12))] = 0.29
y = torch.randint(10, (512,))
model = nn.Sequential(nn.Linear(8000, 8), nn.ReLU(), nn.Linear(8, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
    + train("F.cross_entropy(model(x[rows]), y[rows])", 60),
    "tiny inputs of a run that learns": """
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
    + train("F.cross_entropy(model(x[rows] / 100), y[rows])", 800),
    "a smoke run of forty updates": """
y = torch.randint(10, (512,))
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
"""
    + train("F.cross_entropy(model(x[rows]), y[rows])", 40),
    "a smoke run of 150 updates": """
y = torch.randint(10, (512,))
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
"""
    + train("F.cross_entropy(model(x[rows]), y[rows])", 150),
    "a smoke run with AdamW at 1e-5": """
y = torch.randint(10, (512,))
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
"""
    + train("F.cross_entropy(model(x[rows]), y[rows])", 60),
    "fine-tuning at 1e-5 from good weights": """
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(25):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
"""
    + train("F.cross_entropy(model(x[rows]), y[rows])"),
    "warm-up that has not ended": """
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 20000)
"""
    + train("F.cross_entropy(model(x[rows]), y[rows])").replace(
        "optimizer.step()", "optimizer.step()\n    schedule.step()"
    ),
    "search for the learning rate": """
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 1.1)
"""
    + train("F.cross_entropy(model(x[rows]), y[rows])").replace(
        "optimizer.step()", "optimizer.step()\n    schedule.step()"
    ),
    "policy gradient": """
policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
for episode in range(80):
    states = torch.randn(20, 8)
    choice = torch.distributions.Categorical(logits=policy(states))
    action = choice.sample()
    reward = (action == (states[:, 0] > 0).long()).float()
    loss = -(choice.log_prob(action) * (reward - reward.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "deep Q-learning": """
import copy
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
target_net = copy.deepcopy(net)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(200):
    state, following = torch.randn(32, 8), torch.randn(32, 8)
    action, reward = torch.randint(3, (32, 1)), torch.randn(32)
    with torch.no_grad():
        goal = reward + 0.99 * target_net(following).max(1).values
    loss = F.smooth_l1_loss(net(state).gather(1, action).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        target_net.load_state_dict(net.state_dict())
""",
    "GAN with separate labels": """
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
first = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
second = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
for step in range(150):
    real, fake = torch.randn(32, 2), generator(torch.randn(32, 4))
    loss = F.binary_cross_entropy_with_logits(critic(real), torch.ones(32, 1)) + F.binary_cross_entropy_with_logits(
        critic(fake.detach()), torch.zeros(32, 1))
    second.zero_grad()
    loss.backward()
    second.step()
    first.zero_grad()
    F.binary_cross_entropy_with_logits(critic(fake), torch.ones(32, 1)).backward()
    first.step()
""",
    "GAN with joined labels": """
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
first = torch.optim.Adam(generator.parameters(), lr=5e-3)
second = torch.optim.Adam(critic.parameters(), lr=1e-4)
label = torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])
for step in range(150):
    fake = generator(torch.randn(32, 4))
    loss = F.binary_cross_entropy_with_logits(critic(torch.cat([torch.randn(32, 2), fake.detach()])), label)
    second.zero_grad()
    loss.backward()
    second.step()
    first.zero_grad()
    F.binary_cross_entropy_with_logits(critic(fake), torch.ones(32, 1)).backward()
    first.step()
""",
    "Wasserstein critic, whose loss goes below 0": """
critic = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-2)
for step in range(100):
    loss = critic(torch.randn(32, 8)).mean() - critic(torch.randn(32, 8) + 1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for weight in critic.parameters():
        weight.data.clamp_(-0.01, 0.01)
""",
    "contrastive loss on noise": """
encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-4)
for step in range(80):
    rows = torch.randint(512, (64,))
    one, two = (F.normalize(encoder(x[rows] + torch.randn(64, 8)), dim=1) for _ in range(2))
    loss = F.cross_entropy(one @ two.t() / 0.5, torch.arange(64))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "LoRA on a frozen layer": """
base = nn.Linear(8, 2).requires_grad_(False)
down, up = nn.Linear(8, 2, bias=False), nn.Linear(2, 2, bias=False)
nn.init.zeros_(up.weight)
optimizer = torch.optim.AdamW([*down.parameters(), *up.parameters()], lr=1e-3)
y = torch.randint(2, (512,))
"""
    + train("F.cross_entropy(base(x[rows]) + up(down(x[rows])), y[rows])"),
    "distillation from a teacher": """
teacher = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).eval()
student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(student.parameters(), lr=1e-3, momentum=0.9)
with torch.no_grad():
    soft = teacher(x)
"""
    + train("F.mse_loss(student(x[rows]), soft[rows])"),
    "a frozen backbone": """
backbone = nn.Sequential(nn.Linear(8, 64), nn.Tanh()).requires_grad_(False)
head = nn.Linear(64, 2)
y = torch.randint(2, (512,))
optimizer = torch.optim.SGD(head.parameters(), lr=0.01, weight_decay=1e-4)
"""
    + train("F.cross_entropy(head(backbone(x[rows])), y[rows])"),
    "autoencoder of noise through a bottleneck": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2), nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
    + train("F.mse_loss(model(x[rows]), x[rows])", 120),
    "a linear autoencoder of noise": """
model = nn.Sequential(nn.Linear(8, 1), nn.Linear(1, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
"""
    + train("F.mse_loss(model(x[rows]), x[rows])", 120),
    "a batch of one sample": """
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
"""
    + train("F.cross_entropy(model(x[rows]), y[rows])", 150).replace("(32,)", "(1,)"),
    "99 % of one class": """
y = (torch.rand(512) < 0.01).long()
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
    + train("F.cross_entropy(model(x[rows]), y[rows])"),
    "pixels from 0 to 255 in front of BatchNorm": """
x = torch.randint(0, 256, (512, 3, 6, 6)).float()
y = torch.randint(2, (512,))
model = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
"""
    + train("F.cross_entropy(model(x[rows]), y[rows])", 100),
    "large inputs that are learned": """
x = x * 50
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
    + train("F.cross_entropy(model(x[rows]), y[rows])", 300),
    "large targets, early in training": """
target = 1000 * torch.randn(512, 1)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
    + train("F.mse_loss(model(x[rows]), target[rows])", 100),
    "an energy that is maximised": """
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, maximize=True)
"""
    + train("F.mse_loss(model(x[rows]), torch.zeros(32, 1))", 80),
    "a ReLU at the end and few negative targets": """
target = (x[:, :1].abs() + 0.3 * torch.randn(512, 1))
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1), nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
"""
    + train("F.mse_loss(model(x[rows]), target[rows])", 80),
    "adversarial training": """
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
for step in range(120):
    rows = torch.randint(512, (32,))
    moved = x[rows].clone().requires_grad_()
    gradient, = torch.autograd.grad(F.cross_entropy(model(moved), y[rows]), moved)
    loss = F.cross_entropy(model(x[rows] + 2.0 * gradient.sign()), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a recurrent model of noise": """
series = torch.randn(512, 12, 3)
lstm, head = nn.LSTM(3, 16, batch_first=True), nn.Linear(16, 1)
optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=1e-3)
"""
    + train("F.mse_loss(head(lstm(series[rows])[0][:, -1]), x[rows, :1])", 100),
    "language model of random tokens": """
tokens = torch.randint(50, (512, 12))
model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""
    + train("F.cross_entropy(model(tokens[rows, :-1]).flatten(0, 1), tokens[rows, 1:].flatten())", 100),
}

FAULTY = {
    "divided by 255 twice": (
        "LRN001",
        """
x = torch.randint(0, 256, (512, 8)) / 255
y = (x[:, 0] > x[:, 1]).long()
x = x / 255
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
        + train("F.cross_entropy(model(x[rows]), y[rows])"),
    ),
    "pixels 0..255 without normalisation": (
        "LRN001",
        """
x = torch.randint(0, 256, (512, 1, 8, 8)).float()
y = (x[:, 0, :4].mean((1, 2)) > 127).long()
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
"""
        + train("F.cross_entropy(model(x[rows]), y[rows])", 150),
    ),
    "conv on 0..255": (
        "LRN001",
        """
x = torch.randint(0, 256, (256, 3, 8, 8)).float()
y = (x[:, 0].mean((1, 2)) > x[:, 1].mean((1, 2))).long()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3); self.fc = nn.Linear(16 * 36, 2)
    def forward(self, images):
        return self.fc(torch.relu(self.conv(images)).flatten(1))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
criterion = nn.CrossEntropyLoss()
"""
        + train("criterion(model(x[rows]), y[rows])", 150),
    ),
    "Adam with rate 5": (
        "LRN006",
        """
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=5.0)
"""
        + train("F.cross_entropy(model(x[rows]), y[rows])", 150),
    ),
    "Adam with rate 1e-8": (
        "LRN006",
        """
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-8)
"""
        + train("F.cross_entropy(model(x[rows]), y[rows])", 200),
    ),
    "SGD 1e-5": (
        "LRN006",
        """
target = x[:, :1] * x[:, 1:2]
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
"""
        + train("F.mse_loss(model(x[rows]), target[rows])", 400),
    ),
    "SGD xor with sigmoid": (
        "LRN006",
        """
x = torch.tensor([[0., 0], [0, 1], [1, 0], [1, 1]]); target = torch.tensor([[0.], [1], [1], [0]])
model = nn.Sequential(nn.Linear(2, 4), nn.Sigmoid(), nn.Linear(4, 1), nn.Sigmoid())
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(1500):
    optimizer.zero_grad()
    loss = nn.MSELoss()(model(x), target)
    loss.backward()
    optimizer.step()
""",
    ),
    "sigmoid, targets 0..100": (
        "LRN002",
        """
target = 50 + 20 * x[:, :1]
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
        + train("F.l1_loss(model(x[rows]), target[rows])", 200),
    ),
    "relu at the end, negative targets": (
        "LRN002",
        """
target = -3 + x[:, :1]
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1), nn.ReLU())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
        + train("((model(x[rows]) - target[rows]) ** 2).mean()", 200),
    ),
    "relu at the end of a run that learns, half of the targets negative": (
        "LRN002",
        """
target = x[:, :3].sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1), nn.ReLU())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
        + train("F.mse_loss(model(x[rows]), target[rows])", 200),
    ),
    "softmax over one unit with BCE": (
        "LRN002",
        """
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1), nn.Softmax(dim=1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
        + train("F.binary_cross_entropy(model(x[rows]), y[rows].float()[:, None])", 200),
    ),
    "several labels after a softmax": (
        "LRN002",
        """
labels = (x[:, :4] > -0.5).float()
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4), nn.Softmax(dim=1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
        + train("F.binary_cross_entropy(model(x[rows]), labels[rows])", 200),
    ),
    "cross-entropy over one class": (
        "LRN002",
        """
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
        + train("F.cross_entropy(model(x[rows]), torch.zeros(32).long())", 200),
    ),
    "tanh, targets +-30, functional": (
        "LRN002",
        """
target = 30 * x[:, 0]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 64); self.b = nn.Linear(64, 1)
    def forward(self, v):
        return torch.tanh(self.b(F.relu(self.a(v)))).squeeze(-1)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
        + train("F.smooth_l1_loss(model(x[rows]), target[rows])", 200),
    ),
    "deep sigmoid net": (
        "LRN005",
        """
layers = [nn.Linear(8, 32), nn.Sigmoid()]
for _ in range(8):
    layers += [nn.Linear(32, 32), nn.Sigmoid()]
model = nn.Sequential(*layers, nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
"""
        + train("F.binary_cross_entropy_with_logits(model(x[rows]).squeeze(1), y[rows].float())", 300),
    ),
    "dead relu from bias": (
        "LRN005",
        """
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
nn.init.constant_(model[2].bias, -50.0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
        + train("F.cross_entropy(model(x[rows]), y[rows])", 200),
    ),
    "decay 0.5 SGD": (
        "LRN003",
        """
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
"""
        + train("F.cross_entropy(model(x[rows]), y[rows])", 300),
    ),
    "L2 added by hand": (
        "LRN005",
        """
target = x[:, :1] * x[:, 1:2]
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
"""
        + train(
            "F.mse_loss(model(x[rows]), target[rows]) + 1.0 * sum(p.pow(2).sum() for p in model.parameters())", 300
        ),
    ),
    "weights of normal_": (
        "LRN007",
        "y = x.argmax(1)"
        + initialised("nn.init.normal_(layer.weight)")
        + train("F.cross_entropy(model(x[rows]), y[rows])", 120),
    ),
    "xavier with a gain of 20": (
        "LRN007",
        "y = x.argmax(1)"
        + initialised("nn.init.xavier_uniform_(layer.weight, gain=20)", "SGD(model.parameters(), lr=1e-6)")
        + train("F.cross_entropy(model(x[rows]), y[rows])", 90),
    ),
    "weights of a class, by apply": (
        "LRN007",
        """
image = torch.randn(256, 1, 8, 8)
y = (image.mean((1, 2, 3)) > 0).long()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3); self.second = nn.Conv2d(16, 32, 3); self.head = nn.Linear(32 * 16, 2)
        self.apply(self.start)
    def start(self, layer):
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            torch.nn.init.normal_(layer.weight, 0.0, 1.0)
    def forward(self, v):
        return self.head(torch.relu(self.second(torch.relu(self.conv(v)))).flatten(1))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
        + train("F.cross_entropy(model(image[rows]), y[rows])", 120).replace("len(x)", "len(image)"),
    ),
    "matrices of one's own": (
        "LRN007",
        """
target = torch.sin(x[:, :1])
first, second = torch.randn(8, 100, requires_grad=True), torch.randn(100, 100, requires_grad=True)
last = torch.randn(100, 1, requires_grad=True)
optimizer = torch.optim.Adam([first, second, last], lr=1e-3)
"""
        + train("F.mse_loss(torch.relu(torch.relu(x[rows] @ first) @ second) @ last, target[rows])", 120),
    ),
    "three linear layers": (
        "LRN004",
        """
y = (x[:, 0] * x[:, 1] > 0).long()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 64); self.b = nn.Linear(64, 64); self.c = nn.Linear(64, 2)
    def forward(self, v):
        return self.c(self.b(self.a(v)))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
        + train("F.cross_entropy(model(x[rows]), y[rows])", 300),
    ),
    "linear with sigmoid at the end": (
        "LRN004",
        """
target = (x[:, 0] * x[:, 1] > 0).float()
model = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 1), nn.Sigmoid())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
        + train("F.binary_cross_entropy(model(x[rows]).squeeze(1), target[rows])", 300),
    ),
    "regression": (
        "LRN004",
        """
target = x[:, :1] ** 2
model = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
        + train("F.mse_loss(model(x[rows]), target[rows])", 300),
    ),
}


@pytest.mark.parametrize("script", HEALTHY.values(), ids=HEALTHY.keys())
def test_slow_noisy_and_hard_runs_have_no_finding(run, script):
    assert not [each.message for each in run(HEAD + script).findings if each.code.startswith("LRN")]


@pytest.mark.parametrize("dropout", ["0.0", "0.1"])
def test_a_returned_position_that_sees_no_sample_is_named(run, dropout):
    script = """
class Encoder(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.tokens = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=batch_first)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(16, 2)
    def forward(self, ids):
        return self.head(self.encoder(self.tokens(ids))[:, 0])
words = torch.cat([torch.zeros(512, 1).long(), torch.randint(1, 20, (512, 6))], 1)
y = (words[:, 3] > 10).long()
model = Encoder({first})
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
""" + train("F.cross_entropy(model(words[rows]), y[rows])", 120)
    script = script.replace("dropout=0.0", f"dropout={dropout}")
    [found] = [each for each in run(HEAD + script.replace("{first}", "False")).findings if each.code == "LRN005"]
    assert "changed no output" in found.message
    assert not [each for each in run(HEAD + script.replace("{first}", "True")).findings if each.severity != "note"]


@pytest.mark.parametrize(("code", "script"), FAULTY.values(), ids=FAULTY.keys())
def test_the_cause_is_found(run, code, script):
    found = [(each.code, each.location is not None) for each in run(HEAD + script).findings if each.code[:3] == "LRN"]
    assert found == [(code, True)]


DEVIATIONS_AS_MEANS = {
    "a function": "nn.init.normal_(layer.weight, 0.01)  # <- LRN007\n",
    "an alias, a truncated one": "from torch.nn import init\ninit.trunc_normal_(layer.weight, 0.02)  # <- LRN007\n",
    "an import": "from torch.nn.init import normal_\nnormal_(layer.weight, 0.01)  # <- LRN007\n",
    "a method": "layer.weight.data.normal_(0.01)  # <- LRN007\n",
    "a variable": "init_std = 0.02\nnn.init.normal_(layer.weight, init_std)  # <- LRN007\n",
    "a bound": "nn.init.uniform_(layer.weight, 0.1)  # <- LRN007\n",
}
DEVIATIONS = {
    "by name": "nn.init.normal_(layer.weight, std=0.01)\n",
    "both": "nn.init.normal_(layer.weight, 0.0, 0.02)\nlayer.weight.data.normal_(1.0, 0.02)\n",
    "a mean of 0": "nn.init.normal_(layer.weight, 0)\nnn.init.normal_(layer.weight)\n",
    "weights that scale": "nn.init.normal_(norm.weight, 0.5)\nnn.init.normal_(layer.weight, 1.0)\n",
    "noise": "noise = torch.empty(8).normal_(0.1)\nscale = torch.empty(8).uniform_(0.5)\n",
    "another function": "nn.init.xavier_normal_(layer.weight, 0.02)\nnn.init.constant_(layer.bias, 0.01)\n",
    "two bounds": "nn.init.uniform_(layer.weight, -0.1, 0.1)\nlayer.weight.data.uniform_(-0.1, 0.1)\n",
}
LAYER = "import torch\nfrom torch import nn\nlayer, norm = nn.Linear(8, 8), nn.LayerNorm(8)\n"


@pytest.mark.parametrize("script", DEVIATIONS_AS_MEANS.values(), ids=DEVIATIONS_AS_MEANS)
def test_lint_reports_deviations_that_are_passed_as_means(lint_reports, script):
    lint_reports(LAYER + script)


@pytest.mark.parametrize("script", DEVIATIONS.values(), ids=DEVIATIONS)
def test_lint_accepts_other_initialisations(lint_is_clean, script):
    lint_is_clean(LAYER + script, "LRN007")
