"""What each component of the production loop costs: lines of code, memory, and time per update with and without.

Once for the Trainer, and once for the programs that the lab's page writes out in bare PyTorch (`--texts`: those alone).

Of the Trainer, the plain run has everything off that can be off: no clipping, a constant rate, no average, nothing
written. Each other run switches one thing on and is compared with the plain one within a round. Memory is the peak of
torch's CPU allocator over a whole short run, from the making of the model on, minus that of the plain run.
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
from systems.with_trueloop import Kept
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
    """One thing that can be switched on."""

    modules: tuple[str, ...]
    """The files that hold it, below src/trueloop."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of TrainConfig that differ from the plain run."""
    pieces: int = 1
    """Micro-batches each batch is cut into."""
    writes: bool = False
    """With a run folder, so with a journal."""
    reporters: bool = False
    """With the live display, drawn into nothing."""
    evaluates: bool = False
    """Evaluates after the epoch, on as many batches as it trained on."""
    needs_blocks: bool = False
    """Only for a model with repeated blocks."""
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    """What the run happens in."""


@contextmanager
def unguarded() -> Iterator[None]:
    """Switch the guard off, which no setting does: no state is kept before a window or restored after it."""
    from trueloop.training.precision.nonfinite_guard import Guard

    def nothing(*_: Any) -> None:  # a plain function: a Mock costs more than what it replaces
        pass

    with mock.patch.object(Guard, "remember", nothing), mock.patch.object(Guard, "undo", nothing):
        yield


@contextmanager
def eager_again() -> Iterator[None]:
    """Leave deterministic mode when the run is over: it holds for the whole process."""
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
    PLAIN: Component(modules=(f"{TRAIN}loop.py", f"{TRAIN}fit.py", f"{TRAIN}update.py", f"{TRAIN}ledger.py")),
    "deterministic mode": Component(
        modules=(f"{TRAIN}seeding.py",), settings={"deterministic": True}, around=eager_again
    ),
    "precision bf16": Component(modules=(f"{TRAIN}precision.py",), settings={"precision": "bf16"}),
    "accumulation, K = 4": Component(modules=(f"{TRAIN}window.py",), pieces=4),
    "clipping": Component(modules=(f"{TRAIN}update.py",), settings={"clip": 1.0}),
    "schedule step": schedule("step"),
    "schedule cosine": schedule("cosine"),
    "schedule linear": schedule("linear"),
    "schedule onecycle": schedule("onecycle"),
    "schedule cosine, warm-up": schedule("cosine", warmup=0.1),
    "average of weights (EMA)": Component(modules=(f"{TRAIN}average.py",), settings={"ema": 0.99}),
    "without the non-finite guard": Component(
        modules=(f"{TRAIN}guard.py", f"{TRAIN}locate.py"), around=unguarded
    ),
    "recompute": Component(modules=(f"{TRAIN}recompute.py",), settings={"recompute": True}, needs_blocks=True),
    "compile": Component(
        modules=tuple(f"{TRAIN}{name}.py" for name in ("compiled", "whole", "region", "formulas")),
        settings={"compile": True},
    ),
    "journal": Component(modules=("runs/journal.py",), writes=True),
    "journal and live progress": Component(modules=("cli/display.py",), writes=True, reporters=True),
    "checkpoint every 10 updates": Component(
        modules=(f"{TRAIN}checkpoint.py", f"{TRAIN}state.py"), writes=True,
        settings={"checkpoint": CheckpointConfig(every_epochs=1000, every_updates=10)},
    ),
    "evaluation after each epoch": Component(
        modules=(f"{TRAIN}evaluate.py", f"{TRAIN}metrics.py"), evaluates=True, settings={"epochs": 2}
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, its data, and how long to look at it."""

    model: Callable[[], nn.Module]
    batches: list[Batch]
    updates: int
    warm: int
    rounds: int
    has_blocks: bool

    @property
    def components(self) -> dict[str, Component]:
        """Those that this model can have."""
        return {name: one for name, one in COMPONENTS.items() if self.has_blocks or not one.needs_blocks}


def workloads(*, quick: bool) -> dict[str, Workload]:
    """The perceptron shows the fixed cost per update, the transformer what is left of it on real work."""
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


def cut(batch: Batch, pieces: int) -> list[Batch]:
    """Cut one batch into micro-batches."""
    return list(zip(batch[0].chunk(pieces), batch[1].chunk(pieces), strict=True))


def fit(component: Component, load: Workload, batches: Batches) -> None:
    """Train a fresh model with one component on."""
    config = replace(OFF, **component.settings)
    reporters: list[Any] = [Kept()]
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
    """Open the live display on a terminal that goes nowhere."""
    if not component.reporters:
        yield []
        return
    from rich.console import Console

    from trueloop.cli.display import Display

    yield [Display("live", console=Console(file=io.StringIO(), force_terminal=True))]


def timed(component: Component, load: Workload) -> Cost:
    """Return what one update cost, all its micro-batches together."""
    pieces = component.pieces
    micros = [micro for batch in load.batches for micro in cut(batch, pieces)]
    batches = Batches(micros, load.updates * pieces)
    fit(component, load, batches)
    cost = batches.clock.per_tick(load.warm * pieces)
    return Cost(cost.wall * pieces, cost.cpu * pieces)


class Marked(Batches):
    """Batches that leave a mark in the profile whenever one is drawn."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            with record_function("batch drawn"):
                pass
            yield batch


def peak_memory(component: Component, load: Workload) -> float:
    """Return the peak of allocated tensor bytes from the third update on (what compiling needs comes before)."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it announces every start on stderr
    gc.collect()
    updates = 12
    micros = [micro for batch in load.batches for micro in cut(batch, component.pieces)]
    batches = Marked(micros, updates * component.pieces)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        fit(component, replace(load, updates=updates), batches)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    marks = sorted(event["ts"] for event in events if event.get("name") == "batch drawn")
    settled = marks[2 * component.pieces]
    allocations = sorted(((e["ts"], e["args"]) for e in events if e.get("name") == "[memory]"), key=itemgetter(0))
    before = allocations[0][1]["Total Allocated"] - allocations[0][1]["Bytes"]  # left over from earlier profiles
    return max(args["Total Allocated"] for ts, args in allocations if ts >= settled) - before


def code_lines(module: str) -> int:
    """Count a module's lines of code: no blank lines, comments or docstrings."""
    source = (PACKAGE / module).read_text()
    words = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    }  # fmt: skip
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in words
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
        for load, found in times.items():
            if name not in found.costs:
                row += ["-", "-", "-"]
                continue
            extra = (memory[load][name] - memory[load][PLAIN]) / MIB
            memory_cell = f"{memory[load][PLAIN] / MIB:.2f}" if name == PLAIN else f"{extra:+.2f}"
            time_cell = f"{found.cost(name).median * 1e6:,.0f} µs" if name == PLAIN else str(found.ratio(name, PLAIN))
            cpu_cell = "" if name == PLAIN else str(found.ratio(name, PLAIN, "cpu"))
            row += [memory_cell, time_cell, cpu_cell]
        rows.append(row)
    table("Each component against the plain loop, per update", columns, rows)


def content(times: Mapping[str, SideBySide], memory: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return what goes into the JSON."""
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
    """Print what the programs of the page cost."""
    head = ["component", *(f"{load}: {clock}" for load in texts["found"] for clock in ("time ratio", "by CPU time"))]
    ratios = ("wall_ratio", "cpu_ratio")
    rows = [
        [name, *(str(seen[name][which]) for seen in texts["found"].values() for which in ratios)]
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
    """Measure the Trainer's components, and the programs; a copy of the latter lies in the package, for the page."""
    given = options(__doc__, flags={"texts": "only the programs of the lab's page; the rest of the result stays"})
    texts = measure_texts(quick=given.quick)
    show_texts(texts)
    if not given.quick:
        COPY.write_text(json.dumps(texts, indent=1, default=plain) + "\n")
    path = RESULTS / "components.json"
    before = json.loads(path.read_text()) if given.texts else trainer_part(quick=given.quick)
    write("components", {**before, "texts": texts}, quick=given.quick)


if __name__ == "__main__":
    main()
