"""CKP012: copies of the best weights that nothing reads, and correct programs that look like it."""

import pytest

HEAD = """
import copy
import torch
from torch import nn

"""
LOOP = """
best, best_state = 1e9, None
for epoch in range(20):
    train(net)
    loss = validate(net)
    {}
net.eval()
print(score(net, test_loader))
"""
CLASS = """
class EarlyStopping:
    def __init__(self):
        self.best, self.weights = None, None
    def step(self, loss, model):
        if self.best is None or loss < self.best:
            self.best = loss
            self.weights = {{k: v.clone() for k, v in model.state_dict().items()}}{}
    {}
stopper = EarlyStopping()
for epoch in range(20):
    train(net)
    stopper.step(validate(net), net)
{}
torch.save(net.state_dict(), "model.pt")
"""

FAULTY = {
    "a script": LOOP.format("""if loss < best:
        best = loss
        best_state = copy.deepcopy(net.state_dict())  # <- CKP012"""),
    "a function that gets the model": """
def fit(model, loader, epochs):
    top, wts = 0.0, model.state_dict()
    for epoch in range(epochs):
        acc = run_epoch(model, loader)
        if acc > top:
            top, wts = acc, copy.deepcopy(model.state_dict())  # <- CKP012
    return top
def main():
    net = Net()
    fit(net, loader, 10)
    return predict(net, test_loader)
""",
    "a class that stops the training": CLASS.format("  # <- CKP012", "", ""),
    "a class with a base class of the program": "class Stopper:\n    pass\n"
    + CLASS.format("  # <- CKP012", "", "").replace("EarlyStopping:", "EarlyStopping(Stopper):"),
    "a class that is a module": CLASS.format("  # <- CKP012", "", "").replace(
        "EarlyStopping:\n    def __init__(self):", "EarlyStopping(nn.Module):\n    def __init__(self):"
    ),
    "a trainer": """
class Trainer:
    def __init__(self, model):
        self.model = model
    def fit(self):
        best_loss = float("inf")
        for epoch in range(10):
            loss = self.epoch()
            if loss < best_loss:
                best_loss = loss
                self.best_model = copy.deepcopy(self.model)  # <- CKP012
    def predict(self, x):
        return self.model(x)
trainer = Trainer(Net())
trainer.fit()
trainer.predict(x)
""",
    "an item next to others that are read": LOOP.format("""if loss < best:
        best = loss
        record = {"epoch": epoch, "state": copy.deepcopy(net.state_dict())}  # <- CKP012""")
    + 'print(record["epoch"])\n',
    "a flag": LOOP.format("""is_best = loss < best
    best = min(loss, best)
    if is_best:
        best_state = {k: v.detach().cpu().clone() for k, v in net.state_dict().items()}  # <- CKP012""")
    + "assert best_state is not None\n",
}
STORED = """if loss < best:
        best = loss
        best_state = copy.deepcopy(net.state_dict())"""
CORRECT = {
    "loaded": LOOP.format(STORED).replace("net.eval()", "net.load_state_dict(best_state)\nnet.eval()"),
    "loaded if there is one": LOOP.format(STORED).replace(
        "net.eval()", "if best_state is not None:\n    net.load_state_dict(best_state)\nnet.eval()"
    ),
    "saved": LOOP.format(STORED) + 'torch.save(best_state, "best.pt")\n',
    "a file as well": LOOP.format(STORED + '\n        torch.save(net.state_dict(), "best.pt")'),
    "returned": """
def fit(model, epochs):
    best, best_state = 0.0, None
    for epoch in range(epochs):
        acc = run_epoch(model)
        if acc > best:
            best, best_state = acc, copy.deepcopy(model.state_dict())
    return best_state
net.load_state_dict(fit(net, 10))
""",
    "read by a method": CLASS.format(
        "", "def restore(self, model):\n        model.load_state_dict(self.weights)", "stopper.restore(net)"
    ),
    "a base class of another package": "from trainers import Stopper\n"
    + CLASS.format("", "", "").replace("EarlyStopping:", "EarlyStopping(Stopper):"),
    "a base class whose base is of another package": "import trainers\nclass Base(trainers.Stopper):\n    pass\n"
    + CLASS.format("", "", "").replace("EarlyStopping:", "EarlyStopping(Base):"),
    "read from outside": CLASS.format("", "", "net.load_state_dict(stopper.weights)"),
    "a class for other files": CLASS.partition("stopper =")[0].format("", ""),
    "tested at each new best value": LOOP.format(STORED + "\n        test_loss = score(net, test_loader)"),
    "the model is not used afterwards": LOOP.format(STORED).partition("net.eval()")[0] + "print(best)\n",
    "a target network": """
for step in range(100):
    update(net)
    if step - last > 10:
        last = step
        target.load_state_dict(copy.deepcopy(net.state_dict()))
print(score(net))
""",
    "a copy of the optimizer": LOOP.format("""if loss < best:
        best = loss
        optimizer_state = copy.deepcopy(optimizer.state_dict())"""),
    "all good weights": LOOP.format("""if loss < best:
        best = loss
        states.append(copy.deepcopy(net.state_dict()))""")
    + "average(states)\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
