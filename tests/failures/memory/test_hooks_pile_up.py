"""MEM005: hooks that accumulate in a loop."""

import pytest

HEAD = """
import torch
from torch import nn

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
kept = {}
def keep(module, inputs, output):
    kept["features"] = output.detach()
def update():
    optimizer.zero_grad()
    loss = mse(model(x), y)
    loss.backward()
    optimizer.step()
"""

CORRECT = {
    "a handle that the evaluation removes": """
def features(net, inputs):
    found = []
    handle = net[1].register_forward_hook(lambda m, i, o: found.append(o.detach()))
    net(inputs)
    handle.remove()
    return torch.cat(found)

for epoch in range(5):
    update()
    print(features(model, x).mean())
""",
    "a model that the function builds": """
def measure():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    net[1].register_forward_hook(keep)
    return net(x)

for epoch in range(5):
    update()
    print(measure().mean())
""",
    "a copy that the function makes": """
import copy
def measure(net):
    probe = copy.deepcopy(net)
    probe[1].register_forward_hook(keep)
    return probe(x)

for epoch in range(5):
    update()
    print(measure(model).mean())
""",
    "an extractor with a method that removes": """
class Extractor:
    def __init__(self, net):
        self.handle = net[0].register_forward_hook(self.keep)

    def keep(self, module, inputs, output):
        self.out = output

    def close(self):
        self.handle.remove()

for epoch in range(5):
    update()
    extractor = Extractor(model)
    model(x)
    extractor.close()
""",
    "a handle that is returned": """
def watch(net):
    handle = net[1].register_forward_hook(keep)
    return handle

for epoch in range(5):
    handle = watch(model)
    update()
    model(x)
    handle.remove()
""",
    "each layer passed to a function": """
def watch(layer):
    layer.register_forward_hook(keep)
    return layer(torch.randn(2, layer.in_features))
for layer in (nn.Linear(6, 8), nn.Linear(8, 1)):
    watch(layer)
""",
    "hooks that are cleared by hand": """
def measure(net, layer, inputs):
    layer.register_forward_hook(keep)
    with torch.no_grad():
        net(inputs)
    layer._forward_hooks.clear()
for epoch in range(5):
    update()
    measure(model, model, x)
""",
    "once": """
model[1].register_forward_hook(keep)
for _ in range(4):
    update()
""",
    "one for each layer": """
for layer in model:
    layer.register_forward_hook(keep)
for name, module in model.named_modules():
    module.register_full_backward_hook(lambda module, got, given: None)
    model(x)
""",
    "a handle that is removed": """
for _ in range(4):
    handle = model[1].register_forward_hook(keep)
    update()
    handle.remove()
""",
    "handles that are stored": """
handles = []
for _ in range(4):
    handles.append(model[1].register_forward_hook(keep))
    update()
    handles.pop().remove()
""",
    "as a context": """
for _ in range(4):
    with model[1].register_forward_hook(keep):
        update()
""",
    "a model of each fold": """
for fold in range(3):
    net = nn.Linear(6, 1)
    net.register_forward_hook(keep)
    net(x)
""",
    "cleared manually": """
for _ in range(4):
    model[1]._forward_hooks.clear()
    model[1].register_forward_hook(keep)
    update()
""",
    "in the first iteration only": """
for number in range(4):
    if number == 0:
        model[1].register_forward_hook(keep)
    update()
""",
    "of activations": """
for _ in range(4):
    out = model(x)
    out.register_hook(lambda gradient: gradient / 2)
    mse(out, y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "of trainers in a list": """
class Trainer:
    def __init__(self, net):
        self.net = net
    def begin(self):
        self.net.register_forward_hook(keep)
        self.net(x)
for trainer in [Trainer(nn.Linear(6, 1)) for _ in range(3)]:
    trainer.begin()
several = (Trainer(model), Trainer(nn.Linear(6, 1)))
for trainer in several:
    trainer.begin()
for number in range(2):
    several[number].begin()
""",
    "of models in a list": """
nets = [nn.Linear(6, 1) for _ in range(3)]
for net in nets:
    net.register_forward_hook(keep)
    net(x)
""",
}

FAULTY = {
    "an evaluation in a class, with a handle": """
class Trainer:
    def __init__(self, net):
        self.net, self.epochs = net, 5

    @torch.no_grad()
    def evaluate(self):
        kept = []
        handle = self.net[0].register_forward_hook(lambda m, i, o: kept.append(o))  # <- MEM005
        for part in x.split(4):
            self.net(part)
        return torch.cat(kept)

    def fit(self):
        for epoch in range(self.epochs):
            update()
            print(self.evaluate().mean())

Trainer(model).fit()
""",
    "features by two functions": """
def features(net, inputs):
    found = []
    layer = net[1]
    layer.register_forward_hook(lambda m, i, o: found.append(o.detach()))  # <- MEM005
    with torch.no_grad():
        for part in inputs.split(4):
            net(part)
    return torch.cat(found)

def score(net, inputs):
    return features(net, inputs).std().item()

for epoch in range(5):
    update()
    print(score(model, x))
""",
    "an extractor of each epoch": """
class Extractor:
    def __init__(self, net):
        self.out = None
        self.handle = net[0].register_forward_hook(self.keep)  # <- MEM005

    def keep(self, module, inputs, output):
        self.out = output

for epoch in range(5):
    update()
    extractor = Extractor(model)
    model(x)
    print(extractor.out.mean())
""",
    "handles in a list that are not removed": """
handles = []
for epoch in range(5):
    handles.append(model[1].register_forward_hook(keep))  # <- MEM005
    update()
    model(x)
""",
    "passed by keyword": """
def trace(net):
    net[-1].register_forward_pre_hook(keep)  # <- MEM005
    return net(x)

epoch = 0
while epoch < 5:
    update()
    trace(net=model)
    epoch += 1
""",
    "a layer passed to a monitor in every epoch": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
    def forward(self, inputs):
        return self.head(torch.relu(self.hidden(inputs)))
class Monitor:
    def __init__(self):
        self.records = []
    def keep(self, module, inputs, output):
        self.records.append(output.detach())
    def run(self, net, layer, inputs):
        layer.register_forward_hook(self.keep)  # <- MEM005
        with torch.no_grad():
            return net(inputs).mean().item()
net, monitor = Net(), Monitor()
for epoch in range(5):
    print(monitor.run(net, net.hidden, x), len(net.hidden._forward_hooks))
""",
    "in the loop": """
for _ in range(4):
    model[1].register_forward_hook(keep)  # <- MEM005
    update()
""",
    "in a function": """
def features(a):
    model[1].register_forward_hook(keep)  # <- MEM005
    model(a)
    return kept["features"]
for _ in range(4):
    features(x).mean()
    update()
""",
    "in a class, with accumulation": """
class Trainer:
    def __init__(self, net):
        self.net = net
    def step(self, number):
        self.net.register_full_backward_hook(lambda module, got, given: None)  # <- MEM005
        (mse(self.net(x), y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
trainer = Trainer(model)
for number in range(6):
    trainer.step(number)
""",
    "a closure, with a scaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
def make(net):
    def step():
        net.register_forward_pre_hook(lambda module, inputs: None)  # <- MEM005
        optimizer.zero_grad()
        scaler.scale(mse(net(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
    return step
step = make(model)
while len(kept) < 3:
    step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MEM005")


# Run -------------------------------------------------------------------------------------------------------------

RUN_FAULTY = {
    "at every evaluation, in a class": """
class Monitor:
    def __init__(self):
        self.records = []
    def hook(self, module, inputs, output):
        self.records.append(output.mean().item())
    def run(self, layer):
        layer.register_forward_hook(self.hook)  # <- MEM005
        with torch.no_grad():
            return mse(model(x), y).item()
monitor = Monitor()
for epoch in range(6):
    update()
    monitor.run(model[1])
""",
    "handles that are kept": """
handles = []
def watch(net):
    for layer in net:
        handles.append(layer.register_forward_pre_hook(lambda module, inputs: None))  # <- MEM005
for epoch in range(6):
    watch(model)
    update()
""",
}
RUN_CORRECT = {
    "removed by the handle": """
for _ in range(6):
    handle = model[1].register_forward_hook(keep)
    update()
    handle.remove()
""",
    "removed at the end of each epoch": """
for _ in range(3):
    handles = []
    for _ in range(2):
        handles.append(model[1].register_forward_hook(keep))
        update()
    for handle in handles:
        handle.remove()
    del handles
""",
    "several hooks at once, one on each layer": """
def make(name):
    return lambda module, inputs, output: kept.update({name: output.detach()})
for name in "abcde":
    model[1].register_forward_hook(make(name))
for layer in model:
    layer.register_forward_hook(keep)
for _ in range(6):
    update()
""",
    "a new model in each round": """
for _ in range(6):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model[1].register_forward_hook(keep)
    update()
""",
    "different functions": """
hooks = [keep, lambda m, i, o: None, lambda m, i, o: kept.clear(), lambda m, i, o: kept.update(a=1), print]
for each in hooks[:4]:
    model[1].register_forward_hook(each)
    update()
""",
}


@pytest.mark.parametrize("script", RUN_FAULTY.values(), ids=RUN_FAULTY)
def test_run_reports_the_marked_line(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", RUN_CORRECT.values(), ids=RUN_CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)


CALLBACK = """
class Monitor:
    def __init__(self):
        self.handles, self.store = [], {}

    def hook(self, module, inputs, output):
        self.store[module] = output.detach()

    def epoch_start(self, trainer):
        for name, m in trainer.model.named_modules():
            if isinstance(m, nn.ReLU):
                self.handles.append(m.register_forward_hook(self.hook))  # <- MEM005

    def epoch_end(self, trainer):
        self.store.clear()
"""
IN_CALLBACKS = {
    "handles in a list": CALLBACK,
    "no handle, at each batch": CALLBACK.replace("epoch_start", "on_train_batch_start").replace(
        "self.handles.append(m.register_forward_hook(self.hook))", "m.register_forward_hook(self.hook)"
    ),
    "one layer of the module of a trainer": """
class Watch:
    def on_train_epoch_begin(self, trainer, module):
        self.handle = module.encoder.register_full_backward_hook(report)  # <- MEM005
""",
    "an own model": """
class Watch:
    def before_epoch(self):
        self.model[0].register_forward_pre_hook(report)  # <- MEM005
""",
}
NOT_AGAIN = {
    "removed at the end of the epoch": CALLBACK
    + """
        for h in self.handles:
            h.remove()
        self.handles.clear()
""",
    "at the start of the training": CALLBACK.replace("epoch_start", "on_train_start"),
    "only once": CALLBACK.replace(
        "        for name, m in", "        if self.handles:\n            return\n        for name, m in"
    ),
    "in the first epoch": CALLBACK.replace(
        "            if isinstance(m, nn.ReLU)", "            if trainer.epoch == 0"
    ),
    "a new model in each epoch": CALLBACK.replace("trainer.model.named_modules()", "build().named_modules()"),
    "called once by hand": CALLBACK + "Monitor().epoch_start(trainer)",
}


@pytest.mark.parametrize("script", IN_CALLBACKS.values(), ids=IN_CALLBACKS)
def test_lint_reports_hooks_of_callbacks(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", NOT_AGAIN.values(), ids=NOT_AGAIN)
def test_lint_accepts_hooks_that_do_not_accumulate(lint_is_clean, script):
    lint_is_clean(HEAD + script.replace("  # <- MEM005", ""), "MEM005")
