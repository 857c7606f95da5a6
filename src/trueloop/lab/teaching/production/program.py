"""Generates the program of a selection: its snippets in order, and the imports that they need."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Final, NamedTuple

from trueloop.lab.teaching.production.selection import Selection
from trueloop.lab.teaching.production.snippets import MODEL, SETUP_SNIPPETS, Snippet, autocast, constant, lines


def _needs_folder(chosen: Selection) -> bool:
    """True if the run needs a folder: for checkpoints, the journal or the best weights."""
    return chosen.checkpoint or chosen.logging or chosen.early_stopping


def _config(chosen: Selection) -> str:
    schedule = "cosine" if chosen.schedule else "constant"
    keeps_last = chosen.evaluation and _needs_folder(chosen) and not chosen.early_stopping
    return lines(
        "config = TrainConfig(",
        "    epochs=10,",
        "    effective_batch=64,",
        "    micro_batch=16," if chosen.accumulation else "",
        "    optim=OptimConfig(lr=3e-3, decay_all=True),  # decay_all: as bare AdamW does",
        f'    schedule=ScheduleConfig(name="{schedule}"),',
        "    clip=1.0," if chosen.clipping else "    clip=None,",
        f'    precision="{chosen.precision}",' if chosen.precision != "off" else "",
        "    monitor=MonitorConfig(patience=3)," if chosen.early_stopping else "",
        '    checkpoint=CheckpointConfig(final="last"),' if keeps_last else "",
        "    seed=0," if chosen.seeding else "    seeding=False,",
        ")",
    )


def _trainer(chosen: Selection) -> str:
    return lines(
        "trainer = Trainer(",
        "    model=model,",
        "    objective=nn.CrossEntropyLoss(),",
        "    config=config,",
        '    metrics={"accuracy": Accuracy},' if chosen.evaluation else "",
        '    run_dir="runs/digits",' if _needs_folder(chosen) else "",
        "    reporters=[Display()]," if chosen.progress else "",
        ")",
        f"result = trainer.fit(train_data{', val=val_data' if chosen.evaluation else ''})",
        "print(result.metrics)" if chosen.evaluation else "",
    )


_SETUP: Final = {snippet.name: snippet for snippet in SETUP_SNIPPETS}
TRAINER_SNIPPETS: Final = (
    _SETUP["seed"],
    _SETUP["data"],
    _SETUP["split"],
    Snippet(name="model", write=lambda chosen: MODEL.replace(".to(device)", "").strip(), spaced=True),
    Snippet(name="config", write=_config),
    Snippet(name="trainer", write=_trainer, spaced=True),
)


def _epochs(chosen: Selection) -> str:
    return f"for epoch in range({'start, ' if chosen.checkpoint else ''}EPOCHS):"


def _totals(chosen: Selection) -> str:
    return lines(
        "loss_sum = torch.zeros((), device=device)  # stays on the device: no synchronisation"
        if chosen.logging
        else "",
        "count = 0  # examples in the window" if chosen.accumulation else "",
        "printed = 0.0" if chosen.progress else "",
    )


def _batches(chosen: Selection) -> str:
    if chosen.accumulation or chosen.progress:
        return "for index, (inputs, targets) in enumerate(loader, start=1):"
    return "for inputs, targets in loader:"


def _forward(chosen: Selection) -> str:
    forward = "loss = loss_function(model(inputs), targets)"
    cast = autocast(chosen)
    return f"{cast}\n    {forward}" if cast else forward


def _backward(chosen: Selection) -> str:
    return "scaler.scale(loss).backward()" if chosen.uses_scaler else "loss.backward()"


def _total(chosen: Selection) -> str:
    if not chosen.logging:
        return ""
    return "loss_sum += loss.detach()" if chosen.sums_losses else "loss_sum += loss.detach() * len(targets)"


DRAW = """
if time.monotonic() - printed > 0.2:  # at most five times a second
    printed = time.monotonic()
    done = index / len(loader)
    print(f"epoch {epoch + 1}: {done:4.0%}", end="\\r", flush=True)
"""
WINDOW = """
count += len(targets)
if index % ACCUMULATE and index < len(loader):
    continue  # neither the window nor the epoch is complete
"""
DIVIDE = """
for parameter in model.parameters():
    parameter.grad /= count  # the sum over the window becomes a mean
count = 0
"""


def _clip(chosen: Selection) -> str:
    clip = "nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)"
    return f"norm = {clip}" if chosen.logging else clip


def _update(chosen: Selection) -> str:
    if not chosen.uses_scaler:
        return "optimizer.step()"
    return lines("scale = scaler.get_scale()" if chosen.schedule else "", "scaler.step(optimizer)", "scaler.update()")


def _advance(chosen: Selection) -> str:
    if chosen.uses_scaler:
        return lines("if scaler.get_scale() >= scale:  # a lower scale: the update was skipped", "    schedule.step()")
    return "schedule.step()"


def _train_loss(chosen: Selection) -> str:
    return "train_loss = loss_sum.item() / len(train_data)" if chosen.logging else ""


JUDGE = """
if val_loss < best:
    best, best_weights, stale = val_loss, copy.deepcopy(model.state_dict()), 0
else:
    stale += 1
"""


def _record(chosen: Selection) -> str:
    return lines(
        "record = {",
        '    "time": time.time(),',
        '    "epoch": epoch + 1,',
        '    "train_loss": train_loss,',
        '    "val_loss": val_loss,' if chosen.evaluation else "",
        '    "accuracy": accuracy,' if chosen.evaluation else "",
        '    "learning_rate": schedule.get_last_lr()[0],' if chosen.schedule else "",
        '    "gradient_norm": norm.item(),' if chosen.clipping else "",
        "}",
        'with LOG.open("a") as file:',
        '    file.write(json.dumps(record) + "\\n")',
    )


def _save(chosen: Selection) -> str:
    return lines(
        "save(",
        "    {",
        '        "epoch": epoch + 1,',
        '        "model": model.state_dict(),',
        '        "optimizer": optimizer.state_dict(),',
        '        "schedule": schedule.state_dict(),' if chosen.schedule else "",
        '        "scaler": scaler.state_dict(),' if chosen.uses_scaler else "",
        '        "best": best,' if chosen.early_stopping else "",
        '        "best_weights": best_weights,' if chosen.early_stopping else "",
        '        "stale": stale,' if chosen.early_stopping else "",
        '        "random": torch.get_rng_state(),' if chosen.seeding else "",
        '        "random_cuda": torch.cuda.get_rng_state_all(),' if chosen.seeding else "",
        "    }",
        ")",
    )


def _print_epoch(chosen: Selection) -> str:
    if chosen.logging and chosen.evaluation:
        return lines(
            "print(",
            '    f"epoch {epoch + 1}: train loss {train_loss:.3f}, "',
            '    f"val loss {val_loss:.3f}, accuracy {accuracy:.3f}"',
            ")",
        )
    if chosen.evaluation:
        return 'print(f"epoch {epoch + 1}: val loss {val_loss:.3f}, accuracy {accuracy:.3f}")'
    if chosen.logging:
        return 'print(f"epoch {epoch + 1}: train loss {train_loss:.3f}")'
    loss = "loss.item() / len(targets)" if chosen.sums_losses else "loss.item()"
    return f'print(f"epoch {{epoch + 1}}: loss {{{loss}:.3f}}")'


STOP = """
if stale >= PATIENCE:
    break
"""
LOOP: Final = (
    Snippet(name="epochs", write=_epochs, spaced=True),
    Snippet(name="stop", write=constant(STOP, lambda chosen: chosen.early_stopping), depth=1),
    Snippet(name="totals", write=_totals, depth=1),
    Snippet(name="batches", write=_batches, depth=1),
    Snippet(name="move", write=constant("inputs, targets = inputs.to(device), targets.to(device)"), depth=2),
    Snippet(name="forward", write=_forward, depth=2),
    Snippet(name="backward", write=_backward, depth=2),
    Snippet(name="total", write=_total, depth=2),
    Snippet(name="draw", write=constant(DRAW, lambda chosen: chosen.progress), depth=2),
    Snippet(name="window", write=constant(WINDOW, lambda chosen: chosen.accumulation), depth=2),
    Snippet(
        name="unscale",
        write=constant("scaler.unscale_(optimizer)", lambda chosen: chosen.uses_scaler and chosen.clipping),
        depth=2,
    ),
    Snippet(name="divide", write=constant(DIVIDE, lambda chosen: chosen.accumulation), depth=2),
    Snippet(name="clip", write=lambda chosen: _clip(chosen) if chosen.clipping else "", depth=2),
    Snippet(name="update", write=_update, depth=2),
    Snippet(name="advance", write=lambda chosen: _advance(chosen) if chosen.schedule else "", depth=2),
    Snippet(name="clear", write=constant("optimizer.zero_grad()"), depth=2),
    Snippet(name="train loss", write=_train_loss, depth=1),
    Snippet(name="look", write=constant("val_loss, accuracy = evaluate()", lambda chosen: chosen.evaluation), depth=1),
    Snippet(name="judge", write=constant(JUDGE, lambda chosen: chosen.early_stopping), depth=1),
    Snippet(name="record", write=lambda chosen: _record(chosen) if chosen.logging else "", depth=1),
    Snippet(name="keep", write=lambda chosen: _save(chosen) if chosen.checkpoint else "", depth=1),
    Snippet(name="print", write=_print_epoch, depth=1),
    Snippet(
        name="restore",
        write=constant("model.load_state_dict(best_weights)", lambda chosen: chosen.early_stopping),
        spaced=True,
    ),
)
PROGRAM: Final = (*SETUP_SNIPPETS, *LOOP)
"""All snippets, in the order of the program."""


STANDARD_MODULES: Final = ("copy", "json", "math", "os", "time")
"""Standard library modules that are imported as a whole; "pathlib" is the only one from which a name is imported."""
IMPORTED_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "pathlib": ("Path",),
    "sklearn.datasets": ("load_digits",),
    "torch": ("distributed", "nn"),
    "torch.nn.parallel": ("DistributedDataParallel",),
    "torch.utils.data": ("DataLoader", "DistributedSampler", "TensorDataset", "random_split"),
    "trueloop": (
        "Accuracy", "CheckpointConfig", "MonitorConfig", "OptimConfig", "ScheduleConfig",
        "TrainConfig", "Trainer",
    ),
    "trueloop.cli.display": ("Display",),
}  # fmt: skip
"""Module -> the names imported from it, both sorted as import sorters require."""
MAX_LINE: Final = 88  # characters; formatters break a longer import into several lines


class Span(NamedTuple):
    """Lines of a snippet, from 1, including the last."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program, and the lines of its snippets."""

    text: str
    spans: tuple[Span, ...]

    def part(self, *names: str) -> str:
        """Return only the lines of these snippets, unchanged."""
        spans = [span for span in self.spans if span.name in names]
        all_lines = self.text.splitlines()
        return "\n".join("\n".join(all_lines[span.first - 1 : span.last]) for span in spans) + "\n"

    @property
    def halves(self) -> tuple[str, str]:
        """The lines before the training loop, and the lines from the training loop on."""
        begin = next(span.first for span in self.spans if span.name == LOOP[0].name)
        all_lines = self.text.splitlines(keepends=True)
        return "".join(all_lines[: begin - 1]), "".join(all_lines[begin - 1 :])


def production_program(selection: Selection, replacements: Mapping[str, str] | None = None) -> Program:
    """Generate the program of a selection in plain PyTorch.

    Args:
        selection: the components; those that they require are added.
        replacements: snippet name -> source code to use instead, such as another model or other data.
    """
    return assemble("Trains a small network on handwritten digits.", PROGRAM, selection, replacements or {})


def trainer_program(selection: Selection) -> Program:
    """Generate the program that uses `trueloop.Trainer`; components that the selection requires are added."""
    return assemble("The same run with trueloop.", TRAINER_SNIPPETS, selection, {})


def assemble(doc: str, snippets: Sequence[Snippet], selection: Selection, replacements: Mapping[str, str]) -> Program:
    """Join snippets into one program with a docstring and the imports that it needs.

    Args:
        doc: docstring of the program.
        snippets: snippets in the order of the program.
        selection: the components; those that they require are added.
        replacements: snippet name -> source code to use instead.
    """
    chosen = selection.with_required()
    texts = [(snippet, replacements.get(snippet.name, snippet.write(chosen)).strip("\n")) for snippet in snippets]
    texts = [(snippet, text) for snippet, text in texts if text]
    code = "\n".join(indent(text, "    " * snippet.depth) for snippet, text in texts)
    program = [f'"""{doc}"""', "", *_imports(_used_names(code)), ""]
    spans: list[Span] = []
    previous: tuple[Snippet, str] | None = None
    for snippet, text in texts:
        program += _blank_lines(previous, (snippet, text))
        first = len(program) + 1
        program += indent(text, "    " * snippet.depth).splitlines()
        spans.append(Span(snippet.name, first, len(program)))
        previous = (snippet, text)
    return Program(text="\n".join(program) + "\n", spans=tuple(spans))


def _blank_lines(previous: tuple[Snippet, str] | None, current: tuple[Snippet, str]) -> list[str]:
    """Return two blank lines around a function, as PEP 8 requires; one before a spaced snippet."""
    if previous is None:
        return []
    if any(text.startswith(("def ", "@")) for _, text in (previous, current)):
        return ["", ""]
    return [""] if current[0].spaced else []


def _used_names(code: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


def _imports(used_names: set[str]) -> list[str]:
    """Return the lines that import these names: first from the standard library, then from other packages."""
    standard = [f"import {module}" for module in STANDARD_MODULES if module in used_names]
    third_party = ["import torch"] if "torch" in used_names else []
    for module, names in IMPORTED_NAMES.items():
        if used := [name for name in names if name in used_names]:
            (standard if module == "pathlib" else third_party).append(_import_from(module, used))
    return "\n\n".join("\n".join(group) for group in (standard, third_party) if group).splitlines()


def _import_from(module: str, names: Iterable[str]) -> str:
    one_line = f"from {module} import {', '.join(names)}"
    if len(one_line) <= MAX_LINE:
        return one_line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])
