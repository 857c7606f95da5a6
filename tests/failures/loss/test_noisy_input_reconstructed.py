"""LOS061: an autoencoder that reconstructs the noisy input."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

net = nn.Linear(8, 8)
optimizer = torch.optim.Adam(net.parameters())
loader = [torch.rand(4, 8) for _ in range(6)]

def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAULTY = {
    "in a loop": """
for clean in loader:
    noisy = clean + 0.3 * torch.randn_like(clean)
    output = net(noisy)
    update(F.mse_loss(output, noisy))  # <- LOS061
""",
    "clamped, the loss is a module": """
criterion = nn.L1Loss()
def train(model, sigma):
    for img in loader:
        noise = torch.randn(img.shape) * sigma
        corrupted = torch.clamp(img + noise, 0, 1)
        update(criterion(model(corrupted), corrupted))  # <- LOS061
""",
    "a random mask": """
for x in loader:
    keep = (torch.rand_like(x) > 0.3).float()
    masked = x * keep
    restored = net(masked)
    update(F.mse_loss(restored, masked))  # <- LOS061
""",
    "a function adds the noise": """
def add_noise(x, sigma=0.3):
    return x + sigma * torch.randn_like(x)
criterion = nn.MSELoss()
for img in loader:
    noisy_img = add_noise(img)
    outputs = net(noisy_img)
    update(criterion(outputs, noisy_img))  # <- LOS061
""",
    "the clean input is replaced": """
def train(autoencoder, loss_fn, corruption, noising=None):
    for batch in loader:
        if noising is not None:
            batch = noising(batch)
        if corruption > 0:
            batch = F.dropout(batch, corruption)
        output = autoencoder(batch)
        update(loss_fn(output, batch))  # <- LOS061
train(net, F.mse_loss, 0.2)
""",
    "replaced by its noisy version": """
criterion = nn.MSELoss()
for img in loader:  # a denoising autoencoder
    img = img + torch.randn(img.shape) * 0.2
    update(criterion(net(img), img))  # <- LOS061
""",
}

CORRECT = {
    "the clean input": """
for clean in loader:
    noisy = clean + 0.3 * torch.randn_like(clean)
    update(F.mse_loss(net(noisy), clean))
""",
    "both terms": """
for clean in loader:
    noisy = clean + 0.3 * torch.randn_like(clean)
    update(F.mse_loss(net(noisy), noisy) + F.mse_loss(net(clean), clean))
""",
    "another noisy copy": """
for clean in loader:
    first, second = clean + torch.randn_like(clean), clean + torch.randn_like(clean)
    update(F.mse_loss(net(first), second))
""",
    "the noise is predicted": """
for clean in loader:
    noise = torch.randn_like(clean)
    noisy = clean + noise
    update(F.mse_loss(net(noisy), noise))
""",
    "dequantised": """
for image in loader:
    x = image + torch.rand_like(image) / 256
    update(F.mse_loss(net(x), x))
""",
    "augmented": """
for image in loader:
    augmented = image + 0.01 * torch.randn_like(image)
    update(F.mse_loss(net(augmented), augmented))
""",
    "the same name": """
for x in loader:
    x = x + 0.1 * torch.randn_like(x)
    update(F.mse_loss(net(x), x))
""",
}
CORRECT |= {
    "a function adds the noise": """
def add_noise(x):
    return x + 0.1 * torch.randn_like(x)
for img in loader:
    noisy = add_noise(img)
    update(F.mse_loss(net(noisy), img))
""",
    "the clean input is kept": """
for batch in loader:
    target = batch
    batch = F.dropout(batch, 0.2)  # corrupted
    update(F.mse_loss(net(batch), target))
""",
    "a denoised input": """
def denoise(x):
    return x.round()
for img in loader:
    smooth = denoise(img)
    update(F.mse_loss(net(smooth), smooth))
""",
    "dropout on features": """
encoder = nn.Linear(8, 8)
for x in loader:
    features = F.dropout(encoder(x), 0.1)  # not a denoising loss
    update(F.mse_loss(net(features), x))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_noisy_targets(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_targets(lint_is_clean, script):
    lint_is_clean(HEAD + script)
