"""Generates the program of a selection: its snippets in order, and the imports that they need."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Final, NamedTuple

from trueloop.lab.teaching.production.selection import Selection
from trueloop.lab.teaching.production.snippets import MODEL, SETUP_SNIPPETS, Snippet, autocast, constant, lines


def _needs_folder(selected: Selection) -> bool:
    """True if the run needs a folder: for checkpoints, the journal or the best weights."""
    return selected.checkpoint or selected.logging or selected.early_stopping


def _config(selected: Selection) -> str:
    schedule = "cosine" if selected.schedule else "constant"
    keeps_last = selected.evaluation and _needs_folder(selected) and not selected.early_stopping
    return lines(
        "config = TrainConfig(",
        "    epochs=10,",
        "    effective_batch=64,",
        "    micro_batch=16," if selected.accumulation else "",
        "    optim=OptimConfig(lr=3e-3, decay_all=True),  # decay_all: as bare AdamW does",
        f'    schedule=ScheduleConfig(name="{schedule}"),',
        "    clip=1.0," if selected.clipping else "    clip=None,",
        f'    precision="{selected.precision}",' if selected.precision != "off" else "",
        "    monitor=MonitorConfig(patience=3)," if selected.early_stopping else "",
        '    checkpoint=CheckpointConfig(final="last"),' if keeps_last else "",
        "    seed=0," if selected.seeding else "    seeding=False,",
        ")",
    )


def _trainer(selected: Selection) -> str:
    return lines(
        "trainer = Trainer(",
        "    model=model,",
        "    objective=nn.CrossEntropyLoss(),",
        "    config=config,",
        '    metrics={"accuracy": Accuracy},' if selected.evaluation else "",
        '    run_dir="runs/digits",' if _needs_folder(selected) else "",
        "    reporters=[Display()]," if selected.progress else "",
        ")",
        f"result = trainer.fit(train_data{', val=val_data' if selected.evaluation else ''})",
        "print(result.metrics)" if selected.evaluation else "",
    )


_SETUP: Final = {snippet.name: snippet for snippet in SETUP_SNIPPETS}
TRAINER_SNIPPETS: Final = (
    _SETUP["seed"],
    _SETUP["data"],
    _SETUP["split"],
    Snippet(name="model", write=lambda selected: MODEL.replace(".to(device)", "").strip(), blank_line_before=True),
    Snippet(name="config", write=_config),
    Snippet(name="trainer", write=_trainer, blank_line_before=True),
)


def _epochs(selected: Selection) -> str:
    return f"for epoch in range({'start, ' if selected.checkpoint else ''}EPOCHS):"


def _totals(selected: Selection) -> str:
    return lines(
        "loss_sum = torch.zeros((), device=device)  # stays on the device: no synchronisation"
        if selected.logging
        else "",
        "count = 0  # examples in the window" if selected.accumulation else "",
        "printed = 0.0" if selected.progress else "",
    )


def _batches(selected: Selection) -> str:
    if selected.accumulation or selected.progress:
        return "for index, (inputs, targets) in enumerate(loader, start=1):"
    return "for inputs, targets in loader:"


def _forward(selected: Selection) -> str:
    forward = "loss = loss_function(model(inputs), targets)"
    cast = autocast(selected)
    return f"{cast}\n    {forward}" if cast else forward


def _backward(selected: Selection) -> str:
    return "scaler.scale(loss).backward()" if selected.uses_scaler else "loss.backward()"


def _total(selected: Selection) -> str:
    if not selected.logging:
        return ""
    return "loss_sum += loss.detach()" if selected.sums_losses else "loss_sum += loss.detach() * len(targets)"


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


def _clip(selected: Selection) -> str:
    clip = "nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)"
    return f"norm = {clip}" if selected.logging else clip


def _update(selected: Selection) -> str:
    if not selected.uses_scaler:
        return "optimizer.step()"
    return lines("scale = scaler.get_scale()" if selected.schedule else "", "scaler.step(optimizer)", "scaler.update()")


def _advance(selected: Selection) -> str:
    if selected.uses_scaler:
        return lines("if scaler.get_scale() >= scale:  # a lower scale: the update was skipped", "    schedule.step()")
    return "schedule.step()"


def _train_loss(selected: Selection) -> str:
    return "train_loss = loss_sum.item() / len(train_data)" if selected.logging else ""


JUDGE = """
if val_loss < best:
    best, best_weights, stale = val_loss, copy.deepcopy(model.state_dict()), 0
else:
    stale += 1
"""


def _record(selected: Selection) -> str:
    return lines(
        "record = {",
        '    "time": time.time(),',
        '    "epoch": epoch + 1,',
        '    "train_loss": train_loss,',
        '    "val_loss": val_loss,' if selected.evaluation else "",
        '    "accuracy": accuracy,' if selected.evaluation else "",
        '    "learning_rate": schedule.get_last_lr()[0],' if selected.schedule else "",
        '    "gradient_norm": norm.item(),' if selected.clipping else "",
        "}",
        'with LOG.open("a") as file:',
        '    file.write(json.dumps(record) + "\\n")',
    )


def _save(selected: Selection) -> str:
    return lines(
        "save(",
        "    {",
        '        "epoch": epoch + 1,',
        '        "model": model.state_dict(),',
        '        "optimizer": optimizer.state_dict(),',
        '        "schedule": schedule.state_dict(),' if selected.schedule else "",
        '        "scaler": scaler.state_dict(),' if selected.uses_scaler else "",
        '        "best": best,' if selected.early_stopping else "",
        '        "best_weights": best_weights,' if selected.early_stopping else "",
        '        "stale": stale,' if selected.early_stopping else "",
        '        "random": torch.get_rng_state(),' if selected.seeding else "",
        '        "random_cuda": torch.cuda.get_rng_state_all(),' if selected.seeding else "",
        "    }",
        ")",
    )


def _print_epoch(selected: Selection) -> str:
    if selected.logging and selected.evaluation:
        return lines(
            "print(",
            '    f"epoch {epoch + 1}: train loss {train_loss:.3f}, "',
            '    f"val loss {val_loss:.3f}, accuracy {accuracy:.3f}"',
            ")",
        )
    if selected.evaluation:
        return 'print(f"epoch {epoch + 1}: val loss {val_loss:.3f}, accuracy {accuracy:.3f}")'
    if selected.logging:
        return 'print(f"epoch {epoch + 1}: train loss {train_loss:.3f}")'
    loss = "loss.item() / len(targets)" if selected.sums_losses else "loss.item()"
    return f'print(f"epoch {{epoch + 1}}: loss {{{loss}:.3f}}")'


STOP = """
if stale >= PATIENCE:
    break
"""
LOOP: Final = (
    Snippet(name="epochs", write=_epochs, blank_line_before=True),
    Snippet(name="stop", write=constant(STOP, lambda selected: selected.early_stopping), depth=1),
    Snippet(name="totals", write=_totals, depth=1),
    Snippet(name="batches", write=_batches, depth=1),
    Snippet(name="move", write=constant("inputs, targets = inputs.to(device), targets.to(device)"), depth=2),
    Snippet(name="forward", write=_forward, depth=2),
    Snippet(name="backward", write=_backward, depth=2),
    Snippet(name="total", write=_total, depth=2),
    Snippet(name="draw", write=constant(DRAW, lambda selected: selected.progress), depth=2),
    Snippet(name="window", write=constant(WINDOW, lambda selected: selected.accumulation), depth=2),
    Snippet(
        name="unscale",
        write=constant("scaler.unscale_(optimizer)", lambda selected: selected.uses_scaler and selected.clipping),
        depth=2,
    ),
    Snippet(name="divide", write=constant(DIVIDE, lambda selected: selected.accumulation), depth=2),
    Snippet(name="clip", write=lambda selected: _clip(selected) if selected.clipping else "", depth=2),
    Snippet(name="update", write=_update, depth=2),
    Snippet(name="advance", write=lambda selected: _advance(selected) if selected.schedule else "", depth=2),
    Snippet(name="clear", write=constant("optimizer.zero_grad()"), depth=2),
    Snippet(name="train loss", write=_train_loss, depth=1),
    Snippet(
        name="look", write=constant("val_loss, accuracy = evaluate()", lambda selected: selected.evaluation), depth=1
    ),
    Snippet(name="judge", write=constant(JUDGE, lambda selected: selected.early_stopping), depth=1),
    Snippet(name="record", write=lambda selected: _record(selected) if selected.logging else "", depth=1),
    Snippet(name="keep", write=lambda selected: _save(selected) if selected.checkpoint else "", depth=1),
    Snippet(name="print", write=_print_epoch, depth=1),
    Snippet(
        name="restore",
        write=constant("model.load_state_dict(best_weights)", lambda selected: selected.early_stopping),
        blank_line_before=True,
    ),
)
PROGRAM: Final = (*SETUP_SNIPPETS, *LOOP)
"""All snippets, in the order of the program."""


STANDARD_MODULES: Final = ("copy", "json", "math", "os", "time")
"""Standard library modules that are imported as a whole; "pathlib" is the only one from which a name is imported."""
IMPORTED_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
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
        selection: the components, without those that they require.
        replacements: snippet name -> source code to use instead, such as another model or other data.
    """
    return assemble("Trains a small network on handwritten digits.", PROGRAM, selection, replacements or {})


def trainer_program(selection: Selection) -> Program:
    """Generate the program that uses `trueloop.Trainer` for the same components.

    Args:
        selection: the components, without those that they require.
    """
    return assemble("The same run with trueloop.", TRAINER_SNIPPETS, selection, {})


def assemble(doc: str, snippets: Sequence[Snippet], selection: Selection, replacements: Mapping[str, str]) -> Program:
    """Join snippets into one program with a docstring and the imports that it needs.

    Args:
        doc: docstring of the program.
        snippets: snippets in the order of the program.
        selection: the components, without those that they require.
        replacements: snippet name -> source code to use instead.
    """
    selected = selection.with_required()
    texts = [(snippet, replacements.get(snippet.name, snippet.write(selected)).strip("\n")) for snippet in snippets]
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
    """Return two blank lines around a function, as PEP 8 requires; one before a snippet that is `blank_line_before`."""
    if previous is None:
        return []
    if any(text.startswith(("def ", "@")) for _, text in (previous, current)):
        return ["", ""]
    return [""] if current[0].blank_line_before else []


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
