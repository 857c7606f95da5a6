"""Models whose output depends on the number of samples."""

import pytest
import torch
from torch import nn

NAME = "batch-size-independent"


class Squeezed(nn.Linear):
    """Squeezes a batch dimension of 1 together with the last dimension."""

    def forward(self, x):
        return super().forward(x).squeeze()


class Fixed(nn.Linear):
    """Reshapes with a fixed batch size."""

    def forward(self, x):
        return super().forward(x.reshape(8, -1))


class Standardised(nn.Linear):
    """Normalises by batch statistics, also in eval mode."""

    def forward(self, x):
        return super().forward((x - x.mean(0)) / (x.std(0, correction=0) + 1))


@pytest.mark.parametrize("norm", [None, nn.LayerNorm(16), nn.BatchNorm1d(16)])
def test_what_does_not_depend_on_it_holds(holds, classes, net, norm):
    evidence = holds(NAME, model=net(norm=norm), loss=nn.CrossEntropyLoss(), batch=classes)
    assert "1, 2, 4, 6, 7" in evidence.message  # 7 samples of 8 numbers, so that the numbers of rows and columns differ


@pytest.mark.parametrize(("model", "expected"), [(Squeezed(8, 1), "shape"), (Standardised(8, 3), "differ by")])
def test_what_does_is_found(broken, classes, model, expected):
    evidence = broken(NAME, model=model, batch=classes[0])
    assert "sample 0 alone" in evidence.message
    assert expected in evidence.message


def test_a_size_in_a_reshape_is_found(broken):
    evidence = broken(NAME, model=Fixed(8, 3), batch=torch.randn(8, 8))
    assert evidence.cause.startswith("batch of")
    assert "raises RuntimeError" in evidence.message


def test_batch_statistics_in_evaluation_are_found(broken, classes, net):
    evidence = broken(NAME, model=net(norm=nn.BatchNorm1d(16, track_running_stats=False)), batch=classes[0])
    assert evidence.cause == "batch of 1"
