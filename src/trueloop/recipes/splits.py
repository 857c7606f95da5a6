"""Split the items of a recipe's data."""
# ruff: noqa: N803 - shapes are part of the name: N items

import torch
from torch import Tensor


def split(target_N: Tensor, *, seed: int, stratify: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the indices of training (70 %), validation (10 %) and test (20 %).

    Args:
        target_N: target of every item.
        seed: seed of the split.
        stratify: whether each split has the same proportions of classes; the targets are then class indices.
    """
    from sklearn.model_selection import train_test_split

    target = target_N.numpy()
    items = range(len(target))
    remaining, test = train_test_split(items, test_size=0.2, stratify=target if stratify else None, random_state=seed)
    classes = target[remaining] if stratify else None
    train, val = train_test_split(remaining, test_size=0.125, stratify=classes, random_state=seed)
    return torch.tensor(train), torch.tensor(val), torch.tensor(test)
