"""Lightning: bf16, clipping, checkpoints of the best and the last, stochastic weight averaging, and a run resumed in its middle."""

import logging
import tempfile
import warnings
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitDigits(L.LightningModule):
    def __init__(self, width=48):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(64, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1))
        self.head = nn.Linear(width, 10)
        self.outputs = []

    def forward(self, x):
        return self.head(self.encoder(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x).float(), y, label_smoothing=0.05)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        x, y = batch
        scores = self(x)
        self.outputs.append((scores.argmax(1), y))
        self.log("val_loss", F.cross_entropy(scores.float(), y), add_dataloader_idx=dataloader_idx > 0)

    def on_validation_epoch_end(self):
        guesses, targets = (torch.cat(each) for each in zip(*self.outputs, strict=True))
        self.outputs.clear()
        self.log("val_acc", (guesses == targets).float().mean())

    def predict_step(self, batch, batch_idx):
        return self(batch[0]).softmax(1)

    def configure_optimizers(self):
        decayed = [p for p in self.parameters() if p.ndim > 1]
        rest = [p for p in self.parameters() if p.ndim <= 1]
        opt = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], 4e-3
        )
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)]


def trainer(folder, epochs, *callbacks):
    best = ModelCheckpoint(folder, monitor="val_acc", mode="max", save_last=True, filename="best")
    return L.Trainer(
        max_epochs=epochs, precision="bf16-mixed", gradient_clip_val=0.5, gradient_clip_algorithm="norm",
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        val_check_interval=0.5, callbacks=[best, *callbacks],
    )  # fmt: skip


L.seed_everything(3, verbose=False)
d = load_digits()
x, y = torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target)
train, val, test = random_split(TensorDataset(x, y), [1280, 256, len(x) - 1536])
loaders = DataLoader(train, 32, shuffle=True), [DataLoader(val, 64), DataLoader(test, 64)]
with tempfile.TemporaryDirectory() as folder:
    trainer(folder, 2).fit(LitDigits(), *loaders)
    again = LitDigits()
    second = trainer(folder, 4, StochasticWeightAveraging(1e-3, swa_epoch_start=3))
    second.fit(again, *loaders, ckpt_path=str(Path(folder) / "last.ckpt"))
    best = LitDigits.load_from_checkpoint(second.checkpoint_callback.best_model_path)
    guesses = torch.cat(second.predict(best, loaders[1][1])).argmax(1)
    print(second.global_step, (guesses == y[test.indices]).float().mean().item())
