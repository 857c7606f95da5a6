"""LOS011: divergences with the wrong sign."""

import pytest

FAULTY = {
    "returned by a loss function": """
def loss_fn(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())  # <- LOS011
    return bce + kld
""",
    "subtracted": """
def vae_loss(x, out, mean, log_var):
    kl = 0.5 * (mean ** 2 + torch.exp(log_var) - 1 - log_var).sum(1).mean()  # <- LOS011
    loss = F.mse_loss(out, x) - kl
    return loss
""",
    "in the loop, with a weight": """
for x in loader:
    out, mu, logvar = model(x)
    rec = F.mse_loss(out, x)
    kl = torch.mean(0.5 * torch.sum(1 + logvar - mu ** 2 - logvar.exp(), dim=1))  # <- LOS011
    loss = rec + beta * kl
    loss.backward()
""",
}

CORRECT = {
    "a weight after the negative number": """
def loss_function(recon_x, x, mu, log_var, beta):
    bce = F.binary_cross_entropy(recon_x, x)
    kld = -0.5 * beta * torch.sum(1 + log_var - mu.pow(2) - log_var.exp())
    return bce + kld
""",
    "the divergence of a second level": """
def loss_function(recons, x, z, mu, log_var):
    recons_loss = F.mse_loss(recons, x)
    prior = torch.mean(-0.5 * torch.sum(1 + log_var - (z - mu) ** 2 - log_var.exp(), dim=1))
    kld_loss = -(prior - 1)
    return recons_loss + kld_loss
""",
    "the usual form": """
def loss_fn(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld
""",
    "subtracted": """
def loss_fn(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
""",
    "the positive form": """
def loss_fn(recon, x, mu, logvar):
    kl = 0.5 * torch.sum(mu.pow(2) + logvar.exp() - 1 - logvar)
    return F.mse_loss(recon, x, reduction="sum") + kl
""",
    "minus the lower bound": """
def elbo_loss(recon, x, mu, logvar):
    log_likelihood = -F.mse_loss(recon, x, reduction="sum")
    elbo = log_likelihood + 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return -elbo
""",
    "minus the sum": """
for x in loader:
    out, mu, logvar = model(x)
    kl = 0.5 * torch.sum(1 + logvar - mu ** 2 - logvar.exp())
    loss = -(log_recon(out, x) + kl)
    loss.backward()
""",
    "with a factor of -1/2 in the mean": """
def loss_fn(recon, x, mu, log_sigma):
    kl = torch.mean(-0.5 * torch.sum(1 + log_sigma - mu ** 2 - log_sigma.exp(), dim=1), dim=0)
    loss = F.mse_loss(recon, x) + 0.1 * kl
    return {"loss": loss, "kl": -kl}
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)
