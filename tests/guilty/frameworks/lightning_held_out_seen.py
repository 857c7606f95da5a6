"""Lightning: the two parts are sampled again for each loader, so they overlap."""

import lightning as L
from digits_parts import parts
from quiet_lightning import Digits, torch, trainer
from torch.utils.data import DataLoader, random_split


class Data(L.LightningDataModule):
    def split(self, part):
        return random_split(parts()[0], [1024, 256])[part]

    def train_dataloader(self):
        return DataLoader(self.split(0), 32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.split(1), 64)  # <- DAT001


torch.manual_seed(0)
data = Data()
trainer().fit(Digits(), datamodule=data)
