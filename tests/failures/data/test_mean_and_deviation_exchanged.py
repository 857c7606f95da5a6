"""DAT048: mean and standard deviation are exchanged."""

import pytest

HEAD = """
import numpy as np
import torch
from torchvision import transforms
import torchvision.transforms.functional as TF
"""
FAULTY = {
    "by name": """
def standardise(images, mean, std):
    return (images - std) / mean  # <- DAT048
""",
    "by value": """
location, spread = x.mean(0), x.std(0)
z = (x - spread) / (location + 1e-8)  # <- DAT048
""",
    "by value against the names": """
mean, std = x.std(0), x.mean(0)
z = (x - mean) / std  # <- DAT048
""",
    "numpy": """
m = np.mean(table, axis=0)
s = np.std(table, axis=0)
table -= s  # <- DAT048
table /= m
""",
    "methods": """
class Scale(torch.nn.Module):
    def forward(self, x):
        return x.sub(self.std[:, None]).div(self.mean[:, None])  # <- DAT048
""",
    "in place": """
def scale(x, stats):
    x.sub_(stats["std"])  # <- DAT048
    x.div_(stats["mean"])
    return x
""",
    "returned pair": """
def statistics(x):
    return x.std(0), x.mean(0)


mean, std = statistics(train)
train = (train - mean) / std  # <- DAT048
""",
    "two steps": """
mean = data.mean()
std = data.std()
data = data - std  # <- DAT048
data = data / mean
""",
    "scaler": """
z = (x - scaler.scale_) / scaler.mean_  # <- DAT048
""",
    "std_mean": """
mean, std = torch.std_mean(x, dim=0)  # <- DAT048
z = (x - mean) / std
""",
    "var_mean": """
mu, var = torch.var_mean(x, dim=0)  # <- DAT048
""",
    "transform": """
MEAN, STD = (0.5, 0.4, 0.4), (0.2, 0.3, 0.2)
t = transforms.Normalize(STD, MEAN)  # <- DAT048
""",
    "transform with keywords": """
t = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean=std, std=mean)])  # <- DAT048
""",
    "functional": """
img = TF.normalize(img, cfg.std, cfg.mean)  # <- DAT048
""",
    "numbers": """
a = transforms.Normalize((0.229, 0.224, 0.225), (0.485, 0.456, 0.406))  # <- DAT048
b = transforms.Normalize([0.2023, 0.1994, 0.2010], [0.4914, 0.4822, 0.4465])  # <- DAT048
c = transforms.Normalize((0.3081,), (0.1307,))  # <- DAT048
""",
    "numbers in a pair": """
stats = ((0.2470, 0.2435, 0.2616), (0.4914, 0.4822, 0.4465))
t = transforms.Normalize(*stats)  # <- DAT048
""",
    "a pair with other names": """
v, m = torch.std_mean(x, dim=0)
z = (x - v) / (m + 1e-6)  # <- DAT048
""",
    "variance": """
def batch_norm(x, eps=1e-5):
    mu = x.mean(0)
    var = x.var(0, unbiased=False)
    first = (x - torch.sqrt(var + eps)) / mu  # <- DAT048
    return (x - var) / torch.sqrt(mu + eps)  # <- DAT048
""",
    "inverse": """
def denormalize(x, mean, std):
    return x * mean + std  # <- DAT048
""",
    "inverse by pair": """
z = (x - mu) / sigma
back = sigma + net(z) * mu  # <- DAT048
""",
    "inverse methods": """
image = image.mul(mean).add(std)  # <- DAT048
""",
}
CORRECT = {
    "right order": """
mean, std = x.mean(0), x.std(0)
z = (x - mean) / (std + 1e-6)
std, mean = torch.std_mean(x)
back = z * std + mean
t = transforms.Normalize(mean, std)
n = torch.nn.functional.normalize(x, 2, 1)
""",
    "relative bounds": """
mean, std = x.mean(0), x.std(0)
lower = (mean - std) / mean
change = (std - old_std) / mean
""",
    "variance": """
def batch_norm(x, eps=1e-5):
    mean = x.mean(0)
    var = x.var(0, unbiased=False)
    return (x - mean) / torch.sqrt(var + eps), (x - mean) * (var + eps).rsqrt()
""",
    "a bound": """
def normalise(x, mean, std):
    return (x - mean) / std


def bound(mean, std, beta):
    return mean * beta + std
""",
    "a risk": """
losses = torch.stack(losses)
risk = beta * losses.mean() + losses.std()
mean, std = losses.mean(), losses.std()
score = 0.5 * mean + std
total = weight * mean + std
""",
    "a sample": """
z = mean + std * torch.randn_like(std)
bound = mean + kappa * std
""",
    "numbers": """
a = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
b = transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
c = transforms.Normalize((0.1307,), (0.3081,))
d = transforms.Normalize((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
e = transforms.Normalize((0.1, 0.1, 0.1), (0.2, 0.2, 0.2))
f = transforms.Normalize([-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225], [1 / 0.229, 1 / 0.224, 1 / 0.225])
""",
    "inverse transform": """
inverse = transforms.Normalize(mean=-mean / std, std=1 / std)
""",
    "values right, names misleading": """
std = x.mean(0)
mean = x.std(0)
z = (x - std) / mean
""",
    "mean of deviations": """
mean_std = x.std(0).mean()
z = (x - x.mean()) / mean_std
scale = x.std(0).mean()
z = (x - scale) / x.amax()
""",
    "mean square": """
rms = (x ** 2).mean().sqrt()
mean = x.mean()
z = (x - mean) / rms
""",
    "std_mean with other names": """
a, b = torch.std_mean(x)
z = (x - b) / a
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_exchanged_statistics(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT048")
