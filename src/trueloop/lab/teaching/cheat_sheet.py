"""The cheat sheet: words, counts, loops, failures and the loader's arguments, each taken from where it is kept."""

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
from trueloop.lab.teaching.production.selection import Selection, selected

EXAMPLE: Final = plan(dataset=10_000, batch=32, accumulate=4, processes=2, epochs=3, sample_bytes=3072)
"""The sizes for which the counts are computed."""
COUNTS: Final = (
    "effective_batch", "iterations_per_epoch", "last_batch", "updates_per_epoch", "last_window", "iterations",
    "updates", "scheduler_ticks", "forward_passes", "examples_seen", "batch_bytes",
)  # fmt: skip
"""Properties of `Plan`, in the order of the sheet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """One number that follows from the sizes of a run."""

    name: str
    says: str
    """What it is, with its formula where it has one."""
    example: str
    """For `EXAMPLE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One loop to copy from."""

    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One silent failure in one line."""

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
    """As Python writes it."""
    says: str


def terms() -> dict[str, str]:
    """Return the words of training arithmetic, as that module says them."""
    found = re.findall(r"^    (\w+) {2,}(\S.*)$", inspect.getdoc(arithmetic) or "", flags=re.MULTILINE)
    return {word: says[0].upper() + says[1:] for word, says in found}


def sizes(example: Plan = EXAMPLE) -> str:
    """Write the letters of the formulas with the values of the example: "N = 10000, B = 32"."""
    letters = re.search(r"The words, with (.+):$", inspect.getdoc(arithmetic) or "", flags=re.MULTILINE)
    pairs = re.findall(r"(\w) = (\w+)", letters[1] if letters else "")
    text = ", ".join(f"{letter} = {getattr(example, name)} ({name})" for letter, name in pairs)
    return f"{text}, {format_count(example.epochs, 'epoch')}"


def counts(example: Plan = EXAMPLE) -> tuple[Count, ...]:
    """Return every count of the sheet, in its own words and worked out."""
    return tuple(_count(name, example) for name in COUNTS)


def _count(name: str, example: Plan) -> Count:
    says = inspect.getdoc(getattr(Plan, name)) or ""
    value = getattr(example, name)
    return Count(
        name=name.replace("_", " "),
        says=says.partition("; None")[0].rstrip(".") + ".",
        example=format_size(value) if name.endswith("bytes") else format_number(value),
    )


def templates() -> tuple[Template, ...]:
    """Return the loops of the production page that are looked up most."""
    loop = ("epochs", "batches", "forward", "backward", "update", "clear")
    window = ("epochs", "totals", "batches", "forward", "backward", "window", "divide", "update", "clear")
    scaled = ("scaler", "epochs", "batches", "forward", "backward", "unscale", "clip", "update", "clear")
    rest = ("save", "resume", "epochs", "batches", "keep")
    summed = selected("accumulation")
    return (
        Template(title="The minimal loop", text=_part(Selection(), *loop)),
        Template(title="Accumulation, exact", text=_part(summed, "criterion") + _part(summed, *window)),
        Template(
            title="Mixed precision, with clipping",
            text=_part(selected("precision", "clipping", precision="fp16"), *scaled),
        ),
        Template(title="Evaluation", text=_part(selected("evaluation"), "evaluate")),
        Template(title="Checkpoint and resume", text=_resume(_part(selected("checkpoint"), *rest))),
    )


def _part(selection: Selection, *names: str) -> str:
    return dedent(production_program(selection).part(*names))


def _resume(text: str) -> str:
    """Leave out the loop over batches between what is taken up and what is saved, and set the pieces apart."""
    text = re.sub(r"    for .* in loader:\n", "    ...  # train for an epoch\n", text)
    return text.replace("\nstart = 0", "\n\n\nstart = 0").replace("\nfor epoch", "\n\nfor epoch")


def bugs() -> tuple[Bug, ...]:
    """Return every silent failure of the catalogue in one line."""
    return tuple(
        Bug(
            code=entry.code,
            severity=entry.failure.severity,
            title=entry.failure.title,
            symptom=_first(dict(split_sections(entry.failure.doc)).get("What you see", "")),
            fix=entry.failure.fix,
        )
        for entry in catalogue().values()
    )


def _first(text: str) -> str:
    """Return the first sentence; two where the first is a word or two."""
    sentences = re.split(r"(?<=\.)\s+(?=[A-Z`])", join_wrapped_lines(text).replace("``", "").replace("\n", " "))
    return " ".join(sentences[: 1 if len(sentences[0]) > 20 else 2])


SAYS: Final[Mapping[str, str]] = {
    "dataset": "map-style (len and index) or iterable",
    "batch_size": "examples per batch; None: the dataset gives batches itself",
    "shuffle": "a new order in each epoch; for training; not together with a sampler",
    "sampler": "the order, as indices: RandomSampler, WeightedRandomSampler, DistributedSampler",
    "batch_sampler": "whole batches of indices; instead of the four around it",
    "num_workers": "processes that read ahead; 0: read in the training process",
    "collate_fn": "examples -> batch: padding, masks; as a rule the default stacks tensors",
    "pin_memory": "True for a GPU: copies with non_blocking=True overlap with work",
    "drop_last": "leave out the partial batch: in training with BatchNorm; never in evaluation",
    "timeout": "seconds to wait for a worker; 0: no limit",
    "worker_init_fn": "called in each worker with its number: seed other libraries here",
    "multiprocessing_context": "how workers start: 'fork', 'spawn' or 'forkserver'",
    "generator": "of the shuffled order and the workers' seeds: seed it to repeat a run",
    "prefetch_factor": "batches that each worker reads ahead; None: 2, where there are workers",
    "persistent_workers": "keep workers from epoch to epoch: starting them takes seconds",
    "pin_memory_device": "which GPU: torch knows by itself, leave it",
    "in_order": "False: a slow batch does not hold up the others, and runs are not repeatable",
}
"""What each argument is for, in our words; the list itself is torch's."""


def arguments() -> tuple[Argument, ...]:
    """Return the arguments of the installed torch's DataLoader."""
    return tuple(_arguments())


def _arguments() -> Iterator[Argument]:
    from torch.utils.data import DataLoader

    for name, parameter in inspect.signature(DataLoader).parameters.items():
        default = "" if parameter.default is parameter.empty else repr(parameter.default)
        yield Argument(name=name, default=default, says=SAYS.get(name, "new in this version of torch"))
