"""Accelerate: prepare, accumulate, clip, gather for metrics, a schedule; the loop of the complete NLP example."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_dataloaders(accelerator, batch_size):
    d = load_digits()
    x, y = torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target)
    return (
        DataLoader(TensorDataset(x[:1280], y[:1280]), shuffle=True, batch_size=batch_size, drop_last=True),
        DataLoader(TensorDataset(x[1280:1680], y[1280:1680]), shuffle=False, batch_size=100),
    )


def training_function(config):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=config["accumulate"])
    set_seed(config["seed"])
    train_dataloader, eval_dataloader = get_dataloaders(accelerator, config["batch_size"])
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=config["lr"])
    total = len(train_dataloader) * config["num_epochs"]
    lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=total // config["accumulate"])
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for epoch in range(config["num_epochs"]):
        model.train()
        for x, y in train_dataloader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
        model.eval()
        right = 0
        for x, y in eval_dataloader:
            with torch.no_grad():
                predictions = model(x).argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, y))
            right += (predictions == references).sum().item()
        accelerator.print(f"epoch {epoch}: {loss.item()} {right / 400}")


if __name__ == "__main__":
    training_function({"lr": 5e-3, "num_epochs": 3, "seed": 42, "batch_size": 32, "accumulate": 2})
