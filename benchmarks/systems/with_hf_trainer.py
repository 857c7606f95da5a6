"""Train with the Hugging Face Trainer: a model that returns its own loss, and the documented `compute_loss_func`.

https://huggingface.co/docs/transformers/grad_accumulation and /trainer_recipes
"""

from __future__ import annotations

import tempfile
from typing import Any

from measure import Indexed
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from systems.task import LOG_EVERY, Task, cosine


class OwnLoss(nn.Module):
    """The model, which returns its mean loss and the logits, as every transformers model does."""

    def __init__(self, model: nn.Module, criterion: nn.Module) -> None:
        super().__init__()
        self.model, self.criterion = model, criterion

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return the logits, and the loss if labels are passed."""
        logits = self.model(x)
        return {"logits": logits} if labels is None else {"loss": self.criterion(logits, labels), "logits": logits}


def counted_loss(outputs: dict[str, Tensor], labels: Tensor, num_items_in_batch: Tensor) -> Tensor:
    """Return the summed loss divided by the number of targets in the window, as in the documentation's example."""
    return F.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


class FixedOrder(Trainer):
    """A Trainer that reads the prepared batches in their order."""

    task: Task

    def get_train_dataloader(self) -> Any:
        """Return the batches as mappings in a DataLoader, because Trainer reads the attributes of a DataLoader."""
        mappings = Indexed(self.task.batches, lambda batch: {"x": batch[0], "labels": batch[1]})
        return DataLoader(mappings, batch_size=None)


def train(task: Task, *, counted: bool = False) -> None:
    """Train; with ``counted``, `compute_loss_func` is passed, so that Trainer counts the targets of the window."""
    optimizer = task.optimizer(task.model)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, num_train_epochs=task.epochs, gradient_accumulation_steps=task.window, use_cpu=True,
            max_grad_norm=task.clip or 0.0, lr_scheduler_type="constant", save_strategy="no", report_to="none",
            disable_tqdm=True, logging_strategy="steps" if task.record else "no", logging_steps=LOG_EVERY,
        )  # fmt: skip
        trainer = FixedOrder(
            model=OwnLoss(task.model, task.loss),
            args=settings,
            train_dataset=Indexed(task.batches),
            optimizers=(optimizer, cosine(optimizer, task.updates) if task.cosine else None),
            compute_loss_func=counted_loss if counted else None,
        )
        trainer.task = task
        trainer.remove_callback(PrinterCallback)
        trainer.train()
