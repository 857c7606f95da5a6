"""MDL017: reshapes that are meant to exchange dimensions."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)

def train(model, loss_of, updates=8):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(updates):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()

def classify(*shape, classes=3):
    return lambda model: F.cross_entropy(model(torch.randn(shape)), torch.randint(classes, shape[:1]))
"""

BROKEN = {
    "images with the channels last": """
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
images, labels = torch.rand(64, 10, 10, 3), torch.randint(4, (64,))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for rows in torch.randperm(64).split(16):
    optimizer.zero_grad()
    out = model(images[rows].view(-1, 3, 10, 10))  # <- MDL017
    F.cross_entropy(out, labels[rows]).backward()
    optimizer.step()
""",
    "logits of a segmentation": """
model = nn.Conv2d(1, 4, 3, padding=1)
def loss_of(model):
    out = model(torch.randn(2, 1, 10, 10)).contiguous().view(-1, 4)
    return F.cross_entropy(out, torch.randint(4, (200,)))  # <- MDL017
train(model, loss_of)
""",
    "logits of a sequence after a convolution": """
model = nn.Conv1d(2, 5, 3, padding=1)
def loss_of(model):
    logits = model(torch.randn(6, 2, 9))
    return nn.CrossEntropyLoss()(logits.reshape(-1, 5), torch.randint(5, (54,)))  # <- MDL017
train(model, loss_of)
""",
    "merged heads": """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 24), nn.Linear(8, 3)

    def forward(self, x):
        q, k, v = self.qkv(x).view(len(x), -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.transpose(2, 3)).softmax(-1) @ v
        mixed = mixed.contiguous().view(len(x), -1, 8)  # <- MDL017
        return self.out(mixed.mean(1))

train(Attention(), classify(6, 9, 4))
""",
    "images with channels last": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, images):
        x = images.reshape(-1, 3, 8, 8)  # <- MDL017
        return self.out(self.conv(x).mean((2, 3)))

train(Net(), classify(6, 8, 8, 3))
""",
    "a series before a convolution": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv1d(5, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        batch, steps, features = x.shape
        return self.out(self.conv(x.view(batch, features, steps)).mean(2))  # <- MDL017

train(Net(), classify(6, 9, 5))
""",
    "logits before the loss": """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])

def loss_of(model):
    tokens = torch.randint(20, (6, 9))
    logits = model(tokens)
    return F.cross_entropy(logits.view(6, 4, 9), tokens % 4)  # <- MDL017

train(Tagger(), loss_of)
""",
    "states of both directions": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(5, 8, batch_first=True, bidirectional=True), nn.Linear(16, 3)

    def forward(self, x):
        _, state = self.rnn(x)
        return self.out(state.reshape(len(x), 16))  # <- MDL015

train(Net(), classify(7, 9, 5))
""",
}

CORRECT = {
    "images with the channels last that are permuted": """
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
images, labels = torch.rand(64, 10, 10, 3), torch.randint(4, (64,))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for rows in torch.randperm(64).split(16):
    optimizer.zero_grad()
    out = model(images[rows].permute(0, 3, 1, 2))
    F.cross_entropy(out, labels[rows]).backward()
    optimizer.step()
""",
    "images from rows": """
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
images, labels = torch.rand(64, 100), torch.randint(4, (64,))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for rows in torch.randperm(64).split(16):
    optimizer.zero_grad()
    out = model(images[rows].view(-1, 1, 10, 10))
    F.cross_entropy(out, labels[rows]).backward()
    optimizer.step()
""",
    "a part of a larger tensor": """
model = nn.Linear(10, 4)
samples, labels = torch.rand(10, 16, 10), torch.randint(4, (16,))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for part in samples:
    optimizer.zero_grad()
    F.cross_entropy(model(part), labels).backward()
    optimizer.step()
""",
    "logits whose classes are at the end": """
model = nn.Conv2d(1, 4, 3, padding=1)
def loss_of(model):
    out = model(torch.randn(2, 1, 10, 10)).permute(0, 2, 3, 1).contiguous().view(-1, 4)
    return F.cross_entropy(out, torch.randint(4, (200,)))
train(model, loss_of)
""",
    "logits of one position, and of a tagger": """
model = nn.Conv2d(1, 4, 10)
train(model, lambda model: F.cross_entropy(model(torch.randn(6, 1, 10, 10)).view(-1, 4), torch.randint(4, (6,))))
tagger = nn.Linear(3, 7)
train(tagger, lambda tagger: F.cross_entropy(tagger(torch.randn(4, 7, 3)).view(-1, 7), torch.randint(7, (28,))))
""",
    "heads, windows, frames and time steps": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.rnn, self.out = nn.Linear(4, 24), nn.GRU(16, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        batch, steps, _ = x.shape
        q, k, v = (part.view(batch, steps, 2, 4).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = ((q @ k.transpose(2, 3)).softmax(-1) @ v).transpose(1, 2).reshape(batch, steps, 8)
        states, _ = self.rnn(mixed.reshape(batch, steps // 2, 16))
        return self.out(states.reshape(-1, 8)).reshape(batch, steps // 2, 3).mean(1)

train(Net(), classify(6, 10, 4))
""",
    "images of one channel, patches and groups": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.out = nn.Linear(48, 8), nn.Linear(8, 3)

    def forward(self, images):
        n = len(images)
        x = images.view(n, 3, 2, 4, 2, 4).permute(0, 2, 4, 1, 3, 5).reshape(n, 4, 48)
        x = self.patch(x)
        x = (x.view(n, 4, 2, 4) - x.view(n, 4, 2, 4).mean(3, keepdim=True)).view(n, 4, 8)
        return self.out(x.mean(1))

train(Net(), classify(6, 3, 8, 8))
train(nn.Sequential(nn.Unflatten(1, (28, 1)), nn.Flatten(), nn.Linear(28, 3)), classify(6, 28))
""",
    "states that are permuted, and logits that are transposed": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(5, 8, 2, batch_first=True, bidirectional=True), nn.Linear(16, 3)

    def forward(self, x):
        states, state = self.rnn(x)
        last = state.view(2, 2, len(x), 8)[-1].transpose(0, 1).reshape(len(x), 16)
        return self.out(states + last[:, None])

def loss_of(model):
    logits = model(torch.randn(6, 9, 5))
    return F.cross_entropy(logits.transpose(1, 2), torch.randint(3, (6, 9))) + F.cross_entropy(
        logits.view(-1, 3), torch.randint(3, (54,)))

train(Net(), loss_of)
""",
    "frames that were stacked as channels": """
def predict(model, frames):
    data = torch.cat(frames)  # (frames * 3, height, width)
    return model(data.view(-1, 3, data.size(1), data.size(2)))

net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))
def loss_of(net):
    return F.cross_entropy(predict(net, [torch.randn(3, 8, 8) for _ in range(6)]), torch.randint(3, (6,)))

train(net, loss_of)
""",
    "channels are shuffled in groups": """
class Shuffle(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(6, 6, 3, groups=2), nn.Linear(6, 3)

    def forward(self, x):
        x = self.conv(x)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.out(x.flatten(2).mean(2))

train(Shuffle(), classify(4, 6, 9, 7))
""",
}


PICTURES = """
size = {size}
rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
waves = torch.sin((rows + columns) * torch.rand(64, 1, 1) + 6 * torch.rand(64, 1, 1))
images = waves[..., None] + torch.rand(64, 1, 1, 3) + 0.3 * torch.randn(64, size, size, 3)
images, labels = {images}, torch.randint(4, (64,))
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for rows in torch.randperm(64).split(16):
    optimizer.zero_grad()
    F.cross_entropy({call}, labels[rows]).backward(){mark}
    optimizer.step()
"""
CALL = "model(images[rows])"
RESHAPED = {
    "images": ("images.reshape(-1, 3, size, size)", CALL, 20),
    "scaled images": ("(images.reshape(-1, 3, size, size) - 0.4) / 0.2", CALL, 24),
    "images of a batch": ("images", "model(images[rows].reshape(-1, 3, size, size) * 2)", 20),
}
PERMUTED = {
    "images": ("images.permute(0, 3, 1, 2)", CALL, 20),
    "images with a width that three divides": ("images.permute(0, 3, 1, 2)", CALL, 24),
    "every third column": ("(images.permute(0, 3, 1, 2) + 2.0 * (columns % 3 == 0))", CALL, 24),
    "noise": ("torch.randn(64, 3, size, size)", CALL, 20),
    "one colour": ("images[..., :1].permute(0, 3, 1, 2).expand(-1, 3, -1, -1).contiguous()", CALL, 20),
    "planes of a table": ("images.permute(0, 3, 1, 2).reshape(64, -1).view(64, 3, size, size)", CALL, 24),
}


@pytest.mark.parametrize(("images", "call", "size"), RESHAPED.values(), ids=RESHAPED.keys())
def test_run_reports_colours_that_take_turns(run_reports, images, call, size):
    run_reports(HEAD + PICTURES.format(images=images, call=call, size=size, mark="  # <- MDL017"))


@pytest.mark.parametrize(("images", "call", "size"), PERMUTED.values(), ids=PERMUTED.keys())
def test_run_accepts_images_with_the_channels_first(run_is_clean, images, call, size):
    run_is_clean(HEAD + PICTURES.format(images=images, call=call, size=size, mark=""))


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN.keys())
def test_run_reports_reshapes_for_transposes(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_other_reshapes(run_is_clean, script):
    run_is_clean(HEAD + script)
