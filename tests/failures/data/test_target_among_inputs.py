"""DAT018: a target that is one of the inputs."""

import pytest

HEAD = """
#TABLE
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
series = torch.sin(torch.arange(300) * 0.2) + 0.2 * torch.randn(300)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def mlp(inputs, outputs=1):
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def train(model, x, y, loss=F.mse_loss, epochs=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        for rows in torch.randperm(len(x)).split(16):
            optimizer.zero_grad()
            loss(model(x[rows]), y[rows]).backward()#MARK
            optimizer.step()
"""

FAULTY = {
    "the last step of a window": """
x, y = series.unfold(0, 10, 1)[:200], series[9:209, None]
train(mlp(10), x, y)
""",
    "windows of a recurrent network": """
x, y = series.unfold(0, 10, 1)[:200].unsqueeze(2), series[9:209, None]
train(Recurrent(), x, y)
""",
    "the column of the target, standardised": """
table = torch.randn(200, 5) * 3 + 20
y = table[:, 2:3].clone()
train(mlp(5), (table - table.mean(0)) / table.std(0), y / 100)
""",
    "the label among the features": """
x = torch.randn(200, 5)
y = (x[:, 0] + x[:, 1] > 0).long()
train(mlp(6, 2), torch.cat([x, y[:, None].float()], 1), y, F.cross_entropy)
""",
}

CORRECT = {
    "the next step": """
train(mlp(10), series.unfold(0, 10, 1)[:200], series[10:210, None])
""",
    "an autoencoder": """
x = torch.randn(160, 5)
train(mlp(5, 5), x, x)
""",
    "one feature": """
x = torch.randn(160, 1)
train(mlp(1), x, 2 * x + 1)
""",
    "a made-up table": """
x = torch.randn(160, 4)
train(mlp(4), x, 5 * x[:, :1])
""",
    "a memory task": """
x = torch.randn(160, 10, 1)
train(Recurrent(), x, x[:, 0])
""",
    "a truth table": """
x = torch.tensor([[0.0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]]).repeat(40, 1)
train(mlp(3), x, x[:, :1], F.binary_cross_entropy_with_logits)
""",
    "a feature that predicts well": """
x = torch.randn(160, 5)
train(mlp(5), x, x[:, :1] + 0.01 * torch.randn(160, 1))
""",
    "all features are the target": """
y = torch.randn(160, 1)
train(mlp(3), y.repeat(1, 3), y)
""",
    "a constant target": """
train(mlp(3), torch.cat([torch.randn(160, 2), torch.ones(160, 1)], 1), torch.ones(160, 1))
""",
}

HEAD_FAULTY = HEAD.replace("#MARK", "  # <- DAT018").replace("#TABLE", "from csv import reader; import csv; csv.reader")


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD_FAULTY + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD.replace("#MARK", "") + script)
