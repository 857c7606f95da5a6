"""DAT042: noise that is drawn once for all steps."""

import pytest

SCRIPT = """
import torch
from torch import nn
def train(G, critic, loader, opt_g, opt_d):
    {before}
    for real in loader:
        {within}
        fake = G({noise}){mark}
        opt_d.zero_grad()
        (critic(fake.detach()).mean() - critic(real).mean()).backward()
        opt_d.step()
        opt_g.zero_grad()
        (-critic(fake).mean()).backward()
        opt_g.step()
        {after}
"""


def script(before="pass", within="pass", noise="z", after="pass", mark=""):
    return SCRIPT.format(before=before, within=within, noise=noise, after=after, mark=mark)


FAULTY = {
    "drawn before the loop": script(before="z = torch.randn(64, 16)", mark="  # <- DAT042"),
    "uniform": script(before="noise = torch.rand(64, 16)", noise="noise", mark="  # <- DAT042"),
}
CORRECT = {
    "drawn in the loop": script(within="z = torch.randn(len(real), 16)"),
    "overwritten in place": script(before="z = torch.randn(64, 16)", within="z.normal_()"),
    "to look at the progress": script(
        before="z0 = torch.randn(64, 16)",
        within="z = torch.randn(64, 16)",
        after="if len(real) < 64:\n            show(G(z0))",
    ),
    "fixed noise, without gradients": script(
        before="z0 = torch.randn(64, 16)",
        within="z = torch.randn(64, 16)",
        after="with torch.no_grad():\n            show(G(z0))",
    ),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_noise_of_all_steps(lint_reports, script):
    lint_reports(script, fixes=False)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_noise_of_each_step(lint_is_clean, script):
    lint_is_clean(script, "DAT042")
