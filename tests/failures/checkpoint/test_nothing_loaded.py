"""CKP005: loads with strict=False of which no name matches."""

from __future__ import annotations

import pytest

HEAD = """
import io
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
    def forward(self, x):
        return self.head(self.body(x).relu())
class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Net()
    def forward(self, x):
        return self.model(x)
x = torch.randn(16, 4)
def train(model, optimizers=None):
    for optimizer in optimizers or [torch.optim.SGD(model.parameters(), lr=0.01)]:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
model = Net()
"""

FILE = """
def stored(net):
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    return file
"""

CORRECT = {
    "a filter that leaves something": FILE
    + """
saved, own = torch.load(stored(Net())), model.state_dict()
own.update({name: value for name, value in saved.items() if name in own and "head" not in name})
model.load_state_dict(own)
train(model)
""",
    "renamed before the filter": FILE
    + """
saved, own = torch.load(stored(Task())), model.state_dict()
saved = {name.removeprefix("model."): value for name, value in saved.items()}
own.update({name: value for name, value in saved.items() if name in own})
model.load_state_dict(own)
train(model)
""",
    "values are copied": FILE
    + """
saved, own = torch.load(stored(Task())), model.state_dict()
for name, value in own.items():
    if "body" in name:
        value.copy_(saved["model." + name])
model.load_state_dict(model.state_dict())
train(model)
""",
    "another model gets the file": FILE
    + """
teacher = Task()
teacher.load_state_dict(torch.load(stored(Task())))
model.load_state_dict(model.state_dict())
train(model)
""",
    "a part gets the file": FILE
    + """
task = Task()
saved = torch.load(stored(Net()))
for name, value in task.model.named_parameters():
    value.data = saved[name].clone()
task.load_state_dict(task.state_dict())
train(task)
""",
    "strict": "model.load_state_dict(Net().state_dict())\ntrain(model)\n",
    "strict=False, and all names match": "model.load_state_dict(Net().state_dict(), strict=False)\ntrain(model)\n",
    "a backbone without its head": """
state = {name: value for name, value in Net().state_dict().items() if name.startswith("body")}
model.load_state_dict(state | {"old_head.weight": torch.ones(1)}, strict=False)
train(model)
""",
    "an adapter": "model.load_state_dict({'head.weight': torch.ones(1, 8)}, strict=False)\ntrain(model)\n",
    "nothing to load": "model.load_state_dict({}, strict=False)\ntrain(model)\n",
    "with the prefix, then without it": """
state = Task().state_dict()
if model.load_state_dict(state, strict=False).missing_keys:
    model.load_state_dict({name.removeprefix("model."): value for name, value in state.items()})
train(model)
""",
    "optimizers have states as well": """
optimizer = torch.optim.Adam(model.parameters())
train(model, [optimizer])
optimizer.load_state_dict(optimizer.state_dict())
""",
}

FAULTY = {
    "a filter by name that leaves nothing": FILE
    + """
def warm_start(net, file):
    saved, own = torch.load(file), net.state_dict()
    usable = {name: value for name, value in saved.items() if name in own and own[name].shape == value.shape}
    own.update(usable)
    net.load_state_dict(own)  # <- CKP005
    return net
train(warm_start(Net(), stored(Task())))
""",
    "a filter, and strict=False": FILE
    + """
class Model(Net):
    def restore(self, file):
        state = torch.load(file)["state"]
        state = {key[8:]: value for key, value in state.items() if key.startswith("encoder.")}
        self.load_state_dict(state, strict=False)  # <- CKP005
file = io.BytesIO()
torch.save({"state": nn.DataParallel(Net()).state_dict(), "epoch": 1}, file)
file.seek(0)
net = Model()
net.restore(file)
train(net)
""",
    "a loop over the names": FILE
    + """
saved = torch.load(stored(Task()), weights_only=True)
state = dict(model.state_dict())
for name in state:
    if name in saved:
        state[name] = saved[name]
model.load_state_dict(state)  # <- CKP005
train(model)
""",
    "a prefix too many": "model.load_state_dict(Task().state_dict(), strict=False)  # <- CKP005\ntrain(model)\n",
    "a prefix too few, in a function": """
def load(into, state):
    into.load_state_dict(state["weights"], strict=False)  # <- CKP005
    return into
task = load(Task(), {"weights": Net().state_dict(), "epoch": 3})
train(task)
""",
    "from a file, a class": """
class Trainer:
    def __init__(self, model):
        self.model = model
    def resume(self, file):
        state = torch.load(file)
        print(self.model.load_state_dict(state, strict=False))  # <- CKP005
file = io.BytesIO()
torch.save(nn.DataParallel(Net()).state_dict(), file)
file.seek(0)
trainer = Trainer(Net())
trainer.resume(file)
train(trainer.model)
""",
    "two optimizers, and only for evaluation": """
train(model, [torch.optim.SGD(part.parameters(), lr=0.01) for part in (model.body, model.head)])
best = {"best." + name: value.clone() for name, value in model.state_dict().items()}
model.load_state_dict(best, strict=False)  # <- CKP005
model.eval()
with torch.no_grad():
    print(model(x).mean())
""",
    "a checkpoint of another model that never runs": """
model.load_state_dict({"encoder.weight": torch.ones(2, 2)}, strict=False)  # <- CKP005
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("name", FAULTY)
def test_run_reports_the_marked_line(run_reports, name):
    (found,) = run_reports(HEAD + FAULTY[name]).findings
    assert "loaded nothing" in found.message or "Nothing of" in found.message
    if "prefix too" in name:
        assert ("Remove 'model.' from" if "many" in name else "Add 'model.' before") in found.fix


NOT_LOADED = {
    "a function": """
import copy
best = copy.deepcopy(model.state_dict())
model.state_dict(best)  # <- MDL009
""",
    "a method, by keyword": """
class Fit:
    def __init__(self, net):
        self.net, self.best = net, None
    def end(self, score):
        if self.best is not None:
            self.net.state_dict(destination=self.best)  # <- MDL009
""",
    "a file": "model.state_dict(torch.load('best.pt'))  # <- MDL009\n",
    "an entry of a checkpoint": "best = torch.load('a.pt')['model']\nmodel.state_dict(best)  # <- MDL009\n",
}
COLLECTED = {
    "several modules in one dictionary": """
from collections import OrderedDict
states = OrderedDict()
for part in (model.body, model.head):
    part.state_dict(destination=states)
""",
    "an overridden method": """
class Wrapper(nn.Module):
    def state_dict(self, destination=None, prefix="", keep_vars=False):
        self.inner.state_dict(destination, prefix, keep_vars)
        self.inner.state_dict(destination=destination)
        return destination
""",
    "its result is used": "state = model.state_dict(keep_vars=True)\nprint(model.state_dict(prefix='a.'))\n",
    "loaded": "model.load_state_dict(model.state_dict())\n",
}


@pytest.mark.parametrize("name", NOT_LOADED)
def test_lint_reports_a_state_that_is_passed_to_state_dict(lint_reports, name):
    (found,) = lint_reports(HEAD + NOT_LOADED[name])
    assert "loads nothing: it writes the current weights" in found.message


@pytest.mark.parametrize("name", COLLECTED)
def test_lint_ignores_states_that_are_collected(lint_is_clean, name):
    lint_is_clean(HEAD + COLLECTED[name], "MDL009")
