"""Train with Lightning: `LightningModule` and `Trainer(accumulate_grad_batches=K, gradient_clip_val=...)`.

https://lightning.ai/docs/pytorch/stable/common/trainer.html
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from systems.task import Journal, Task, cosine

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    """The task as a LightningModule, with a `Journal`, which costs less than `self.log`."""

    def __init__(self, task: Task, *, use_self_log: bool) -> None:
        super().__init__()
        self.task = task
        self.model, self.criterion = task.model, task.loss
        self.use_self_log = use_self_log
        self.journal = Journal()
        self.latest_loss: Tensor | None = None

    def configure_optimizers(self) -> Any:
        """Return the optimizer, and the schedule, which steps once per update."""
        optimizer = self.task.optimizer(self.model)
        if not self.task.cosine:
            return optimizer
        schedule = {"scheduler": cosine(optimizer, self.task.updates), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        """Return the micro-batch's mean loss."""
        inputs, targets = batch
        loss = self.criterion(self.model(inputs), targets)
        if self.use_self_log:
            self.log("loss", loss)
        self.latest_loss = loss.detach()
        return loss

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip and record the norm, in the documented hook; `grad_norm()` before clipping would be one more pass."""
        if not self.task.record:
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return
        assert gradient_clip_val is not None
        assert self.latest_loss is not None
        norm = clip_grad_norm_(self.parameters(), gradient_clip_val)
        if self.use_self_log:
            self.log("grad_norm", norm)
        else:
            self.journal.add(self.latest_loss, norm, optimizer.param_groups[0]["lr"])


def train(task: Task, *, use_self_log: bool = False) -> None:
    """Train; ``barebones`` is Lightning's fastest setting, which does not allow `self.log`."""
    quiet = {"barebones": True} if not use_self_log else {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=task.epochs,
            accumulate_grad_batches=task.window, gradient_clip_val=task.clip, **quiet,
        )  # fmt: skip
        trainer.fit(Module(task, use_self_log=use_self_log), task.batches)
