"""backward() on a tensor with several elements: the shape, and the line that created it."""

from __future__ import annotations

from collections.abc import Callable


def test_a_loss_that_is_not_reduced(assert_explained: Callable[..., object]):
    assert_explained(
        """
        import torch
        from torch import nn
        criterion = nn.CrossEntropyLoss(reduction="none")
        model = nn.Linear(4, 3)
        for step in range(2):
            loss = criterion(model(torch.randn(8, 4)), torch.randint(3, (8,)))  # <- created
            loss.backward()  # <- raised
        """,
        "backward-not-scalar",
        "`loss` has the shape (8,)",
        'reduction="none"',
    )


def test_the_output_of_the_model(assert_explained: Callable[..., object]):
    assert_explained(
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


def test_the_same_message_raised_by_the_program(assert_unexplained: Callable[[str], BaseException]):
    assert_unexplained(
        """
        import torch
        def backward(loss):
            if loss.numel() > 1:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
        backward(torch.ones(2))
        """
    )
