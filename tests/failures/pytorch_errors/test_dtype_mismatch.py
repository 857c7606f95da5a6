"""Types of number that do not fit: which tensor, where it was made, what to make of it."""

from __future__ import annotations

from collections.abc import Callable

from trueloop.core.findings import ExplainedError


def test_numbers_of_numpy(explained: Callable[..., ExplainedError]):
    explained(
        """
        import numpy as np
        import torch
        from torch import nn
        x = torch.from_numpy(np.random.rand(32, 8))  # <- made
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        model(x)  # <- raised
        """,
        "dtype-mismatch",
        "`x` is float64, and `0.weight` is float32",
        "x = x.float()",
    )


def test_a_convolution(explained: Callable[..., ExplainedError]):
    explained(
        """
        import torch
        images = torch.randint(255, (4, 3, 8, 8))  # <- made
        torch.nn.Conv2d(3, 4, 3)(images)  # <- raised
        """,
        "dtype-mismatch",
        "`images` is int64",
        "images.float()",
    )


def test_class_numbers(explained: Callable[..., ExplainedError]):
    explained(
        """
        import torch
        from torch import nn
        def fit(model, x, y):
            criterion = nn.CrossEntropyLoss()
            for _ in range(3):
                loss = criterion(model(x), y)  # <- raised
        x = torch.randn(32, 8)
        labels = torch.randint(2, (32,)).float()  # <- made
        fit(nn.Linear(8, 2), x, labels)
        """,
        "dtype-mismatch",
        "whole numbers (int64) and `y` is float32",
        "y = y.long()",
    )


def test_binary_targets(explained: Callable[..., ExplainedError]):
    explained(
        """
        import torch
        model, labels = torch.nn.Linear(8, 1), torch.randint(2, (4, 1))  # <- made
        out = model(torch.randn(4, 8))
        torch.nn.functional.binary_cross_entropy_with_logits(out, labels)  # <- raised
        """,
        "dtype-mismatch",
        "`labels` is int64",
        "labels = labels.float()",
    )


def test_a_model_in_bfloat16(explained: Callable[..., ExplainedError]):
    explained(
        """
        import torch
        model = torch.nn.Linear(8, 1).bfloat16()
        x = torch.randn(4, 8)  # <- made
        model(x)  # <- raised
        """,
        "dtype-mismatch",
        "`x` is float32, and `weight` is bfloat16",
        "torch.autocast",
    )


def test_words_of_the_gpu(as_torch: Callable[..., ExplainedError]):
    message = "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same"
    as_torch(message, "dtype-mismatch", "different types of number")
