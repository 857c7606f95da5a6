"""EVL015: a target network or average that is created with weights of its own."""

import pytest

HEAD = (
    "import copy\nimport random\n\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n\nTAU = 1e-3\n"
)
CLASS = """
class Net(nn.Module):
    def __init__(self, number=0):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)

"""
AGENT = """
class Agent:
    def __init__(self, memory):
        self.local = Net().to("cpu")
        self.target = Net().to("cpu")  # <- EVL015
        self.optimizer = torch.optim.Adam(self.local.parameters())
        self.memory = memory

    def learn(self, gamma=0.99):
        s, a, r, s2, done = self.memory.sample()
        with torch.no_grad():
            target = r + gamma * self.target(s2).max(1)[0] * (1 - done)
        loss = F.mse_loss(self.local(s).gather(1, a)[:, 0], target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.soft_update(self.local, self.target, TAU)

    def soft_update(self, local_model, target_model, tau):
        for target_param, local_param in zip(target_model.parameters(), local_model.parameters()):
            target_param.data.copy_(tau * local_param.data + (1.0 - tau) * target_param.data)

    def load(self, path):
        self.local.load_state_dict(torch.load(path))
        self.target.load_state_dict(torch.load(path))
"""
SCRIPT = """
critic = Net()
critic_target = Net()  # <- EVL015
critic_target.eval()
optimizer = torch.optim.Adam(critic.parameters())
for step in range(10000):
    s, r, s2 = torch.randn(3, 32, 4)[0], torch.randn(32, 2), torch.randn(32, 4)
    with torch.no_grad():
        target = r + 0.99 * critic_target(s2)
    loss = F.mse_loss(critic(s), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for p, q in zip(critic.parameters(), critic_target.parameters()):
            q.mul_(0.995).add_(p, alpha=0.005)
"""
LISTS = AGENT.replace(
    """        self.soft_update(self.local, self.target, TAU)

    def soft_update(self, local_model, target_model, tau):
        for target_param, local_param in zip(target_model.parameters(), local_model.parameters()):
            target_param.data.copy_(tau * local_param.data + (1.0 - tau) * target_param.data)
""",
    """        targets = [self.target]
        sources = [self.local]
        for t, s in zip(targets, sources):
            for q, p in zip(t.parameters(), s.parameters()):
                q.data.copy_(q.data * (1.0 - TAU) + p.data * TAU)
""",
)
STATES = AGENT.replace(
    """        for target_param, local_param in zip(target_model.parameters(), local_model.parameters()):
            target_param.data.copy_(tau * local_param.data + (1.0 - tau) * target_param.data)
""",
    """        for q, p in zip(target_model.parameters(), local_model.parameters()):
            q.data = tau * p.data + (1.0 - tau) * q.data
""",
)
PARTLY = AGENT.replace(
    "        self.memory = memory\n",
    """        self.actor, self.actor_target = Net(), Net()
        for q, p in zip(self.actor_target.parameters(), self.actor.parameters()):
            q.data.copy_(p.data)
""",
)
FAULTY = {
    "another network is copied": CLASS + PARTLY,
    "settings in a dictionary": CLASS + AGENT.replace("Net()", "Net(**settings)"),
    "a class, a function that mixes": CLASS + AGENT,
    "a script, mul_ and add_": CLASS + SCRIPT,
    "lists of networks": CLASS + LISTS,
    "assigned data": CLASS + STATES,
    "lerp_": CLASS + SCRIPT.replace("q.mul_(0.995).add_(p, alpha=0.005)", "q.lerp_(p, TAU)"),
}

CORRECT = {
    "copied in the constructor": CLASS
    + AGENT.replace("self.memory = memory", "self.target.load_state_dict(self.local.state_dict())"),
    "a deep copy": CLASS + AGENT.replace('self.target = Net().to("cpu")', "self.target = copy.deepcopy(self.local)"),
    "both get the same seed": CLASS.replace("super().__init__()", "super().__init__(); torch.manual_seed(number)")
    + AGENT.replace("Net()", "Net(3)"),
    "a first update that takes everything": CLASS
    + AGENT.replace("self.memory = memory", "self.soft_update(self.local, self.target, 1.0)"),
    "a hard update in a function": CLASS
    + SCRIPT.replace("critic_target.eval()", "hard_update(critic_target, critic)").replace(
        "critic = Net()",
        """
def hard_update(target, source):
    for t, s in zip(target.parameters(), source.parameters()):
        t.data.copy_(s.data)

critic = Net()""",
    ),
    "a hard update of another module": CLASS
    + SCRIPT.replace("critic_target.eval()", "hard_update(critic_target, critic)"),
    "a function that loads": CLASS
    + SCRIPT.replace("critic_target.eval()", "synchronise(critic, critic_target)").replace(
        "critic = Net()",
        "def synchronise(a, b):\n    b.load_state_dict(a.state_dict())\n\ncritic = Net()",
    ),
    "pretrained weights": CLASS + SCRIPT.replace("Net()", "Net.from_pretrained('x')"),
    "large share": CLASS + SCRIPT.replace("q.mul_(0.995).add_(p, alpha=0.005)", "q.lerp_(p, 0.5)"),
    "a copy in each update of the loop": CLASS
    + SCRIPT.replace(
        "    loss = F.mse",
        "    if step % 500 == 0:\n        critic_target.load_state_dict(critic.state_dict())\n    loss = F.mse",
    ),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_targets_with_weights_of_their_own(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_copied_targets(lint_is_clean, script):
    lint_is_clean(HEAD + script.replace("  # <- EVL015", ""))
