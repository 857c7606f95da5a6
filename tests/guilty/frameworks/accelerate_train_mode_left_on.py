"""Accelerate: eval() is never called, so dropout is active in the evaluation."""

import torch
from accelerate import Accelerator
from digits_parts import model_and_loaders
from torch.nn import functional as F

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, train, held_out = model_and_loaders()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, train, held_out = accelerator.prepare(model, optimizer, train, held_out)
for _ in range(2):
    model.train()
    for x, y in train:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    right = 0
    with torch.no_grad():
        for x, y in held_out:
            guess, target = accelerator.gather_for_metrics((model(x).argmax(1), y))  # <- EVL001
            right += (guess == target).sum().item()
