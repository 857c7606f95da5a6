"""Measure what each component of the production loop costs: lines of code, memory, and time per update.

The components are measured for the Trainer, and for the programs in bare PyTorch that the lab's page shows (`--texts`
measures only these).

In the plain run of the Trainer, everything optional is off: no clipping, a constant learning rate, no average of
weights, no files. Every other run switches one component on and is compared with the plain run of the same round.
Memory is the peak of PyTorch's CPU allocator over a complete short run, including the creation of the model, minus that
of the plain run.
"""

from __future__ import annotations

import ast
import gc
import io
import json
import os
import tempfile
import tokenize
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from measure import RESULTS, Batches, Cost, SideBySide, console, interleave, options, plain, table, write
from systems.as_text import MINIMAL, measure_texts
from systems.with_trueloop import UpdateRecorder
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from workloads import Batch, gpt, gpt_batches, mlp, mlp_batches

import trueloop
from trueloop import CheckpointConfig, ScheduleConfig, TrainConfig, Trainer

PACKAGE = Path(trueloop.__file__).parent
COPY = PACKAGE / "lab/teaching/production/costs.json"
MIB = 2**20
PLAIN = "plain loop"
OFF = TrainConfig(
    epochs=1, device="cpu", clip=None, schedule=ScheduleConfig(name="constant"),
    checkpoint=CheckpointConfig(every_epochs=1000),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A component that can be switched on."""

    modules: tuple[str, ...]
    """Paths of the files that implement the component, below src/trueloop."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of TrainConfig that differ from those of the plain run."""
    pieces: int = 1
    """Number of micro-batches per batch."""
    writes: bool = False
    """True if the run has a run folder, and therefore a journal."""
    reporters: bool = False
    """True if the run has a live display, whose output is discarded."""
    evaluates: bool = False
    """True if the run evaluates after each epoch, on as many batches as it trained on."""
    needs_blocks: bool = False
    """True if the component only works for a model with repeated blocks."""
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Creates the context manager in which the run takes place."""


@contextmanager
def unguarded() -> Iterator[None]:
    """Switch off the guard against non-finite updates, for which there is no setting."""
    from trueloop.training.precision.nonfinite_guard import Guard

    def nothing(*_: Any) -> None:  # a plain function: a Mock costs more than what it replaces
        pass

    with mock.patch.object(Guard, "remember", nothing), mock.patch.object(Guard, "undo", nothing):
        yield


@contextmanager
def deterministic_mode_reset() -> Iterator[None]:
    """Leave deterministic mode after the run: the mode applies to the whole process."""
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def schedule(name: str, **more: Any) -> Component:
    """Describe one schedule."""
    return Component(
        modules=("training/optimizers/schedule.py",), settings={"schedule": ScheduleConfig(name=name, **more)}
    )


TRAIN = "training/"
COMPONENTS: Mapping[str, Component] = {
    PLAIN: Component(modules=(f"{TRAIN}loop.py", f"{TRAIN}fit.py", f"{TRAIN}update.py", f"{TRAIN}update_buffer.py")),
    "deterministic mode": Component(
        modules=(f"{TRAIN}seeding.py",), settings={"deterministic": True}, around=deterministic_mode_reset
    ),
    "precision bf16": Component(modules=(f"{TRAIN}precision/mixed_precision.py",), settings={"precision": "bf16"}),
    "accumulation, K = 4": Component(modules=(f"{TRAIN}window.py",), pieces=4),
    "clipping": Component(modules=(f"{TRAIN}update.py",), settings={"clip": 1.0}),
    "schedule step": schedule("step"),
    "schedule cosine": schedule("cosine"),
    "schedule linear": schedule("linear"),
    "schedule onecycle": schedule("onecycle"),
    "schedule cosine, warm-up": schedule("cosine", warmup=0.1),
    "average of weights (EMA)": Component(modules=(f"{TRAIN}optimizers/weight_average.py",), settings={"ema": 0.99}),
    "without the non-finite guard": Component(
        modules=(f"{TRAIN}precision/nonfinite_guard.py", f"{TRAIN}precision/locate_nonfinite.py"), around=unguarded
    ),
    "recompute": Component(modules=(f"{TRAIN}memory/recompute.py",), settings={"recompute": True}, needs_blocks=True),
    "compile": Component(
        modules=tuple(
            f"{TRAIN}compiled/{name}.py"
            for name in ("compiled_loop", "compiled_step", "step_graph", "optimizer_formulas")
        ),
        settings={"compile": True},
    ),
    "journal": Component(modules=("runs/journal.py",), writes=True),
    "journal and live progress": Component(modules=("cli/display.py",), writes=True, reporters=True),
    "checkpoint every 10 updates": Component(
        modules=(f"{TRAIN}checkpoint/checkpoints.py", f"{TRAIN}checkpoint/run_state.py"), writes=True,
        settings={"checkpoint": CheckpointConfig(every_epochs=1000, every_updates=10)},
    ),
    "evaluation after each epoch": Component(
        modules=(f"{TRAIN}evaluation/evaluate.py", f"{TRAIN}evaluation/metrics.py"), evaluates=True,
        settings={"epochs": 2},
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, its data, and the duration of its measurement."""

    model: Callable[[], nn.Module]
    batches: list[Batch]
    updates: int
    warm: int
    rounds: int
    has_blocks: bool

    @property
    def components(self) -> dict[str, Component]:
        """The components that work for this model."""
        return {
            name: component for name, component in COMPONENTS.items() if self.has_blocks or not component.needs_blocks
        }


def workloads(*, quick: bool) -> dict[str, Workload]:
    """Return a perceptron, whose updates are mostly fixed cost, and a transformer, which is dominated by arithmetic."""
    return {
        "mlp": Workload(
            model=mlp,
            batches=mlp_batches(),
            updates=100 if quick else 400,
            warm=40,
            rounds=2 if quick else 15,
            has_blocks=False,
        ),
        "gpt": Workload(
            model=gpt,
            batches=gpt_batches(),
            updates=8 if quick else 20,
            warm=4,
            rounds=1 if quick else 5,
            has_blocks=True,
        ),
    }


def split_batch(batch: Batch, pieces: int) -> list[Batch]:
    """Split a batch into micro-batches."""
    return list(zip(batch[0].chunk(pieces), batch[1].chunk(pieces), strict=True))


def fit(component: Component, load: Workload, batches: Batches) -> None:
    """Train a new model with one component."""
    config = replace(OFF, **component.settings)
    reporters: list[Any] = [UpdateRecorder()]
    with component.around(), tempfile.TemporaryDirectory() as folder, open_progress(component) as progress:
        trainer = Trainer(
            model=load.model(),
            objective=nn.CrossEntropyLoss(),
            config=config,
            run_dir=Path(folder) / "run" if component.writes else None,
            reporters=[*reporters, *progress],
        )
        held_out = [load.batches[i % len(load.batches)] for i in range(load.updates)]
        trainer.fit(batches, val=held_out if component.evaluates else None, accumulate=component.pieces)


@contextmanager
def open_progress(component: Component) -> Iterator[list[Any]]:
    """Open the live display on a terminal that discards its output."""
    if not component.reporters:
        yield []
        return
    from rich.console import Console

    from trueloop.cli.display import Display

    yield [Display("live", console=Console(file=io.StringIO(), force_terminal=True))]


def timed(component: Component, load: Workload) -> Cost:
    """Return the mean cost of an update, including all its micro-batches."""
    pieces = component.pieces
    micros = [micro for batch in load.batches for micro in split_batch(batch, pieces)]
    batches = Batches(micros, load.updates * pieces)
    fit(component, load, batches)
    cost = batches.clock.per_tick(load.warm * pieces)
    return Cost(cost.wall * pieces, cost.cpu * pieces)


class ProfiledBatches(Batches):
    """Batches that record an event in the profile whenever one is read."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            with record_function("batch read"):
                pass
            yield batch


def peak_memory(component: Component, load: Workload) -> float:
    """Return the peak of allocated tensor bytes from the third update on, after compilation has ended."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler writes to stderr at every start
    gc.collect()
    updates = 12
    micros = [micro for batch in load.batches for micro in split_batch(batch, component.pieces)]
    batches = ProfiledBatches(micros, updates * component.pieces)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        fit(component, replace(load, updates=updates), batches)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    read_times = sorted(event["ts"] for event in events if event.get("name") == "batch read")
    start = read_times[2 * component.pieces]
    allocations = sorted(((e["ts"], e["args"]) for e in events if e.get("name") == "[memory]"), key=itemgetter(0))
    before = allocations[0][1]["Total Allocated"] - allocations[0][1]["Bytes"]  # left over from earlier profiles
    return max(args["Total Allocated"] for ts, args in allocations if ts >= start) - before


def code_lines(module: str) -> int:
    """Count a module's lines of code: no blank lines, comments or docstrings."""
    source = (PACKAGE / module).read_text()
    ignored = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    }  # fmt: skip
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in ignored
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def show(times: Mapping[str, SideBySide], memory: Mapping[str, Mapping[str, float]]) -> None:
    """Print the table."""
    columns = ["component", "lines"]
    for load in times:
        columns += [f"{load}: memory, MiB", f"{load}: time ratio", f"{load}: by CPU time"]
    rows: list[list[str]] = []
    for name, component in COMPONENTS.items():
        row = [name, str(sum(code_lines(module) for module in component.modules))]
        for load, measured in times.items():
            if name not in measured.costs:
                row += ["-", "-", "-"]
                continue
            extra = (memory[load][name] - memory[load][PLAIN]) / MIB
            memory_cell = f"{memory[load][PLAIN] / MIB:.2f}" if name == PLAIN else f"{extra:+.2f}"
            time_cell = (
                f"{measured.cost(name).median * 1e6:,.0f} µs" if name == PLAIN else str(measured.ratio(name, PLAIN))
            )
            cpu_cell = "" if name == PLAIN else str(measured.ratio(name, PLAIN, "cpu"))
            row += [memory_cell, time_cell, cpu_cell]
        rows.append(row)
    table("Each component against the plain loop, per update", columns, rows)


def content(times: Mapping[str, SideBySide], memory: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the figures for the result file."""
    return {
        name: {
            "lines": {module: code_lines(module) for module in component.modules},
            **{
                load: {
                    "peak_bytes": memory[load][name],
                    "extra_bytes": memory[load][name] - memory[load][PLAIN],
                    "seconds_per_update": found.cost(name),
                    "wall_ratio": found.ratio(name, PLAIN),
                    "cpu_ratio": found.ratio(name, PLAIN, "cpu"),
                }
                for load, found in times.items()
                if name in found.costs
            },
        }
        for name, component in COMPONENTS.items()
    }


def show_texts(texts: Mapping[str, Any]) -> None:
    """Print the costs of the programs on the lab's page."""
    head = ["component", *(f"{load}: {clock}" for load in texts["found"] for clock in ("time ratio", "by CPU time"))]
    ratios = ("wall_ratio", "cpu_ratio")
    rows = [
        [name, *(str(measured[name][which]) for measured in texts["found"].values() for which in ratios)]
        for name in texts["found"]["mlp"]
    ]
    table(f"The programs of the lab's page against the {MINIMAL}, per update", head, rows)


def trainer_part(*, quick: bool) -> dict[str, Any]:
    """Measure every component of the Trainer on both workloads."""
    times: dict[str, SideBySide] = {}
    memory: dict[str, dict[str, float]] = {}
    for name, load in workloads(quick=quick).items():
        memory[name] = {title: peak_memory(component, load) for title, component in load.components.items()}
        runs = {title: partial(timed, component, load) for title, component in load.components.items()}
        times[name] = interleave(runs, load.rounds)
        console.print(f"{name} measured")
    show(times, memory)
    rounds = {name: load.rounds for name, load in workloads(quick=quick).items()}
    return {"settings": {"rounds": rounds}, "components": content(times, memory)}


def main() -> None:
    """Measure the Trainer's components and the programs; the lab's page reads a copy of the latter in the package."""
    arguments = options(
        __doc__,
        flags={
            "texts": "measure only the programs of the lab's page; the other figures are kept",
            "missing": "measure only the programs of the lab's page that the result lacks",
        },
    )
    path = RESULTS / "components.json"
    known = json.loads(path.read_text())["texts"] if arguments.missing else None
    texts = measure_texts(quick=arguments.quick, known=known)
    if not known:
        show_texts(texts)
    if not arguments.quick:
        COPY.write_text(json.dumps(texts, indent=1, default=plain) + "\n")
    before = (
        json.loads(path.read_text()) if arguments.texts or arguments.missing else trainer_part(quick=arguments.quick)
    )
    write("components", {**before, "texts": texts}, quick=arguments.quick)


if __name__ == "__main__":
    main()
