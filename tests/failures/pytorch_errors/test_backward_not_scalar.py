"""backward() of several numbers: the shape, and the line that made it."""

from __future__ import annotations

from collections.abc import Callable


def test_a_loss_that_is_not_reduced(explained: Callable[..., object]):
    explained(
        """
        import torch
        from torch import nn
        criterion = nn.CrossEntropyLoss(reduction="none")
        model = nn.Linear(4, 3)
        for step in range(2):
            loss = criterion(model(torch.randn(8, 4)), torch.randint(3, (8,)))  # <- made
            loss.backward()  # <- raised
        """,
        "backward-not-scalar",
        "`loss` has the shape (8,)",
        'reduction="none"',
    )


def test_an_output_itself(explained: Callable[..., object]):
    explained(
        """
        import torch
        def train(model):
            model(torch.randn(8, 4)).square().backward()  # <- raised
        train(torch.nn.Linear(4, 3))
        """,
        "backward-not-scalar",
        "The loss has the shape (8, 3)",
        ".mean()",
    )


def test_the_same_words_of_the_programs_own(unexplained: Callable[[str], BaseException]):
    unexplained(
        """
        import torch
        def backward(loss):
            if loss.numel() > 1:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
        backward(torch.ones(2))
        """
    )
