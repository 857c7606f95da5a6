"""Ignite: a process function with two optimizers, bf16 autocast and clipping; a stream of samples with epoch_length."""

import torch
from ignite.engine import Engine, Events
from ignite.metrics import RunningAverage
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
data = torch.randn(320, 2) * 0.3 + 1
loader = DataLoader(data, 32, shuffle=True)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizers = [torch.optim.Adam(part.parameters(), 1e-3, (0.5, 0.9)) for part in (generator, critic)]


def loss(scores, real):
    return nn.functional.binary_cross_entropy_with_logits(scores.float(), torch.full((len(scores), 1), float(real)))


def update(engine, real):
    with torch.autocast("cpu", torch.bfloat16):
        fake = generator(torch.randn(len(real), 4))
        of_critic = (loss(critic(real), True) + loss(critic(fake.detach()), False)) / 2
    optimizers[1].zero_grad()
    of_critic.backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
    optimizers[1].step()
    with torch.autocast("cpu", torch.bfloat16):
        of_generator = loss(critic(fake), True)
    optimizers[0].zero_grad()
    of_generator.backward()
    optimizers[0].step()
    return {"critic": of_critic.item(), "generator": of_generator.item()}


trainer = Engine(update)
for name in ("critic", "generator"):
    RunningAverage(output_transform=lambda output, name=name: output[name]).attach(trainer, name)
kept = []


@trainer.on(Events.ITERATION_COMPLETED(every=8))
def sample(engine):
    generator.eval()
    with torch.no_grad():
        kept.append(generator(torch.zeros(4, 4)).mean().item())
    generator.train()


trainer.run(loader, max_epochs=5, epoch_length=8)
print(trainer.state.metrics, kept[-1])
