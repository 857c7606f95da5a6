"""EVL002: training continues in eval mode."""

import pytest

from trueloop.failures.evaluation.eval_mode_left_on import Detector
from trueloop.tracing.events import ModelCalled, Ref

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 6)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:96], y[:96]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[96:], y[96:]), batch_size=16)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def validate(net=model):
    net.eval()
    with torch.no_grad():
        return sum(nn.functional.mse_loss(net(a), b).item() for a, b in held_out)
"""

FUNCTIONAL = """
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)
    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.last(F.dropout(hidden, RATE, self.training))

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(3):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        optimizer.step()  # <- EVL002
    validate(net)
"""

PARTS = """
class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 1)
    def forward(self, x):
        return self.head(self.body(x))
    def loss(self, x, y):
        return nn.functional.mse_loss(self.forward(x), y)

whole = Whole()
optimizer = torch.optim.Adam(whole.parameters(), lr=0.01)
"""

LOOP = """
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
"""

PARTLY = {
    "a model that is called by forward": PARTS
    + """
whole.train()
for _ in range(3):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(whole.forward(a), b).backward()
        optimizer.step()  # <- EVL002
    whole.eval()
    with torch.no_grad():
        print(sum(nn.functional.mse_loss(whole.forward(a), b).item() for a, b in held_out))
""",
    "a model that is called through its own method": PARTS
    + """
for _ in range(3):
    for a, b in train:
        optimizer.zero_grad()
        whole.loss(a, b).backward()
        optimizer.step()  # <- EVL002
    whole.eval()
    with torch.no_grad():
        print(sum(whole.loss(a, b).item() for a, b in held_out))
""",
}
BROKEN = {
    "functional dropout that follows the mode": FUNCTIONAL.replace("RATE", "0.3"),
    "samples drawn from a submodule": """
model.train()
for _ in range(3):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()  # <- EVL002
    model.eval()
    with torch.no_grad():
        model[4](torch.randn(4, 8))
""",
    "train() before the loop only": """
model.train()
for _ in range(3):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()  # <- EVL002
    validate()
""",
    "a class": """
class Trainer:
    def fit(self, epochs):
        for _ in range(epochs):
            self.epoch()
            validate()
    def epoch(self):
        for a, b in train:
            loss = nn.functional.l1_loss(model(a), b)
            loss.backward()
            optimizer.step()  # <- EVL002
            optimizer.zero_grad()
Trainer().fit(2)
""",
    "one update for each evaluation": """
model.train()
for _ in range(5):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x[:96]), y[:96]).backward()
    optimizer.step()  # <- EVL002
    model.eval()
    with torch.no_grad():
        nn.functional.mse_loss(model(x[96:]), y[96:]).item()
""",
    "validation within an epoch": """
for number, (a, b) in enumerate(DataLoader(train.dataset, batch_size=6, shuffle=True)):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()  # <- EVL002
    if number == 7:
        validate()
""",
    "accumulation and bf16": """
def run():
    for number, (a, b) in enumerate(train):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(a)
        (nn.functional.mse_loss(out.float(), b) / 2).backward()
        if number % 2:
            optimizer.step()  # <- EVL002
            optimizer.zero_grad()
for _ in range(3):
    run()
    validate()
""",
    "only the head is set back to train mode": PARTS
    + """
for _ in range(3):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(whole(a), b).backward()
        optimizer.step()  # <- EVL002
    whole.eval()
    with torch.no_grad():
        print(sum(whole(a).sum().item() for a, b in held_out))
    whole.head.train()
""",
    "eval mode from the start": f"""
model.eval()  # <- EVL002
for _ in range(3):
{LOOP}
    validate()
""",
    "a helper that returns the model in eval mode, batches by hand": """
def build(width, rate):
    net = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Dropout(rate), nn.Linear(width, 1))
    return net.eval()  # <- EVL002

net = build(8, 0.5)
adam = torch.optim.Adam(net.parameters())
for epoch in range(4):
    for k in torch.randperm(96).split(24):
        adam.zero_grad()
        nn.functional.mse_loss(net(x[k]), y[k]).backward()
        adam.step()
""",
    "eval mode before each forward pass, train mode after it": """
for epoch in range(4):
    for k in torch.randperm(96).split(24):
        model.eval()  # <- EVL002
        out = model(x[k])
        model.train()
        optimizer.zero_grad()
        nn.functional.mse_loss(out, y[k]).backward()
        optimizer.step()
""",
    "held-out data without a loader": """
for _ in range(3):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()  # <- EVL002
    model.eval()
    with torch.no_grad():
        print(nn.functional.mse_loss(model(x[96:]), y[96:]))
""",
}

CORRECT = {
    "a model that is called by forward and set back": PARTS
    + """
for _ in range(3):
    whole.train()
    for a, b in train:
        optimizer.zero_grad()
        whole.loss(a, b).backward()
        optimizer.step()
    whole.eval()
    with torch.no_grad():
        print(sum(whole.loss(a, b).item() for a, b in held_out))
""",
    "submodules in eval mode, one of them set back": PARTS
    + """
for epoch in range(3):
    whole.head.train()
    for a, b in train:
        optimizer.zero_grad()
        whole.loss(a, b).backward()
        optimizer.step()
    whole.eval()
    with torch.no_grad():
        print(sum(whole.loss(a, b).item() for a, b in held_out))
""",
    "each submodule is set back": PARTS
    + """
for epoch in range(3):
    for a, b in train:
        optimizer.zero_grad()
        whole.loss(a, b).backward()
        optimizer.step()
    modes = [module.training for module in whole.modules()]
    whole.eval()
    with torch.no_grad():
        print(sum(whole.loss(a, b).item() for a, b in held_out))
    for module, mode in zip(whole.modules(), modes):
        module.training = mode
""",
    "functional dropout with rate 0": FUNCTIONAL.replace("RATE", "0.0").replace("  # <- EVL002", ""),
    "a submodule computes the targets of each update": f"""
for _ in range(1):
{LOOP}
model.eval()
for _ in range(2):
    for a, b in train:
        with torch.no_grad():
            hints = model[0](a).mean()
        optimizer.zero_grad()
        (nn.functional.mse_loss(model(a), b) + 0 * hints).backward()
        optimizer.step()
""",
    "samples drawn from a submodule, and train() after them": f"""
for _ in range(3):
    model.train()
{LOOP}
    model.eval()
    with torch.no_grad():
        model[4](torch.randn(4, 8))
""",
    "train() in every epoch": f"""
for _ in range(3):
    model.train()
{LOOP}
    validate()
""",
    "pretrained weights, eval mode from the start": f"""
model.load_state_dict({{name: value + 0.1 for name, value in model.state_dict().items()}})
model.eval()
for _ in range(3):
{LOOP}
    validate()
""",
    "a head is trained on a backbone in eval mode from the start": f"""
optimizer = torch.optim.Adam(model[4].parameters(), lr=0.01)
model.eval()
for _ in range(3):
{LOOP}
    validate()
""",
    "eval mode by default, train mode for each update": """
model.eval()
for _ in range(3):
    for a, b in train:
        with torch.no_grad():
            model(a)
        model.train()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        model.eval()
    validate()
""",
    "an input is optimised through a new model in eval mode": """
model.eval()
image = torch.zeros(1, 6, requires_grad=True)
climb = torch.optim.Adam([image], lr=0.1)
for _ in range(12):
    climb.zero_grad()
    (-model(image).sum()).backward()
    climb.step()
""",
    "neither dropout nor batch normalisation, eval mode from the start": """
plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 1)).eval()
sgd = torch.optim.SGD(plain.parameters(), lr=0.01)
for _ in range(3):
    for a, b in train:
        sgd.zero_grad()
        nn.functional.mse_loss(plain(a), b).backward()
        sgd.step()
""",
    "a model whose submodules are normally set back": PARTS
    + """
for _ in range(3):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(whole(a), b).backward()
        optimizer.step()
    whole.eval()
    with torch.no_grad():
        print(sum(whole(a).sum().item() for a, b in held_out))
    whole.train()
    whole.body[1].eval()
""",
    "frozen batch normalisation": f"""
for _ in range(3):
    model.train()
    model[1].eval()
{LOOP}
    validate()
""",
    "the last stage in eval mode, on purpose": f"""
for number in range(4):
    model.train()
    if number >= 2:
        model.eval()
{LOOP}
    validate()
    if number >= 2:
        model.eval()
""",
    "the last stage in eval mode, set in every epoch": f"""
for _ in range(1):
    model.train()
{LOOP}
for _ in range(5):
    model.eval()
{LOOP}
    with torch.no_grad():
        nn.functional.mse_loss(model(x[96:]), y[96:]).item()
""",
    "neither dropout nor batch normalisation": """
plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
sgd = torch.optim.SGD(plain.parameters(), lr=0.01)
for _ in range(3):
    for a, b in train:
        sgd.zero_grad()
        nn.functional.mse_loss(plain(a), b).backward()
        sgd.step()
    validate(plain)
""",
    "an input is optimised in eval mode": f"""
for _ in range(2):
    model.train()
{LOOP}
    validate()
image = torch.zeros(1, 6, requires_grad=True)
climb = torch.optim.Adam([image], lr=0.1)
for _ in range(6):
    climb.zero_grad()
    (-model(image).sum()).backward()
    climb.step()
""",
}


@pytest.mark.parametrize("script", (PARTLY | BROKEN).values(), ids=PARTLY | BROKEN)
def test_run_reports_it(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run_is_clean, script):
    run_is_clean(HEAD + script)


# The rule --------------------------------------------------------------------------------------------------------

MISSED_BY_LINT = {
    "validation within an epoch",  # the text does not show whether a condition on a number is true more than once
    "only the head is set back to train mode",
    "eval mode from the start",
    "a helper that returns the model in eval mode, batches by hand",
}

LINT_BROKEN = {
    "a mode that is read after eval() is restored": """
def score(net):
    net.eval()
    was_training = net.training
    with torch.no_grad():
        total = sum(nn.functional.mse_loss(net(a), b).item() for a, b in held_out)
    net.train(was_training)
    return total
for _ in range(4):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()  # <- EVL002
    print(score(model))
""",
    "every few epochs, in functions with annotations": """
def train_epoch(net: nn.Module, loader: DataLoader, opt: torch.optim.Optimizer) -> None:
    for inputs, targets in loader:
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        opt.step()  # <- EVL002

def main(epochs: int = 10) -> None:
    for epoch in range(epochs):
        train_epoch(model, train, optimizer)
        if epoch % 5 == 0:
            model.eval()  # dropout off
            with torch.inference_mode():
                print(model(x[96:]).mean())
        torch.save(model.state_dict(), "last.pt")

main()
""",
    "a trainer, AMP": """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, epochs, val_loader=None):
        self.net.train()
        for _ in range(epochs):
            for a, b in train:
                with torch.autocast("cuda"):
                    loss = nn.functional.mse_loss(self.net(a), b)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)  # <- EVL002
                self.scaler.update()
                self.optimizer.zero_grad()
            if val_loader is not None:
                self.evaluate(val_loader)

    @torch.no_grad()
    def evaluate(self, loader):
        self.net.eval()
        return sum((self.net(a) - b).abs().mean().item() for a, b in loader)

Trainer(model).fit(4, held_out)
""",
    "a user-defined network with functional dropout": """
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x):
        x = F.dropout(F.relu(self.fc1(x)), training=self.training)
        return self.fc2(x)

net = Net()
sgd = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(5):
    for a, b in train:
        sgd.zero_grad()
        F.mse_loss(net(a), b).backward()
        sgd.step()  # <- EVL002
    net.eval()
    correct = 0
    with torch.no_grad():
        for a, b in held_out:
            correct += F.mse_loss(net(a), b)
""",
    "a warning: a parameter of unknown class": """
def fit(net: nn.Module, loader, val, epochs):
    opt = torch.optim.Adam(net.parameters())
    for epoch in range(epochs):
        for a, b in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(net(a), b).backward()
            opt.step()  # <- EVL002
        net.eval()
        with torch.no_grad():
            print(sum((net(a).argmax(1) == b).sum() for a, b in val))
""",
}

LINT_CORRECT = {
    "a mode that is read before eval() is restored": """
def score(net):
    was_training = net.training
    net.eval()
    with torch.no_grad():
        total = sum(nn.functional.mse_loss(net(a), b).item() for a, b in held_out)
    net.train(was_training)
    return total
for _ in range(4):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    print(score(model))
""",
    "the same, and the mode is read again after eval()": """
def score(net):
    was_training = net.training
    net.eval()
    print("training:", net.training)
    with torch.no_grad():
        total = sum(nn.functional.mse_loss(net(a), b).item() for a, b in held_out)
    net.train(was_training)
    return total
for _ in range(4):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    print(score(model))
""",
    "a teacher that the same function has trained before": """
def fit(net, objective):
    adam = torch.optim.Adam(net.parameters())
    for epoch in range(2):
        net.train()
        for inputs, targets in train:
            adam.zero_grad()
            objective(inputs, targets).backward()
            adam.step()

student = nn.Linear(6, 1)
def imitate(inputs, targets):
    model.eval()
    with torch.no_grad():
        wanted = model(inputs)
    return nn.functional.mse_loss(student(inputs), wanted)

fit(model, lambda inputs, targets: nn.functional.mse_loss(model(inputs), targets))
fit(student, imitate)
""",
    "set back after the evaluation": """
def estimate(net):
    net.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(net(a), b).item() for a, b in held_out]
    net.train()
    return losses
for step in range(100):
    if step % 10 == 0:
        print(estimate(model))
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
""",
    "phases": """
for epoch in range(5):
    for phase in ["train", "val"]:
        if phase == "train":
            model.train()
        else:
            model.eval()
        for a, b in {"train": train, "val": held_out}[phase]:
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                loss = nn.functional.mse_loss(model(a), b)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
""",
    "phases of an enumeration, in a closure": """
import enum
class Phase(enum.Enum):
    TRAIN = 0
    VAL = 1
def make(net, optimizer):
    def run(phase):
        if phase == Phase.TRAIN:
            net.train()
        else:
            net.eval()
        loss = nn.functional.mse_loss(net(x), y)
        if phase == Phase.TRAIN:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()
    return run
run = make(model, optimizer)
for epoch in range(3):
    run(phase=Phase.TRAIN)
    with torch.no_grad():
        print(run(phase=Phase.VAL))
""",
    "the mode as an argument": """
def run(loader, training):
    model.train(training)
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        if training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
for epoch in range(5):
    run(train, True)
    model.eval()
    run(held_out, False)
""",
    "a new model for each fold": """
for fold in range(5):
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    for a, b in train:
        sgd.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        sgd.step()
    net.eval()
    print(net(x[96:]).mean())
""",
    "a new model for each fold, from a function": """
def make():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 1))
def one_fold():
    net = make()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    for a, b in train:
        sgd.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        sgd.step()
    net.eval()
    return net
nets = [one_fold() for _ in range(5)]
for fold in range(5):
    one_fold()
""",
    "at the end only": f"""
for epoch in range(5):
{LOOP}
    if epoch == 4:
        model.eval()
        print(model(x[96:]).mean())
""",
    "before the loop ends": f"""
while True:
{LOOP}
    if nn.functional.mse_loss(model(x), y) < 0.1:
        model.eval()
        break
""",
    "a teacher": f"""
import copy
teacher = copy.deepcopy(model)
for epoch in range(5):
{LOOP}
    teacher.eval()
    print(teacher(x[96:]).mean())
""",
    "depending on a command-line argument": """
import sys
def main(training):
    for a, b in train:
        if training:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
        else:
            model.eval()
            print(model(a))
main("train" in sys.argv)
""",
    "passed to a library": f"""
from elsewhere import evaluate
for epoch in range(5):
{LOOP}
    model.eval()
    evaluate(model, held_out)
""",
    "a user-defined context manager": f"""
from contextlib import contextmanager
@contextmanager
def evaluating(net):
    was = net.training
    net.eval()
    try:
        yield net
    finally:
        net.train(was)
for epoch in range(5):
{LOOP}
    with evaluating(model), torch.no_grad():
        print(model(x[96:]).mean())
""",
    "a frozen backbone": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
        self.head = nn.Linear(8, 1)
    def forward(self, x):
        return self.head(self.backbone(x))
net = Net()
sgd = torch.optim.SGD(net.head.parameters(), lr=0.1)
for epoch in range(5):
    for a, b in train:
        sgd.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        sgd.step()
    net.eval()
    print(net(x[96:]).mean())
""",
    "layers set back one by one": f"""
for epoch in range(5):
    for layer in model.modules():
        layer.train()
{LOOP}
    validate()
""",
}


@pytest.mark.parametrize("name", [*(BROKEN.keys() - MISSED_BY_LINT), *LINT_BROKEN])
def test_lint_reports_it(lint_reports, name):
    found = lint_reports(HEAD + {**BROKEN, **LINT_BROKEN}[name], fixes=True)
    assert all((each.severity == "warning") is name.startswith("a warning") for each in found)


@pytest.mark.parametrize("name", [*MISSED_BY_LINT, *CORRECT, *LINT_CORRECT])
def test_lint_ignores_correct_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**BROKEN, **CORRECT, **LINT_CORRECT}[name])


def test_state_of_a_deleted_model_is_freed():
    detector = Detector()
    for number in range(50):
        model, held = Ref("Net", f"Net {number}"), frozenset((Ref("Parameter", "weight"),))
        detector.on_model_called(ModelCalled(
            update=number, model=model, training=True, dropout_active=True, batchnorm_active=False, all_eval=False,
            grad_mode=True, inference_mode=False, has_graph=True, autocast=None, recomputed=False, loader=None,
            parameters=held, seconds=0.0, live_module=None, output=None,
        ))  # fmt: skip
    assert len(detector._models) == 1


BLOCK = """
import torch
import torch.nn.functional as F
from torch import nn
class Block(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p, self.drop, self.last = p, nn.Dropout(p), None
"""
TURNED_OFF = {
    "attention": """
    def forward(self, q):
        if not self.training:
            self.p = 0.0  # <- EVL002
        return F.scaled_dot_product_attention(q, q, q, dropout_p=self.p)
""",
    "functional dropout": """
    def forward(self, x):
        if not self.training:
            self.p = 0  # <- EVL002
        return F.dropout(x, self.p, training=True)
""",
    "a layer's rate": """
    def forward(self, x):
        if not self.training:
            self.drop.p = 0.0  # <- EVL002
        return self.drop(x)
""",
}
TURNED_ON_AGAIN = {
    "a local variable": """
    def forward(self, q):
        p = self.p
        if not self.training:
            p = 0.0
        return F.scaled_dot_product_attention(q, q, q, dropout_p=p)
""",
    "both modes": """
    def forward(self, x):
        if not self.training:
            self.p = 0.0
        else:
            self.p = 0.1
        return F.dropout(x, self.p, training=True)
""",
    "set by train()": """
    def train(self, mode=True):
        self.p = 0.1 if mode else 0.0
        return super().train(mode)
    def forward(self, x):
        if not self.training:
            self.p = 0.0
        return F.dropout(x, self.p, training=True)
""",
    "another attribute": """
    def forward(self, x):
        if not self.training:
            self.last = 0
        return F.dropout(x, self.p, training=self.training)
""",
}


@pytest.mark.parametrize("name", TURNED_OFF)
def test_lint_reports_dropout_that_an_evaluation_turns_off(lint_reports, name):
    (found,) = lint_reports(BLOCK + TURNED_OFF[name])
    assert "stays 0 after the first evaluation" in found.message


@pytest.mark.parametrize("name", TURNED_ON_AGAIN)
def test_lint_ignores_dropout_that_is_turned_on_again(lint_is_clean, name):
    lint_is_clean(BLOCK + TURNED_ON_AGAIN[name], "EVL002")


# Validation within an epoch loop ----------------------------------------------------------------------------------

VALIDATION_WITHIN_AN_EPOCH_LOOP_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

VALIDATION_WITHIN_AN_EPOCH_LOOP = {
    "before a training step, never set back": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(12):
    if step % 4 == 0:
        model.eval()
        with torch.no_grad():
            print(nn.functional.mse_loss(model(x), y).item())
    k = torch.randint(96, (16,))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x[k]), y[k]).backward()
    optimizer.step()  # <- EVL002
""",
    "every few batches, train mode once per epoch": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def validate(net):
    net.eval()
    with torch.no_grad():
        return nn.functional.mse_loss(net(x), y).item()

step = 0
for epoch in range(3):
    model.train()
    for k in torch.randperm(96).split(8):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[k]), y[k]).backward()
        optimizer.step()  # <- EVL002
        step += 1
        if step % 5 == 0:
            print(validate(model))
""",
}

VALIDATION_WITHIN_AN_EPOCH_LOOP_FINE = {
    "at the end of the pass": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

loader = DataLoader(data, batch_size=16)
for epoch in range(3):
    model.train()
    for i, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        if (i + 1) % len(loader) == 0:
            model.eval()
            with torch.no_grad():
                print(nn.functional.mse_loss(model(x), y).item())
""",
    "an eval pass for the discriminator only": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(3):
    for k in torch.randperm(96).split(16):
        model.eval()
        with torch.no_grad():
            guess = model(x[k])
        model.train()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[k]), guess).backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("name", VALIDATION_WITHIN_AN_EPOCH_LOOP)
def test_lint_reports_validation_within_an_epoch_loop(lint_reports, name):
    lint_reports(VALIDATION_WITHIN_AN_EPOCH_LOOP_HEAD + VALIDATION_WITHIN_AN_EPOCH_LOOP[name])


@pytest.mark.parametrize("name", VALIDATION_WITHIN_AN_EPOCH_LOOP_FINE)
def test_lint_accepts_validation_within_an_epoch_loop(lint_is_clean, name):
    lint_is_clean(VALIDATION_WITHIN_AN_EPOCH_LOOP_HEAD + VALIDATION_WITHIN_AN_EPOCH_LOOP_FINE[name])


# Evaluations on a condition, and modes that are restored -------------------------------------------------------------

RESTORING_HEAD = """
from contextlib import contextmanager
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 6)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train_epoch():
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <- EVL002

@contextmanager
def evaluating(net):
    was = net.training
    net.eval()
    try:
        yield net
    finally:
        net.train(was)

@torch.no_grad()
def validate(net):
    before = net.training
    net.eval()
    loss = nn.functional.mse_loss(net(x[128:]), y[128:]).item()
    net.train(before)
    return loss
"""

TRAINED_AFTER_AN_EVALUATION = {
    "pseudo labels now and then": """
def label():
    model.eval()
    with torch.no_grad():
        return model(x[128:]).mean()
model.train()
for epoch in range(10):
    if epoch > 3 and epoch % 2 == 0:
        print(label())
    train_epoch()
    print(validate(model))
""",
    "hard examples on a condition": """
def hardest():
    model.eval()
    with torch.no_grad():
        return (model(x) - y).abs().topk(8).indices
class Miner:
    def __init__(self):
        self.stale = True
    def refresh(self):
        if self.stale:
            self.rows = hardest()
            self.stale = False
miner = Miner()
for epoch in range(10):
    miner.refresh()
    train_epoch()
    miner.stale = True
""",
    "a preview of the first epochs": """
for epoch in range(10):
    if epoch < 3:
        model.eval()
        with torch.no_grad():
            print(model(x[:4]))
    train_epoch()
""",
    "in a class": """
class Loop:
    def __init__(self, net):
        self.net, self.done = net, 0
    def show(self):
        self.net.eval()
        with torch.inference_mode():
            print(self.net(x[:2]))
    def run(self, epochs):
        self.net.train()
        while self.done < epochs:
            if self.done in (2, 5):
                self.show()
            train_epoch()
            with evaluating(self.net) as net, torch.no_grad():
                print(net(x[128:]).mean())
            self.done += 1
Loop(model).run(8)
""",
    "every epoch, with restoring validation": """
model.train()
for epoch in range(10):
    train_epoch()
    print(validate(model))
    model.eval()
    with torch.no_grad():
        print(model(x[:4]))
""",
}

RESTORED = {
    "validation restores": """
model.train()
for epoch in range(10):
    train_epoch()
    print(validate(model))
""",
    "train after the labels": """
def label():
    model.eval()
    with torch.no_grad():
        found = model(x[128:]).mean()
    model.train()
    return found
for epoch in range(10):
    if epoch > 3 and epoch % 2 == 0:
        print(label())
    train_epoch()
""",
    "labels restore": """
def label():
    was = model.training
    model.eval()
    with torch.no_grad():
        found = model(x[128:]).mean()
    model.train(was)
    return found
for epoch in range(10):
    if epoch > 3 and epoch % 2 == 0:
        print(label())
    train_epoch()
""",
    "eval mode on purpose from some epoch on": """
model.train()
for epoch in range(10):
    if epoch == 7:
        model.eval()
    train_epoch()
    with evaluating(model) as net, torch.no_grad():
        print(net(x[128:]).mean())
""",
    "the last evaluation ends the loop": """
model.train()
for epoch in range(10):
    if epoch > 7:
        model.eval()
        with torch.no_grad():
            if model(x).mean() < 1:
                break
        model.train()
    train_epoch()
""",
    "evaluation instead of training": """
model.train()
for epoch in range(10):
    if epoch == 9:
        model.eval()
        with torch.no_grad():
            print(model(x[128:]).mean())
    else:
        train_epoch()
""",
    "evaluation, then return": """
def run():
    model.train()
    for epoch in range(10):
        if epoch == 9:
            model.eval()
            with torch.no_grad():
                return model(x[128:]).mean()
        train_epoch()
run()
""",
    "another model": """
teacher = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 1))
for epoch in range(10):
    if epoch == 3:
        teacher.eval()
        with torch.no_grad():
            print(teacher(x).mean())
    train_epoch()
""",
    "with the context manager": """
for epoch in range(10):
    if epoch > 3 and epoch % 2 == 0:
        with evaluating(model) as net, torch.no_grad():
            print(net(x).mean())
    train_epoch()
""",
}


@pytest.mark.parametrize("name", TRAINED_AFTER_AN_EVALUATION)
def test_lint_reports_training_after_an_evaluation_on_a_condition(lint_reports, name):
    lint_reports(RESTORING_HEAD + TRAINED_AFTER_AN_EVALUATION[name])


@pytest.mark.parametrize("name", RESTORED)
def test_lint_accepts_restored_modes(lint_is_clean, name):
    lint_is_clean(RESTORING_HEAD.replace("  # <- EVL002", "") + RESTORED[name], code="EVL002")


TRAIN_MODE_TOO_LATE = {
    "a fragment": """
for images, labels in batches:
    net.eval()  # <- EVL002
    logits = net(images)
    net.train()
    criterion(logits, labels).backward()
""",
    "a function that gets the model": """
import torch.nn.functional as F
def fit(net, loader, optimizer):
    for a, b in loader:
        net.eval()  # <- EVL002
        output = net(a)
        net.train()
        optimizer.zero_grad()
        F.mse_loss(output, b).backward()
        optimizer.step()
""",
    "a method": """
class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def epoch(self, batches, criterion):
        for images, labels in batches:
            self.model.eval()  # <- EVL002
            logits = self.model(images)
            self.model.train(True)
            self.optimizer.zero_grad()
            criterion(logits, labels).backward()
            self.optimizer.step()
""",
    "two outputs": """
for batch in train_loader:
    net.eval()  # <- EVL002
    mean, deviation = net(batch)
    net.train()
    loss = nll(mean, deviation, batch) + 0.1 * deviation.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "while": """
while step < steps:
    network.eval()  # <- EVL002
    out = network(torch.randn(8, 4))
    step += 1
    network.train()
    (out ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}

TRAIN_MODE_IN_TIME = {
    "a critic that judges an actor, by a context manager": """
from contextlib import contextmanager
@contextmanager
def evaluating(model):
    try:
        model.eval()
        yield model
    finally:
        model.train()

def learn(actor, critic, states, optimizer):
    for state in states:
        with evaluating(critic):
            value = critic(state, actor(state))
            loss = -value.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "a discriminator in eval mode while the generator learns": """
for z in latents:
    discriminator.eval()
    score = discriminator(generator(z))
    discriminator.train()
    loss = criterion(score, ones)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "an attack": """
for x, y in loader:
    model.eval()
    x.requires_grad_()
    criterion(model(x), y).backward()
    x = x.detach() + 0.1 * x.grad.sign()
    model.train()
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""",
    "pseudo-labels": """
for x, y in loader:
    model.eval()
    with torch.no_grad():
        labels = model(x).argmax(1)
    model.train()
    optimizer.zero_grad()
    criterion(model(x), labels).backward()
    optimizer.step()
""",
    "an evaluation before the training": """
for x, y in loader:
    model.eval()
    before = criterion(model(x), y).item()
    model.train()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", TRAIN_MODE_TOO_LATE)
def test_lint_reports_train_mode_between_forward_and_backward(lint_reports, name):
    found = lint_reports(TRAIN_MODE_TOO_LATE[name], fixes=True)
    assert [each.severity for each in found] == ["warning"]


@pytest.mark.parametrize("name", TRAIN_MODE_IN_TIME)
def test_lint_accepts_train_mode_before_the_forward_pass(lint_is_clean, name):
    lint_is_clean(TRAIN_MODE_IN_TIME[name])


READ_LATE = {
    "a context manager": """
class evaluating:
    def __init__(self, net):
        self.net = net
    def __enter__(self):
        self.net.eval()
        self.was_training = self.net.training  # <- EVL002
    def __exit__(self, *error):
        self.net.train(self.was_training)
""",
    "a function": """
def evaluate(net, loader):
    net.eval()
    mode = net.training  # <- EVL002
    with torch.no_grad():
        total = sum(net(x).sum().item() for x in loader)
    net.train(mode)
    return total
""",
}
READ_IN_TIME = {
    "before": """
def evaluate(net, loader):
    mode = net.training
    net.eval()
    total = sum(net(x).sum().item() for x in loader)
    net.train(mode)
    return total
""",
    "another model": """
def evaluate(net, teacher, loader):
    teacher.eval()
    mode = net.training
    net.eval()
    total = sum(net(x).sum().item() for x in loader)
    net.train(mode)
    return total
""",
    "never restored": """
def evaluate(net, loader):
    net.eval()
    mode = net.training
    assert not mode
    return sum(net(x).sum().item() for x in loader)
""",
}
TRAINS = """
import torch
def step(net, optimizer, x):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("script", READ_LATE.values(), ids=READ_LATE)
def test_lint_reports_a_mode_that_is_read_after_eval(lint_reports, script):
    lint_reports(TRAINS + script, fixes=False)


@pytest.mark.parametrize("script", READ_IN_TIME.values(), ids=READ_IN_TIME)
def test_lint_accepts_a_mode_that_is_read_before(lint_is_clean, script):
    lint_is_clean(TRAINS + script, "EVL002")
