"""CKP008: loaded weights are overwritten or not used."""

import pytest

HEAD = """
import copy
import io
import torch
from torch import nn

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
torch.manual_seed(0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def update(network=model):
    loss = nn.functional.mse_loss(network(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


file = io.BytesIO()
torch.save(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).state_dict(), file)
file.seek(0)
"""

FAULTY = {
    "loaded into another object": """
pretrained = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
pretrained.load_state_dict(torch.load(file))  # <- CKP008
for step in range(12):
    update()
""",
}
FAULTY["both models are gone when the program ends"] = """
import gc
def main():
    pretrained = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    pretrained.load_state_dict(torch.load(file))  # <- CKP008
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(12):
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
main()
gc.collect()
"""

FAULTY["loaded from another model, then initialised"] = """
pretrained = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
model.load_state_dict(pretrained.state_dict())  # <- CKP008
model.apply(lambda m: nn.init.xavier_uniform_(m.weight) if isinstance(m, nn.Linear) else None)
for step in range(12):
    update()
"""
FAULTY["a frozen part, initialised with the model around it"] = """
class Net(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, nn.Linear(1, 1)
    def forward(self, x):
        return self.head(self.body(x))
def build():
    body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    body.load_state_dict(torch.load(file))  # <- CKP008
    net = Net(body)
    net.apply(lambda m: nn.init.normal_(m.weight, 0, 0.02) if isinstance(m, nn.Linear) else None)
    return net
net = build()
net.body.requires_grad_(False)
optimizer = torch.optim.SGD(net.head.parameters(), lr=0.01)
for step in range(12):
    update(net)
"""
CORRECT = {
    "a frozen part that is loaded last": """
body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
net = nn.Sequential(body, nn.Linear(1, 1))
net.apply(lambda m: nn.init.normal_(m.weight, 0, 0.02) if isinstance(m, nn.Linear) else None)
body.load_state_dict(torch.load(file))
body.requires_grad_(False)
optimizer = torch.optim.SGD(net[1].parameters(), lr=0.01)
for step in range(12):
    update(net)
""",
    "scored at first, then trained from scratch": """
model.load_state_dict(torch.load(file))
with torch.no_grad():
    print(nn.functional.mse_loss(model(x), y))
model.apply(lambda m: nn.init.xavier_uniform_(m.weight) if isinstance(m, nn.Linear) else None)
with torch.no_grad():
    print(nn.functional.mse_loss(model(x), y))
""",
    "two states of memory, one after the other": """
first, second = (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(2))
for each in (first, second):
    model.load_state_dict(each.state_dict())
    with torch.no_grad():
        model(x)
for step in range(12):
    update()
""",
    "a copy in memory that is not called": """
best = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
best.load_state_dict(model.state_dict())
for step in range(12):
    update()
""",
    "a target network": """
target = copy.deepcopy(model)
target.load_state_dict(model.state_dict())
for step in range(12):
    update()
    target.load_state_dict(model.state_dict())
""",
    "a teacher": """
teacher = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
teacher.load_state_dict(torch.load(file))
for step in range(12):
    with torch.no_grad():
        teacher(x)
    update()
""",
    "a new head": """
model.load_state_dict(torch.load(file))
nn.init.xavier_uniform_(model[2].weight)
for step in range(12):
    update()
""",
    "noise": """
model.load_state_dict(torch.load(file))
with torch.no_grad():
    for p in model.parameters():
        p.add_(0.01 * torch.randn_like(p))
for step in range(12):
    update()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


LINT_HEAD = """
import torch
from torch import nn

def init_weights(m):
    if isinstance(m, (nn.Linear, nn.Conv2d)):
        nn.init.kaiming_normal_(m.weight)
        nn.init.zeros_(m.bias)

def init_linear(m):
    if isinstance(m, nn.Linear):
        m.weight.data.normal_(0, 0.02)

def count(m):
    print(type(m))
"""
LINT_FAULTY = {
    "a part of the model": """
def build(state):
    net = nn.Sequential()
    net.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    net.head = nn.Linear(8, 2)
    net.body.load_state_dict(state)
    net.apply(init_weights)  # <- CKP008
    return net
""",
    "in the constructor": """
class Net(nn.Module):
    def __init__(self, body, state=None):
        super().__init__()
        self.body = body
        if state is not None:
            print(self.body.load_state_dict(state, strict=False))
        self.head = nn.Linear(8, 2)
        self.apply(self._init)  # <- CKP008

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            torch.nn.init.xavier_uniform_(m.weight)
""",
    "loaded by a function": """
def load_body(net, path):
    state = {k: v for k, v in torch.load(path).items() if not k.startswith("head.")}
    net.load_state_dict(state, strict=False)

def build(path=None):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    if path is not None:
        load_body(net, path)
        print("loaded")
    net.apply(init_weights)  # <- CKP008
    return net
""",
    "a loop over the layers": """
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
model.load_state_dict(torch.load("model.pt"))
for m in model.modules():  # <- CKP008
    if isinstance(m, nn.Linear):
        m.reset_parameters()
""",
    "a method": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def initialise(self):
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.orthogonal_(m.weight)

net = Net()
net.load_state_dict(torch.load("net.pt", weights_only=True))
net.initialise()  # <- CKP008
""",
    "a lambda": """
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
net.load_state_dict(torch.load("net.pt"))
net.apply(lambda m: nn.init.xavier_uniform_(m.weight) if isinstance(m, nn.Linear) else None)  # <- CKP008
""",
}
LINT_CORRECT = {
    "before the load": """
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
net.apply(init_weights)
net.load_state_dict(torch.load("net.pt"))
""",
    "the head only": """
def build(net, state):
    net.load_state_dict(state)
    net.head = nn.Linear(8, 2)
    net.head.apply(init_weights)
    return net
""",
    "one or the other": """
def build(net, path=None):
    if path:
        net.load_state_dict(torch.load(path))
    else:
        net.apply(init_weights)
    return net
""",
    "an early return": """
def build(net, path=None):
    if path:
        net.load_state_dict(torch.load(path))
        return net
    net.apply(init_weights)
    return net
""",
    "scored, then trained from scratch": """
def compare(net, path, score, fit):
    net.load_state_dict(torch.load(path))
    print(score(net))
    net.apply(init_weights)
    fit(net)
""",
    "another function": """
def build(net, path):
    net.load_state_dict(torch.load(path))
    net.apply(count)
    return net
""",
    "only layers that the loaded part lacks": """
def build(path):
    net = nn.Sequential()
    net.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten())
    net.head = nn.Linear(8, 2)
    net.body.load_state_dict(torch.load(path))
    net.apply(init_linear)
    return net
""",
    "another model": """
def build(teacher, student, path):
    teacher.load_state_dict(torch.load(path))
    student.apply(init_weights)
    return teacher, student
""",
    "the best of the folds, then the next fold": """
for fold in range(3):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net.apply(init_weights)
    net.load_state_dict(torch.load(f"{fold}.pt"))
""",
}


@pytest.mark.parametrize("script", LINT_FAULTY.values(), ids=LINT_FAULTY)
def test_lint_reports_an_initialisation_after_the_load(lint_reports, script):
    lint_reports(LINT_HEAD + script)


@pytest.mark.parametrize("script", LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_accepts_other_initialisations(lint_is_clean, script):
    lint_is_clean(LINT_HEAD + script, code="CKP008")


OWN_LAST = {
    "unpacked": "net.load_state_dict({**torch.load('a.pt'), **net.state_dict()})  # <- CKP008",
    "in a variable": "state = {**torch.load('a.pt'), **net.state_dict()}\nnet.load_state_dict(state)  # <- CKP008",
    "joined": "net.load_state_dict(torch.load('a.pt') | net.state_dict())  # <- CKP008",
}
LOADED_LAST = {
    "the loaded state last": "net.load_state_dict({**net.state_dict(), **torch.load('a.pt')})",
    "of another model": "net.load_state_dict({**torch.load('a.pt'), **other.state_dict()})",
    "a part of the own state": "net.load_state_dict({**torch.load('a.pt'), **{k: v for k, v in net.state_dict().items()"
    " if 'head' in k}})",
}
START = "import torch\nfrom torch import nn\nnet, other = nn.Linear(4, 2), nn.Linear(4, 2)\n"


@pytest.mark.parametrize("script", OWN_LAST.values(), ids=OWN_LAST)
def test_lint_reports_states_whose_own_values_are_last(lint_reports, script):
    lint_reports(START + script)


@pytest.mark.parametrize("script", LOADED_LAST.values(), ids=LOADED_LAST)
def test_lint_accepts_loaded_values_that_are_last(lint_is_clean, script):
    lint_is_clean(START + script, "CKP008")
