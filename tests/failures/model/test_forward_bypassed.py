"""MDL002: a model with hooks is trained through direct calls of ``forward``."""

import pytest

HEAD = """
import torch
from torch import nn

x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
seen = []

def record(module, inputs, output):
    seen.append(output.detach().mean().item())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 1)

    def encode(self, x):
        return torch.relu(self.body(x))

    def forward(self, x):
        return self.head(self.encode(x))

def train(call, *models, steps=6):
    optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(call(x), y).backward()
        optimizer.step()
"""

BROKEN = {
    "a chain of layers, in a loop": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
model.register_forward_hook(record)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for a, b in zip(x.split(8), y.split(8)):
    optimizer.zero_grad()
    nn.functional.mse_loss(model.forward(a), b).backward()  # <- MDL002
    optimizer.step()
""",
    "a class that trains": """
class Training:
    def __init__(self):
        self.model = Net()
        self.model.register_forward_hook(record)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, a, b):
        self.optimizer.zero_grad()
        out = self.model.forward(a)  # <- MDL002
        loss = nn.functional.mse_loss(out, b)
        loss.backward()
        self.optimizer.step()

training = Training()
for _ in range(4):
    training.step(x, y)
""",
    "a pre-hook that keeps a weight normalised": """
class Normalised(Net):
    def __init__(self):
        super().__init__()
        self.direction = nn.Parameter(torch.randn(1, 8))

    def forward(self, x):
        return super().encode(x) @ self.unit.t()

def normalise(module, inputs):
    module.unit = module.direction / module.direction.norm()

model = Normalised()
normalise(model, None)
model.unit = model.unit.detach()
model.register_forward_pre_hook(normalise)
train(lambda a: model.forward(a), model)  # <- MDL002
""",
    "accumulation, with a hook on the gradients": """
model = Net()
model.register_full_backward_hook(lambda module, made, got: seen.append(got[0].norm().item()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer.zero_grad()
for i, (a, b) in enumerate(zip(x.split(4), y.split(4))):
    predicted = Net.forward(model, a)  # <- MDL002
    (nn.functional.mse_loss(predicted, b) / 4).backward()
    if i % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
""",
    "one of two networks": """
generator, critic = Net(), nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
generator.register_forward_hook(record)
for_g, for_c = (torch.optim.Adam(net.parameters(), lr=1e-3) for net in (generator, critic))

def fake():
    return generator.forward(x)  # <- MDL002

for _ in range(4):
    for_c.zero_grad()
    (critic(fake().detach()).mean() - critic(y).mean()).backward()
    for_c.step()
    for_g.zero_grad()
    (-critic(fake()).mean()).backward()
    for_g.step()
""",
    "a submodule with hooks, called by a function": """
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Net(), nn.Linear(1, 1)

model = Two()
model.first.register_forward_hook(record)

def both(a):
    a = model.first.forward(a)  # <- MDL002
    return model.second(a)

train(both, model)
""",
}

CORRECT = {
    "called normally": """
model = Net()
model.register_forward_hook(record)
train(model, model)
""",
    "no hooks": """
model = Net()
train(lambda a: model.forward(a), model)
""",
    "hooks on a submodule that is called": """
model = Net()
model.body.register_forward_hook(record)
train(lambda a: model.forward(a), model)
""",
    "super().forward": """
class Scaled(Net):
    def forward(self, x):
        return 2 * super().forward(x)

model = Scaled()
model.register_forward_hook(record)
train(model, model)
""",
    "its own training step": """
class Module(Net):
    def training_step(self, a):
        return self.shared(a)

    def shared(self, a):
        return (lambda: self.forward(a))()

model = Module()
model.register_forward_hook(record)
train(lambda a: model.training_step(a), model)
""",
    "within the forward of another": """
class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Net()

    def forward(self, x):
        return self.inner.forward(x)

model = Wrapper()
model.inner.register_forward_hook(record)
model.register_forward_hook(record)
train(model, model)
""",
    "functional_call": """
model = Net()
model.register_forward_hook(record)
names = dict(model.named_parameters())
train(lambda a: torch.func.functional_call(model, names, (a,)), model)
""",
    "gradient checkpointing of a submodule": """
from torch.utils.checkpoint import checkpoint

class Saving(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = Net(), nn.Linear(1, 1)

    def forward(self, x):
        return self.last(checkpoint(self.inner.forward, x, use_reentrant=False))

model = Saving()
model.inner.register_forward_hook(record)
train(model, model)
""",
    "probing without gradients": """
model = Net()
model.register_forward_hook(record)
def call(a):
    with torch.no_grad():
        model.forward(a)
    return model(a)
train(call, model)
""",
    "gradients of the input": """
model = Net()
model.register_forward_hook(record)
train(model, model, steps=2)
for _ in range(4):
    a = x.clone().requires_grad_()
    model.forward(a).sum().backward(inputs=[a])
""",
    "hooks skipped now and then": """
model = Net()
model.register_forward_hook(record)
steps = iter(range(100))
train(lambda a: model(a) if next(steps) % 2 == 0 else model.forward(a), model)
""",
    "once": """
model = Net()
handle = model.register_forward_hook(record)
train(lambda a: model.forward(a), model, steps=1)
train(model, model)
""",
    "hooks that are removed": """
model = Net()
handle = model.register_forward_hook(record)
model(x)
handle.remove()
train(lambda a: model.forward(a), model)
""",
    "its own __call__": """
class Own(Net):
    def __call__(self, x):
        return self.forward(x)

model = Own()
model.register_forward_hook(record)
train(model, model)
""",
    "a method of another name": """
model = Net()
model.register_forward_hook(record)
train(lambda a: model.head(model.encode(a)), model)
""",
    "forward of a class that is no module": """
class Pipeline:
    def __init__(self, model):
        self.model = model

    def forward(self, a):
        return self.model(a)

model = Net()
model.register_forward_hook(record)
train(Pipeline(model).forward, model)
""",
    "symbolic tracing": """
model = Net()
model.register_forward_hook(record)
traced = torch.fx.symbolic_trace(model)
train(traced, model)
""",
    "a function of autograd": """
class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, model, a):
        with torch.enable_grad():
            model(a)
        return a.clone()

    @staticmethod
    def backward(ctx, g):
        return None, g

model = Net()
model.register_forward_hook(record)
train(lambda a: model(Straight.apply(model, a)), model)
""",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_run_reports_it(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.slow(reason="torch.compile")
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo reads it in a hook
def test_compiled_model_is_not_reported(run_is_clean):
    run_is_clean(
        HEAD
        + """
model = Net()
model.register_forward_hook(lambda module, inputs, output: output * 2)
train(torch.compile(model, backend="eager"), model)
"""
    )


# The rule --------------------------------------------------------------------------------------------------------

MISSED_BY_LINT = set[str]()

LINT_BROKEN = {
    "past DistributedDataParallel": """
from torch.nn.parallel import DistributedDataParallel as DDP

def main(rank, loader):
    net = Net().to(rank)
    ddp = DDP(net, device_ids=[rank])
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(net.forward(inputs), targets)  # <- MDL002
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
""",
    "the module of a wrapper in a class": """
class Worker:
    def __init__(self, rank: int):
        self.model = nn.parallel.DistributedDataParallel(nn.Linear(6, 1).to(rank), device_ids=[rank])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, inputs, targets):
        out = self.model.module.forward(inputs)  # <- MDL002
        self.optimizer.zero_grad()
        nn.functional.mse_loss(out, targets).backward()
        self.optimizer.step()
""",
    "a note where no hook is seen": """
def predict(inputs):
    model = Net()
    model.eval()
    with torch.no_grad():
        return model.forward(inputs)  # <- MDL002
""",
    "a note on a parameter, over several lines": """
def run(model: nn.Module, batches) -> list:
    return [
        model(batch)
        for batch in batches
    ] + [model.forward(  # <- MDL002
        batches[0],
    )]
""",
}

LINT_CORRECT = {
    "a hook that is removed": """
def extract(inputs, targets):
    net, kept = Net(), {}
    handle = net.body.register_forward_hook(lambda module, given, made: kept.update(made=made))
    net.forward(inputs)
    handle.remove()
""",
    "a hook registered in a branch": """
import argparse
arguments = argparse.ArgumentParser().parse_args()
model = Net()
if arguments.record:
    model.register_forward_hook(record)
train(lambda a: model.forward(a), model)
""",
    "a wrapper in a branch": """
def main(rank, distributed, loader):
    net = model = Net().to(rank)
    if distributed:
        model = nn.parallel.DistributedDataParallel(net, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net.forward(a), b).backward()
        optimizer.step()
""",
    "gradients averaged by the program": """
import torch.distributed as dist

def main(rank, loader):
    net = Net().to(rank)
    ddp = nn.parallel.DistributedDataParallel(net, device_ids=[rank])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net.forward(a), b).backward()
        for p in net.parameters():
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)
        optimizer.step()
""",
    "validation past the wrapper": """
def main(rank, loader, held_out):
    ddp = nn.parallel.DistributedDataParallel(Net().to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(a), b).backward()
        optimizer.step()
    with torch.no_grad():
        return [ddp.module.forward(a) for a, _ in held_out]
""",
    "a LightningModule": """
import lightning.pytorch as pl

class Task(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.net.register_forward_hook(record)

    def training_step(self, batch, index):
        a, b = batch
        return nn.functional.mse_loss(self.forward(a), b) + self.net.forward(a).mean()
""",
}


@pytest.mark.parametrize("name", [*(BROKEN.keys() - MISSED_BY_LINT), *LINT_BROKEN])
def test_lint_reports_it(lint_reports, name):
    found = lint_reports(HEAD + {**BROKEN, **LINT_BROKEN}[name])
    assert all((each.severity == "note") is name.startswith("a note") for each in found)


@pytest.mark.parametrize("name", [*MISSED_BY_LINT, *CORRECT, *LINT_CORRECT])
def test_lint_ignores_correct_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**BROKEN, **CORRECT, **LINT_CORRECT}[name])


@pytest.mark.parametrize(
    "name", ["super().forward", "its own training step", "within the forward of another", "its own __call__"]
)
def test_calls_within_a_module_are_not_even_a_note(lint_is_clean, name):
    lint_is_clean(HEAD + CORRECT[name], "MDL002")
