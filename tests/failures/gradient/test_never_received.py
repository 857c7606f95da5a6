"""GRD005: parameters behind a cut of the graph, unused parameters, and programs that cut the graph on purpose."""

from __future__ import annotations

import re

import pytest

from trueloop.core.findings import Severity

HEAD = """
import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable
from torch.distributions import Categorical, Normal
from torch.utils.checkpoint import checkpoint

N = 40
x, y, labels = torch.randn(256, 8), torch.randn(256, 1), torch.randint(3, (256,))


def batch():
    rows = torch.randint(256, (16,))
    return x[rows], y[rows], labels[rows]


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def adam(*modules, lr=1e-3):
    return torch.optim.Adam([p for module in modules for p in module.parameters()], lr=lr)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = mlp(8, 6), nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.encoder(x))

"""

CORRECT = {
    "GAN: the discriminator gets detached samples": """
generator, critic = mlp(4, 8), mlp(8, 1)
g_step, d_step = adam(generator), adam(critic)
for step in range(N):
    real, fake = batch()[0], generator(torch.randn(16, 4))
    update(d_step, F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean())
    if step % 5 == 4:
        update(g_step, F.softplus(-critic(generator(torch.randn(16, 4)))).mean())
""",
    "GAN: loss of the discriminator added for the log only": """
generator, critic = mlp(4, 8), mlp(8, 1)
g_step, d_step = adam(generator), adam(critic)
for step in range(N):
    fake = generator(torch.randn(16, 4))
    d_loss = F.softplus(-critic(batch()[0])).mean() + F.softplus(critic(fake.detach())).mean()
    update(d_step, d_loss)
    g_loss = F.softplus(-critic(fake)).mean()
    update(g_step, g_loss)
    total = (d_loss + g_loss).item()
""",
    "frozen backbone without gradients and a trained head": """
backbone, head = mlp(8, 6), nn.Linear(6, 1)
optimizer = adam(head)
for _ in range(N):
    a, b, _ = batch()
    with torch.no_grad():
        features = backbone(a)
    update(optimizer, F.mse_loss(head(features), b))
""",
    "backbone frozen with requires_grad in the optimizer": """
model = Model()
model.encoder.requires_grad_(False)
optimizer = adam(model)
for _ in range(N):
    a, b, _ = batch()
    update(optimizer, F.mse_loss(model(a), b))
""",
    "BYOL with a target network in the optimizer": """
online, predictor = mlp(8, 6), mlp(6, 6)
target = copy.deepcopy(online)
optimizer = adam(online, predictor, target)
for _ in range(N):
    a, _, _ = batch()
    with torch.no_grad():
        wanted = target(a + 0.1 * torch.randn_like(a))
    update(optimizer, 2 - 2 * F.cosine_similarity(predictor(online(a)), wanted).mean())
    for mine, theirs in zip(target.parameters(), online.parameters()):
        mine.data.mul_(0.99).add_(theirs.data, alpha=0.01)
""",
    "target network synchronised seldom and in the optimizer": """
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = mlp(8, 3)
        self.target = copy.deepcopy(self.online)


agent = Agent()
optimizer = adam(agent)
for step in range(N):
    a, reward, action = batch()
    wanted = reward[:, 0] + 0.9 * agent.target(a).max(1).values.detach()
    update(optimizer, F.mse_loss(agent.online(a).gather(1, action[:, None])[:, 0], wanted))
    if step % 1000 == 999:
        agent.target.load_state_dict(agent.online.state_dict())
""",
    "SimSiam": """
encoder, predictor = mlp(8, 6), mlp(6, 6)
optimizer = adam(encoder, predictor)
for _ in range(N):
    a, _, _ = batch()
    one, two = encoder(a), encoder(a + 0.1 * torch.randn_like(a))
    loss = -F.cosine_similarity(predictor(one), two.detach()).mean() - F.cosine_similarity(
        predictor(two), one.detach()
    ).mean()
    update(optimizer, loss)
""",
    "EMA teacher": """
student = mlp(8, 3)
teacher = copy.deepcopy(student)
optimizer = adam(student)
for _ in range(N):
    a, _, c = batch()
    with torch.no_grad():
        soft = teacher(a).softmax(1)
    logits = student(a)
    update(optimizer, F.cross_entropy(logits, c) + F.kl_div(logits.log_softmax(1), soft, reduction="batchmean"))
    with torch.no_grad():
        for mine, theirs in zip(teacher.parameters(), student.parameters()):
            mine.lerp_(theirs, 0.01)
""",
    "straight-through estimator": """
encoder, decoder = mlp(8, 6), mlp(6, 8)
optimizer = adam(encoder, decoder)
for _ in range(N):
    a, _, _ = batch()
    z = encoder(a)
    z = z + (z.round() - z).detach()
    update(optimizer, F.mse_loss(decoder(z), a))
""",
    "VQ-VAE with a codebook loss": """
encoder, decoder, codebook = mlp(8, 6), mlp(6, 8), nn.Embedding(12, 6)
optimizer = adam(encoder, decoder, codebook)
for _ in range(N):
    a, _, _ = batch()
    z = encoder(a)
    index = torch.cdist(z, codebook.weight).argmin(1)
    q = codebook(index)
    losses = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
    q = z + (q - z).detach()
    update(optimizer, F.mse_loss(decoder(q), a) + losses)
""",
    "VQ-VAE whose codebook is a moving average in the optimizer": """
encoder, decoder, codebook = mlp(8, 6), mlp(6, 8), nn.Embedding(12, 6)
optimizer = adam(encoder, decoder, codebook)
for _ in range(N):
    a, _, _ = batch()
    z = encoder(a)
    index = torch.cdist(z.detach(), codebook.weight.data).argmin(1)
    q = codebook(index).detach()
    with torch.no_grad():
        codebook.weight.data[index] = 0.9 * codebook.weight.data[index] + 0.1 * z
    loss = 0.25 * F.mse_loss(z, q)
    update(optimizer, F.mse_loss(decoder(z + (q - z).detach()), a) + loss)
""",
    "DQN": """
online = mlp(8, 3)
target = copy.deepcopy(online)
optimizer = adam(online)
for step in range(N):
    a, reward, _ = batch()
    action = online(a).argmax(1)
    value = online(a).gather(1, action[:, None])[:, 0]
    with torch.no_grad():
        wanted = reward[:, 0] + 0.9 * target(a).max(1).values
    update(optimizer, F.smooth_l1_loss(value, wanted))
    if step % 10 == 9:
        target.load_state_dict(online.state_dict())
""",
    "TD target of the same network": """
critic = mlp(8, 1)
optimizer = adam(critic)
for step in range(N):
    a, reward, _ = batch()
    wanted = reward + 0.9 * critic(a.flip(0)).detach()
    update(optimizer, F.mse_loss(critic(a), wanted))
""",
    "REINFORCE": """
policy = mlp(8, 3)
optimizer = adam(policy)
for step in range(N):
    a, _, c = batch()
    choice = Categorical(logits=policy(a))
    action = choice.sample()
    reward = (action == c).float()
    update(optimizer, -(choice.log_prob(action) * (reward - reward.mean())).mean())
""",
    "actor and critic with a detached advantage": """
body, actor, critic = mlp(8, 6), nn.Linear(6, 3), nn.Linear(6, 1)
optimizer = adam(body, actor, critic)
for step in range(N):
    a, reward, _ = batch()
    h = body(a)
    choice, value = Categorical(logits=actor(h)), critic(h)[:, 0]
    action = choice.sample()
    advantage = (reward[:, 0] * action - value).detach()
    loss = -(choice.log_prob(action) * advantage).mean() + 0.5 * F.mse_loss(value, reward[:, 0])
    update(optimizer, loss - 0.01 * choice.entropy().mean())
""",
    "SAC temperature": """
policy, log_alpha = mlp(8, 3), nn.Parameter(torch.zeros(()))
p_step, a_step = adam(policy), torch.optim.Adam([log_alpha], lr=1e-3)
for step in range(N):
    a, reward, _ = batch()
    choice = Categorical(logits=policy(a))
    entropy = choice.entropy().mean()
    action = choice.sample()
    update(p_step, -(reward[:, 0] * action * choice.log_prob(action)).mean() - log_alpha.exp().detach() * entropy)
    update(a_step, log_alpha.exp() * (entropy.detach() - 0.5))
""",
    "multiplier of a constraint with a detached violation": """
model, multiplier = mlp(8, 1), nn.Parameter(torch.ones(()))
m_step, l_step = adam(model), torch.optim.SGD([multiplier], lr=1e-2, maximize=True)
for step in range(N):
    a, b, _ = batch()
    out = model(a)
    violation = out.square().mean() - 0.5
    update(m_step, F.mse_loss(out, b) + multiplier.detach() * violation)
    update(l_step, multiplier * violation.detach())
""",
    "truncated backpropagation through time": """
cell, head = nn.GRUCell(8, 6), nn.Linear(6, 1)
optimizer = adam(cell, head)
h = torch.zeros(16, 6)
for step in range(N):
    a, b, _ = batch()
    h = cell(a, h.detach())
    update(optimizer, F.mse_loss(head(h), b))
""",
    "metrics with item, argmax and numpy": """
model = mlp(8, 3)
optimizer = adam(model)
total, right = 0.0, 0
for step in range(N):
    a, _, c = batch()
    out = model(a)
    loss = F.cross_entropy(out, c)
    update(optimizer, loss)
    total += loss.item()
    right += (out.argmax(1) == c).sum().item()
    confidence = out.softmax(1).max(1).values.detach().cpu().numpy().mean()
    spread = np.std(out.detach().numpy())
""",
    "gradient penalty": """
critic = mlp(8, 1)
optimizer = adam(critic)
for step in range(N):
    a, _, _ = batch()
    mixed = (0.5 * a + 0.5 * torch.randn_like(a)).requires_grad_()
    (grad,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    update(optimizer, critic(a).mean() + 10 * (grad.norm(dim=1) - 1).square().mean())
""",
    "scheduled unfreezing": """
model = Model()
optimizer = adam(model)
for step in range(2 * N):
    a, b, _ = batch()
    with torch.set_grad_enabled(step > N):
        features = model.encoder(a)
    update(optimizer, F.mse_loss(model.head(features), b))
""",
    "parts are trained in turns": """
model = Model()
optimizer = adam(model)
for step in range(2 * N):
    a, b, _ = batch()
    features = model.encoder(a)
    update(optimizer, F.mse_loss(model.head(features.detach() if step < N else features), b))
""",
    "two optimizers in turns": """
model = Model()
first, second = adam(model.encoder), adam(model.head)
for step in range(2 * N):
    a, b, _ = batch()
    if step // 10 % 2:
        update(first, F.mse_loss(model(a), b))
    else:
        update(second, F.mse_loss(model.head(model.encoder(a).detach()), b))
""",
    "heads of several tasks": """
body, heads = mlp(8, 6), nn.ModuleList([nn.Linear(6, 1), nn.Linear(6, 1), nn.Linear(6, 1)])
optimizer = adam(body, heads)
for step in range(N):
    a, b, _ = batch()
    update(optimizer, F.mse_loss(heads[step % 2 if step < N - 4 else 2](body(a)), b))
""",
    "gradient checkpointing": """
model = Model()
optimizer = adam(model)
for step in range(N):
    a, b, _ = batch()
    h = checkpoint(model.encoder, a.requires_grad_(), use_reentrant=True)
    update(optimizer, F.mse_loss(model.head(h), b))
""",
    "autograd.Function": """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, factor):
        ctx.save_for_backward(factor)
        return values * factor

    @staticmethod
    def backward(ctx, grad):
        (factor,) = ctx.saved_tensors
        return grad * factor, (grad * factor).sum().reshape(1)


model, factor = Model(), nn.Parameter(torch.ones(1))
optimizer = torch.optim.Adam([*model.parameters(), factor])
for step in range(N):
    a, b, _ = batch()
    update(optimizer, F.mse_loss(Scale.apply(model(a), factor), b))
""",
    "hook that keeps activations for a plot": """
model, kept = Model(), {}
model.encoder.register_forward_hook(lambda module, args, out: kept.update(encoder=out.detach()))
optimizer = adam(model)
for step in range(N):
    a, b, _ = batch()
    update(optimizer, F.mse_loss(model(a), b))
    picture = kept["encoder"].numpy().copy()
""",
    "evaluation between updates": """
model = Model()
optimizer = adam(model)
for step in range(N):
    a, b, _ = batch()
    update(optimizer, F.mse_loss(model(a), b))
    if step % 3 == 2:
        model.eval()
        with torch.no_grad():
            error = F.mse_loss(model(x), y).item()
        model.train()
""",
    "best loss so far decides on the rate": """
model = Model()
optimizer = adam(model)
best = 1e9
for step in range(N):
    a, b, _ = batch()
    loss = F.mse_loss(model(a), b)
    update(optimizer, loss)
    best = min(best, loss.item())
    loss_value = float(loss.detach())
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * min(1.0, loss_value / best)
""",
    "frozen pretrained embedding": """
pretrained = nn.Embedding(3, 6)
table = nn.Embedding.from_pretrained(pretrained.weight.detach())
head = mlp(6, 1)
optimizer = adam(table, head)
for step in range(N):
    _, b, c = batch()
    update(optimizer, F.mse_loss(head(table(c)), b))
""",
    "mixture of experts": """
router, experts = nn.Linear(8, 4), nn.ModuleList([mlp(8, 1) for _ in range(4)])
optimizer = adam(router, experts)
with torch.no_grad():
    router.bias[3] = -100.0
for step in range(N):
    a, b, _ = batch()
    gate = router(a).softmax(1)
    weight, index = gate.max(1)
    out = torch.zeros(len(a), 1)
    for number, expert in enumerate(experts):
        rows = index == number
        if rows.any():
            out[rows] = weight[rows, None] * expert(a[rows])
    update(optimizer, F.mse_loss(out, b))
""",
    "temperature of the logits is detached": """
model, temperature = mlp(8, 3), nn.Parameter(torch.ones(()))
optimizer = torch.optim.Adam([*model.parameters(), temperature])
for step in range(N):
    a, _, c = batch()
    update(optimizer, F.cross_entropy(model(a) / temperature.detach(), c))
""",
    "value of a surrogate loss is shown": """
policy = mlp(8, 3)
optimizer = adam(policy)
for step in range(N):
    a, reward, c = batch()
    out = policy(a)
    surrogate, shown = F.cross_entropy(out, c), out.square().mean()
    update(optimizer, shown.detach() + surrogate - surrogate.detach())
""",
    "maximum is subtracted before exp": """
model = mlp(8, 3)
optimizer = adam(model)
for step in range(N):
    a, _, c = batch()
    out = model(a)
    top = out.max().detach()
    update(optimizer, top + (out - top).exp().mean().log() - out.mean())
""",
    "losses are balanced by their detached sizes": """
model = mlp(8, 4)
optimizer = adam(model)
for step in range(N):
    a, b, c = batch()
    out = model(a)
    one, two = F.cross_entropy(out[:, :3], c), F.mse_loss(out[:, 3:], b)
    update(optimizer, one / one.detach() + two * (one.item() / max(two.item(), 1e-6)))
""",
    "constant of a bound is added": """
teacher, student = mlp(8, 3), mlp(8, 3)
optimizer = adam(student)
for step in range(N):
    a, _, c = batch()
    with torch.no_grad():
        soft = teacher(a).softmax(1)
        entropy = -(soft * soft.log()).sum(1).mean()
    update(optimizer, -(soft * student(a).log_softmax(1)).sum(1).mean() - entropy + 1.0)
""",
    "sum starts at zero": """
models = nn.ModuleList([mlp(8, 1), mlp(8, 1)])
optimizer = adam(models)
for step in range(N):
    a, b, _ = batch()
    loss = 0
    for each in models:
        loss += F.mse_loss(each(a), b)
    update(optimizer, sum([loss, loss.detach() * 0]))
""",
    "parameters trained by evolution": """
model, noise = mlp(8, 1), mlp(8, 8)
optimizer = adam(model, noise)
for step in range(N):
    a, b, _ = batch()
    with torch.no_grad():
        shifted = a + 0.1 * noise(a)
    update(optimizer, F.mse_loss(model(shifted), b))
    with torch.no_grad():
        for p in noise.parameters():
            p.add_(0.01 * torch.randn_like(p))
""",
    "adversarial examples": """
model = mlp(8, 3)
optimizer = adam(model)
for step in range(N):
    a, _, c = batch()
    delta = torch.zeros_like(a, requires_grad=True)
    (grad,) = torch.autograd.grad(F.cross_entropy(model(a + delta), c), delta)
    attacked = (a + 0.1 * grad.sign()).detach()
    update(optimizer, F.cross_entropy(model(attacked), c))
""",
    "pseudo labels and a mask": """
model = mlp(8, 3)
optimizer = adam(model)
for step in range(N):
    a, _, c = batch()
    with torch.no_grad():
        sure, pseudo = model(a).softmax(1).max(1)
    mask = (sure > 0.4).float()
    out = model(a + 0.1 * torch.randn_like(a))
    update(optimizer, F.cross_entropy(out, c) + (mask * F.cross_entropy(out, pseudo, reduction="none")).mean())
""",
    "PPO with stored log-probabilities": """
policy, critic = mlp(8, 3), mlp(8, 1)
optimizer = adam(policy, critic)
for step in range(N // 4):
    a, reward, _ = batch()
    with torch.no_grad():
        choice = Categorical(logits=policy(a))
        action = choice.sample()
        before, value = choice.log_prob(action), critic(a)[:, 0]
    advantage = reward[:, 0] - value
    for _ in range(4):
        choice = Categorical(logits=policy(a))
        ratio = (choice.log_prob(action) - before).exp()
        actor = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        update(optimizer, actor + 0.5 * F.mse_loss(critic(a), reward))
""",
    "consistency term without gradients during the warm-up": """
model = mlp(8, 3)
optimizer = adam(model)
for step in range(2 * N):
    a, _, c = batch()
    out = model(a)
    with torch.set_grad_enabled(step >= N):
        consistency = F.mse_loss(model(a + 0.1), model(a))
    update(optimizer, F.cross_entropy(out, c) + consistency)
""",
    "random features that are not in the optimizer": """
reservoir, head = nn.RNN(8, 6), nn.Linear(6, 1)
optimizer = adam(head)
for step in range(N):
    a, b, _ = batch()
    states = reservoir(a[None])[0][0].data
    update(optimizer, F.mse_loss(head(states), b))
""",
    "moving average in a function, in the optimizer": """
def main():
    online = mlp(8, 6)
    model = nn.ModuleDict({"online": online, "slow": mlp(8, 6), "predictor": mlp(6, 6)})
    optimizer = adam(model)
    for _ in range(N):
        a, _, _ = batch()
        wanted = model["slow"](a).detach()
        update(optimizer, F.mse_loss(model["predictor"](online(a)), wanted))
        with torch.no_grad():
            for mine, theirs in zip(model["slow"].parameters(), online.parameters()):
                mine.lerp_(theirs, 0.05)


main()
""",
    "loss scaled by a number from an earlier batch": """
model = mlp(8, 1)
optimizer = adam(model)
scale = 1.0
for _ in range(N):
    a, b, _ = batch()
    loss = F.mse_loss(model(a), b) / scale
    update(optimizer, loss)
    scale = 0.9 * scale + 0.1 * loss.item()
""",
    "offset that makes the loss positive": """
model = mlp(8, 1)
optimizer = adam(model)
for _ in range(N):
    a, b, _ = batch()
    loss = -(model(a) * b).mean()
    total = loss.item()
    loss = loss + 10.0
    update(optimizer, loss)
""",
    "early stopping and a plateau schedule": """
model = mlp(8, 1)
optimizer = adam(model)
schedule, best, bad = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), 1e9, 0
for epoch in range(8):
    for _ in range(5):
        a, b, _ = batch()
        update(optimizer, F.mse_loss(model(a), b))
    with torch.no_grad():
        error = F.mse_loss(model(x), y).item()
    schedule.step(error)
    best, bad = (error, 0) if error < best else (best, bad + 1)
""",
    "detached weights of a sum of losses": """
model, log_sizes = mlp(8, 4), nn.Parameter(torch.zeros(2))
optimizer = torch.optim.Adam([*model.parameters(), log_sizes])
for _ in range(N):
    a, b, c = batch()
    out = model(a)
    losses = torch.stack([F.cross_entropy(out[:, :3], c), F.mse_loss(out[:, 3:], b)])
    weights = (losses / losses.sum()).detach()
    update(optimizer, (weights * losses).sum() + (losses.detach() * (-log_sizes).exp() + log_sizes).sum())
""",
    "modes, transforms and saving during an update": """
import io
import warnings

model, unused = mlp(8, 1), nn.Linear(3, 3)
optimizer = adam(model, unused)
for _ in range(N):
    a, b, _ = batch()
    with torch.device("meta"):
        shape = torch.empty(3)
    norms = torch.vmap(lambda row: row.norm())(a)
    jacobian = torch.func.jacrev(lambda row: model(row).sum())(a[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of PyTorch deprecate it
        scripted = torch.jit.trace(model, a)
    copied = copy.deepcopy(model)
    torch.save(model.state_dict(), io.BytesIO())
    update(optimizer, F.mse_loss(model(a), b) + 0.0 * norms.mean())
assert torch.empty(1).device.type == "cpu"
""",
    "noise is learned through rsample": """
encoder, decoder = mlp(8, 12), mlp(6, 8)
optimizer = adam(encoder, decoder)
for step in range(N):
    a, _, _ = batch()
    mean, spread = encoder(a).chunk(2, 1)
    latent = Normal(mean, spread.exp())
    shown = latent.sample()
    update(optimizer, F.mse_loss(decoder(latent.rsample()), a) + 0.1 * mean.square().mean())
""",
    "layers are trained one after another": """
layers, heads = [mlp(8, 8) for _ in range(3)], [nn.Linear(8, 1) for _ in range(3)]
optimizers = [adam(layer, head) for layer, head in zip(layers, heads)]
for step in range(N):
    a, b, _ = batch()
    for layer, head, optimizer in zip(layers, heads, optimizers):
        h = layer(a)
        update(optimizer, F.mse_loss(head(h), b))
        a = h.detach()
""",
}

FAULTY = {
    "detach in forward": """
class Cut(Model):
    def forward(self, x):
        h = self.encoder(x)
        return self.head(h.detach())  # <-


model = Cut()
optimizer = adam(model)
for _ in range(N):
    a, b, _ = batch()
    update(optimizer, F.mse_loss(model(a), b))
""",
    "data of the features": """
encoder, head = mlp(8, 6), nn.Linear(6, 1)
optimizer = adam(encoder, head)
for _ in range(N):
    a, b, _ = batch()
    features = encoder(a).data  # <-
    update(optimizer, F.mse_loss(head(features), b))
""",
    "numpy in the middle": """
encoder, head = mlp(8, 6), nn.Linear(6, 1)
optimizer = adam(encoder, head)
for _ in range(N):
    a, b, _ = batch()
    features = encoder(a).detach().numpy()  # <-
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    features = torch.from_numpy(features.astype(np.float32))
    update(optimizer, F.mse_loss(head(features), b))
""",
    "numpy in a helper": """
def scale(values):
    values = values.detach().cpu().numpy()  # <-
    return np.tanh(values)


encoder, head = mlp(8, 6), nn.Linear(6, 1)
optimizer = adam(encoder, head)
for _ in range(N):
    a, b, _ = batch()
    features = scale(encoder(a))
    features = torch.FloatTensor(features)
    out = head(features)
    update(optimizer, F.mse_loss(out, b))
""",
    "tensor of a tensor": """
encoder, head = mlp(8, 6), nn.Linear(6, 1)
optimizer = adam(encoder, head)
for _ in range(N):
    a, b, _ = batch()
    features = torch.tensor(encoder(a).tolist())  # <-
    update(optimizer, F.mse_loss(head(features), b))
""",
    "computed tensor with requires_grad": """
import warnings

warnings.simplefilter("ignore")
encoder, head = mlp(8, 6), nn.Linear(6, 1)
optimizer = adam(encoder, head)
for _ in range(N):
    a, b, _ = batch()
    features = torch.tensor(encoder(a), requires_grad=True)  # <-
    update(optimizer, F.mse_loss(head(features), b))
""",
    "no_grad around a trained encoder": """
model = Model()
optimizer = adam(model)
for _ in range(N):
    a, b, _ = batch()
    with torch.no_grad():  # <-
        h = model.encoder(a)
        h = F.relu(h)
    update(optimizer, F.mse_loss(model.head(h), b))
""",
    "no_grad as a decorator": """
class Decorated(Model):
    @torch.no_grad()  # <-
    def encode(self, x):
        return self.encoder(x)

    def forward(self, x):
        return self.head(self.encode(x))


model = Decorated()
optimizer = adam(model)
for _ in range(N):
    a, b, _ = batch()
    update(optimizer, F.mse_loss(model(a), b))
""",
    "set_grad_enabled is never switched back": """
model = Model()
optimizer = adam(model)
for _ in range(N):
    a, b, _ = batch()
    torch.set_grad_enabled(False)  # <-
    h = model.encoder(a)
    torch.set_grad_enabled(True)
    update(optimizer, F.mse_loss(model.head(h), b))
""",
    "sample instead of rsample": """
encoder, spread, decoder = mlp(8, 6), mlp(8, 6), mlp(6, 8)
optimizer = adam(encoder, spread, decoder)
for _ in range(N):
    a, _, _ = batch()
    latent = Normal(encoder(a), spread(a).exp()).sample()  # <-
    update(optimizer, F.mse_loss(decoder(latent), a))
""",
    "argmax in the middle": """
encoder, table, head = mlp(8, 6), nn.Embedding(6, 4), nn.Linear(4, 1)
optimizer = adam(encoder, table, head)
for _ in range(N):
    a, b, _ = batch()
    index = encoder(a).argmax(1)  # <-
    update(optimizer, F.mse_loss(head(table(index)), b))
""",
    "comparison as a gate": """
gate, body = mlp(8, 1), mlp(8, 1)
optimizer = adam(gate, body)
for _ in range(N):
    a, b, _ = batch()
    is_open = (gate(a).sigmoid() > 0.5).float()  # <-
    update(optimizer, F.mse_loss(is_open * body(a), b))
""",
    "hook stores detached features": """
class Extractor(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net, self.kept = net, None
        net[0].register_forward_hook(self.keep)

    def keep(self, module, args, out):
        self.kept = out.clone().detach()  # <-

    def forward(self, x):
        self.net(x)
        return self.kept


extractor, head = Extractor(mlp(8, 6)), nn.Linear(16, 1)
optimizer = adam(extractor, head)
for _ in range(N):
    a, b, _ = batch()
    update(optimizer, F.mse_loss(head(extractor(a)), b))
""",
    "Variable of data": """
encoder, head = mlp(8, 6), nn.Linear(6, 1)
optimizer = adam(encoder, head)
for _ in range(N):
    a, b, _ = batch()
    features = Variable(encoder(a).data, requires_grad=True)  # <-
    update(optimizer, F.mse_loss(head(features), b))
""",
    "all gradients end in new Variables": """
def box_loss(predicted, wanted):
    box = Variable(predicted.data, requires_grad=True)  # <-
    return (box - wanted).abs().mean()


model = mlp(8, 1)
optimizer = adam(model)
for _ in range(N):
    a, b, _ = batch()
    update(optimizer, box_loss(model(a), b))
""",
    "values are put into a new tensor": """
encoder, head = mlp(8, 6), nn.Linear(6, 1)
optimizer = adam(encoder, head)
for _ in range(N):
    a, b, _ = batch()
    h = encoder(a)
    features = torch.zeros(16, 6)
    for row in range(16):
        features[row] = h[row].detach()  # <-
    update(optimizer, F.mse_loss(head(features), b))
""",
    "items in a list": """
encoder, head = mlp(8, 1), nn.Linear(1, 1)
optimizer = adam(encoder, head)
for _ in range(N):
    a, b, _ = batch()
    scores = []
    for row in a:
        scores.append(encoder(row).item())  # <-
    scores = torch.tensor(scores).unsqueeze(1)
    update(optimizer, F.mse_loss(head(scores), b))
""",
    "cast to long": """
encoder, table, head = mlp(8, 1), nn.Embedding(10, 4), nn.Linear(4, 1)
optimizer = adam(encoder, table, head)
for _ in range(N):
    a, b, _ = batch()
    level = (encoder(a).sigmoid() * 9).long()  # <-
    update(optimizer, F.mse_loss(head(table(level[:, 0])), b))
""",
    "weight through data": """
class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 1)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x @ self.weight.data + self.bias  # <-


model = Linear()
optimizer = adam(model)
for _ in range(N):
    a, b, _ = batch()
    update(optimizer, F.mse_loss(model(a), b))
""",
    "inference_mode": """
model = Model()
optimizer = adam(model)
for _ in range(N):
    a, b, _ = batch()
    with torch.inference_mode():  # <-
        h = model.encoder(a)
    update(optimizer, F.mse_loss(model.head(h.clone()), b))
""",
    "loader in a function": """
def main():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
    model = Model()
    optimizer = adam(model)
    for a, b in loader:
        h = model.encoder(a)
        h = torch.as_tensor(h.detach().numpy())  # <-
        optimizer.zero_grad()
        F.mse_loss(model.head(h), b).backward()
        optimizer.step()


main()
""",
    "an unused part next to a part that is cut off": """
model, unused = Model(), mlp(8, 2)
optimizer = adam(model, unused)
for _ in range(2 * N):
    a, b, _ = batch()
    h = model.encoder(a).detach()  # <-
    update(optimizer, F.mse_loss(model.head(h), b))
""",
    "one optimizer for each part": """
encoder, head = mlp(8, 6), nn.Linear(6, 1)
first, second = adam(encoder), adam(head)
for _ in range(N):
    a, b, _ = batch()
    h = encoder(a)
    loss = F.mse_loss(head(Variable(h.data)), b)  # <-
    first.zero_grad()
    second.zero_grad()
    loss.backward()
    first.step()
    second.step()
""",
    "accumulation": """
model = Model()
optimizer = adam(model)
for step in range(2 * N):
    a, b, _ = batch()
    with torch.no_grad():  # <-
        h = model.encoder(a)
    (F.mse_loss(model.head(h), b) / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "cut within a submodule of a larger model": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.body = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        mask = torch.round(self.gate(x).sigmoid()).int()  # <-
        return self.body(x) * mask + x


model = nn.Sequential(Block(), nn.Linear(8, 1))
optimizer = adam(model)
for _ in range(N):
    a, b, _ = batch()
    update(optimizer, F.mse_loss(model(a), b))
""",
    "top k": """
scorer, head = nn.Linear(8, 8), nn.Linear(8, 1)
optimizer = adam(scorer, head)
for _ in range(N):
    a, b, _ = batch()
    index = scorer(a).topk(3).indices  # <-
    chosen = torch.zeros_like(a).scatter(1, index, a.gather(1, index))
    update(optimizer, F.mse_loss(head(chosen), b))
""",
    "numpy through the CPU in two functions": """
def to_numpy(t):
    return t.detach().cpu().numpy()  # <-


def normalise(features):
    values = to_numpy(features)
    values = (values - values.mean(0)) / (values.std(0) + 1e-6)
    return torch.from_numpy(values)


encoder, head = mlp(8, 6), nn.Linear(6, 1)
optimizer = adam(encoder, head)
for _ in range(N):
    a, b, _ = batch()
    update(optimizer, F.mse_loss(head(normalise(encoder(a))), b))
""",
    "one-hot of a categorical sample": """
encoder, head = mlp(8, 4), nn.Linear(4, 1)
optimizer = adam(encoder, head)
for _ in range(N):
    a, b, _ = batch()
    kind = Categorical(logits=encoder(a)).sample()  # <-
    update(optimizer, F.mse_loss(head(F.one_hot(kind, 4).float()), b))
""",
    "forward in the closure of a step": """
model = Model()
optimizer = adam(model)


def closure():
    optimizer.zero_grad()
    a, b, _ = batch()
    h = model.encoder(a).detach()  # <-
    loss = F.mse_loss(model.head(h), b)
    loss.backward()
    return loss


for _ in range(N):
    optimizer.step(closure)
""",
    "trainer object": """
class Trainer:
    def __init__(self):
        self.encoder, self.head = mlp(8, 6), nn.Linear(6, 1)
        self.optimizer = adam(self.encoder, self.head)

    def encode(self, a):
        return self.encoder(a).cpu().detach()  # <-

    def run(self):
        for _ in range(N):
            a, b, _ = batch()
            update(self.optimizer, F.mse_loss(self.head(self.encode(a)), b))


Trainer().run()
""",
}
SAMPLED = {
    "a variational autoencoder": """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.decoder = nn.Linear(8, 16), mlp(3, 8)
        self.mean, self.spread = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, a):
        h = F.relu(self.body(a))
        posterior = Normal(self.mean(h), self.spread(h).exp())
        z = posterior.sample()  # <-
        return self.decoder(z), posterior


model = VAE()
optimizer = adam(model)
for _ in range(N):
    a, _, _ = batch()
    answer, posterior = model(a)
    kl = torch.distributions.kl_divergence(posterior, Normal(torch.zeros(3), torch.ones(3))).sum(1).mean()
    update(optimizer, F.mse_loss(answer, a) + 0.1 * kl)
""",
    "an information bottleneck, independent dimensions": """
encoder, head = mlp(8, 6), mlp(3, 3)
optimizer = adam(encoder, head)
for _ in range(N):
    a, _, kinds = batch()
    mean, log_var = encoder(a).chunk(2, 1)
    code = torch.distributions.Independent(Normal(mean, (0.5 * log_var).exp()), 1)
    drawn = code.sample((4,))  # <-
    bottleneck = 0.5 * (log_var.exp() + mean.square() - 1 - log_var).sum(1).mean()
    losses = [F.cross_entropy(head(each), kinds) for each in drawn]
    update(optimizer, sum(losses) / 4 + 1e-3 * bottleneck)
""",
    "a policy that a learned model of the reward should improve": """
policy, value = mlp(8, 4), mlp(10, 1)
p_step, v_step = adam(policy), adam(value)
for _ in range(N):
    a, _, _ = batch()
    mean, spread = policy(a).chunk(2, 1)
    choice = Normal(mean, spread.exp())
    action = choice.sample()  # <-
    update(p_step, -value(torch.cat([a, action], 1)).mean() - 0.01 * choice.entropy().mean())
    reward = -(action - 1).square().sum(1, keepdim=True)
    update(v_step, F.mse_loss(value(torch.cat([a, action.detach()], 1)), reward))
""",
}
NOT_CUT_OFF = {
    "rsample for training, sample to look at": """
encoder, decoder = mlp(8, 6), mlp(3, 8)
optimizer = adam(encoder, decoder)
for _ in range(N):
    a, _, _ = batch()
    mean, spread = encoder(a).chunk(2, 1)
    code = Normal(mean, spread.exp())
    shown = decoder(code.sample())
    update(optimizer, F.mse_loss(decoder(code.rsample()), a) + 0.1 * mean.square().mean())
""",
    "policy gradients with a critic of state and action": """
policy, critic = mlp(8, 4), mlp(10, 1)
optimizer = adam(policy, critic)
for _ in range(N):
    a, _, _ = batch()
    mean, spread = policy(a).chunk(2, 1)
    choice = Normal(mean, spread.exp())
    action = choice.sample()
    reward = -(action - 1).square().sum(1, keepdim=True)
    value = critic(torch.cat([a, action], 1))
    gain = -(choice.log_prob(action).sum(1, keepdim=True) * value.detach()).mean()
    update(optimizer, gain + F.mse_loss(value, reward))
""",
    "the same with a hand-written probability": """
policy, critic = mlp(8, 2), mlp(10, 1)
spread = nn.Parameter(torch.zeros(2))
optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters(), spread], lr=0.001)
for _ in range(N):
    a, _, _ = batch()
    mean = policy(a)
    action = torch.distributions.Normal(mean, spread.exp()).sample()
    reward = -(action - 1).square().sum(1, keepdim=True)
    value = critic(torch.cat([a, action], 1))
    log_prob = -0.5 * ((action - mean) / spread.exp()).square() - spread
    update(optimizer, -(log_prob * value.detach()).mean() + F.mse_loss(value, reward))
""",
    "a target of sampled actions, detached": """
policy, critic = mlp(8, 4), mlp(10, 1)
optimizer = adam(policy, critic)
for _ in range(N):
    a, b, _ = batch()
    mean, spread = policy(a).chunk(2, 1)
    choice = Normal(mean, spread.exp())
    target = b + 0.9 * critic(torch.cat([a, choice.sample()], 1)).detach()
    value = F.mse_loss(critic(torch.cat([a, torch.zeros(16, 2)], 1)), target)
    update(optimizer, value - critic(torch.cat([a, choice.rsample()], 1)).mean())
""",
    "a sample that no gradient should pass, on purpose": """
encoder, decoder, head = mlp(8, 6), mlp(3, 8), nn.Linear(6, 1)
optimizer = adam(encoder, decoder, head)
for _ in range(N):
    a, b, _ = batch()
    hidden = encoder(a)
    mean, spread = hidden.chunk(2, 1)
    with torch.no_grad():
        z = Normal(mean, spread.exp()).sample()
    update(optimizer, F.mse_loss(decoder(z), a) + F.mse_loss(head(hidden), b))
""",
    "noise without trained parameters": """
model = Model()
optimizer = adam(model)
for _ in range(N):
    a, b, _ = batch()
    a = Normal(a, 0.1).sample() + torch.distributions.Normal(0.0, 0.1).sample(a.shape)
    update(optimizer, F.mse_loss(model(a), b))
""",
    "wake and sleep": """
encoder, decoder = mlp(8, 6), mlp(3, 8)
e_step, d_step = adam(encoder), adam(decoder)
for _ in range(N):
    a, _, _ = batch()
    mean, spread = encoder(a).chunk(2, 1)
    update(d_step, -Normal(decoder(Normal(mean, spread.exp()).sample()), 1.0).log_prob(a).mean())
    z = torch.randn(16, 3)
    dream = Normal(decoder(z), 1.0).sample()
    mean, spread = encoder(dream).chunk(2, 1)
    update(e_step, -Normal(mean, spread.exp()).log_prob(z).mean())
""",
    "the score function instead of rsample": """
encoder, decoder = mlp(8, 6), mlp(3, 8)
optimizer = adam(encoder, decoder)
for _ in range(N):
    a, _, _ = batch()
    mean, spread = encoder(a).chunk(2, 1)
    code = Normal(mean, spread.exp())
    z = code.sample()
    error = (decoder(z) - a).square().mean(1)
    score = code.log_prob(z).sum(1)
    update(optimizer, error.mean() + (score * error.detach()).mean() + 0.1 * mean.square().mean())
""",
}
SCRIPT = """
import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.real, self.kind = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, x):
        h = self.body(x).relu()
        return self.real(h), self.kind(h)


critic = Critic()
first = torch.optim.Adam(critic.parameters(), lr=1e-3)
second = torch.optim.Adam(critic.parameters(), lr=1e-3)
for _ in range(80):
    x, kinds = torch.randn(32, 4), torch.randint(3, (32,))
    first.zero_grad()
    critic(x)[0].square().mean().backward()
    first.step()
"""
SECOND = """
    second.zero_grad()
    nn.functional.cross_entropy(critic(x)[1], kinds).backward()
    second.step()
"""

REPLACED = """
import torch
from torch import nn


class Once(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


net = nn.Linear(4, 1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
net = nn.Linear(4, 1)
for _ in range(80):
    optimizer.zero_grad()
    Once(net)(torch.randn(32, 4)).square().mean().backward()
    optimizer.step()
"""
SCHEDULE_ONLY = """
import torch
from torch import nn

net = nn.Linear(4, 1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
rates = []
for _ in range(100):
    optimizer.step()
    schedule.step()
    rates.append(schedule.get_last_lr())
"""


def messages(ran) -> list[str]:
    return [found.message for found in ran.findings if found.code == "GRD005"]


@pytest.mark.parametrize("script", SAMPLED.values(), ids=SAMPLED)
def test_sample_between_two_networks_is_reported(run_reports, script):
    message = run_reports(HEAD + script.replace("# <-", "# <- GRD005")).findings[0].message
    assert message.startswith("`sample()` cuts the graph: what is computed from the sample gives no gradient to")


@pytest.mark.parametrize("script", NOT_CUT_OFF.values(), ids=NOT_CUT_OFF)
def test_samples_that_may_cut_the_graph_are_not_reported(run_is_clean, script):
    run_is_clean(HEAD + script)


def test_parameters_of_another_optimizer_are_not_reported(run):
    assert not messages(run(SCRIPT + SECOND))


def test_parameters_without_gradient_are_reported(run):
    (message,) = messages(run(SCRIPT))
    assert message.startswith("2 of 6 parameters of Adam")
    assert "kind.bias, kind.weight" in message


def test_optimizer_without_any_gradient_is_reported(run):
    (message,) = messages(run(REPLACED))
    assert message.startswith("All 2 parameters of Adam")
    assert message.endswith("So its steps do nothing.")


NEW_HEAD = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.classifier = nn.Linear(8, 16), nn.Linear(16, 3)
    def forward(self, x):
        return self.classifier(torch.relu(self.features(x)))
model = Net()
model.features.requires_grad_(False)
model.NAME = nn.Linear(16, 3)
optimizer = torch.optim.Adam(model.NAME.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(8, 8)), torch.randint(3, (8,))).backward()
    optimizer.step()
"""


def test_new_head_under_a_name_that_forward_does_not_use_is_a_warning(run):
    assert warnings_of(run(NEW_HEAD.replace("NAME", "fc")))
    assert not warnings_of(run(NEW_HEAD.replace("NAME", "classifier")))


def test_optimizer_whose_part_is_trained_later_is_accepted(run):
    script = """
import torch
from torch import nn
first, second = nn.Linear(8, 1), nn.Linear(8, 1)
optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (first, second)]
for step in range(60):
    x = torch.randn(8, 8)
    loss = first(x).square().mean()
    if step > 40:
        loss = loss + second(x).square().mean()
    for each in optimizers:
        each.zero_grad()
    loss.backward()
    for each in optimizers:
        each.step()
"""
    assert not warnings_of(run(script))


def test_optimizer_stepped_to_plot_its_schedule_is_not_reported(run):
    assert not messages(run(SCHEDULE_ONLY))


def test_cleared_gradients_are_reported_by_GRD002_only(run):
    script = """
import torch
from torch import nn
model, x = nn.Linear(3, 1), torch.randn(64, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(120):
    model(x).square().mean().backward()
    optimizer.zero_grad()
    optimizer.step()
"""
    assert {found.code for found in run(script).findings} == {"GRD002"}


def warnings_of(ran) -> list[tuple[str, int | None]]:
    return [
        (each.code, each.location.line if each.location else None)
        for each in ran.findings
        if each.code in ("GRD005", "LOS009") and each.severity is not Severity.NOTE
    ]


def marked_line(script: str) -> int:
    (line,) = [number for number, text in enumerate(script.split("\n"), start=1) if "# <-" in text]
    return line


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_correct_programs_are_accepted(run, script):
    assert not warnings_of(run(HEAD + script))


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_cut_graphs_are_reported_at_the_line_that_cuts(run, script):
    assert warnings_of(run(HEAD + script)) == [("GRD005", marked_line(HEAD + script))]


LINT_FINDS = (
    "detach in forward",
    "data of the features",
    "tensor of a tensor",
    "Variable of data",
    "loader in a function",
    "an unused part next to a part that is cut off",
    "one optimizer for each part",
    "numpy through the CPU in two functions",
    "forward in the closure of a step",
    "trainer object",
)
"""The other cuts show only in a run, or the source does not show that the part should learn."""
LINT_FAULTY = {
    "a generator whose samples are detached for both": """
generator, critic = mlp(4, 8), mlp(8, 1)
g_step, d_step = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
for step in range(N):
    fake = generator(torch.randn(16, 4)).detach()  # <-
    d_step.zero_grad()
    (F.softplus(-critic(batch()[0])).mean() + F.softplus(critic(fake.detach())).mean()).backward()
    d_step.step()
    g_step.zero_grad()
    F.softplus(-critic(fake)).mean().backward()  # <- LOS009
    g_step.step()
""",
    "a loss as a number": """
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.first, self.second = mlp(8, 6), nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x):
        h = self.body(x)
        return self.first(h), self.second(h)

model = Two()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(N):
    a, b, _ = batch()
    one, two = model(a)
    loss = F.mse_loss(one, b) + 0.1 * F.mse_loss(two, b).item()  # <- LOS009 # <-
    update(optimizer, loss)
""",
}


def with_plain_optimizers(script: str) -> str:
    """Write out what `adam` makes: the linter does not follow its list of modules."""

    def parameters(call: re.Match[str]) -> str:
        names = [each.strip() for each in call[1].split(",") if "=" not in each]
        return f"torch.optim.Adam([{', '.join(f'*{name}.parameters()' for name in names)}])"

    return re.sub(r"(?<!def )\badam\(([^()]*)\)", parameters, script)


@pytest.mark.parametrize(
    "script", [*map(FAULTY.get, LINT_FINDS), *LINT_FAULTY.values()], ids=[*LINT_FINDS, *LINT_FAULTY]
)
def test_lint_reports_the_line_that_cuts(lint_reports, script):
    lint_reports(with_plain_optimizers(HEAD + script).replace("# <-\n", "# <- GRD005\n"))


@pytest.mark.parametrize("script", [*CORRECT.values(), *NOT_CUT_OFF.values()], ids=[*CORRECT, *NOT_CUT_OFF])
def test_lint_accepts_cuts_on_purpose(lint_is_clean, script):
    lint_is_clean(with_plain_optimizers(HEAD + script))


OTHER_HEAD = """
import copy
import torch
import torch.nn.functional as F
from torch import nn

x, y = torch.randn(256, 8), torch.randn(256, 1)
def mlp(*sizes):
    return nn.Sequential(nn.Linear(sizes[0], 16), nn.ReLU(), nn.Linear(16, sizes[-1]))
"""
OTHER = {
    "the target network": """
q, target = mlp(8, 2), mlp(8, 2)
target.load_state_dict(q.state_dict())
optimizer = torch.optim.Adam(target.parameters(), lr=1e-3)
for step in range(50):
    with torch.no_grad():
        goal = y[:32, 0] + 0.99 * target(x[32:64]).max(1).values
    loss = F.smooth_l1_loss(q(x[:32])[:, 0], goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- GRD005
""",
    "the teacher, in a class": """
class Distiller:
    def __init__(self, teacher, student):
        self.teacher, self.student = teacher, student
        self.optimizer = torch.optim.SGD(self.teacher.parameters(), lr=0.1)
    def step(self, a):
        with torch.no_grad():
            soft = self.teacher(a)
        loss = F.mse_loss(self.student(a), soft)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()  # <- GRD005
        return loss.item()
distiller = Distiller(mlp(8, 4), mlp(8, 4))
for rows in torch.randperm(256).split(32):
    distiller.step(x[rows])
""",
    "a reference model of preferences": """
policy = mlp(8, 4)
reference = copy.deepcopy(policy)
optimizer = torch.optim.AdamW(reference.parameters())
for rows in torch.randperm(256).split(32):
    chosen = policy(x[rows]).log_softmax(-1)[:, 0]
    with torch.no_grad():
        base = reference(x[rows]).log_softmax(-1)[:, 0]
    optimizer.zero_grad()
    (-F.logsigmoid(0.1 * (chosen - base)).mean()).backward()
    optimizer.step()  # <- GRD005
""",
}
OTHER_FINE = {
    "the policy is called without gradients in the rollout, too": """
policy, value = mlp(8, 2), mlp(8, 1)
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()])
for step in range(20):
    with torch.no_grad():
        actions = policy(x).argmax(1)
    logits = policy(x)
    loss = F.cross_entropy(logits, actions) + F.mse_loss(value(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "one optimizer for each of two phases": """
body, head = mlp(8, 8), nn.Linear(8, 1)
first, second = torch.optim.Adam(body.parameters()), torch.optim.Adam(head.parameters())
for step in range(20):
    first.zero_grad()
    F.mse_loss(body(x), x).backward()
    first.step()
for step in range(20):
    with torch.no_grad():
        features = body(x)
    second.zero_grad()
    F.mse_loss(head(features), y).backward()
    second.step()
""",
    "evolution: the weights are set by hand": """
parent, child = mlp(8, 1), mlp(8, 1)
optimizer = torch.optim.SGD(parent.parameters(), lr=0.1)
probe = nn.Linear(8, 1)
tuner = torch.optim.SGD(probe.parameters(), lr=0.1)
for step in range(20):
    with torch.no_grad():
        base = F.mse_loss(parent(x), y)
    for p in parent.parameters():
        p.grad = torch.randn_like(p) * base
    optimizer.step()
    tuner.zero_grad()
    F.mse_loss(probe(x), y).backward()
    tuner.step()
""",
    "a loss of the inputs, with gradients set by hand": """
victim, surrogate = mlp(8, 2), mlp(8, 2)
optimizer = torch.optim.SGD(surrogate.parameters(), lr=0.1)
for step in range(20):
    labels = victim(x).argmax(1)
    optimizer.zero_grad()
    F.cross_entropy(surrogate(x), labels).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", OTHER)
def test_lint_reports_an_optimizer_of_another_model(lint_reports, name):
    lint_reports(OTHER_HEAD + OTHER[name])


@pytest.mark.parametrize("name", OTHER_FINE)
def test_lint_accepts_optimizers_of_trained_models(lint_is_clean, name):
    lint_is_clean(OTHER_HEAD + OTHER_FINE[name])
