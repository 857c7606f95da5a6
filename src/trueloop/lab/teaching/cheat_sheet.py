"""The cheat sheet: terms, counts, loops, failures and DataLoader arguments, collected from their sources."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from textwrap import dedent
from typing import Final

from trueloop.core import arithmetic
from trueloop.core.arithmetic import Plan, plan
from trueloop.core.formatting import format_count, format_number, format_size
from trueloop.failures.load import catalogue
from trueloop.failures.page import join_wrapped_lines, split_sections
from trueloop.lab.teaching.production.program import production_program
from trueloop.lab.teaching.production.selection import Selection, select

EXAMPLE: Final = plan(dataset=10_000, batch=32, accumulate=4, processes=2, epochs=3, sample_bytes=3072)
"""Sizes of the example for the counts."""
COUNTS: Final = (
    "effective_batch", "iterations_per_epoch", "last_batch", "updates_per_epoch", "last_window", "iterations",
    "updates", "scheduler_ticks", "forward_passes", "examples_seen", "batch_bytes",
)  # fmt: skip
"""Properties of `Plan` in the order of the sheet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """One count that follows from the sizes of a run."""

    name: str
    description: str
    """Meaning of the count, with its formula if it has one."""
    example: str
    """Value for `EXAMPLE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One loop to copy."""

    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One silent failure, as a row of the table."""

    code: str
    severity: str
    title: str
    symptom: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of `torch.utils.data.DataLoader`."""

    name: str
    default: str
    """Default value in Python syntax; empty if the argument is required."""
    description: str


def terms() -> dict[str, str]:
    """Return the terms and definitions in the docstring of `arithmetic`."""
    lines = re.findall(r"^    (\w+) {2,}(\S.*)$", inspect.getdoc(arithmetic) or "", flags=re.MULTILINE)
    return {term: description[0].upper() + description[1:] for term, description in lines}


def sizes(example: Plan = EXAMPLE) -> str:
    """Return the letters of the formulas with the values of the example, such as "N = 10000 (dataset)"."""
    letters = re.search(r"Terms, with (.+):$", inspect.getdoc(arithmetic) or "", flags=re.MULTILINE)
    pairs = re.findall(r"(\w) = (\w+)", letters[1] if letters else "")
    text = ", ".join(f"{letter} = {getattr(example, name)} ({name})" for letter, name in pairs)
    return f"{text}, {format_count(example.epochs, 'epoch')}"


def counts(example: Plan = EXAMPLE) -> tuple[Count, ...]:
    """Return every count of the sheet with its meaning and example value."""
    return tuple(_count(name, example) for name in COUNTS)


def _count(name: str, example: Plan) -> Count:
    description = inspect.getdoc(getattr(Plan, name)) or ""
    value = getattr(example, name)
    return Count(
        name=name.replace("_", " "),
        description=description.partition("; None")[0].rstrip(".") + ".",
        example=format_size(value) if name.endswith("bytes") else format_number(value),
    )


def templates() -> tuple[Template, ...]:
    """Return the most useful loops of page "Production loop"."""
    loop = ("epochs", "batches", "forward", "backward", "update", "clear")
    window = ("epochs", "totals", "batches", "forward", "backward", "window", "divide", "update", "clear")
    scaled = ("scaler", "epochs", "batches", "forward", "backward", "unscale", "clip", "update", "clear")
    checkpoint = ("save", "resume", "epochs", "batches", "keep")
    accumulation = select("accumulation")
    return (
        Template(title="The minimal loop", text=_part(Selection(), *loop)),
        Template(title="Accumulation, exact", text=_part(accumulation, "criterion") + _part(accumulation, *window)),
        Template(
            title="Mixed precision, with clipping",
            text=_part(select("precision", "clipping", precision="fp16"), *scaled),
        ),
        Template(title="Evaluation", text=_part(select("evaluation"), "evaluate")),
        Template(title="Checkpoint and resume", text=_resume(_part(select("checkpoint"), *checkpoint))),
    )


def _part(selection: Selection, *names: str) -> str:
    return dedent(production_program(selection).part(*names))


def _resume(text: str) -> str:
    """Replace the loop over batches by a comment, and add blank lines between the parts."""
    text = re.sub(r"    for .* in loader:\n", "    ...  # train for an epoch\n", text)
    return text.replace("\nstart = 0", "\n\n\nstart = 0").replace("\nfor epoch", "\n\nfor epoch")


def bugs() -> tuple[Bug, ...]:
    """Return every silent failure of the catalogue."""
    return tuple(
        Bug(
            code=entry.code,
            severity=entry.failure.severity,
            title=entry.failure.title,
            symptom=_first_sentence(dict(split_sections(entry.failure.doc)).get("What you see", "")),
            fix=entry.failure.fix,
        )
        for entry in catalogue().values()
    )


def _first_sentence(text: str) -> str:
    """Return the first sentence, or the first two if the first is very short."""
    sentences = re.split(r"(?<=\.)\s+(?=[A-Z`])", join_wrapped_lines(text).replace("``", "").replace("\n", " "))
    return " ".join(sentences[: 1 if len(sentences[0]) > 20 else 2])


PURPOSES: Final[Mapping[str, str]] = {
    "dataset": "map-style (len and index) or iterable",
    "batch_size": "examples per batch; None: the dataset or sampler already yields batches",
    "shuffle": "True: a new random order in each epoch, for training; excludes sampler",
    "sampler": "the order of indices: RandomSampler, WeightedRandomSampler, DistributedSampler",
    "batch_sampler": "yields whole batches of indices; excludes batch_size, shuffle, sampler and drop_last",
    "num_workers": "processes that read ahead; 0: read in the training process",
    "collate_fn": "examples -> batch, for example with padding and masks; the default stacks tensors",
    "pin_memory": "True for a GPU: copies with non_blocking=True overlap with work",
    "drop_last": "leave out the partial batch: for training with BatchNorm; never in evaluation",
    "timeout": "seconds to wait for a worker; 0: no limit",
    "worker_init_fn": "called in each worker with its id: seed other libraries here",
    "multiprocessing_context": "how workers start: 'fork', 'spawn' or 'forkserver'",
    "generator": "generator of the shuffled order and the workers' seeds: seed it to repeat a run",
    "prefetch_factor": "batches that each worker reads ahead; None: 2 with workers",
    "persistent_workers": "keep workers from epoch to epoch: starting them takes seconds",
    "pin_memory_device": "the GPU; PyTorch detects it, so leave the default",
    "in_order": "False: a slow batch does not delay the others, but runs are not repeatable",
}
"""Argument -> its purpose; the arguments themselves are read from PyTorch."""


def arguments() -> tuple[Argument, ...]:
    """Return the DataLoader arguments of the installed PyTorch."""
    return tuple(_arguments())


def _arguments() -> Iterator[Argument]:
    from torch.utils.data import DataLoader

    for name, parameter in inspect.signature(DataLoader).parameters.items():
        default = "" if parameter.default is parameter.empty else repr(parameter.default)
        yield Argument(name=name, default=default, description=PURPOSES.get(name, "new in this version of PyTorch"))
