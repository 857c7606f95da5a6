"""LOS032: gradient penalties with one norm for the whole batch."""

import pytest

GRAD = """
import torch
from torch import autograd
mixed = (a * real + (1 - a) * fake).requires_grad_(True)
gradients = autograd.grad(outputs=critic(mixed).sum(), inputs=mixed, create_graph=True, retain_graph=True)[0]
"""
FAULTY = {
    "a method": GRAD + "gp = ((gradients.norm(2) - 1) ** 2).mean()  # <- LOS032\n",
    "a function": GRAD + "norm = torch.norm(gradients, p=2)  # <- LOS032\ngp = 10 * (norm - 1).pow(2)\n",
    "flattened": GRAD
    + """
gradients = gradients.view(gradients.size(0), -1)
gradient_norm = torch.linalg.vector_norm(gradients)  # <- LOS032
penalty = torch.mean(torch.square(gradient_norm - 1.0))
""",
    "in a class": """
import torch

class Trainer:
    def gradient_penalty(self, real, fake):
        alpha = torch.rand(real.size(0), 1, 1, 1)
        mixed = alpha * real + (1 - alpha) * fake
        mixed.requires_grad_(True)
        scores = self.D(mixed)
        grads = torch.autograd.grad(scores, mixed, torch.ones_like(scores), create_graph=True)
        norm = torch.sqrt(torch.sum(grads[0] ** 2) + 1e-12)  # <- LOS032
        return self.weight * (norm - 1) ** 2
""",
    "in two functions": """
import torch

def input_gradient(critic, x):
    (g,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return g

def penalty(critic, x, target=1.0):
    g = input_gradient(critic, x)
    size = g.reshape(len(g), -1).norm()  # <- LOS032
    return (target - size) ** 2
""",
    "one-sided": GRAD + "gp = torch.relu(gradients.pow(2).sum().sqrt() - 1).pow(2)  # <- LOS032\n",
    "compared with ones": GRAD
    + """
n = gradients.norm(p=2)  # <- LOS032
gp = torch.nn.functional.mse_loss(n, torch.ones_like(n))
""",
    "over the samples": GRAD + "gp = (gradients.norm(2, dim=0) - 1).square().mean()  # <- LOS032\n",
    "over the samples, by position": GRAD
    + "n = torch.norm(gradients, 2, 0)  # <- LOS032\ngp = ((n - 1) ** 2).mean()\n",
    "squares over the samples": GRAD
    + "n = (gradients.view(8, -1).pow(2).sum(0) + 1e-12) ** 0.5  # <- LOS032\ngp = ((1 - n) ** 2).mean()\n",
    "the mean of the norms": GRAD + "gp = 10 * (gradients.norm(2, dim=1).mean() - 1) ** 2  # <- LOS032\n",
    "the mean of norms in a variable": GRAD
    + "n = torch.linalg.vector_norm(gradients.flatten(1), dim=1)\ngp = (torch.mean(n) - 1).pow(2)  # <- LOS032\n",
}
CORRECT = {
    "with a dimension": GRAD + "gp = ((gradients.norm(2, dim=1) - 1) ** 2).mean()\n",
    "with a dimension by position": GRAD + "gp = ((gradients.view(len(real), -1).norm(2, 1) - 1) ** 2).mean()\n",
    "a function with a dimension": GRAD + "gp = (torch.norm(gradients, 2, 1) - 1).pow(2).mean()\n",
    "sums of squares": GRAD + "gp = (((gradients ** 2).sum(dim=(1, 2, 3)).sqrt() - 1) ** 2).mean()\n",
    "transposed": GRAD + "gp = ((gradients.flatten(1).t().norm(2, dim=0) - 1) ** 2).mean()\n",
    "a penalty that stands beside the mean norm": GRAD
    + "n = gradients.norm(2, dim=1)\ngp = ((n - 1) ** 2).mean()\nprint(n.mean(), (n.mean() / 2) ** 2)\n",
    "R1": GRAD + "r1 = gradients.pow(2).sum(dim=1).mean()\n",
    "the sum of squares": GRAD + "r1 = gradients.norm(2) ** 2\n",
    "parameters": """
import torch
grads = torch.autograd.grad(loss, model.parameters(), create_graph=True)
sharpness = (grads[0].norm() - 1) ** 2
""",
    "parameters in a variable": """
import torch
params = [p for p in model.parameters() if p.requires_grad]
grads = torch.autograd.grad(loss, params, create_graph=True)
balance = (grads[0].norm(2) - 1).pow(2)
""",
    "weights of several tasks": """
import torch
shared = model.shared.weight
G = torch.autograd.grad(w * loss, shared, create_graph=True)[0].norm(2)
aux = (G - 1.0) ** 2
""",
    "one sample at a time": GRAD + "gp = sum((g.norm(2) - 1) ** 2 for g in gradients)\n",
    "another norm": GRAD + "loss = gradients.norm(2, dim=1).mean() + (weights.norm(2) - 1) ** 2\n",
}
IMAGES = """
import torch
from torch import autograd
a = {share}
mixed = (a * real + (1 - a) * fake).requires_grad_(True)
gradients = autograd.grad(outputs=critic(mixed).sum(), inputs=mixed, create_graph=True, retain_graph=True)[0]
"""
FAULTY |= {
    "along the channels": IMAGES.replace("{share}", "torch.rand(len(real), 1, 1, 1)")
    + "gp = ((gradients.norm(2, dim=1) - 1) ** 2).mean()  # <- LOS032\n",
    "along the channels, by position": IMAGES.replace("{share}", "torch.rand(len(real))[:, None, None, None]")
    + "n = torch.norm(gradients + 1e-8, 2, 1)  # <- LOS032\ngp = 10 * torch.mean((1 - n).pow(2))\n",
    "squares along the channels": IMAGES.replace("{share}", "torch.rand(8, 1).expand(8, 3 * 64).view(8, 3, 8, 8)")
    + "n = torch.sqrt((gradients ** 2).sum(dim=1) + 1e-12)  # <- LOS032\ngp = ((n - 1) ** 2).mean()\n",
    "along the columns, in a class": """
import torch

class Critic(torch.nn.Module):
    def penalty(self, real, fake, eps=1e-6):
        share = torch.rand((real.size(0), 1, 1, 1), device=real.device)
        mixed = torch.autograd.Variable(share * real + (1 - share) * fake, requires_grad=True)
        score = self(mixed)
        (slope,) = torch.autograd.grad(score, mixed, torch.ones_like(score), create_graph=True)
        return ((torch.linalg.vector_norm(slope + eps, dim=-1) - 1.0) ** 2).mean()  # <- LOS032
""",
}
FAULTY |= {
    "along the channel of signals": IMAGES.replace("{share}", "torch.rand(len(real), 1, 1)")
    + "gp = ((gradients.norm(2, dim=1) - 1) ** 2).mean()  # <- LOS032\n",
    "along the steps of texts": IMAGES.replace("{share}", "torch.rand(len(real))[:, None, None]")
    + "n = (gradients.pow(2).sum(1) + 1e-12).sqrt()  # <- LOS032\ngp = 10 * ((n - 1) ** 2).mean()\n",
    "the gradient of a method": """
import torch

class Solver:
    def input_grad(self, x, create_graph=True):
        x = x.requires_grad_(True)
        return torch.autograd.grad(self.critic(x).sum(), x, create_graph=create_graph)[0]

    def penalty(self, real, fake):
        eps = torch.rand(real.size(0), 1, 1)
        grads = self.input_grad(eps * real + (1 - eps) * fake)
        return ((grads.norm(2, dim=1) - 1) ** 2).mean()  # <- LOS032
""",
}
CORRECT |= {
    "signals that are flattened": IMAGES.replace("{share}", "torch.rand(len(real), 1, 1)")
    + "gp = ((gradients.flatten(1).norm(2, dim=1) - 1) ** 2).mean()\n",
    "points of a distance field": """
import torch
points = torch.rand(8, 100, 3).requires_grad_(True)
gradients = torch.autograd.grad(field(points).sum(), points, create_graph=True)[0]
eikonal = ((gradients.norm(2, dim=-1) - 1) ** 2).mean()
""",
    "points of a distance field, moved by noise": """
import torch
points = (surface + torch.rand(8, 1, 1) * torch.randn_like(surface)).requires_grad_(True)
gradients = torch.autograd.grad(field(points).sum(), points, create_graph=True)[0]
eikonal = ((gradients.norm(2, dim=2) - 1) ** 2).mean()
""",
    "a graph only in some calls, in a view": """
import torch

def input_grad(critic, x, create_graph=True):
    return torch.autograd.grad(critic(x).sum(), x, create_graph=create_graph)[0]

eps = torch.rand(8, 1, 1)
grads = input_grad(critic, (eps * real + (1 - eps) * fake).requires_grad_())
gp = ((grads.view(8, -1).norm(2, dim=1) - 1) ** 2).mean()
""",
    "images that are flattened": IMAGES.replace("{share}", "torch.rand(len(real), 1, 1, 1)")
    + "gradients = gradients.view(gradients.size(0), -1)\ngp = ((gradients.norm(2, dim=1) - 1) ** 2).mean()\n",
    "images that are flattened in place of use": IMAGES.replace("{share}", "torch.rand(len(real), 1, 1, 1)")
    + "n = torch.norm(gradients.flatten(start_dim=1), 2, 1)\ngp = ((n - 1) ** 2).mean()\n",
    "over all dimensions of an image": IMAGES.replace("{share}", "torch.rand(len(real), 1, 1, 1)")
    + "gp = ((gradients.norm(2, dim=(1, 2, 3)) - 1) ** 2).mean()\n",
    "rows of numbers": IMAGES.replace("{share}", "torch.rand(len(real), 1)")
    + "gp = ((gradients.norm(2, dim=1) - 1) ** 2).mean()\n",
    "one mask for each pixel, without a target": IMAGES.replace("{share}", "torch.rand(len(real), 1, 1, 1)")
    + "saliency = gradients.norm(2, dim=1) ** 2\n",
    "images that the critic gets flattened": """
import torch
share = torch.rand(8, 1, 1, 1)
mixed = (share * real + (1 - share) * fake).flatten(1).requires_grad_(True)
gradients = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
gp = ((gradients.norm(2, dim=1) - 1) ** 2).mean()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_a_norm_over_the_batch(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS032")
