"""MDL035: the final state of the first of several recurrent layers."""

import pytest

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, size=16, layers={layers}):
        super().__init__()
        self.rnn = {rnn}
        self.fc = nn.Linear(size, 2)

    def forward(self, x):
        {body}

net = Net()
print(net(torch.randn(4, 7, 3)).shape)
"""


def code(rnn: str, body: str, layers: int = 2) -> str:
    return CODE.format(rnn=rnn, body=body.replace("\n", "\n        "), layers=layers)


FAULTY = {
    "an LSTM": code(
        "nn.LSTM(3, size, num_layers=2, batch_first=True)", "_, (h, c) = self.rnn(x)\nreturn self.fc(h[0])  # <- MDL035"
    ),
    "a GRU": code("nn.GRU(3, size, 3, batch_first=True)", "out, h = self.rnn(x)\nreturn self.fc(h[0])  # <- MDL035"),
    "several indices": code(
        "nn.RNN(3, size, num_layers=2, batch_first=True)",
        "_, hidden = self.rnn(x)\nlast = hidden[0, :, :]  # <- MDL035\nreturn self.fc(last)",
    ),
    "a setting": code(
        "nn.GRU(3, size, num_layers=layers, batch_first=True)",
        "out, h = self.rnn(x)\nreturn self.fc(h[0])  # <- MDL035",
    ),
}
CORRECT = {
    "the last layer": code("nn.LSTM(3, size, num_layers=2)", "_, (h, c) = self.rnn(x)\nreturn self.fc(h[-1])"),
    "one layer": code("nn.LSTM(3, size)", "_, (h, c) = self.rnn(x)\nreturn self.fc(h[0])"),
    "one layer by a setting": code(
        "nn.LSTM(3, size, num_layers=layers)", "_, (h, c) = self.rnn(x)\nreturn self.fc(h[0])", layers=1
    ),
    "all layers": code("nn.GRU(3, size, 2)", "_, h = self.rnn(x)\nreturn self.fc(h[0] + h[1])"),
    "the outputs": code("nn.GRU(3, size, 2)", "out, h = self.rnn(x)\nreturn self.fc(out[-1] + h[0])"),
    "both directions": code(
        "nn.GRU(3, size, 1, bidirectional=True)", "_, h = self.rnn(x)\nreturn self.fc(h[0] + h[1])"
    ),
    "the outputs alone": code("nn.GRU(3, size, 2, batch_first=True)", "h = self.rnn(x)[0]\nreturn self.fc(h[:, -1])"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_state_of_the_first_layer(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "MDL035")
