"""MDL002: a model with hooks is trained through its method ``forward``."""

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

GUILTY = {
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
    "a part with hooks, called by a function": """
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

QUIET = {
    "called as it should be": """
model = Net()
model.register_forward_hook(record)
train(model, model)
""",
    "no hooks": """
model = Net()
train(lambda a: model.forward(a), model)
""",
    "hooks on what is within it, which is called": """
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
    "a training step of its own": """
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
    "gradient checkpointing of a part": """
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
    "past the hooks now and then": """
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
    "hooks that are taken off": """
model = Net()
handle = model.register_forward_hook(record)
model(x)
handle.remove()
train(lambda a: model.forward(a), model)
""",
    "a call of its own": """
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
    "forward of what is no module": """
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


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_guilty(guilty, script):
    guilty(HEAD + script)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes(quiet, script):
    quiet(HEAD + script)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo asks for that of a result within a hook
def test_a_compiled_model(quiet):
    quiet(
        HEAD
        + """
model = Net()
model.register_forward_hook(lambda module, inputs, output: output * 2)
train(torch.compile(model, backend="eager"), model)
"""
    )
