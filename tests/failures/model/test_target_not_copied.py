"""MDL013: a target network that is the trained network itself, under a second name."""

import pytest

DATA = """
import copy
import torch
import torch.nn.functional as F
from torch import nn, optim

s, s2 = torch.randn(128, 4), torch.randn(128, 4)
a, r = torch.randint(0, 2, (128, 1)), torch.randn(128)
class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    def forward(self, x):
        return self.layers(x)
net = QNet()
"""

FAULTY = {
    "an agent that gets one network": """
class Agent:
    def __init__(self, model, device="cpu"):
        self.policy_net = model.to(device)
        self.target_net = model.to(device)  # <- MDL013
        self.optimizer = optim.Adam(self.policy_net.parameters())
    def update(self):
        q = self.policy_net(s).gather(1, a).squeeze(1)
        with torch.no_grad():
            y = r + 0.9 * self.target_net(s2).max(1).values
        loss = F.mse_loss(q, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
    def sync(self):
        self.target_net.load_state_dict(self.policy_net.state_dict())
agent = Agent(net)
for step in range(20):
    agent.update()
    if step % 5 == 4:
        agent.sync()
""",
    "a soft update": """
q_target = net  # <- MDL013
optimizer = optim.Adam(net.parameters())
for step in range(20):
    with torch.no_grad():
        y = r + 0.9 * q_target(s2).max(1)[0]
    loss = F.mse_loss(net(s).gather(1, a).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for old, new in zip(q_target.parameters(), net.parameters()):
        old.data.copy_(0.01 * new.data + 0.99 * old.data)
""",
    "a function that gets one network twice": """
def train(student, teacher, steps=12):
    optimizer = optim.SGD(student.parameters(), lr=0.01)
    for _ in range(steps):
        rows = torch.randint(0, 128, (32,))
        with torch.no_grad():
            soft = teacher(s[rows]).softmax(1)  # <- MDL013
        loss = F.cross_entropy(student(s[rows]), soft) + F.cross_entropy(student(s[rows]), a[rows, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
train(net, net)
""",
    "a dictionary of networks": """
models = {"actor": nn.Linear(4, 1), "critic": nn.Linear(5, 1)}
class DDPG:
    def __init__(self, models):
        self.actor, self.critic = models["actor"], models["critic"]
        self.target_critic = models["critic"]  # <- MDL013
        self.a_opt, self.c_opt = optim.Adam(self.actor.parameters()), optim.Adam(self.critic.parameters())
    def update(self):
        with torch.no_grad():
            y = r[:, None] + 0.9 * self.target_critic(torch.cat([s2, self.actor(s2)], 1))
        self.c_opt.zero_grad()
        F.mse_loss(self.critic(torch.cat([s, a.float()], 1)), y).backward()
        self.c_opt.step()
        self.a_opt.zero_grad()
        (-self.critic(torch.cat([s, self.actor(s)], 1)).mean()).backward()
        self.a_opt.step()
agent = DDPG(models)
for _ in range(12):
    agent.update()
""",
    "only the copies show it": """
target_net = net  # <- MDL013
optimizer = optim.Adam(net.parameters())
for step in range(12):
    loss = F.mse_loss(net(s).gather(1, a).squeeze(1), r)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        target_net.load_state_dict(net.state_dict())
""",
    "a target that loads its own weights": """
target_net = copy.deepcopy(net)
optimizer = optim.Adam(net.parameters())
for step in range(12):
    with torch.no_grad():
        y = r + 0.9 * target_net(s2).max(1).values
    loss = F.mse_loss(net(s).gather(1, a).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        target_net.load_state_dict(target_net.state_dict())  # <- MDL013
""",
    "the target's output is detached": """
class Learner:
    def __init__(self):
        self.online = QNet()
        self.target = self.online  # <- MDL013
        self.opt = optim.RMSprop(self.online.parameters())
    def learn(self):
        best = self.online(s2).argmax(1, keepdim=True)
        y = r + 0.99 * self.target(s2).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(self.online(s).gather(1, a).squeeze(1), y.detach())
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
learner = Learner()
for step in range(20):
    learner.learn()
    if step % 10 == 0:
        learner.target.load_state_dict(learner.online.state_dict())
""",
    "a shallow copy": """
class Agent:
    def __init__(self):
        self.q = QNet()
        self.q_lag = copy.copy(self.q)  # <- MDL013
        self.opt = optim.Adam(self.q.parameters())
    def learn(self):
        with torch.no_grad():
            goal = r + 0.9 * self.q_lag(s2).amax(1)
        loss = F.smooth_l1_loss(self.q(s).gather(1, a)[:, 0], goal)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
    def sync(self):
        self.q_lag.load_state_dict(self.q.state_dict())
agent = Agent()
for step in range(1, 13):
    agent.learn()
    if step % 4 == 0:
        agent.sync()
""",
    "a shallow copy of another name, in a function": """
def copy_weights(source, goal):
    weights = source.state_dict()
    goal.load_state_dict(weights)  # <- MDL013
lagged = copy.copy(net).eval()
optimizer = optim.Adam(net.parameters())
for step in range(1, 13):
    with torch.no_grad():
        goal = r + 0.9 * lagged(s2).amax(1)
    optimizer.zero_grad()
    F.smooth_l1_loss(net(s).gather(1, a)[:, 0], goal).backward()
    optimizer.step()
    if step % 3 == 0:
        copy_weights(net, lagged)
""",
}

LOOP = """
optimizer = optim.Adam(net.parameters())
for step in range(16):
    with torch.no_grad():
        y = r + 0.9 * target_net(s2).max(1).values
    loss = F.mse_loss(net(s).gather(1, a).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        target_net.load_state_dict(net.state_dict())
"""
CORRECT = {
    "a copy": "target_net = copy.deepcopy(net)" + LOOP,
    "a second network": "target_net = QNet()\ntarget_net.load_state_dict(net.state_dict())" + LOOP,
    "a copy after an alias": "target_net = net\ntarget_net = copy.deepcopy(target_net)" + LOOP,
    "no target network": """
optimizer = optim.Adam(net.parameters())
for _ in range(12):
    with torch.no_grad():
        target = r + 0.9 * net(s2).max(1).values
    loss = F.mse_loss(net(s).gather(1, a).squeeze(1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a teacher that starts as the model": """
optimizer = optim.SGD(net.parameters(), lr=0.1)
teacher = net
for step in range(20):
    if step == 6:
        teacher = copy.deepcopy(net)
    with torch.no_grad():
        soft = teacher(s).softmax(1)
    loss = F.cross_entropy(net(s), soft) + F.cross_entropy(net(s), a[:, 0])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "source and target share an encoder that both train": """
source_encoder = target_encoder = QNet()
head = nn.Linear(2, 2)
optimizer = optim.Adam([*source_encoder.parameters(), *head.parameters()])
for _ in range(12):
    z, z2 = source_encoder(s), target_encoder(s2)
    loss = F.cross_entropy(head(z), a[:, 0]) + (z.mean(0) - z2.mean(0)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "an evaluation under another name": """
optimizer = optim.SGD(net.parameters(), lr=0.1)
def attack(target_model, x):
    target_model.eval()
    with torch.no_grad():
        return target_model(x).argmax(1)
for epoch in range(8):
    net.train()
    for rows in torch.randperm(128).split(32):
        optimizer.zero_grad()
        F.cross_entropy(net(s[rows]), a[rows, 0]).backward()
        optimizer.step()
    attack(net, s2)
""",
    "the weights are merged": """
target_net = net
optimizer = optim.Adam(net.parameters())
for step in range(9):
    optimizer.zero_grad()
    F.cross_entropy(net(s), a[:, 0]).backward()
    optimizer.step()
    if step % 3 == 2:
        state = target_net.state_dict()
        state["layers.0.bias"] = torch.zeros(16)
        target_net.load_state_dict(state)
""",
    "a round trip of the state": """
optimizer = optim.Adam(net.parameters())
for step in range(9):
    optimizer.zero_grad()
    F.cross_entropy(net(s), a[:, 0]).backward()
    optimizer.step()
    net.load_state_dict(net.state_dict())
""",
    "an actor that shares the learner's network": """
actor = learner = net
optimizer = optim.Adam(learner.parameters())
for step in range(9):
    with torch.no_grad():
        actions = actor(s).argmax(1)
    optimizer.zero_grad()
    F.cross_entropy(learner(s), actions).backward()
    optimizer.step()
    actor.load_state_dict(learner.state_dict())
""",
    "a second network with the same first layer": """
other = QNet()
other.layers[0] = net.layers[0]
optimizer = optim.Adam([*net.parameters(), *other.layers[2].parameters()])
for step in range(9):
    optimizer.zero_grad()
    (F.cross_entropy(net(s), a[:, 0]) + F.mse_loss(other(s)[:, 0], r)).backward()
    optimizer.step()
    if step % 3 == 2:
        other.load_state_dict(net.state_dict())
""",
    "copies of a shallow copy": """
lagged = copy.deepcopy(copy.copy(net))
optimizer = optim.Adam(net.parameters())
for step in range(9):
    optimizer.zero_grad()
    (F.cross_entropy(net(s), a[:, 0]) + F.mse_loss(net(s), lagged(s).detach())).backward()
    optimizer.step()
    lagged.load_state_dict(net.state_dict())
""",
    "weights restored from the trained network": """
online_net, target_net = QNet(), QNet()
target_net.load_state_dict(online_net.state_dict())
optimizer = optim.Adam(online_net.parameters())
for step in range(12):
    with torch.no_grad():
        y = r + 0.9 * target_net(s2).max(1).values
    optimizer.zero_grad()
    F.mse_loss(online_net(s).gather(1, a).squeeze(1), y).backward()
    optimizer.step()
    for old, new in zip(target_net.parameters(), online_net.parameters()):
        old.data.lerp_(new.data, 0.05)
""",
}

LINT_IGNORES = {
    "names of two models that are built one after the other": """
model = QNet()
policy_net = model
model = QNet()
target_net = model
target_net.load_state_dict(policy_net.state_dict())
""",
    "a factory that is called twice": """
def build():
    return QNet().to("cpu")
class Agent:
    def __init__(self, factory):
        self.policy_net = factory()
        self.target_net = factory()
    def sync(self):
        self.target_net.load_state_dict(self.policy_net.state_dict())
agent = Agent(build)
""",
    "two classes": """
class Tabular:
    def __init__(self, model):
        self.target = model
        self.online = model
class Deep:
    def __init__(self):
        self.online, self.target = QNet(), QNet()
    def sync(self):
        self.target.load_state_dict(self.online.state_dict())
""",
    "assigned again": """
class Agent:
    def __init__(self, model, twin):
        self.online = model
        self.target = model
        if twin is not None:
            self.target = twin
    def sync(self):
        self.target.load_state_dict(self.online.state_dict())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script: str):
    run_reports(DATA + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(DATA + script)


LINT_MISSES = {
    "a shallow copy of another name, in a function",
    "a function that gets one network twice",
    "a dictionary of networks",
    "the target's output is detached",
}


@pytest.mark.parametrize("name", FAULTY.keys() - LINT_MISSES)
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(DATA + FAULTY[name])


@pytest.mark.parametrize("name", [*CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_programs(lint_is_clean, name):
    lint_is_clean(DATA + {**CORRECT, **LINT_IGNORES}[name])
