"""OPT001: parameters that get gradients but are in no optimizer."""

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
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        return self.head(torch.relu(self.middle(self.body(x))))
model = Net()
"""
LOOP = """
for _ in range(12):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
WIDE_MIDDLE = """
class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
        self.neck = nn.Sequential(*[nn.Linear(8, 8) for _ in range({neck})])
        self.decoder = nn.Linear(8, 3)
    def forward(self, x):
        return self.decoder(torch.relu(self.neck(self.encoder(x))))
model = Wide()
"""
TWO_PLAYERS = """
judge = nn.Linear(3, 1)
first = optim.Adam(FIRST, lr=0.01)
second = optim.Adam(judge.parameters(), lr=0.01)
for _ in range(12):
    fake = model(torch.randn(32, 6))
    second.zero_grad()
    loss = judge(fake.detach()).mean() - judge(torch.randn(32, 3)).mean()
    loss.backward()
    second.step()
    first.zero_grad()
    (-judge(fake).mean()).backward()
    first.step()
"""
FAULTY = {
    "two optimizers over one of two models": TWO_PLAYERS.replace("FIRST", "judge.parameters()").replace(
        "first.step()", "first.step()  # <- OPT001"
    ),
    "most_layers_in_the_middle": WIDE_MIDDLE.replace("{neck}", "4")
    + """
optimizer = optim.SGD([p for name, p in model.named_parameters() if not name.startswith("neck")], lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # <- OPT001
""",
    "only_the_body": """
optimizer = optim.SGD([*model.body.parameters(), *model.middle.parameters()], lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # <- OPT001
""",
    "a_submodule_of_a_called_model": """
system = nn.Sequential(model)
with torch.no_grad():
    print(system(x).mean())
optimizer = optim.SGD([*model.body.parameters(), *model.middle.parameters()], lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # <- OPT001
""",
    "the_loop_is_in_a_library": """
library = {}
exec('''
def fit(model, optimizer, x, y):
    for _ in range(8):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
''', {"torch": torch}, library)
optimizer = optim.SGD([*model.body.parameters(), *model.middle.parameters()], lr=0.1)  # <- OPT001
library["fit"](model, optimizer, x, y)
""",
    "head_added_later": """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = optim.AdamW(model.parameters(), lr=0.01)
    def step(self, a, b):
        loss = F.cross_entropy(self.model(a), b)
        loss.backward()
        self.optimizer.step()  # <- OPT001
        self.model.zero_grad()
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
trainer = Trainer(model)
model.extend([nn.ReLU(), nn.Linear(8, 3)])
for a, b in DataLoader(TensorDataset(x, y), batch_size=12):
    trainer.step(a, b)
""",
    "groups_by_name": """
groups = [
    {"params": [p for n, p in model.named_parameters() if n.startswith("body")], "lr": 0.01},
    {"params": [p for n, p in model.named_parameters() if n.startswith("head.")], "lr": 0.1},
]
optimizer = optim.SGD(groups)
def batches():
    for i in range(0, 96, 8):
        yield x[i : i + 8], y[i : i + 8]
for i, (a, b) in enumerate(batches()):
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(a), b) / 2
    loss.backward()
    if i % 2:
        optimizer.step()  # <- OPT001
        model.zero_grad()
""",
    "a_group_from_a_generator_that_was_used_up": """
first = filter(lambda p: p.requires_grad, [*model.body.parameters(), *model.middle.parameters()])
print(sum(p.numel() for p in first))
optimizer = optim.Adam([{"params": first}, {"params": model.head.parameters()}], lr=0.01)  # <- OPT001
"""
    + LOOP,
    "tensors_are_freed_in_between": """
optimizer = optim.SGD([*model.body.parameters(), *model.middle.parameters()], lr=0.1)
for step in range(12):
    optim.SGD(nn.Linear(6, 2).parameters())  # e.g. a part of the model whose settings are tried
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # <- OPT001
""",
    "two_optimizers_and_a_gap": """
first = optim.Adam(model.body.parameters())
second = optim.Adam(model.head.parameters())
def update():
    F.cross_entropy(model(x), y).backward()
    first.step()  # <- OPT001
    second.step()
    model.zero_grad()
for _ in range(9):
    update()
""",
    "a_position_table_in_no_group": """
class Former(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(6, 8)
        self.position = nn.Parameter(torch.zeros(1, 8))
        self.scale = nn.Parameter(torch.ones(()))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)
    def forward(self, x):
        return self.head(self.norm(self.project(x) + self.position)) * self.scale
model = Former()
def build_optimizer(net):
    decay = [p for n, p in net.named_parameters() if n.endswith("weight") and p.ndim >= 2]
    rest = [p for n, p in net.named_parameters() if n.endswith("bias") or n == "norm.weight"]
    return optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}])
optimizer = build_optimizer(model)
for _ in range(8):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # <- OPT001
""",
    "groups_by_class_of_layer": """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(6, 8)
        self.norm, self.hidden, self.head = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 3)
    def forward(self, tokens):
        h = self.words(tokens) + self.places(torch.arange(6))
        return self.head(torch.relu(self.hidden(self.norm(h))).mean(1))
model, tokens = Words(), torch.randint(0, 20, (96, 6))
decay, no_decay = [], []
for layer in model.modules():
    if isinstance(layer, nn.Linear):
        decay.append(layer.weight)
        no_decay.append(layer.bias)
    elif isinstance(layer, nn.LayerNorm):
        no_decay += [layer.weight, layer.bias]
optimizer = optim.AdamW([{"params": decay}, {"params": no_decay, "weight_decay": 0.0}], lr=0.01)
for _ in range(8):
    optimizer.zero_grad()
    F.cross_entropy(model(tokens), y).backward()
    optimizer.step()  # <- OPT001
""",
    "groups_by_number_of_dimensions": """
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(1.0))
    def forward(self, x):
        return x * self.value
model = nn.Sequential(Scale(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = optim.AdamW([
    {"params": [p for p in model.parameters() if p.ndim == 2], "weight_decay": 0.1},
    {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
])
for _ in range(8):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # <- OPT001
""",
    "the_children_of_a_model": """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.temperature = nn.Parameter(torch.ones(1))
    def forward(self, x):
        return self.head(torch.relu(self.body(x))) / self.temperature
model = Scaled()
optimizer = optim.SGD([{"params": child.parameters()} for child in model.children()], lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # <- OPT001
""",
}
FAULTY_UNFROZEN = {
    "unfrozen_in_the_loop": """
model.body.requires_grad_(False)
optimizer = optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=0.01)
for epoch in range(12):
    if epoch == 4:
        for p in model.body.parameters():
            p.requires_grad = True
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # <- OPT001
""",
    "after_an_earlier_training_of_all": """
def fit(optimizer, steps=6):
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()  # <- OPT001
fit(optim.Adam(model.parameters()))
model.requires_grad_(False)
model.head.requires_grad_(True)
optimizer = optim.Adam([p for p in model.parameters() if p.requires_grad])
fit(optimizer)
model.middle.requires_grad_(True)
fit(optimizer)
""",
    "in_a_trainer_with_batches": """
class Trainer:
    def __init__(self, net):
        self.net = net
        for name, p in net.named_parameters():
            if not name.startswith("head"):
                p.requires_grad_(False)
        self.optimizer = optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    def epoch(self):
        self.net.train()
        for rows in torch.randperm(96).split(32):
            loss = F.cross_entropy(self.net(x[rows]), y[rows])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()  # <- OPT001
    def unfreeze(self):
        for p in self.net.parameters():
            p.requires_grad_(True)
trainer = Trainer(model)
for epoch in range(6):
    if epoch == 3:
        trainer.unfreeze()
    trainer.epoch()
""",
}
CORRECT = {
    "an optimizer for each of two models": TWO_PLAYERS.replace("FIRST", "model.parameters()"),
    "a perceptual loss beside two optimizers over one model": """
features = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
first = optim.Adam(model.parameters(), lr=0.01)
for step in range(24):
    if step == 12:
        first = optim.SGD(model.parameters(), lr=0.01)
    first.zero_grad()
    F.mse_loss(features(model(x)), torch.ones(96, 4)).backward()
    first.step()
""",
    "first_and_last_layer_of_a_large_random_network": WIDE_MIDDLE.replace("{neck}", "12")
    + """
optimizer = optim.SGD([*model.encoder[0].parameters(), *model.decoder.parameters()], lr=0.1)
"""
    + LOOP,
    "all": "optimizer = optim.Adam(model.parameters())" + LOOP,
    "head_of_an_unfrozen_backbone": "optimizer = optim.Adam(model.head.parameters())" + LOOP,
    "last_half": "optimizer = optim.Adam([*model.middle.parameters(), *model.head.parameters()])" + LOOP,
    "a_group_from_a_list_that_was_counted": """
first = [p for p in model.body.parameters() if p.requires_grad]
print(sum(p.numel() for p in first))
rest = filter(lambda p: p.requires_grad, [*model.middle.parameters(), *model.head.parameters()])
optimizer = optim.Adam([{"params": first}, {"params": rest}], lr=0.01)
"""
    + LOOP,
    "an_empty_group": """
groups = [{"params": model.parameters()}, {"params": [], "weight_decay": 0.0}]
optimizer = optim.Adam(groups, lr=0.01)
"""
    + LOOP,
    "biases_only": "optimizer = optim.Adam([p for n, p in model.named_parameters() if n.endswith('bias')])" + LOOP,
    "a_first_embedding_left_out": """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.hidden, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 3)
    def forward(self, tokens):
        return self.head(torch.relu(self.hidden(self.words(tokens).mean(1))))
model, x = Words(), torch.randint(0, 20, (96, 6))
optimizer = optim.Adam([p for n, p in model.named_parameters() if not n.startswith("words")])
"""
    + LOOP,
    "first_layers_left_out_of_groups_for_weight_decay": """
model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3))
later = dict(model[3:].named_parameters())
optimizer = optim.AdamW([
    {"params": [p for n, p in later.items() if p.ndim > 1]},
    {"params": [p for n, p in later.items() if p.ndim == 1], "weight_decay": 0.0},
])
"""
    + LOOP,
    "the_first_layers_and_a_table_left_out": """
class Former(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 8))
        self.patches, self.block = nn.Linear(6, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        return self.head(self.block(self.patches(x) + self.token))
model = Former()
optimizer = optim.Adam([*model.block.parameters(), *model.head.parameters()])
"""
    + LOOP,
    "a_table_next_to_a_frozen_layer": """
class Former(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 8))
        self.patches, self.head = nn.Linear(6, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        self.patches.requires_grad_(False)
    def forward(self, x):
        return self.head(self.patches(x) + self.token)
model = Former()
optimizer = optim.Adam(model.head.parameters())
"""
    + LOOP,
    "frozen": "model.head.requires_grad_(False)\n"
    "optimizer = optim.Adam([*model.body.parameters(), *model.middle.parameters()])" + LOOP,
    "one_optimizer_each": """
optimizers = [optim.SGD(part.parameters(), lr=0.1) for part in model.children()]
for _ in range(8):
    F.cross_entropy(model(x), y).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
""",
    "another_optimizer_steps_rarely": """
often = optim.SGD([*model.body.parameters(), *model.middle.parameters()], lr=0.1)
seldom = optim.SGD(model.head.parameters(), lr=0.1)
for i in range(20):
    F.cross_entropy(model(x), y).backward()
    often.step()
    often.zero_grad()
    if i % 10 == 9:
        seldom.step()
        seldom.zero_grad()
""",
    "head_by_hand": """
optimizer = optim.SGD([*model.body.parameters(), *model.middle.parameters()], lr=0.1)
for _ in range(12):
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    for p in model.head.parameters():
        p.data -= 0.1 * p.grad
""",
    "everything_by_hand": """
for _ in range(12):
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
""",
    "gan": """
G, D = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
og, od = optim.Adam(G.parameters()), optim.Adam(D.parameters())
bce = F.binary_cross_entropy_with_logits
for _ in range(8):
    z = torch.randn(32, 4)
    od.zero_grad()
    (bce(D(x[:32]), torch.ones(32, 1)) + bce(D(G(z).detach()), torch.zeros(32, 1))).backward()
    od.step()
    og.zero_grad()
    bce(D(G(z)), torch.ones(32, 1)).backward()
    og.step()
""",
    "perceptual_loss": """
features, student = nn.Linear(6, 8), nn.Linear(6, 6)
optimizer = optim.Adam(student.parameters())
for _ in range(8):
    optimizer.zero_grad()
    F.mse_loss(features(student(x)), features(x).detach()).backward()
    optimizer.step()
""",
    "first_order_maml": """
optimizer = optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    learner = copy.deepcopy(model)
    for _ in range(2):
        learner.zero_grad()
        F.cross_entropy(learner(x), y).backward()
        with torch.no_grad():
            for p in learner.parameters():
                p -= 0.1 * p.grad
    learner.zero_grad()
    F.cross_entropy(learner(x), y).backward()
    for p, q in zip(model.parameters(), learner.parameters()):
        p.grad = q.grad.clone()
    optimizer.step()
""",
    "adversarial_inputs": """
optimizer = optim.Adam(model.parameters())
delta = torch.zeros_like(x).requires_grad_()
for _ in range(6):
    F.cross_entropy(model(x + delta), y).backward()
    with torch.no_grad():
        delta += 0.01 * delta.grad.sign()
    delta.grad = None
    optimizer.step()
    optimizer.zero_grad()
""",
    "stages": """
for p in model.parameters():
    p.requires_grad_(False)
optimizer = None
for part in (model.head, model.middle, model.body):
    part.requires_grad_(True)
    if optimizer is None:
        optimizer = optim.Adam(part.parameters())
    else:
        optimizer.add_param_group({"params": part.parameters()})
    for _ in range(6):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
}
UNFROZEN = """
model.body.requires_grad_(False)
def fit(*optimizers, steps=6):
    for _ in range(steps):
        F.cross_entropy(model(x), y).backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
trainable = [p for p in model.parameters() if p.requires_grad]
"""
CORRECT_UNFROZEN = {
    "a_new_optimizer_for_all": """
fit(optim.Adam(trainable))
model.body.requires_grad_(True)
fit(optim.Adam(model.parameters(), lr=1e-4))
""",
    "a_group_for_the_unfrozen": """
optimizer = optim.Adam(trainable)
fit(optimizer)
model.body.requires_grad_(True)
optimizer.add_param_group({"params": model.body.parameters(), "lr": 1e-4})
fit(optimizer)
""",
    "all_in_the_optimizer_from_the_start": """
optimizer = optim.Adam(model.parameters())
fit(optimizer)
model.body.requires_grad_(True)
fit(optimizer)
""",
    "a_second_optimizer_for_the_unfrozen": """
optimizer = optim.Adam(trainable)
fit(optimizer)
model.body.requires_grad_(True)
fit(optim.SGD(model.body.parameters(), lr=0.01), optimizer)
""",
    "a_second_optimizer_that_steps_rarely": """
slow, fast = optim.SGD(model.body.parameters(), lr=0.01), optim.Adam(trainable)
fit(fast)
model.body.requires_grad_(True)
for _ in range(3):
    fit(fast, steps=7)
    fit(slow, steps=1)
""",
    "frozen_again_before_training": """
optimizer = optim.Adam(trainable)
for _ in range(6):
    fit(optimizer, steps=2)
    model.body.requires_grad_(True)
    F.cross_entropy(model(x), y).backward()
    saliency = [p.grad.norm() for p in model.body.parameters()]
    model.zero_grad()
    model.body.requires_grad_(False)
""",
    "updated_by_hand": """
optimizer = optim.Adam(trainable)
fit(optimizer)
model.body.requires_grad_(True)
for _ in range(12):
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for p in model.body.parameters():
            p -= 0.01 * p.grad
    model.zero_grad()
""",
    "alternately_frozen_and_trained": """
body, rest = optim.Adam(model.body.parameters()), optim.Adam(trainable)
for _ in range(6):
    model.body.requires_grad_(False)
    fit(rest, steps=2)
    model.body.requires_grad_(True)
    for p in trainable:
        p.requires_grad_(False)
    fit(body, steps=5)
    for p in trainable:
        p.requires_grad_(True)
""",
}


BEHIND_A_MODEL = """
class ProxyLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(3, 4))
    def forward(self, embedding, labels):
        return F.cross_entropy(F.normalize(embedding, dim=1) @ F.normalize(self.proxies, dim=1).T, labels)
class CenterLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Embedding(3, 4)
    def forward(self, embedding, labels):
        return F.mse_loss(embedding, self.centers(labels))
class Margin(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, 4))
        nn.init.xavier_uniform_(self.weight)
    def forward(self, embedding):
        return F.normalize(embedding, dim=1) @ F.normalize(self.weight, dim=1).T
class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.5))
    def forward(self, embedding, labels):
        return F.cross_entropy(F.normalize(embedding, dim=1) @ torch.eye(4)[:, :3] / self.temperature, labels)
embed = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
def fit(optimizer, loss_of, after=lambda: None):
    for _ in range(12):
        loss = loss_of(embed(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()MARK
        after()
"""
FAULTY_BEHIND_A_MODEL = {
    "a_loss_with_proxies": "fit(optim.AdamW(embed.parameters()), ProxyLoss())",
    "a_loss_with_centers": """
centers = CenterLoss()
fit(optim.Adam(embed.parameters()), lambda e, y: F.cross_entropy(e[:, :3], y) + 0.1 * centers(e, y))
""",
    "a_head_with_a_matrix": """
head = Margin()
fit(optim.SGD(embed.parameters(), lr=0.1), lambda e, y: F.cross_entropy(head(e) * 8, y))
""",
    "a_temperature": "fit(optim.Adam(list(embed.parameters())), Contrast())",
    "weights_of_two_tasks": """
class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_variances = nn.Parameter(torch.zeros(2))
    def forward(self, losses):
        return (losses * torch.exp(-self.log_variances) + self.log_variances).sum()
weigh = Weights()
def loss_of(e, y):
    return weigh(torch.stack([F.cross_entropy(e[:, :3], y), e[:, 3].square().mean()]))
fit(optim.Adam(embed.parameters()), loss_of)
""",
}
CORRECT_BEHIND_A_MODEL = {
    "both_in_the_optimizer": """
loss = ProxyLoss()
fit(optim.AdamW([*embed.parameters(), *loss.parameters()]), loss)
""",
    "a_group_added": """
loss, optimizer = ProxyLoss(), optim.AdamW(embed.parameters())
optimizer.add_param_group({"params": loss.parameters(), "lr": 0.1})
fit(optimizer, loss)
""",
    "an_optimizer_of_its_own": """
loss = CenterLoss()
other = optim.SGD(loss.parameters(), lr=0.5)
fit(optim.Adam(embed.parameters()), loss, lambda: (other.step(), other.zero_grad()))
""",
    "moved_by_hand": """
loss = CenterLoss()
def move():
    with torch.no_grad():
        loss.centers.weight.lerp_(torch.stack([embed(x)[y == c].mean(0) for c in range(3)]), 0.5)
fit(optim.Adam(embed.parameters()), loss, move)
""",
    "fixed": """
loss = ProxyLoss().requires_grad_(False)
fit(optim.Adam(embed.parameters()), loss)
""",
    "loaded": """
loss = ProxyLoss()
loss.load_state_dict({"proxies": torch.randn(3, 4)})
fit(optim.Adam(embed.parameters()), loss)
""",
    "a_random_network_of_features": """
class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 8)
    def forward(self, e, y):
        return F.mse_loss(self.layer(e), y[:, None].expand(-1, 8).float())
fit(optim.Adam(embed.parameters()), Features())
""",
    "a_filter": """
class Edges(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.tensor([[[1.0, 0.0, -1.0]]]))
    def forward(self, e, y):
        return F.conv1d(e[:, None], self.kernel).square().mean()
fit(optim.Adam(embed.parameters()), Edges())
""",
    "constants_before_the_model": """
class Standardize(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.std = nn.Parameter(x.mean(0)), nn.Parameter(x.std(0))
    def forward(self, x):
        return (x - self.mean) / self.std
scale = Standardize()
for _ in range(12):
    optimizer = optim.SGD(embed.parameters(), lr=0.1) if _ == 0 else optimizer
    optimizer.zero_grad()
    F.cross_entropy(embed(scale(x))[:, :3], y).backward()
    optimizer.step()
""",
    "constants_behind_the_model": """
class Rescale(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.std = nn.Parameter(x.mean(0)[:4]), nn.Parameter(x.std(0)[:4])
    def forward(self, e):
        return e * self.std + self.mean
rescale = Rescale()
fit(optim.SGD(embed.parameters(), lr=0.1), lambda e, y: F.mse_loss(rescale(e), x[:, :4]))
""",
    "a_loss_that_is_only_measured": """
loss = ProxyLoss()
fit(optim.Adam(embed.parameters()), lambda e, y: F.cross_entropy(e[:, :3], y) + 0 * loss(e.detach(), y).item())
""",
}


@pytest.mark.parametrize("script", FAULTY_BEHIND_A_MODEL.values(), ids=FAULTY_BEHIND_A_MODEL)
def test_run_reports_losses_and_heads_with_parameters_in_no_optimizer(run_reports, script: str):
    run_reports(DATA + BEHIND_A_MODEL.replace("MARK", "  # <- OPT001") + script)


@pytest.mark.parametrize("script", CORRECT_BEHIND_A_MODEL.values(), ids=CORRECT_BEHIND_A_MODEL)
def test_run_accepts_losses_and_heads_that_are_optimized_or_fixed(run_is_clean, script: str):
    run_is_clean(DATA + BEHIND_A_MODEL.replace("MARK", "") + script)


@pytest.mark.parametrize("script", FAULTY_UNFROZEN.values(), ids=FAULTY_UNFROZEN)
def test_run_reports_unfrozen_parameters(run_reports, script: str):
    assert "were unfrozen after the optimizer was built" in run_reports(DATA + script).findings[0].message


@pytest.mark.parametrize("script", CORRECT_UNFROZEN.values(), ids=CORRECT_UNFROZEN)
def test_run_ignores_unfrozen_parameters_that_are_optimized(run_is_clean, script: str):
    run_is_clean(DATA + UNFROZEN + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script: str):
    assert "because no optimizer contains them" in run_reports(DATA + script).findings[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(DATA + script)


# Lint ------------------------------------------------------------------------------------------------------------

LINT_MISSES = {
    "two optimizers over one of two models",
    "most_layers_in_the_middle",
    "the_loop_is_in_a_library",
    "groups_by_name",
    "a_position_table_in_no_group",
    "groups_by_class_of_layer",
    "groups_by_number_of_dimensions",
    "the_children_of_a_model",
}
"""Faulty scripts whose parameter names the text does not show."""

LINT_FINDS = {
    "a new attribute": """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
    def forward(self, inputs):
        hidden = self.layers(inputs)
        return self.project(hidden) if hasattr(self, "project") else hidden
encoder = Encoder().cuda()
opt = torch.optim.AdamW(encoder.parameters(), lr=1e-4)
encoder.project = nn.Linear(8, 3).cuda()
for epoch in range(10):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=12):
        opt.zero_grad()
        F.cross_entropy(encoder(a), b).backward()
        opt.step()  # <- OPT001
""",
    "add_module, with AMP": """
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
opt = torch.optim.SGD(net.parameters(), lr=0.1)  # too early
net.add_module("out", nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3)))
scaler = torch.amp.GradScaler("cuda")
for a, b in loader:
    opt.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = F.cross_entropy(net(a), b)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)  # <- OPT001
    scaler.update()
""",
    "in a task class": """
class Task:
    def __init__(self, classes):
        self.net = Net()
        self.opt = optim.Adam(list(self.net.body.parameters()) + list(self.net.middle.parameters()))
    def run(self, loader, epochs=3):
        for _ in range(epochs):
            for inputs, labels in loader:
                self.opt.zero_grad()
                loss = F.cross_entropy(self.net(inputs), labels)
                loss.backward()
                self.opt.step()  # <- OPT001
""",
}

LINT_FINDS["a head in a dictionary"] = """
class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(6, 8), nn.ModuleDict()
    def forward(self, inputs, task):
        return self.heads[task](self.body(inputs))
model = Many()
optimizer = optim.AdamW(model.parameters())
model.heads["digits"] = nn.Linear(8, 3)
for _ in range(12):
    optimizer.zero_grad()
    F.cross_entropy(model(x, "digits"), y).backward()
    optimizer.step()  # <- OPT001
"""

LINT_IGNORES = {
    "a last layer that is frozen when it is built": """
class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        for p in self.head.parameters():
            p.requires_grad = False
    def forward(self, inputs):
        return self.head(self.body(inputs))
model = Fixed()
optimizer = optim.Adam(model.body.parameters())
"""
    + LOOP,
    "behind a detach": """
class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 3), nn.Linear(3, 3)
    def forward(self, inputs):
        hidden = self.body(inputs)
        return hidden + 0 * self.head(hidden.detach())
model = Probe()
optimizer = optim.Adam(model.body.parameters())
"""
    + LOOP,
    "one optimizer per part, by name": """
parts = {"body": model.body, "middle": model.middle, "head": model.head}
optimizers = {name: optim.Adam(part.parameters()) for name, part in parts.items()}
for _ in range(8):
    F.cross_entropy(model(x), y).backward()
    for optimizer in optimizers.values():
        optimizer.step()
        optimizer.zero_grad()
""",
    "another file steps the rest": """
from elsewhere import heads_optimizer
rest = heads_optimizer(model)
optimizer = optim.Adam(model.body.parameters())
"""
    + LOOP,
    "weights that were loaded, used as a loss": """
model.load_state_dict(torch.load("net.pt", weights_only=True))
optimizer = optim.Adam(model.body.parameters())
"""
    + LOOP,
    "added to the optimizer as well": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
optimizer = optim.Adam(model.parameters())
head = nn.Linear(8, 3)
model.append(head)
optimizer.add_param_group({"params": head.parameters()})
"""
    + LOOP,
    "added layers without parameters": """
model = nn.Sequential(nn.Linear(6, 8))
optimizer = optim.Adam(model.parameters())
model.append(nn.ReLU())
model.append(nn.Dropout(0.1))
"""
    + LOOP,
    "a GAN in one module": """
class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.critic = nn.Linear(4, 6), nn.Linear(6, 1)
    def forward(self, z):
        return self.critic(self.generator(z))
gan = Gan()
first, second = optim.Adam(gan.generator.parameters()), optim.Adam(gan.critic.parameters())
for _ in range(9):
    first.zero_grad()
    gan(torch.randn(8, 4)).mean().backward()
    first.step()
    second.zero_grad()
    gan(torch.randn(8, 4)).mean().neg().backward()
    second.step()
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - LINT_MISSES), *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(DATA + {**FAULTY, **LINT_FINDS}[name])


@pytest.mark.parametrize("name", [*LINT_MISSES, *CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(DATA + {**FAULTY, **CORRECT, **LINT_IGNORES}[name])


# Unfrozen too late ------------------------------------------------------------------------------------------------

HEADS_HEAD = (
    BEHIND_A_MODEL[: BEHIND_A_MODEL.index("embed = ")]
    + """
class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)
    def forward(self, x):
        return self.body(x)
embed = Embed()
"""
)
HEADS_LEFT_OUT = {
    "a function for the optimizer and one for training": """
def build(net, criterion, lr=0.1):
    trained = [p for p in net.parameters() if p.requires_grad]
    return optim.SGD(trained, lr=lr)  # <- OPT001
def train(net, criterion, optimizer):
    criterion.train()
    for _ in range(4):
        loss = criterion(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
proxies = ProxyLoss()
train(embed, proxies, build(embed, proxies))
""",
    "a class for training": """
class Trainer:
    def __init__(self, net):
        self.net, self.margin = net, Margin()
        self.optimizer = optim.AdamW(self.net.parameters())  # <- OPT001
    def step(self, batch, labels):
        self.optimizer.zero_grad()
        F.cross_entropy(self.margin(self.net(batch)) * 8, labels).backward()
        self.optimizer.step()
trainer = Trainer(embed)
for _ in range(4):
    trainer.step(x, y)
""",
    "a part of the loss": """
centers = CenterLoss()
optimizer = optim.Adam(embed.parameters())  # <- OPT001
for _ in range(4):
    e = embed(x)
    loss = F.cross_entropy(e[:, :3], y) + 0.1 * centers(e, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a temperature, and groups": """
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.ones([]) * 2.6)
    def forward(self, a, b):
        return self.log_scale.exp() * a @ b.T
scale, other = Scale(), nn.Linear(6, 4)
groups = [{"params": embed.parameters()}, {"params": other.parameters(), "lr": 0.1}]
optimizer = optim.Adam(groups)  # <- OPT001
for _ in range(4):
    logits = scale(F.normalize(embed(x)), F.normalize(other(x)))
    loss = F.cross_entropy(logits, torch.arange(len(x)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "weights of tasks that are printed": """
class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_vars = nn.Parameter(torch.zeros(2))
    def forward(self, e, y):
        a, b = F.cross_entropy(e[:, :3], y), e.pow(2).mean()
        s = self.log_vars
        return (-s[0]).exp() * a + s[0] + (-s[1]).exp() * b + s[1]
weighted = Weighted()
optimizer = optim.Adam(embed.parameters())  # <- OPT001
for _ in range(4):
    loss = weighted(embed(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(weighted.log_vars.detach().exp().tolist(), weighted.log_vars[0].item())
""",
    "prototypes behind a Sequential": """
class Prototypes(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.points = nn.Parameter(torch.empty(classes, 4))
        nn.init.normal_(self.points)
    def forward(self, e):
        return -torch.cdist(e, self.points)
body, head = nn.Sequential(nn.Linear(6, 4), nn.ReLU()), Prototypes(3)
optimizer = optim.SGD(list(body.parameters()), lr=0.1)  # <- OPT001
for _ in range(4):
    optimizer.zero_grad()
    F.cross_entropy(head(body(x)), y).backward()
    optimizer.step()
""",
}
HEADS_OPTIMIZED = {
    "a filter over several modules": """
def build(*nets):
    return optim.SGD([p for net in nets for p in net.parameters() if p.requires_grad], lr=0.1)
loss_of = ProxyLoss()
optimizer = build(embed, loss_of)
for _ in range(4):
    loss = loss_of(embed(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a list that is extended": """
loss_of = ProxyLoss()
parameters = list(embed.parameters())
parameters += list(loss_of.parameters())
optimizer = optim.SGD(parameters, lr=0.1)
for _ in range(4):
    loss = loss_of(embed(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a list that is extended by a method": """
loss_of = ProxyLoss()
parameters = list(embed.parameters())
parameters.extend(loss_of.parameters())
optimizer = optim.SGD(parameters, lr=0.1)
for _ in range(4):
    loss = loss_of(embed(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "one parameter": """
head = Margin()
optimizer = optim.SGD([*embed.parameters(), head.weight], lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    F.cross_entropy(head(embed(x)), y).backward()
    optimizer.step()
""",
    "a chain": """
from itertools import chain
head = Margin()
optimizer = optim.SGD(chain(embed.parameters(), head.parameters()), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    F.cross_entropy(head(embed(x)), y).backward()
    optimizer.step()
""",
    "an outer module": """
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = Embed(), Margin()
    def forward(self, x):
        return self.head(self.embed(x))
both = Both()
optimizer = optim.SGD(both.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    F.cross_entropy(both(x), y).backward()
    optimizer.step()
""",
    "weights of tasks that are set by hand": """
class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(2))
    def forward(self, e, y):
        return F.cross_entropy(e[:, :3], y) * self.scale[0].exp() + e.pow(2).mean() * self.scale[1].exp()
weighted = Weighted()
optimizer = optim.Adam(embed.parameters())
for _ in range(4):
    loss = weighted(embed(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    weighted.scale.detach()[1] = -1.0
""",
    "a list of modules": """
parts = nn.ModuleList([embed, Margin()])
optimizer = optim.SGD(parts.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    F.cross_entropy(parts[1](parts[0](x)), y).backward()
    optimizer.step()
""",
    "a setting": """
import sys
loss_of = ProxyLoss() if len(sys.argv) > 1 else None
parameters = list(embed.parameters())
if loss_of is not None:
    parameters = parameters + list(loss_of.parameters())
optimizer = optim.SGD(parameters, lr=0.1)
for _ in range(4):
    e = embed(x)
    loss = loss_of(e, y) if loss_of is not None else F.cross_entropy(e[:, :3], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", HEADS_LEFT_OUT.values(), ids=HEADS_LEFT_OUT)
def test_lint_reports_heads_with_parameters_in_no_optimizer(lint_reports, script: str):
    lint_reports(DATA + HEADS_HEAD + script)


@pytest.mark.parametrize("script", HEADS_OPTIMIZED.values(), ids=HEADS_OPTIMIZED)
def test_lint_accepts_heads_that_are_optimized(lint_is_clean, script: str):
    lint_is_clean(DATA + HEADS_HEAD + script)


@pytest.mark.parametrize("script", CORRECT_BEHIND_A_MODEL.values(), ids=CORRECT_BEHIND_A_MODEL)
def test_lint_accepts_losses_and_heads_that_are_optimized_or_fixed(lint_is_clean, script: str):
    lint_is_clean(DATA + BEHIND_A_MODEL.replace("MARK", "") + script, "OPT001")


UNFROZEN_TOO_LATE_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

UNFROZEN_TOO_LATE = {
    "only what required gradients was passed": """
net = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1))
for p in net.parameters():
    p.requires_grad_(False)
for p in net[1].parameters():
    p.requires_grad_(True)
optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()  # <- OPT001

train(3)
for p in net[0].parameters():
    p.requires_grad_(True)
train(3)
""",
}

UNFROZEN_TOO_LATE_FINE = {
    "the layer is added": """
net = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1))
for p in net.parameters():
    p.requires_grad_(False)
for p in net[1].parameters():
    p.requires_grad_(True)
optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()

train(3)
for p in net[0].parameters():
    p.requires_grad_(True)
optimizer.add_param_group({"params": net[0].parameters()})
train(3)
""",
    "all parameters were passed": """
net = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1))
for p in net.parameters():
    p.requires_grad_(False)
for p in net[1].parameters():
    p.requires_grad_(True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()

train(3)
for p in net[0].parameters():
    p.requires_grad_(True)
train(3)
""",
}


@pytest.mark.parametrize("name", UNFROZEN_TOO_LATE)
def test_lint_reports_unfrozen_too_late(lint_reports, name):
    lint_reports(UNFROZEN_TOO_LATE_HEAD + UNFROZEN_TOO_LATE[name])


@pytest.mark.parametrize("name", UNFROZEN_TOO_LATE_FINE)
def test_lint_accepts_unfrozen_too_late(lint_is_clean, name):
    lint_is_clean(UNFROZEN_TOO_LATE_HEAD + UNFROZEN_TOO_LATE_FINE[name])


# Groups by name ---------------------------------------------------------------------------------------------------

GROUPS_HEAD = """
import torch
from torch import nn


class Block(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.encoder = nn.Linear(6, width)
        self.neck = nn.Sequential(Block(width), Block(width))
        self.scale = nn.Parameter(torch.ones(width))
        self.decoder = nn.Linear(width, 1)

    def forward(self, x):
        return self.decoder(self.scale * self.neck(self.encoder(x)))

"""
GROUPS_LOOP = """

net = Net()
optimizer = build(net)
for _ in range(8):
    x = torch.randn(32, 6)
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
"""
GROUPS_LEFT_OUT = {
    "by the part": """
def build(model):
    first, last = [], []
    for name, p in model.named_parameters():  # <- OPT001
        if name.startswith("encoder"):
            first.append(p)
        elif name.startswith(("decoder", "scale")):
            last.append(p)
    return torch.optim.AdamW([{"params": first, "lr": 1e-4}, {"params": last, "lr": 1e-3}])
""",
    "by the kind": """
def build(model):
    decay, plain = [], []
    for name, p in model.named_parameters():  # <- OPT001
        if not p.requires_grad:
            continue
        if name.endswith("weight") and p.ndim > 1:
            decay.append(p)
        elif "bias" in name or name.endswith("weight"):
            plain.append(p)
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3)
""",
}
GROUPS_COMPLETE = {
    "an else": """
def build(model):
    first, last = [], []
    for name, p in model.named_parameters():
        if name.startswith("encoder"):
            first.append(p)
        else:
            last.append(p)
    return torch.optim.AdamW([{"params": first, "lr": 1e-4}, {"params": last, "lr": 1e-3}])
""",
    "all parts": """
def build(model):
    first, last = [], []
    for name, p in model.named_parameters():
        if name.startswith("encoder") or "neck" in name:
            first.append(p)
        elif name.startswith(("decoder", "scale")):
            last.append(p)
    return torch.optim.AdamW([{"params": first, "lr": 1e-4}, {"params": last, "lr": 1e-3}])
""",
    "opposites": """
def build(model):
    first, last = [], []
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            first.append(p)
        elif not name.endswith("bias"):
            last.append(p)
    return torch.optim.AdamW([{"params": first, "lr": 1e-4}, {"params": last, "lr": 1e-3}])
""",
    "the first layers are left out": """
def build(model):
    middle, last = [], []
    for name, p in model.named_parameters():
        if name.startswith(("neck", "scale")):
            middle.append(p)
        elif name.startswith("decoder"):
            last.append(p)
    return torch.optim.AdamW([{"params": middle, "lr": 1e-4}, {"params": last, "lr": 1e-3}])
""",
    "another condition": """
def build(model):
    first, last = [], []
    for name, p in model.named_parameters():
        if name.startswith("encoder"):
            first.append(p)
        elif p.ndim > 0:
            last.append(p)
    return torch.optim.AdamW([{"params": first, "lr": 1e-4}, {"params": last, "lr": 1e-3}])
""",
}


@pytest.mark.parametrize("script", GROUPS_LEFT_OUT.values(), ids=GROUPS_LEFT_OUT)
def test_lint_reports_names_that_no_group_takes(lint_reports, script):
    lint_reports(GROUPS_HEAD + script + GROUPS_LOOP)


@pytest.mark.parametrize("script", GROUPS_COMPLETE.values(), ids=GROUPS_COMPLETE)
def test_lint_accepts_groups_that_may_be_complete(lint_is_clean, script):
    lint_is_clean(GROUPS_HEAD + script + GROUPS_LOOP)


# Unfrozen after the optimizer was built over the trainable parameters ------------------------------------------------

UNFREEZING_HEAD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 16)
        self.body = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 1)
    def forward(self, x):
        return self.head(self.body(self.stem(x).relu()))

x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
model = Net()

def update(net, optimizer):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()  # <- OPT001
"""

GRADUALLY_UNFROZEN = {
    "names from a dictionary of epochs": """
config = dict(rate=0.1, unfreeze_at={3: "body", 5: "stem"})
class Tuner:
    def __init__(self, net, cfg):
        self.net, self.cfg = net, cfg
        for name in cfg["unfreeze_at"].values():
            self.set_grad(name, False)
        self.opt = torch.optim.Adam(filter(lambda p: p.requires_grad, net.parameters()), lr=cfg["rate"])
    def set_grad(self, name, flag):
        for p in getattr(self.net, name).parameters():
            p.requires_grad_(flag)
    def start(self, epoch):
        name = self.cfg["unfreeze_at"].get(epoch)
        if name is None:
            return
        self.set_grad(name, True)
    def run(self):
        for epoch in range(8):
            self.start(epoch)
            update(self.net, self.opt)
Tuner(model, config).run()
""",
    "by name, in a class": """
class Tuner:
    def __init__(self, net, schedule):
        self.net, self.schedule = net, schedule
        for name in schedule.values():
            self.set_grad(name, False)
        self.opt = torch.optim.Adam(filter(lambda p: p.requires_grad, net.parameters()))
    def set_grad(self, name, flag):
        for p in getattr(self.net, name).parameters():
            p.requires_grad_(flag)
    def run(self):
        for epoch in range(8):
            if epoch in self.schedule:
                self.set_grad(self.schedule[epoch], True)
            update(self.net, self.opt)
Tuner(model, {3: "body", 5: "stem"}).run()
""",
    "get_submodule": """
def toggle(net, name, flag):
    net.get_submodule(name).requires_grad_(flag)
for name in ("stem", "body"):
    toggle(model, name, False)
opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
for epoch in range(6):
    if epoch == 2:
        toggle(model, "body", True)
    update(model, opt)
""",
    "a helper that lists": """
def trainable(net):
    return [p for _, p in net.named_parameters() if p.requires_grad]
model.stem.requires_grad_(False)
opt = torch.optim.AdamW(trainable(model))
def unfreeze():
    for p in model.stem.parameters():
        p.requires_grad = True
for epoch in range(6):
    if epoch > 2:
        unfreeze()
    update(model, opt)
""",
    "a generator function": """
def trainable(net):
    for p in net.parameters():
        if p.requires_grad:
            yield p
model.stem.requires_grad_(False)
opt = torch.optim.AdamW(trainable(model))
for epoch in range(6):
    if epoch == 3:
        model.stem.requires_grad_(True)
    update(model, opt)
""",
    "a list filled in a loop": """
model.requires_grad_(False)
model.head.requires_grad_(True)
params = []
for name, p in model.named_parameters():
    if p.requires_grad:
        params.append(p)
opt = torch.optim.AdamW(params)
for epoch in range(6):
    if epoch == 3:
        model.requires_grad_(True)
    update(model, opt)
""",
    "groups": """
for part in (model.stem, model.body):
    for p in part.parameters():
        p.requires_grad = False
groups = [{"params": [p for p in model.parameters() if p.requires_grad and p.ndim > 1], "weight_decay": 0.1},
          {"params": [p for p in model.parameters() if p.requires_grad and p.ndim < 2], "weight_decay": 0.0}]
opt = torch.optim.AdamW(groups)
for epoch in range(6):
    if epoch == 3:
        model.body.requires_grad_(True)
    update(model, opt)
""",
    "callbacks": """
class Unfreeze:
    def __init__(self, net, at):
        self.net, self.at = net, at
        self.net.body.requires_grad_(False)
    def on_epoch(self, epoch):
        if epoch == self.at:
            self.net.body.requires_grad_(True)
callbacks = [Unfreeze(model, 3)]
opt = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
for epoch in range(6):
    for each in callbacks:
        each.on_epoch(epoch)
    update(model, opt)
""",
}

UNFROZEN_IN_TIME = {
    "added": """
class Tuner:
    def __init__(self, net, schedule):
        self.net, self.schedule = net, schedule
        for name in schedule.values():
            self.set_grad(name, False)
        self.opt = torch.optim.Adam(filter(lambda p: p.requires_grad, net.parameters()))
    def set_grad(self, name, flag):
        for p in getattr(self.net, name).parameters():
            p.requires_grad_(flag)
    def run(self):
        for epoch in range(8):
            if epoch in self.schedule:
                self.set_grad(self.schedule[epoch], True)
                self.opt.add_param_group({"params": list(getattr(self.net, self.schedule[epoch]).parameters())})
            update(self.net, self.opt)
Tuner(model, {3: "body", 5: "stem"}).run()
""",
    "all in the optimizer": """
class Tuner:
    def __init__(self, net, schedule):
        self.net, self.schedule = net, schedule
        for name in schedule.values():
            self.set_grad(name, False)
        self.opt = torch.optim.Adam(net.parameters())
    def set_grad(self, name, flag):
        for p in getattr(self.net, name).parameters():
            p.requires_grad_(flag)
    def run(self):
        for epoch in range(8):
            if epoch in self.schedule:
                self.set_grad(self.schedule[epoch], True)
            update(self.net, self.opt)
Tuner(model, {3: "body", 5: "stem"}).run()
""",
    "rebuilt": """
def build(net):
    return torch.optim.Adam([p for p in net.parameters() if p.requires_grad])
model.stem.requires_grad_(False)
opt = build(model)
for epoch in range(6):
    if epoch == 3:
        model.stem.requires_grad_(True)
        opt = build(model)
    update(model, opt)
""",
    "another part": """
model.stem.requires_grad_(False)
opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
for epoch in range(6):
    model.head.requires_grad_(True)
    update(model, opt)
""",
    "built after": """
model.requires_grad_(False)
for name in ("head", "body"):
    getattr(model, name).requires_grad_(True)
opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
for epoch in range(6):
    update(model, opt)
""",
    "a saliency map": """
model.stem.requires_grad_(False)
opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
for epoch in range(6):
    update(model, opt)
image = x[:1].clone().requires_grad_(True)
model(image).sum().backward()
""",
    "another part by name": """
def toggle(net, name, flag):
    getattr(net, name).requires_grad_(flag)
toggle(model, "stem", False)
opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
for epoch in range(6):
    toggle(model, "head", False)
    model(x)
    toggle(model, "head", True)
    update(model, opt)
""",
    "unfrozen for a second optimizer": """
model.stem.requires_grad_(False)
first = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
for epoch in range(3):
    update(model, first)
model.stem.requires_grad_(True)
second = torch.optim.Adam(model.parameters(), lr=1e-4)
for epoch in range(3):
    update(model, second)
""",
}


@pytest.mark.parametrize("script", GRADUALLY_UNFROZEN.values(), ids=GRADUALLY_UNFROZEN)
def test_lint_reports_gradual_unfreezing(lint_reports, script):
    lint_reports(UNFREEZING_HEAD + script)


@pytest.mark.parametrize("script", UNFROZEN_IN_TIME.values(), ids=UNFROZEN_IN_TIME)
def test_lint_accepts_parameters_unfrozen_in_time(lint_is_clean, script):
    lint_is_clean(UNFREEZING_HEAD.replace("  # <- OPT001", "") + script, code="OPT001")
