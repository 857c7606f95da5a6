"""Accelerate with a GradScaler: torch's own clipping, which does not unscale first."""

import torch
from accelerate import Accelerator
from digits_parts import model_and_loaders
from torch.nn import functional as F

accelerator = Accelerator(cpu=True)
accelerator.scaler = torch.amp.GradScaler("cpu")  # what mixed_precision="fp16" makes on a GPU
model, train, _ = model_and_loaders()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, train = accelerator.prepare(model, optimizer, train)
for _ in range(2):
    for x, y in train:
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- PRC001
        optimizer.step()
        optimizer.zero_grad()
