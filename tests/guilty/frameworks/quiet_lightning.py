"""A Lightning Trainer that prints nothing, and the common parts of a module."""

import logging
import warnings

import lightning as L
import torch
from digits_parts import parts
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_acc", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def loaders():
    train, held_out = parts()
    return DataLoader(train, 32, shuffle=True), DataLoader(held_out, 64)


def trainer(max_epochs=2, **options):
    L.seed_everything(0, verbose=False)
    return L.Trainer(
        max_epochs=max_epochs, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, **options,
    )  # fmt: skip
