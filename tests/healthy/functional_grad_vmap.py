"""torch.func: per-sample gradients by vmap, private-style clipping and noise, and an ensemble by stacked parameters."""

import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, stack_module_state, vmap

torch.manual_seed(0)
x = torch.randn(128, 3)
y = (x[:, 0] * 2 - x[:, 1] > 0).float()
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
params = {k: v.detach() for k, v in model.named_parameters()}


def sample_loss(params, xi, yi):
    logit = functional_call(model, params, (xi.unsqueeze(0),)).squeeze()
    return nn.functional.binary_cross_entropy_with_logits(logit, yi)


per_sample = vmap(grad(sample_loss), in_dims=(None, 0, 0))
for step in range(15):
    grads = per_sample(params, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    scale = (1.0 / norms.clamp(min=1.0)).view(-1)
    params = {k: params[k] - 0.5 * torch.einsum("n,n...->...", scale, g) / len(x) for k, g in grads.items()}
private = vmap(sample_loss, in_dims=(None, 0, 0))(params, x, y).mean()

models = [nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(4)]
stacked, buffers = stack_module_state(models)
stacked = {k: v.detach() for k, v in stacked.items()}


def ensemble_loss(p, b):
    return nn.functional.binary_cross_entropy_with_logits(functional_call(models[0], (p, b), (x,)).squeeze(1), y)


for step in range(15):
    g, losses = vmap(grad_and_value(ensemble_loss))(stacked, buffers)
    stacked = {k: stacked[k] - 0.3 * g[k] for k in stacked}
print(private.item(), losses.tolist())
