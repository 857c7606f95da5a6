"""Lightning: the training data is sorted by class and its loader does not shuffle."""

from digits_parts import parts
from quiet_lightning import DataLoader, Digits, trainer
from torch.utils.data import Subset

train, held_out = parts()
order = train.tensors[1].argsort().tolist()
loader = DataLoader(Subset(train, order), 32)  # <- DAT003
trainer().fit(Digits(), loader, DataLoader(held_out, 64))
