"""Accuracy on the development set."""

import torch


def evaluate(model, eval_dataloader):
    correct = total = 0
    for batch in eval_dataloader:
        labels = batch.pop("labels")
        with torch.no_grad():
            outputs = model(**batch)  # <- EVL001
        predictions = outputs["logits"].argmax(dim=-1)
        correct += (predictions == labels).sum().item()
        total += len(labels)
    return {"accuracy": correct / total}
