"""Different dtypes: which tensor, where it was created, what to convert it to."""

from __future__ import annotations

from collections.abc import Callable

from trueloop.core.findings import ExplainedError


def test_a_float64_array_of_numpy(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import numpy as np
        import torch
        from torch import nn
        x = torch.from_numpy(np.random.rand(32, 8))  # <- created
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        model(x)  # <- raised
        """,
        "dtype-mismatch",
        "`x` is float64, and `0.weight` is float32",
        "x = x.float()",
    )


def test_a_convolution(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        images = torch.randint(255, (4, 3, 8, 8))  # <- created
        torch.nn.Conv2d(3, 4, 3)(images)  # <- raised
        """,
        "dtype-mismatch",
        "`images` is int64",
        "images.float()",
    )


def test_class_targets(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        from torch import nn
        def fit(model, x, y):
            criterion = nn.CrossEntropyLoss()
            for _ in range(3):
                loss = criterion(model(x), y)  # <- raised
        x = torch.randn(32, 8)
        labels = torch.randint(2, (32,)).float()  # <- created
        fit(nn.Linear(8, 2), x, labels)
        """,
        "dtype-mismatch",
        "integers (int64), but `y` is float32",
        "y = y.long()",
    )


def test_binary_targets(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        model, labels = torch.nn.Linear(8, 1), torch.randint(2, (4, 1))  # <- created
        out = model(torch.randn(4, 8))
        torch.nn.functional.binary_cross_entropy_with_logits(out, labels)  # <- raised
        """,
        "dtype-mismatch",
        "`labels` is int64",
        "labels = labels.float()",
    )


def test_a_model_in_bfloat16(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        model = torch.nn.Linear(8, 1).bfloat16()
        x = torch.randn(4, 8)  # <- created
        model(x)  # <- raised
        """,
        "dtype-mismatch",
        "`x` is float32, and `weight` is bfloat16",
        "torch.autocast",
    )


def test_message_of_cuda(assert_message_explained: Callable[..., ExplainedError]):
    message = "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same"
    assert_message_explained(message, "dtype-mismatch", "different dtypes")
