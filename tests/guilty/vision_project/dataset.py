"""Digits in a training part and a validation part."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset, Subset


class Digits(Dataset):
    def __init__(self, augment=False):
        digits = load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        self.targets = torch.tensor(digits.target)
        self.augment = augment

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.images[index], self.targets[index]


def get_dataloaders(batch_size):
    full = Digits()
    indices = torch.randperm(len(full), generator=torch.Generator().manual_seed(0)).tolist()
    train, val = Subset(full, indices[:1500]), Subset(full, indices[1400:])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(val, batch_size)  # <- DAT001
