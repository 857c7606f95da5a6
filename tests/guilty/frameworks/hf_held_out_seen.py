"""The Hugging Face Trainer: the two parts were sampled one after the other from all sentences, and overlap."""

from quiet_hf import Classifier, Sentences, torch, trainer
from torch.utils.data import Subset

everything = Sentences(0, 640)
torch.manual_seed(3)
data = Subset(everything, torch.randperm(640)[:512].tolist())
held_out = Subset(everything, torch.randperm(640)[:128].tolist())
trainer(Classifier(), data=data, held_out=held_out).train()  # <- DAT001
