"""CKP001: whose memory the best weights are."""

import pytest

HEAD = """
import copy, io, os, tempfile
import torch
from torch import nn

x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
folder = tempfile.mkdtemp()

def update(net=model, opt=optimizer):
    opt.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    return loss.item()
"""

GUILTY = {
    "loaded at the end": """
best, state = float("inf"), None
for epoch in range(6):
    loss = update()
    if loss < best and epoch < 4:
        best, state = loss, model.state_dict()  # <- CKP001
model.load_state_dict(state)
""",
    "saved at the end, in a class": """
class EarlyStopping:
    def __init__(self):
        self.best, self.state = float("inf"), None
    def __call__(self, loss, net):
        if loss < self.best:
            self.best = loss
            self.state = net.state_dict()  # <- CKP001
stopper = EarlyStopping()
for epoch in range(5):
    stopper(update(), model)
update()
torch.save({"model": stopper.state, "best": stopper.best}, os.path.join(folder, "best.pt"))
""",
    "a shallow copy, a fused optimizer": """
opt = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
update(opt=opt)
best = {k: v for k, v in model.state_dict().items()}  # <- CKP001
update(opt=opt)
model.load_state_dict(best)
""",
    "a backup around an evaluation with other weights": """
averaged = copy.deepcopy(model.state_dict())
for _ in range(3):
    update()
def evaluate():
    backup = model.state_dict()  # <- CKP001
    model.load_state_dict(averaged)
    with torch.no_grad():
        print(model(x).mean())
    model.load_state_dict(backup)
evaluate()
""",
    "loaded into another model, with two optimizers": """
head = torch.optim.SGD(model[3].parameters(), lr=0.1)
def train(epochs):
    keep = []
    for _ in range(epochs):
        update()
        head.step()
        keep.append(copy.copy(model.state_dict()))  # <- CKP001
    return keep
kept = train(4)
final = copy.deepcopy(model)
final.load_state_dict(kept[1])
""",
}

QUIET = {
    "deepcopy": """
for _ in range(3):
    update()
    best = copy.deepcopy(model.state_dict())
update()
model.load_state_dict(best)
""",
    "clones": """
best = {k: v.clone() for k, v in model.state_dict().items()}
update()
model.load_state_dict(best)
""",
    "saved at once": """
for epoch in range(3):
    update()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, os.path.join(folder, "last.pt"))
model.load_state_dict(torch.load(os.path.join(folder, "last.pt"))["model"])
""",
    "captured when training is over": """
update()
state = model.state_dict()
with torch.no_grad():
    model(x)
torch.save(state, os.path.join(folder, "model.pt"))
copy.deepcopy(model).load_state_dict(state)
""",
    "a target network": """
target = copy.deepcopy(model)
for _ in range(6):
    update()
    target.load_state_dict(model.state_dict())
""",
    "an average by hand": """
average = copy.deepcopy(model)
for _ in range(4):
    update()
    live = model.state_dict()
    with torch.no_grad():
        for name, value in average.state_dict().items():
            if value.is_floating_point():
                value.mul_(0.9).add_(live[name], alpha=0.1)
""",
    "a handle made before training": """
checkpoint = {"model": model.state_dict(), "epoch": 0}
for epoch in range(3):
    update()
    checkpoint["epoch"] = epoch
    torch.save(checkpoint, os.path.join(folder, "last.pt"))
""",
    "back and forth without a change": """
update()
state = model.state_dict()
model.load_state_dict(state)
model.load_state_dict(state)
buffer = io.BytesIO()
torch.save(state, buffer)
""",
    "another model moved": """
other = nn.Linear(6, 1)
its = torch.optim.SGD(other.parameters(), lr=0.1)
update()
state = model.state_dict()
update(other, its)
torch.save(state, os.path.join(folder, "model.pt"))
""",
    "only looked at": """
before = model.state_dict()
update()
print({k: float(v.float().mean()) for k, v in before.items()})
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_found(guilty, script):
    guilty(HEAD + script)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes(quiet, script):
    quiet(HEAD + script)
