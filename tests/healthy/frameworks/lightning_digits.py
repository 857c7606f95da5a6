"""Lightning: automatic optimisation with accumulation and clipping, a schedule per step, early stopping, a test run."""

import logging
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class DigitsData(L.LightningDataModule):
    def setup(self, stage=None):
        d = load_digits()
        x, y = torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target)
        self.parts = [TensorDataset(x[a:b], y[a:b]) for a, b in ((0, 1280), (1280, 1536), (1536, 1792))]

    def train_dataloader(self):
        return DataLoader(self.parts[0], batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts[1], batch_size=64)

    def test_dataloader(self):
        return DataLoader(self.parts[2], batch_size=64)


class LitDigits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        out = self.net(x)
        self.log("val_loss", F.cross_entropy(out, y))
        self.log("val_acc", (out.argmax(1) == y).float().mean())

    test_step = validation_step

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=5e-3)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=self.trainer.estimated_stepping_batches + 1)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


L.seed_everything(1, verbose=False)
trainer = L.Trainer(
    max_epochs=3, accumulate_grad_batches=2, gradient_clip_val=1.0, accelerator="cpu", devices=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[EarlyStopping("val_loss", patience=2)],
)  # fmt: skip
model, data = LitDigits(), DigitsData()
trainer.fit(model, datamodule=data)
value = trainer.callback_metrics["val_loss"].item()
print(value, trainer.test(model, datamodule=data, verbose=False)[0]["val_acc"])
