"""The same with trueloop: the `Trainer` call that a selection amounts to, as a whole program."""

from __future__ import annotations

from typing import Final

from trueloop.lab.teaching.production.program import Program, put_together
from trueloop.lab.teaching.production.selection import Selection
from trueloop.lab.teaching.production.snippets import BEFORE, MODEL, Snippet, lines


def trainer_program(selection: Selection) -> Program:
    """Write the program that leaves to `trueloop.Trainer` what the selection writes out.

    Args:
        selection: what is on; completed by what that needs.
    """
    return put_together("The same run with trueloop.", PIECES, selection, {})


def _folder(on: Selection) -> bool:
    """Checkpoints, the journal and the best weights live in a run folder."""
    return on.checkpoint or on.logging or on.early_stopping


def _config(on: Selection) -> str:
    schedule = "cosine" if on.schedule else "constant"
    keeps_last = on.evaluation and _folder(on) and not on.early_stopping
    return lines(
        "config = TrainConfig(",
        "    epochs=10,",
        "    effective_batch=64,",
        "    micro_batch=16," if on.accumulation else "",
        "    optim=OptimConfig(lr=3e-3, decay_all=True),  # decay_all: as bare AdamW does",
        f'    schedule=ScheduleConfig(name="{schedule}"),',
        "    clip=1.0," if on.clipping else "    clip=None,",
        f'    precision="{on.precision}",' if on.precision != "off" else "",
        "    monitor=MonitorConfig(patience=3)," if on.early_stopping else "",
        '    checkpoint=CheckpointConfig(final="last"),' if keeps_last else "",
        "    seed=0," if on.seeding else "    seeding=False,",
        ")",
    )


def _trainer(on: Selection) -> str:
    return lines(
        "trainer = Trainer(",
        "    model=model,",
        "    objective=nn.CrossEntropyLoss(),",
        "    config=config,",
        '    metrics={"accuracy": Accuracy},' if on.evaluation else "",
        '    run_dir="runs/digits",' if _folder(on) else "",
        "    reporters=[Display()]," if on.progress else "",
        ")",
        f"result = trainer.fit(train_data{', val=val_data' if on.evaluation else ''})",
        "print(result.metrics)" if on.evaluation else "",
    )


_ABOVE: Final = {piece.name: piece for piece in BEFORE}
PIECES: Final = (
    _ABOVE["seed"],
    _ABOVE["data"],
    _ABOVE["split"],
    Snippet(name="model", write=lambda on: MODEL.replace(".to(device)", "").strip(), apart=True),
    Snippet(name="config", write=_config),
    Snippet(name="trainer", write=_trainer, apart=True),
)
