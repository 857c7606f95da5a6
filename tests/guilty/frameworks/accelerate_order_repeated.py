"""Accelerate: every epoch has the order of the first one, because the loader is prepared again for each."""

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from digits_parts import model_and_loaders, parts
from torch.nn import functional as F
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=7))
model, _, _ = model_and_loaders()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = accelerator.prepare(model, optimizer)
data, _ = parts()
for _ in range(3):
    for x, y in accelerator.prepare(DataLoader(data, 32, shuffle=True)):  # <- DAT004
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
