"""GRD001: gradients that the loss of one optimizer leaves in the parameters of another."""

import pytest

HEAD = """
import torch
from torch import nn
real = torch.randn(256, 6) + 1
generator = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 6))
critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
bce = nn.BCEWithLogitsLoss()
one, zero = torch.ones(32, 1), torch.zeros(32, 1)
def batches():
    for _ in range(6):
        yield from real[torch.randperm(256)].split(32)
def critic_loss(batch):
    return bce(critic(batch), one) + bce(critic(generator(torch.randn(32, 3)).detach()), zero)
def generator_loss():
    return bce(critic(generator(torch.randn(32, 3))), one)
"""
FAULTY = {
    "cleared before the generator's loss only": """
for batch in batches():
    critic_loss(batch).backward()
    for_critic.step()  # <- GRD001
    for_critic.zero_grad()
    for_generator.zero_grad()
    generator_loss().backward()
    for_generator.step()
""",
    "the generator first": """
for batch in batches():
    for_critic.zero_grad()
    for_generator.zero_grad()
    generator_loss().backward()
    for_generator.step()
    critic_loss(batch).backward()
    for_critic.step()  # <- GRD001
""",
    "samples that are not detached, cleared before the critic's loss only": """
def attached_loss(batch):
    return critic(generator(torch.randn(32, 3))).mean() - critic(batch).mean()
for batch in batches():
    for_generator.zero_grad()
    for _ in range(2):
        for_critic.zero_grad()
        attached_loss(batch).backward()  # <- GRD001
        for_critic.step()
        with torch.no_grad():
            for p in critic.parameters():
                p.clamp_(-0.1, 0.1)
    generator_loss().backward()
    for_generator.step()
""",
    "samples that are not detached, cleared after the steps": """
class Gan:
    def train(self, batch):
        fake = generator(torch.randn(32, 3))
        loss = bce(critic(batch), one) + bce(critic(fake), zero)
        loss.backward()  # <- GRD001
        for_critic.step()
        critic.zero_grad()
        generator_loss().backward()
        for_generator.step()
        generator.zero_grad()
        critic.zero_grad()
gan = Gan()
for batch in batches():
    gan.train(batch)
""",
}
CORRECT = {
    "cleared before each loss": """
for batch in batches():
    for_critic.zero_grad()
    critic_loss(batch).backward()
    for_critic.step()
    for_generator.zero_grad()
    generator_loss().backward()
    for_generator.step()
""",
    "samples that are not detached, cleared before the generator's loss": """
for batch in batches():
    for_critic.zero_grad()
    (critic(generator(torch.randn(32, 3))).mean() - critic(batch).mean()).backward()
    for_critic.step()
    for_generator.zero_grad()
    generator_loss().backward()
    for_generator.step()
""",
    "samples that are not detached, cleared by hand": """
for batch in batches():
    for_critic.zero_grad()
    (critic(generator(torch.randn(32, 3))).mean() - critic(batch).mean()).backward()
    for_critic.step()
    for p in generator.parameters():
        p.grad.zero_()
    generator_loss().backward()
    for_generator.step()
""",
    "an encoder that steps for every second batch, and its head for each": """
encoder, head = nn.Linear(6, 16), nn.Linear(16, 1)
slow, fast = torch.optim.SGD(encoder.parameters(), lr=0.01), torch.optim.SGD(head.parameters(), lr=0.01)
for i, batch in enumerate(batches()):
    (head(encoder(batch).relu()) - batch[:, :1]).pow(2).mean().backward()
    if i % 2:
        slow.step()
        slow.zero_grad()
    fast.step()
    fast.zero_grad()
""",
    "a generator that is trained on both losses": """
encoder = nn.Linear(6, 3)
for_encoder = torch.optim.SGD(encoder.parameters(), lr=0.01)
for batch in batches():
    for_encoder.zero_grad()
    for_generator.zero_grad()
    z = torch.randn(len(batch), 3)
    fake, again = generator(z), generator(encoder(batch))
    ((again - batch).abs().mean() + bce(critic(fake), one[:len(batch)])).backward(retain_graph=True)
    for_encoder.step()
    (encoder(fake) - z).pow(2).mean().backward()
    for_generator.step()
    for_critic.zero_grad()
    critic_loss(batch).backward()
    for_critic.step()
""",
    "an encoder that actor and critic share": """
encoder, actor, value = nn.Linear(6, 16), nn.Linear(16, 2), nn.Linear(18, 1)
for_actor = torch.optim.SGD([*encoder.parameters(), *actor.parameters()], lr=0.01)
for_value = torch.optim.SGD(value.parameters(), lr=0.01)
for batch in batches():
    for_actor.zero_grad()
    for_value.zero_grad()
    code = encoder(batch).relu()
    (value(torch.cat([code, torch.ones(32, 2)], 1)) - batch[:, :1]).pow(2).mean().backward()
    for_value.step()
    code = encoder(batch).relu()
    (-value(torch.cat([code, actor(code)], 1))).mean().backward()
    for_actor.step()
""",
    "cleared by hand": """
for batch in batches():
    for p in critic.parameters():
        p.grad = None
    critic_loss(batch).backward()
    for_critic.step()
    for p in generator.parameters():
        p.grad = None
    generator_loss().backward()
    for_generator.step()
""",
    "an encoder that two heads share, in an optimizer of its own": """
encoder, first, second = nn.Linear(6, 16), nn.Linear(16, 1), nn.Linear(16, 1)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (encoder, first, second)]
for batch in batches():
    for each in optimizers:
        each.zero_grad()
    (first(encoder(batch).relu()) - batch[:, :1]).pow(2).mean().backward()
    optimizers[1].step()
    (second(encoder(batch).relu()) - batch[:, 1:2]).pow(2).mean().backward()
    optimizers[2].step()
    optimizers[0].step()
""",
    "an autoencoder with an optimizer for each half": """
encoder, decoder = nn.Linear(6, 3), nn.Linear(3, 6)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (encoder, decoder)]
for batch in batches():
    for each in optimizers:
        each.zero_grad()
    (decoder(encoder(batch)) - batch).pow(2).mean().backward()
    for each in optimizers:
        each.step()
""",
    "two losses, then all steps": """
for batch in batches():
    for_critic.zero_grad()
    for_generator.zero_grad()
    (generator_loss() * 0.1).backward()
    critic_loss(batch).backward()
    for_generator.step()
    for_critic.step()
""",
    "a critic that does not get the generator's gradients": """
for batch in batches():
    for_critic.zero_grad()
    critic_loss(batch).backward()
    for_critic.step()
    critic.requires_grad_(False)
    for_generator.zero_grad()
    generator_loss().backward()
    for_generator.step()
    critic.requires_grad_(True)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_step(run_reports, script: str):
    (found,) = run_reports(HEAD + script).findings
    assert "with which another optimizer has stepped" in found.message
    assert str(found.severity) == "warning"


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(HEAD + script)


def test_lint_accepts_a_generator_that_is_trained_on_both_losses(lint_is_clean):
    lint_is_clean(HEAD + CORRECT["a generator that is trained on both losses"])


def test_lint_reports_the_generator_first(lint_reports):
    lint_reports(HEAD + FAULTY["the generator first"], fixes=False)
