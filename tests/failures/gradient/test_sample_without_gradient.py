"""GRD019: samples that pass no gradient."""

import pytest

FAULTY = {
    "of a method": """
class VAE(nn.Module):
    def posterior(self, x):
        h = self.body(x)
        return Normal(self.mu(h), self.std(h).exp())
    def forward(self, x):
        q = self.posterior(x)
        z = q.sample()  # <- GRD019
        return self.decoder(z), q
""",
    "in forward": """
class VAE(nn.Module):
    def forward(self, x):
        mu = self.mu(x)
        q = Normal(mu, torch.exp(self.log_std(x)))
        z = q.sample()  # <- GRD019
        return self.decoder(z)
""",
    "passed at once": """
class VAE(nn.Module):
    def forward(self, x):
        mu, std = self.encode(x)
        return self.decode(torch.distributions.Normal(mu, std).sample())  # <- GRD019
""",
}

CORRECT = {
    "a policy": """
class Policy(nn.Module):
    def forward(self, x):
        dist = Normal(self.mu(x), self.std(x))
        action = dist.sample()
        return self.critic(action), dist.log_prob(action)
""",
    "a fixed distribution": """
class GAN(nn.Module):
    def forward(self, n):
        z = Normal(torch.zeros(8), torch.ones(8)).sample((n,))
        return self.generator(z)
""",
    "without gradients": """
class VAE(nn.Module):
    @torch.no_grad()
    def generate(self, x):
        z = Normal(self.mu(x), self.std(x)).sample()
        return self.decoder(z)
""",
    "no reparametrisation exists": """
class Discrete(nn.Module):
    def forward(self, x):
        z = Categorical(logits=self.encoder(x)).sample()
        return self.embedding(z)
""",
    "the sample is the output": """
class Head(nn.Module):
    def forward(self, x):
        return Normal(self.mu(x), self.std(x)).sample()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)
