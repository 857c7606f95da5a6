"""Train the same small run in every system, and resume it after a kill as that system's documentation says.

Each function starts a run, or resumes it from the files in the job's folder: a second call corresponds to running the
same command again. Everything is seeded as documented; nothing is added that a user would have to invent.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, BATCH, EPOCHS = 640, 32, 4
RATE, SEED = 1e-2, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one system."""

    folder: Path
    """Folder of the checkpoints."""
    workers: int = 0
    """Number of worker processes of the DataLoader."""
    every_updates: int | None = None
    """Number of updates between two checkpoints; None = a checkpoint after every epoch."""
    killed_in: int | None = None
    """Training step of this process, from 1, in which it is killed by SIGKILL; None = it is not killed."""


class NoisyPoints(Dataset[tuple[Tensor, int]]):
    """Points of four classes; every read adds new noise from torch's global generator, which all systems restore."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.labels = torch.randint(4, (SAMPLES,), generator=generator)
        self.points = torch.randn(SAMPLES, 16, generator=generator)
        self.points[torch.arange(SAMPLES), self.labels] += 1.0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.points[index] + 0.3 * torch.randn(16), int(self.labels[index])


class NoisyMappings(Dataset[dict[str, Any]]):
    """The samples of `NoisyPoints` as mappings, which transformers needs."""

    def __init__(self) -> None:
        self.pairs = NoisyPoints()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        point, label = self.pairs[index]
        return {"x": point, "labels": label}


def network(job: Job) -> nn.Module:
    """Create the model, which kills its process in the step ``job.killed_in``."""
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    steps = itertools.count(1)

    def kill_in_step(module: nn.Module, _inputs: object) -> None:
        if module.training and next(steps) == job.killed_in:
            os.kill(os.getpid(), signal.SIGKILL)

    model.register_forward_pre_hook(kill_in_step)
    return model


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Create the optimizer of all systems except trueloop."""
    return torch.optim.AdamW(model.parameters(), lr=RATE)


def loader(job: Job) -> DataLoader[Any]:
    """Create a DataLoader that shuffles, as in every tutorial."""
    return DataLoader(NoisyPoints(), batch_size=BATCH, shuffle=True, num_workers=job.workers)


def by_hand(job: Job) -> nn.Module:
    """Train with a hand-written loop whose checkpoint contains model, optimizer and epoch.

    https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
    """
    torch.manual_seed(SEED)
    model = network(job)
    optimizer, batches, first = adamw(model), loader(job), 0
    path = job.folder / "checkpoint.pt"
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
    model.train()

    def save(epoch: int) -> None:
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    for epoch in range(first, EPOCHS):
        for step, (points, labels) in enumerate(batches, 1):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(points), labels).backward()
            optimizer.step()
            if job.every_updates and step % job.every_updates == 0:
                save(epoch)
        save(epoch + 1)
    return model


def by_lightning(job: Job) -> nn.Module:
    """Train with `seed_everything`, `ModelCheckpoint` and `fit(ckpt_path="last")`.

    https://lightning.ai/docs/pytorch/stable/common/checkpointing_basic.html
    """
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network(job)

        def training_step(self, batch: Any, _index: int) -> Tensor:
            points, labels = batch
            return nn.functional.cross_entropy(self.model(points), labels)

        def configure_optimizers(self) -> Any:
            return adamw(self.model)

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    lightning.seed_everything(SEED, workers=True)
    module = Module()
    interval = {"every_n_train_steps": job.every_updates} if job.every_updates else {"every_n_epochs": 1}
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=EPOCHS, deterministic=True, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(job.folder, save_last=True, **interval)],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, loader(job), ckpt_path="last")
    return module.model


def by_accelerate(job: Job, *, seedable: bool = False) -> nn.Module:
    """Train with `save_state`, `load_state` and `skip_first_batches`, as in the checkpointing example.

    https://huggingface.co/docs/accelerate/usage_guides/checkpoint

    Args:
        job: the run.
        seedable: True to use the documented option that makes the order of an epoch repeatable.
    """
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.utils import set_seed

    set_seed(SEED)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable))
    model = network(job)
    model, optimizer, batches = accelerator.prepare(model, adamw(model), loader(job))
    checkpoints = sorted(job.folder.glob("step_*"), key=lambda path: int(path.name[5:]))
    done = int(checkpoints[-1].name[5:]) if checkpoints else 0
    if checkpoints:
        accelerator.load_state(str(checkpoints[-1]))
    first, skipped = divmod(done, len(batches))
    model.train()
    for epoch in range(first, EPOCHS):
        batches.set_epoch(epoch)
        active = batches
        if epoch == first and skipped:
            active = accelerator.skip_first_batches(batches, skipped)
        for points, labels in active:
            accelerator.backward(nn.functional.cross_entropy(model(points), labels))
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if job.every_updates and done % job.every_updates == 0:
                accelerator.save_state(str(job.folder / f"step_{done}"))
        if not job.every_updates:
            accelerator.save_state(str(job.folder / f"step_{done}"))
    return accelerator.unwrap_model(model)


def by_accelerate_seedable(job: Job) -> nn.Module:
    """Train with Accelerate and `use_seedable_sampler=True`."""
    return by_accelerate(job, seedable=True)


def by_hf_trainer(job: Job) -> nn.Module:
    """Train with `train(resume_from_checkpoint=...)` and the newest checkpoint, as the example scripts do.

    https://huggingface.co/docs/transformers/trainer
    """
    from transformers import Trainer, TrainingArguments, set_seed
    from transformers.trainer_callback import PrinterCallback
    from transformers.trainer_utils import get_last_checkpoint

    from systems.with_hf_trainer import OwnLoss

    set_seed(SEED)
    interval = {"save_strategy": "steps", "save_steps": job.every_updates} if job.every_updates else {
        "save_strategy": "epoch"
    }  # fmt: skip
    settings = TrainingArguments(
        output_dir=str(job.folder), num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, use_cpu=True, seed=SEED,
        learning_rate=RATE, lr_scheduler_type="constant", dataloader_num_workers=job.workers, report_to="none",
        disable_tqdm=True, logging_strategy="no", save_total_limit=2, **interval,
    )  # fmt: skip
    model = network(job)
    trainer = Trainer(model=OwnLoss(model, nn.CrossEntropyLoss()), args=settings, train_dataset=NoisyMappings())
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(job.folder)))
    return model


def by_trueloop(job: Job) -> nn.Module:
    """Train with `Trainer(run_dir=...).fit(...)`, which also resumes."""
    from trueloop import CheckpointConfig, OptimConfig, ScheduleConfig, TrainConfig, Trainer

    torch.manual_seed(SEED)
    model = network(job)
    config = TrainConfig(
        epochs=EPOCHS, effective_batch=BATCH, seed=SEED, device="cpu", workers=job.workers, threads=1,
        optim=OptimConfig(lr=RATE), schedule=ScheduleConfig(name="constant"),
        checkpoint=CheckpointConfig(every_updates=job.every_updates),
    )  # fmt: skip
    Trainer(model=model, objective=nn.CrossEntropyLoss(), config=config, run_dir=job.folder).fit(NoisyPoints())
    return model


SYSTEMS: Mapping[str, Callable[[Job], nn.Module]] = {
    "trueloop": by_trueloop,
    "raw loop, state_dict checkpoint": by_hand,
    "Lightning": by_lightning,
    "Accelerate": by_accelerate,
    "Accelerate, seedable sampler": by_accelerate_seedable,
    "HF Trainer": by_hf_trainer,
}


def weights(model: nn.Module) -> Tensor:
    """Return all learned values of a model, including BatchNorm statistics, as one float64 vector; omit counters."""
    values = (value.detach() for value in model.state_dict().values() if value.is_floating_point())
    return torch.cat([value.double().flatten() for value in values])
