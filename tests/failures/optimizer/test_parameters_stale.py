"""OPT002: an optimizer that holds parameters the model no longer has."""

from __future__ import annotations

import pytest

DATA = """
import copy
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(96, 6)
y = torch.randint(0, 3, (96,))
def build(classes=3):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, classes))
model = build()
"""
FAULTY = {
    "model_built_again": """
optimizer = optim.Adam(model.parameters())
model = build()  # <- OPT002
for _ in range(6):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "head_replaced": """
class Trainer:
    def __init__(self):
        self.model = build(10)
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
    def adapt(self, classes):
        self.model[2] = nn.Linear(8, classes)  # <- OPT002
    def fit(self):
        for a, b in DataLoader(TensorDataset(x, y), batch_size=12):
            loss = F.cross_entropy(self.model(a), b)
            loss.backward()
            self.optimizer.step()
            self.model.zero_grad()
trainer = Trainer()
trainer.adapt(3)
trainer.fit()
""",
    "weight_reassigned": """
optimizer = optim.AdamW(model.parameters())
nn.init.orthogonal_(model[0].weight)
model[0].weight = nn.Parameter(model[0].weight.detach() * 0.5)  # <- OPT002
def update(a, b):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(a), b)
    loss.backward()
    optimizer.step()
for _ in range(5):
    update(x, y)
""",
    "rolled_back_by_a_copy": """
optimizer = optim.SGD(model.parameters(), lr=0.1)  # <- OPT002
def epoch(model):
    for i in range(8):
        (F.cross_entropy(model(x[i * 12 : i * 12 + 12]), y[i * 12 : i * 12 + 12]) / 2).backward()
        if i % 2:
            optimizer.step()
            model.zero_grad()
epoch(model)
best = copy.deepcopy(model)
model = copy.deepcopy(best)
epoch(model)
epoch(model)
""",
}
LOOP = """
for _ in range(10):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
CORRECT = {
    "in_order": "optimizer = optim.Adam(model.parameters())" + LOOP,
    "head_used_later": """
heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])
net = nn.Sequential(model[0], nn.ReLU(), heads[0])
optimizer = optim.Adam([*model[0].parameters(), *heads.parameters()])
for i in range(10):
    optimizer.zero_grad()
    F.cross_entropy(heads[i >= 6](torch.relu(model[0](x))), y).backward()
    optimizer.step()
""",
    "ema": """
optimizer = optim.Adam(model.parameters())
average = copy.deepcopy(model)
for _ in range(10):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()):
            a.lerp_(p, 0.1)
        average(x)
""",
    "reptile": """
optimizer = optim.SGD(model.parameters(), lr=0.5)
for _ in range(6):
    learner = copy.deepcopy(model)
    for _ in range(3):
        learner.zero_grad()
        F.cross_entropy(learner(x), y).backward()
        with torch.no_grad():
            for p in learner.parameters():
                p.sub_(0.1 * p.grad)
    for p, q in zip(model.parameters(), learner.parameters()):
        p.grad = (p - q).detach()
    optimizer.step()
""",
    "master_weights": """
model = build().bfloat16()
masters = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizer = optim.Adam(masters)
for _ in range(8):
    model.zero_grad()
    F.cross_entropy(model(x.bfloat16()).float(), y).backward()
    for m, p in zip(masters, model.parameters()):
        m.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for m, p in zip(masters, model.parameters()):
            p.copy_(m)
""",
    "raw_tensors": """
temperature, unused = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(3))
optimizer = optim.Adam([*model.parameters(), temperature, unused])
for _ in range(8):
    optimizer.zero_grad()
    F.cross_entropy(model(x) * temperature, y).backward()
    optimizer.step()
""",
    "another_model_by_hand": """
latents = nn.ParameterList([nn.Parameter(torch.randn(6)) for _ in range(4)])
other = build()
optimizer = optim.Adam(latents.parameters())
for i in range(8):
    optimizer.zero_grad()
    other.zero_grad()
    F.cross_entropy(other(x + latents[i % 2]), y).backward()
    optimizer.step()
    with torch.no_grad():
        for p in other.parameters():
            p -= 0.05 * p.grad
""",
    "restored_in_place": """
optimizer = optim.Adam(model.parameters())
best = copy.deepcopy(model.state_dict())
"""
    + LOOP
    + "model.load_state_dict(best)"
    + LOOP,
    "sweep": """
for lr in (0.1, 0.01, 0.001):
    model = build()
    optimizer = optim.Adam(model.parameters(), lr=lr)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
}


OLD_GRADIENT = """
optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
def importance():
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    return model[0].weight.grad.abs().sum(1).argsort()[2:]
def prune(keep):
    new = nn.Linear(6, len(keep)), nn.ReLU(), nn.Linear(len(keep), 3)
    new[2].bias.data = model[2].bias.data  # goes on moving with the old one
    for index, layer in enumerate(new):
        model[index] = layer
prune(importance())  # <- OPT002
model.append(nn.Linear(3, 3))
optimizer.add_param_group({"params": model[3].parameters()})
for _ in range(8):
    loss = F.cross_entropy(model(x), y)
    model.zero_grad()
    loss.backward()
    optimizer.step()
"""
"""A replaced layer whose last gradient is used at every step."""


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script: str):
    assert "belong to no model that is called" in run_reports(DATA + script).findings[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(DATA + script)


# Lint ------------------------------------------------------------------------------------------------------------

WHOLE_MODELS = ("model_built_again", "rolled_back_by_a_copy")
LINT_FINDS = {
    "an optimizer of the old head only, on a frozen body": """
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, classes)

    def forward(self, a):
        return self.fc(torch.relu(self.body(a)))

net = Net(5)
for p in net.parameters():
    p.requires_grad_(False)
optimizer = optim.Adam(net.fc.parameters(), lr=0.01)
net.fc = nn.Linear(net.fc.in_features, 3)  # <- OPT002
for _ in range(6):
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
""",
    "groups of the body and of the old head, replaced by a function": """
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, classes)

    def forward(self, a):
        return self.fc(torch.relu(self.body(a)))

def replace_head(model, classes):
    model.fc = nn.Linear(8, classes)  # <- OPT002
    return model

net = Net(5)
optimizer = optim.AdamW([{"params": net.body.parameters(), "lr": 1e-4}, {"params": net.fc.parameters(), "lr": 1e-2}])
net = replace_head(net, 3)
for _ in range(6):
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
""",
    "fine-tuning, the head replaced too late": """
import torchvision
def main(args):
    net = torchvision.models.resnet18(weights="DEFAULT")
    opt = optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    net.fc = nn.Linear(net.fc.in_features, args.classes)  # <- OPT002
    net = net.to("cuda")
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        for images, labels in loader:
            opt.zero_grad()
            criterion(net(images), labels).backward()
            opt.step()
""",
    "a class of the file, with AMP": """
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, classes)
    def forward(self, inputs):
        return self.head(self.body(inputs))
net = Net(10)
opt = optim.AdamW(net.parameters(), lr=1e-3)  # of the old one
scaler = torch.amp.GradScaler("cuda")
net.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 3))  # <- OPT002
for inputs, targets in loader:
    with torch.autocast("cuda", torch.float16):
        loss = F.cross_entropy(net(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
""",
}

LINT_IGNORES = {
    "the optimizer of the new head is built later": """
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, classes)

    def forward(self, a):
        return self.fc(torch.relu(self.body(a)))

net = Net(5)
optimizer = optim.Adam(net.fc.parameters(), lr=0.01)
net.fc = nn.Linear(8, 3)
optimizer = optim.Adam(net.fc.parameters(), lr=0.01)
for _ in range(6):
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
""",
    "replaced by something without parameters": """
import torchvision
net = torchvision.models.resnet18()
opt = optim.SGD(net.parameters(), lr=0.1)
net.fc = nn.Identity()
head = nn.Linear(512, 3)
for images, labels in loader:
    opt.zero_grad()
    F.cross_entropy(head(net(images)), labels).backward()
    opt.step()
""",
    "added with add_param_group": """
optimizer = optim.Adam(model[0].parameters())
model[2] = nn.Linear(8, 3)
optimizer.add_param_group({"params": model[2].parameters()})
"""
    + LOOP,
    "another optimizer for the new layer": """
optimizer = optim.Adam(model.parameters())
model[2] = nn.Linear(8, 3)
second = optim.Adam(model[2].parameters())
"""
    + LOOP,
    "replaced by a head that the optimizer holds": """
heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])
optimizer = optim.Adam([*model.parameters(), *heads.parameters()])
model[2] = heads[1]
"""
    + LOOP,
    "frozen": """
optimizer = optim.Adam(model.parameters())
model[2] = nn.Linear(8, 3).requires_grad_(False)
"""
    + LOOP,
    "only on a condition, and built again on it": """
optimizer = optim.Adam(model.parameters())
if adapt:
    model[2] = nn.Linear(8, 3)
    optimizer = optim.Adam(model.parameters())
"""
    + LOOP,
    "wrapped, then moved": """
optimizer = optim.Adam(model.parameters())
model = nn.parallel.DistributedDataParallel(model.cuda())
model = torch.compile(model)
"""
    + LOOP,
    "a student and its teacher": """
teacher, student = build(), build()
optimizer = optim.Adam(student.parameters())
for a, b in DataLoader(TensorDataset(x, y), batch_size=12):
    with torch.no_grad():
        wanted = teacher(a)
    optimizer.zero_grad()
    F.mse_loss(student(a), wanted).backward()
    optimizer.step()
    teacher = copy.deepcopy(student)
""",
    "a policy whose outputs are in a buffer of another file": """
from elsewhere import Buffer
critic, policy = build(1), build(1)
optimizer, buffer = optim.Adam(policy.parameters()), Buffer()
for i in range(10):
    buffer.add(policy(x))
    loss = critic(buffer.sample()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "weights that are shared": """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    def forward(self, ids):
        return self.out(self.embedding(ids))
model = Tied()
optimizer = optim.Adam(model.parameters())
model.out.weight = model.embedding.weight
"""
    + LOOP,
    "grown in stages": """
for stage in range(3):
    optimizer = optim.Adam(model.parameters())
    for _ in range(10):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    model[2] = nn.Linear(8, 3)
""",
}


@pytest.mark.parametrize("name", [*(name for name in FAULTY if name not in WHOLE_MODELS), *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(DATA + {**FAULTY, **LINT_FINDS}[name])


@pytest.mark.parametrize("name", WHOLE_MODELS)
def test_lint_reports_the_step_for_a_whole_model_that_was_replaced(lint_reports, name):
    at_step = FAULTY[name].replace("  # <- OPT002", "").replace("optimizer.step()", "optimizer.step()  # <- OPT002")
    lint_reports(DATA + at_step)


@pytest.mark.parametrize("name", [*CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(DATA + {**CORRECT, **LINT_IGNORES}[name])


def test_an_old_gradient_does_not_count_as_fresh(run_reports):
    run_reports(DATA + OLD_GRADIENT)


THROUGH_COPY = {
    "a fragment": """
for images, labels in train_loader:
    snapshot = copy.deepcopy(net)
    sgd.zero_grad()
    criterion(snapshot(images), labels).backward()
    sgd.step()  # <- OPT002
""",
    "a complete loop": """
import torch
from copy import deepcopy
from torch import nn
net = nn.Linear(4, 1)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in batches:
    clone = deepcopy(net)
    clone.train()
    sgd.zero_grad()
    nn.functional.mse_loss(clone(x), y).backward()
    sgd.step()  # <- OPT002
""",
    "a method": """
import copy
class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
    def fit(self, batches, criterion):
        for x, y in batches:
            model = copy.deepcopy(self.model).to("cuda")
            loss = criterion(model(x.cuda()), y.cuda())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()  # <- OPT002
""",
    "a function for one update": """
import copy
import torch.nn.functional as F
def update(network, optimizer, x, y):
    local = copy.deepcopy(network)
    loss = F.cross_entropy(local(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- OPT002
    return loss.item()
""",
    "a copy for each task": """
import copy, torch
def meta(net, tasks, epochs):
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(epochs):
        total = 0
        learner = copy.deepcopy(net)
        for x, y in tasks:
            total = total + ((learner(x) - y) ** 2).mean()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()  # <- OPT002
""",
}
COPY_READ = {
    "an optimizer of the copy": """
for images, labels in tasks:
    learner = copy.deepcopy(model)
    inner = torch.optim.SGD(learner.parameters(), lr=0.1)
    loss = criterion(learner(images), labels)
    loss.backward()
    inner.step()
""",
    "gradients that are copied back": """
for images, labels in tasks:
    learner = copy.deepcopy(model)
    criterion(learner(images), labels).backward()
    for a, b in zip(model.parameters(), learner.parameters()):
        a.grad = b.grad
    optimizer.step()
    optimizer.zero_grad()
""",
    "an unrolled discriminator": """
for z in latents:
    unrolled = copy.deepcopy(discriminator)
    loss = criterion(unrolled(generator(z)), ones)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "an unrolled discriminator, an unknown generator": """
for z in latents:
    unrolled = copy.deepcopy(discriminator)
    loss = criterion(unrolled(make(z)), ones)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a teacher": """
for x, y in batches:
    teacher = copy.deepcopy(model)
    loss = loss_function(model(x), y) + distance(model(x), teacher(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a copy that is returned": """
def client(model, batches, optimizer_class):
    local = copy.deepcopy(model)
    optimizer = optimizer_class(local.parameters())
    for x, y in batches:
        optimizer.zero_grad()
        criterion(local(x), y).backward()
        optimizer.step()
    return local
""",
    "a perturbed input": """
for x, y in batches:
    attacked = copy.deepcopy(model)
    loss_function(attacked(x), y).backward()
    x_adv = x + 0.1 * x.grad.sign()
    optimizer.zero_grad()
    loss_function(model(x_adv), y).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", THROUGH_COPY)
def test_lint_reports_a_loss_through_a_copy(lint_reports, name):
    severity = "error" if name == "a complete loop" else "warning"  # which the program certainly contains
    assert [each.severity for each in lint_reports(THROUGH_COPY[name])] == [severity]


@pytest.mark.parametrize("name", COPY_READ)
def test_lint_accepts_a_copy_that_is_used(lint_is_clean, name):
    lint_is_clean(COPY_READ[name], "OPT002")


TRAINER = """
import torch
from torch import nn
class Trainer:
    def __init__(self, width):
        self.width = width
        self.model = nn.Linear(width, 1)
        self.optimizer = self.make_optimizer()
    def make_optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1)
    def resume(self, path):
        checkpoint = torch.load(path)
        %s
    def step(self, x):
        self.optimizer.zero_grad()
        self.model(x).pow(2).mean().backward()
        self.optimizer.step()
"""
LOADS = """self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])"""
RESUMED = {
    "a new model": TRAINER % f"self.model = nn.Linear(checkpoint['width'], 1)  # <- OPT002\n        {LOADS}",
    "the model of the file": TRAINER
    % """self.model = checkpoint["model"]  # <- OPT002
        self.optimizer.load_state_dict(checkpoint["optimizer"])""",
    "in a function": """
def main(args):
    model = build(args)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    if args.resume:
        checkpoint = torch.load(args.resume)
        model = build(checkpoint["args"])  # <- OPT002
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    for x, y in loader(args):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
""",
}
RESUMED_CORRECTLY = {
    "the optimizer is built again": TRAINER
    % f"""self.model = nn.Linear(checkpoint['width'], 1)
        self.optimizer = self.make_optimizer()
        {LOADS}""",
    "only loaded": TRAINER % LOADS,
    "moved to the device": TRAINER % f"self.model = self.model.to(checkpoint['device'])\n        {LOADS}",
    "another model": TRAINER % f"self.average = nn.Linear(checkpoint['width'], 1)\n        {LOADS}",
    "a model for inference": TRAINER % "self.model = torch.load(path, weights_only=False)",
    "built after the model": """
def main(args):
    model = build(args)
    if args.resume:
        checkpoint = torch.load(args.resume)
        model = build(checkpoint["args"])
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    if args.resume:
        optimizer.load_state_dict(checkpoint["optimizer"])
    for x, y in loader(args):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("script", RESUMED.values(), ids=RESUMED)
def test_lint_reports_a_new_model_with_the_state_of_an_old_optimizer(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", RESUMED_CORRECTLY.values(), ids=RESUMED_CORRECTLY)
def test_lint_accepts_resumed_models(lint_is_clean, script):
    lint_is_clean(script)
