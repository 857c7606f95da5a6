"""OPT009: tied weights that come apart."""

import pytest

HEAD = """
import torch
from torch import nn

encoder, decoder = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
decoder.weight = encoder.weight


def train():
    optimizer = torch.optim.SGD({*encoder.parameters(), *decoder.parameters()}, lr=0.01)
    for step in range(4):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(decoder(torch.relu(encoder(x))), x).backward()
        optimizer.step()
"""

FAULTY = {
    "the second name": """
decoder.weight = nn.Parameter(torch.randn(8, 8))  # <- OPT009
train()
""",
}

CORRECT = {
    "in place": """
nn.init.normal_(encoder.weight)
train()
""",
    "a copy on purpose": """
decoder.weight = nn.Parameter(encoder.weight.detach().clone())
train()
""",
    "tied again": """
encoder.weight = nn.Parameter(torch.randn(8, 8))
decoder.weight = encoder.weight
train()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
