"""Accelerate: bf16, clipping, a warm-up, save_state and load_state in the middle, skip_first_batches, an average of weights."""

import copy
import tempfile

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=4)
set_seed(5)
d = load_digits()
x, y = torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target)
train = DataLoader(TensorDataset(x[:1300], y[:1300]), shuffle=True, batch_size=24)
held_out = DataLoader(TensorDataset(x[1300:], y[1300:]), batch_size=100)
model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
model, optimizer, train, held_out, schedule = accelerator.prepare(model, optimizer, train, held_out, schedule)
averaged = AveragedModel(accelerator.unwrap_model(model), multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)


def evaluate(of):
    of.eval()
    with torch.inference_mode():
        seen = [accelerator.gather_for_metrics((of(a).argmax(-1), b)) for a, b in held_out]
    right, of_all = sum((a == b).sum().item() for a, b in seen), sum(len(b) for _, b in seen)
    return right / of_all


def epoch(loader):
    model.train()
    for a, b in loader:
        with accelerator.accumulate(model):
            with accelerator.autocast():
                loss = nn.functional.cross_entropy(model(a), b)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        if accelerator.sync_gradients:
            averaged.update_parameters(accelerator.unwrap_model(model))


best = -1.0
with tempfile.TemporaryDirectory() as folder:
    for number in range(3):
        epoch(train)
        share = evaluate(model)
        if share > best:
            best, weights = share, copy.deepcopy(accelerator.get_state_dict(model))
        if number == 1:
            accelerator.save_state(folder)
    accelerator.load_state(folder)
    epoch(skip_first_batches(train, 10))
print(evaluate(model), evaluate(averaged), best)
