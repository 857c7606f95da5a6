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


SAVED = """
def main(net, optimizer, train_loader, val_loader, test_loader):
    best_loss = None
    for epoch in range(20):
        train(net, optimizer, train_loader)
        val_loss = evaluate(net, val_loader)
        if best_loss is None or val_loss < best_loss:
            best_loss = val_loss
            torch.save(net.state_dict(), "best.pt")
    test_loss = evaluate(net, test_loader)  # <- CKP012
    print(test_loss)
"""
TEST = "    test_loss = evaluate(net, test_loader)  # <- CKP012\n"
SPLIT = """
def fit(model, loaders, epochs):
    best_acc = 0.0
    for epoch in range(epochs):
        run_epoch(model, loaders["train"])
        acc = accuracy(model, loaders["val"])
        is_best = acc > best_acc
        best_acc = max(acc, best_acc)
        if is_best:
            torch.save({"model": model.state_dict(), "epoch": epoch}, f"best_{epoch}.pt")

def main():
    network = Net()
    fit(network, loaders, 20)
    print(accuracy(network, loaders.test))  # <- CKP012
"""
TRAINER = """
class Trainer:
    def __init__(self, model):
        self.model, self.best_loss = model, 1e9
    def _save_checkpoint(self, path):
        torch.save(self.model.state_dict(), path)
    def train(self):
        for epoch in range(20):
            self.epoch()
            val_loss = self.validate()
            if val_loss < self.best_loss:
                self.best_loss = val_loss
                self._save_checkpoint("best.pt")
    def _judge(self, loader):
        return metric(self.model, loader)
    def test(self):
        return self._judge(self.test_loader)

trainer = Trainer(Net())
trainer.train()
print(trainer.test())  # <- CKP012
"""
STOPPER = """
from pytorchtools import EarlyStopping

def train_model(model, train_loader, valid_loader, n_epochs):
    early_stopping = EarlyStopping(patience=20, verbose=True)
    for epoch in range(n_epochs):
        run_epoch(model, train_loader)
        valid_loss = validate(model, valid_loader)
        early_stopping(valid_loss, model)
        if early_stopping.early_stop:
            break
    return model
net = train_model(net, train_loader, valid_loader, 100)
test_loss, test_acc = evaluate(net, test_loader)  # <- CKP012
"""
OWN = """
class EarlyStopping:
    def __init__(self):
        self.best_score = None
    def __call__(self, loss, model):
        if self.best_score is None or loss < self.best_score:
            self.best_score = loss
            torch.save(model.state_dict(), "checkpoint.pt")
"""
LAST = {
    "an object that stops the training": STOPPER,
    "a class that stops the training": STOPPER.replace("from pytorchtools import EarlyStopping\n", OWN),
    "a function": SAVED,
    "a script": SAVED.partition(":\n")[2].replace("\n    ", "\n").removeprefix("    "),
    "a caller": SPLIT,
    "in each fold": "for fold in range(5):\n" + SAVED.partition(":\n")[2],
    "a trainer": TRAINER,
    "a test in the method that trains": TRAINER.partition("trainer =")[0]
    .replace(
        '_save_checkpoint("best.pt")\n',
        '_save_checkpoint("best.pt")\n        test_loss = self._judge(self.test_loader)  # <- CKP012\n',
    )
    .replace("def _judge", "def evaluate")
    .replace("self._judge", "self.evaluate"),
}
LOADED = {
    "loaded after the training was stopped": STOPPER.replace(
        "    return model\n", '    model.load_state_dict(torch.load("checkpoint.pt"))\n    return model\n'
    ),
    "a class that only stops": STOPPER.replace(
        "from pytorchtools import EarlyStopping\n",
        OWN.replace('torch.save(model.state_dict(), "checkpoint.pt")', "pass"),
    ),
    "a call without the model": STOPPER.replace("(valid_loss, model)", "(valid_loss)"),
    "loaded": SAVED.replace(TEST, '    net.load_state_dict(torch.load("best.pt"))\n' + TEST),
    "loaded for a second test": SAVED + '    evaluate(load(net, "best.pt"), test_loader)\n',
    "loaded by a function": SAVED.replace(TEST, "    use_best(net)\n" + TEST)
    + '\ndef use_best(net):\n    net.load_state_dict(torch.load("best.pt"))\n',
    "loaded where the training ends": SAVED.replace(
        TEST, '        elif epoch > 9:\n            net = load_model("best.pt")\n            break\n' + TEST
    ),
    "tested in each epoch": SAVED.replace(
        "        if best", "        print(evaluate(net, test_loader))\n        if best"
    ),
    "chosen on test data": SAVED.replace("val_", "test_"),
    "no test": SAVED.replace(TEST, "    val_loss = evaluate(net, val_loader)\n"),
    "the test gets the file": SAVED.replace("evaluate(net, test_loader)", "evaluate(net, test_loader, best_path)"),
    "another model": SAVED.replace("evaluate(net, test", "evaluate(baseline, test"),
    "the test loads them": TRAINER.replace(
        "    def test(self):\n", '    def test(self):\n        self.model = torch.load("best.pt")\n'
    ),
    "saved in every epoch": SAVED.replace("if best_loss is None or val_loss < best_loss", "if epoch % 2"),
}


@pytest.mark.parametrize("script", LAST.values(), ids=LAST.keys())
def test_lint_reports_a_test_of_the_last_weights(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", LOADED.values(), ids=LOADED.keys())
def test_lint_accepts_other_tests(lint_is_clean, script):
    lint_is_clean(HEAD + script.replace("  # <- CKP012", ""), "CKP012")
