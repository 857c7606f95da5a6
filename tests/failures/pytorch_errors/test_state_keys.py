"""Checkpoints that do not match the model: a prefix, a shape, or the number of names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trueloop.core.findings import ExplainedError


@pytest.mark.parametrize(
    ("prefix", "by"),
    [("module.", "DistributedDataParallel"), ("_orig_mod.", "torch.compile"), ("net.", 'begin with "net."')],
)
def test_a_prefix_in_the_checkpoint(assert_explained: Callable[..., ExplainedError], prefix: str, by: str):
    assert_explained(
        f"""
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
        state = {{"{prefix}" + name: value for name, value in model.state_dict().items()}}
        model.load_state_dict(state)  # <- raised
        """,
        "state-keys",
        by,
        f'name.removeprefix("{prefix}")',
    )


def test_a_prefix_in_the_model(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        from torch import nn
        class Wrapper(nn.Module):
            def __init__(self, module):
                super().__init__()
                self.module = module
        plain = nn.Linear(4, 1)
        Wrapper(nn.Linear(4, 1)).load_state_dict(plain.state_dict())  # <- raised
        """,
        "state-keys",
        'The names in the model begin with "module."',
        "model.module",
    )


def test_a_different_shape(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        torch.nn.Linear(4, 3).load_state_dict(torch.nn.Linear(5, 3).state_dict())  # <- raised
        """,
        "state-keys",
        "`weight` has the shape [3, 5] in the checkpoint and [3, 4] in the model",
    )


def test_the_full_file_instead_of_the_model(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        model = torch.nn.Linear(4, 3)
        model.load_state_dict({"model": model.state_dict(), "epoch": 3})  # <- raised
        """,
        "state-keys",
        "2 names of the model are not in the checkpoint, and 2 names of the checkpoint are not in the model",
    )
