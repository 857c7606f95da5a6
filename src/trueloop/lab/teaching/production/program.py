"""The text of a selection: its pieces put together, with the imports that they use and no others."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Final, NamedTuple

from trueloop.lab.teaching.production.selection import Selection
from trueloop.lab.teaching.production.snippets import MODEL, SETUP_SNIPPETS, Snippet, autocast, constant, lines


def trainer_program(selection: Selection) -> Program:
    """Write the program that leaves to `trueloop.Trainer` what the selection writes out.

    Args:
        selection: what is on; completed by what that needs.
    """
    return assemble("The same run with trueloop.", PIECES, selection, {})


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


_ABOVE: Final = {piece.name: piece for piece in SETUP_SNIPPETS}
PIECES: Final = (
    _ABOVE["seed"],
    _ABOVE["data"],
    _ABOVE["split"],
    Snippet(name="model", write=lambda on: MODEL.replace(".to(device)", "").strip(), apart=True),
    Snippet(name="config", write=_config),
    Snippet(name="trainer", write=_trainer, apart=True),
)


def _epochs(on: Selection) -> str:
    return f"for epoch in range({'start, ' if on.checkpoint else ''}EPOCHS):"


def _totals(on: Selection) -> str:
    return lines(
        "loss_sum = torch.zeros((), device=device)  # stays there: nothing waits for it" if on.logging else "",
        "count = 0  # examples in the window" if on.accumulation else "",
        "drawn = 0.0" if on.progress else "",
    )


def _batches(on: Selection) -> str:
    if on.accumulation or on.progress:
        return "for index, (inputs, targets) in enumerate(loader, start=1):"
    return "for inputs, targets in loader:"


def _forward(on: Selection) -> str:
    forward = "loss = loss_function(model(inputs), targets)"
    cast = autocast(on)
    return f"{cast}\n    {forward}" if cast else forward


def _backward(on: Selection) -> str:
    return "scaler.scale(loss).backward()" if on.scaled else "loss.backward()"


def _total(on: Selection) -> str:
    if not on.logging:
        return ""
    return "loss_sum += loss.detach()" if on.sums else "loss_sum += loss.detach() * len(targets)"


DRAW = """
if time.monotonic() - drawn > 0.2:  # by the clock, not by the batch
    drawn = time.monotonic()
    share = index / len(loader)
    print(f"epoch {epoch + 1}: {share:4.0%}", end="\\r", flush=True)
"""
WINDOW = """
count += len(targets)
if index % ACCUMULATE and index < len(loader):
    continue  # the window is not full, nor is this the end of the epoch
"""
DIVIDE = """
for parameter in model.parameters():
    parameter.grad /= count  # a sum over the window becomes its mean
count = 0
"""


def _clip(on: Selection) -> str:
    clip = "nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)"
    return f"norm = {clip}" if on.logging else clip


def _update(on: Selection) -> str:
    if not on.scaled:
        return "optimizer.step()"
    return lines("scale = scaler.get_scale()" if on.schedule else "", "scaler.step(optimizer)", "scaler.update()")


def _advance(on: Selection) -> str:
    if on.scaled:
        return lines("if scaler.get_scale() >= scale:  # lower: the update was skipped", "    schedule.step()")
    return "schedule.step()"


def _train_loss(on: Selection) -> str:
    return "train_loss = loss_sum.item() / len(train_data)" if on.logging else ""


JUDGE = """
if val_loss < best:
    best, best_weights, stale = val_loss, copy.deepcopy(model.state_dict()), 0
else:
    stale += 1
"""


def _record(on: Selection) -> str:
    return lines(
        "record = {",
        '    "time": time.time(),',
        '    "epoch": epoch + 1,',
        '    "train_loss": train_loss,',
        '    "val_loss": val_loss,' if on.evaluation else "",
        '    "accuracy": accuracy,' if on.evaluation else "",
        '    "learning_rate": schedule.get_last_lr()[0],' if on.schedule else "",
        '    "gradient_norm": norm.item(),' if on.clipping else "",
        "}",
        'with LOG.open("a") as file:',
        '    file.write(json.dumps(record) + "\\n")',
    )


def _save(on: Selection) -> str:
    return lines(
        "save(",
        "    {",
        '        "epoch": epoch + 1,',
        '        "model": model.state_dict(),',
        '        "optimizer": optimizer.state_dict(),',
        '        "schedule": schedule.state_dict(),' if on.schedule else "",
        '        "scaler": scaler.state_dict(),' if on.scaled else "",
        '        "best": best,' if on.early_stopping else "",
        '        "best_weights": best_weights,' if on.early_stopping else "",
        '        "stale": stale,' if on.early_stopping else "",
        '        "random": torch.get_rng_state(),' if on.seeding else "",
        '        "random_cuda": torch.cuda.get_rng_state_all(),' if on.seeding else "",
        "    }",
        ")",
    )


def _print_epoch(on: Selection) -> str:
    if on.logging and on.evaluation:
        return lines(
            "print(",
            '    f"epoch {epoch + 1}: train loss {train_loss:.3f}, "',
            '    f"val loss {val_loss:.3f}, accuracy {accuracy:.3f}"',
            ")",
        )
    if on.evaluation:
        return 'print(f"epoch {epoch + 1}: val loss {val_loss:.3f}, accuracy {accuracy:.3f}")'
    if on.logging:
        return 'print(f"epoch {epoch + 1}: train loss {train_loss:.3f}")'
    loss = "loss.item() / len(targets)" if on.sums else "loss.item()"
    return f'print(f"epoch {{epoch + 1}}: loss {{{loss}:.3f}}")'


STOP = """
if stale >= PATIENCE:
    break
"""
LOOP: Final = (
    Snippet(name="epochs", write=_epochs, apart=True),
    Snippet(name="stop", write=constant(STOP, lambda on: on.early_stopping), depth=1),
    Snippet(name="totals", write=_totals, depth=1),
    Snippet(name="batches", write=_batches, depth=1),
    Snippet(name="move", write=constant("inputs, targets = inputs.to(device), targets.to(device)"), depth=2),
    Snippet(name="forward", write=_forward, depth=2),
    Snippet(name="backward", write=_backward, depth=2),
    Snippet(name="total", write=_total, depth=2),
    Snippet(name="draw", write=constant(DRAW, lambda on: on.progress), depth=2),
    Snippet(name="window", write=constant(WINDOW, lambda on: on.accumulation), depth=2),
    Snippet(
        name="unscale", write=constant("scaler.unscale_(optimizer)", lambda on: on.scaled and on.clipping), depth=2
    ),
    Snippet(name="divide", write=constant(DIVIDE, lambda on: on.accumulation), depth=2),
    Snippet(name="clip", write=lambda on: _clip(on) if on.clipping else "", depth=2),
    Snippet(name="update", write=_update, depth=2),
    Snippet(name="advance", write=lambda on: _advance(on) if on.schedule else "", depth=2),
    Snippet(name="clear", write=constant("optimizer.zero_grad()"), depth=2),
    Snippet(name="train loss", write=_train_loss, depth=1),
    Snippet(name="look", write=constant("val_loss, accuracy = evaluate()", lambda on: on.evaluation), depth=1),
    Snippet(name="judge", write=constant(JUDGE, lambda on: on.early_stopping), depth=1),
    Snippet(name="record", write=lambda on: _record(on) if on.logging else "", depth=1),
    Snippet(name="keep", write=lambda on: _save(on) if on.checkpoint else "", depth=1),
    Snippet(name="print", write=_print_epoch, depth=1),
    Snippet(
        name="restore", write=constant("model.load_state_dict(best_weights)", lambda on: on.early_stopping), apart=True
    ),
)
PROGRAM: Final = (*SETUP_SNIPPETS, *LOOP)
"""Every piece, in the order of the text."""


STANDARD: Final = ("copy", "json", "math", "os", "time")
"""Modules that come with Python and are imported whole."""
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "pathlib": ("Path",),
    "sklearn.datasets": ("load_digits",),
    "torch": ("nn",),
    "torch.utils.data": ("DataLoader", "TensorDataset", "random_split"),
    "trueloop": (
        "Accuracy", "CheckpointConfig", "MonitorConfig", "OptimConfig", "ScheduleConfig",
        "TrainConfig", "Trainer",
    ),
    "trueloop.cli.display": ("Display",),
}  # fmt: skip
"""Module -> the names taken from it, both in the order that import sorters want."""
OWN: Final = {"pathlib": 0}
"""Which group of imports a module stands in: Python's own, or, the most, others'."""
GROUPS: Final = 2


class Span(NamedTuple):
    """Where a piece stands: lines counted from 1, the last included."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A text, and which of its lines are whose."""

    text: str
    spans: tuple[Span, ...]

    def part(self, *names: str) -> str:
        """Return the lines of these pieces alone, as they stand."""
        wanted = [span for span in self.spans if span.name in names]
        all_lines = self.text.splitlines()
        return "\n".join("\n".join(all_lines[span.first - 1 : span.last]) for span in wanted) + "\n"

    @property
    def halves(self) -> tuple[str, str]:
        """What is done before training, and the training loop with what follows."""
        begin = next(span.first for span in self.spans if span.name == LOOP[0].name)
        kept = self.text.splitlines(keepends=True)
        return "".join(kept[: begin - 1]), "".join(kept[begin - 1 :])


def write(selection: Selection, replaced: Mapping[str, str] | None = None) -> Program:
    """Write the program of a selection.

    Args:
        selection: what is on; completed by what that needs.
        replaced: texts that stand instead of pieces, by their names: another model, other data.
    """
    return assemble("Trains a small network on handwritten digits.", PROGRAM, selection, replaced or {})


def assemble(doc: str, pieces: Sequence[Snippet], selection: Selection, replaced: Mapping[str, str]) -> Program:
    """Put pieces into one text, below a docstring and the imports they need.

    Args:
        doc: the program's first line.
        pieces: in their order.
        selection: what is on; completed by what that needs.
        replaced: texts that stand instead of pieces, by their names.
    """
    on = selection.completed()
    written = [(piece, replaced.get(piece.name, piece.write(on)).strip("\n")) for piece in pieces]
    written = [(piece, text) for piece, text in written if text]
    names = _names("\n".join(indent(text, "    " * piece.depth) for piece, text in written))
    lines = [f'"""{doc}"""', "", *_imports(names), ""]
    spans: list[Span] = []
    before: tuple[Snippet, str] | None = None
    for piece, text in written:
        lines += _blank(before, (piece, text))
        first = len(lines) + 1
        lines += indent(text, "    " * piece.depth).splitlines()
        spans.append(Span(piece.name, first, len(lines)))
        before = (piece, text)
    return Program(text="\n".join(lines) + "\n", spans=tuple(spans))


def _blank(before: tuple[Snippet, str] | None, now: tuple[Snippet, str]) -> list[str]:
    """Two blank lines around a function, as Python's style guide asks; one where a piece wants to stand apart."""
    if before is None:
        return []
    if any(text.startswith(("def ", "@")) for _, text in (before, now)):
        return ["", ""]
    return [""] if now[0].apart else []


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _imports(names: set[str]) -> list[str]:
    groups: list[list[str]] = [[] for _ in range(GROUPS)]
    groups[0] += [f"import {module}" for module in STANDARD if module in names]
    groups[1] += ["import torch"] if "torch" in names else []
    for module, parts in PARTS.items():
        if wanted := [part for part in parts if part in names]:
            groups[OWN.get(module, 1)].append(_from(module, wanted))
    return "\n\n".join("\n".join(group) for group in groups if group).splitlines()


def _from(module: str, parts: Iterable[str]) -> str:
    line = f"from {module} import {', '.join(parts)}"
    if len(line) <= 88:
        return line
    return "\n".join([f"from {module} import (", *(f"    {part}," for part in parts), ")"])
