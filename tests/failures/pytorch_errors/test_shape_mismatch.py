"""Shapes that do not match: the module, what it expects, its input, and where both come from."""

from __future__ import annotations

from collections.abc import Callable

from trueloop.core.findings import ExplainedError


def related(explanation: ExplainedError) -> list[tuple[int, str]]:
    return [(site.line, words) for site, words in explanation.other_locations]


def test_the_first_linear_after_a_flatten(assert_explained: Callable[..., ExplainedError]):
    explanation = assert_explained(
        """
        import torch
        from torch import nn
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(1, 8, 3)
                self.head = nn.Linear(8 * 6 * 6, 10)
            def forward(self, images):
                x = torch.relu(self.conv(images))
                x = nn.functional.max_pool2d(x, 2)
                x = torch.flatten(x, 1)  # <- created
                return self.head(x)  # <- raised
        def train():
            model = Net()
            for _ in range(2):
                model(torch.randn(16, 1, 16, 16))
        train()
        """,
        "shape-mismatch",
        "`head` (Linear of Net) expects in_features=288, but `x` has the shape (16, 392): 392 instead of 288.",
        "in_features=392",
    )
    assert related(explanation) == [(8, "the layer is created here")]
    assert (
        explanation.message.removeprefix("addmm: ") == "mat1 and mat2 shapes cannot be multiplied (16x392 and 288x10)"
    )


def test_a_missing_flatten(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        from torch import nn
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Linear(8 * 30 * 30, 10))
        model(torch.randn(4, 3, 32, 32))  # <- raised
        """,
        "shape-mismatch",
        "`2` (Linear of Sequential) expects in_features=7200",
        "torch.flatten(x, 1)",
    )


def test_channels_last(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        for images in DataLoader(torch.randn(8, 32, 32, 3), batch_size=4):  # <- created
            model(images)  # <- raised
        """,
        "shape-mismatch",
        "expects in_channels=3, but `images` has the shape (4, 32, 32, 3): 32 instead of 3",
        "permute",
    )


def test_output_and_target_of_different_shapes(assert_explained: Callable[..., ExplainedError]):
    explanation = assert_explained(
        """
        import torch
        from torch import nn
        model = nn.Linear(4, 1)
        x, y = torch.randn(8, 4), torch.ones(8)
        out = model(x)  # <- created
        nn.BCEWithLogitsLoss()(out, y)  # <- raised
        """,
        "shape-mismatch",
        "`out` has the shape (8, 1), `y` has the shape (8,)",
        "out.squeeze(1), or y.unsqueeze(1)",
    )
    assert related(explanation) == [(5, "`y` is created here")]


def test_plain_arithmetic(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        def error(prediction, target):
            return prediction - target  # <- raised
        def main():
            a = torch.randn(8, 3)
            b = torch.randn(8, 4)  # <- created
            error(a, b)
        main()
        """,
        "shape-mismatch",
        "`prediction` has the shape (8, 3), `target` has the shape (8, 4)",
    )


def test_a_name_bound_in_a_branch_is_not_guessed(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        x = torch.randn(8, 3)
        if len(x) > 4:
            x = torch.randn(8, 5)
        torch.nn.Linear(3, 1)(x)  # <- raised
        """,
        "shape-mismatch",
        "(8, 5)",
    )


def test_the_same_message_raised_by_the_program(assert_unexplained: Callable[[str], BaseException]):
    assert_unexplained(
        """
        import torch
        x = torch.ones(2)
        if x.numel() != 3:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x1)")
        """
    )


def test_another_library_with_a_similar_message(assert_unexplained: Callable[[str], BaseException]):
    error = assert_unexplained("import numpy as np\nimport torch\nnp.ones((2, 3)) @ np.ones((2, 3))\n")
    assert isinstance(error, ValueError)


def test_a_message_that_starts_with_the_operation(assert_message_explained):
    assert_message_explained(
        "addmm: mat1 and mat2 shapes cannot be multiplied (2x5 and 4x1)", "shape-mismatch", "in_features=5"
    )
