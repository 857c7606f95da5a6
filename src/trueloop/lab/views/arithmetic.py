"""Answer the page "Arithmetic": the counts of a run, and a timeline of the run around one of its iterations."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar

from trueloop.app.planning.formulas import goals, rows
from trueloop.core.arithmetic import Plan, plan
from trueloop.core.formatting import format_count, format_number
from trueloop.core.untrusted_input import Bounds
from trueloop.lab.highlight import highlight
from trueloop.lab.teaching.programs.one_step import too_large
from trueloop.lab.timeline import Gap, Timeline, Window, timeline


def counts(plan: Plan) -> str:
    """Generate a program that prints the counts, and checks them with a DataLoader of the same sizes."""
    sizes = [f"dataset={plan.dataset:_}", f"batch={plan.batch:_}", f"epochs={plan.epochs:_}"]
    sizes += [f"accumulate={plan.accumulate:_}"] if plan.accumulate > 1 else []
    sizes += [f"processes={plan.processes:_}"] if plan.processes > 1 else []
    sizes += ["drop_last=True"] if plan.drop_last else []
    sizes += [f"sample_bytes={plan.sample_bytes:_}"] if plan.sample_bytes is not None else []
    share = f", processes={plan.processes:_}, rank=0" if plan.processes > 1 else ""
    dropped = ", drop_last=True" if plan.drop_last else ""
    loader_name = "the first process's loader" if plan.processes > 1 else "the loader"
    return f'''\
from torch.utils.data import DataLoader

from trueloop import plan
from trueloop.data import OrderSampler

run = plan({", ".join(sizes)})
for name, value in run.as_dict().items():
    print(name, value)

# The same sizes in a DataLoader. Any dataset of this length will do; the sampler shuffles without a list of indices.
sampler = OrderSampler(run.dataset, seed=0{share}{dropped})
loader = DataLoader(range(run.dataset), batch_size=run.batch, sampler=sampler{dropped})
assert len(loader) == run.iterations_per_epoch, "{loader_name} has as many batches as there are iterations"
print("first micro-batch", next(iter(loader)).tolist())
'''


NEEDS_TORCH = False
MAX_MISSING_MARKS = 8

Mark = TypeVar("Mark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The sizes of a run, optional goals, and a position in the run."""

    dataset: Annotated[int, Bounds(1, 10**12), "N: examples in the training set"] = 10_000
    batch: Annotated[int, Bounds(1, 10**9), "B: examples per micro-batch, on each process"] = 32
    epochs: Annotated[int, Bounds(1, 10**6), "passes over the training set"] = 3
    accumulate: Annotated[int, Bounds(1, 10**6), "K: micro-batches per update"] = 4
    processes: Annotated[int, Bounds(1, 10**5), "P: processes that train together"] = 1
    drop_last: Annotated[bool, "leave out the partial iteration at the end of an epoch"] = False
    target_updates: Annotated[int, Bounds(1, 10**12), "number of updates to convert into epochs"] | None = None
    update_ms: Annotated[float, Bounds(0.001, 10**7), "milliseconds per update, for the run's duration"] | None = None
    sample_bytes: Annotated[int, Bounds(1, 10**12), "bytes per example, for the size of a batch"] | None = None
    epoch: Annotated[int, Bounds(0, 10**6), "index of the epoch in the run, from 0"] = 0
    iteration: Annotated[int, Bounds(0, 10**12), "index of the iteration in the epoch, from 0"] = 0
    max_marks: Annotated[int, Bounds(8, 240), "number of marks that fit side by side"] = 60


def answer(query: Query) -> dict[str, Any]:
    """Return the numbers with their formulas and explanations, the timeline, and the code."""
    run = plan(
        dataset=query.dataset, batch=query.batch, epochs=query.epochs, accumulate=query.accumulate,
        processes=query.processes, drop_last=query.drop_last, sample_bytes=query.sample_bytes,
    )  # fmt: skip
    in_epoch = min(query.iteration, run.iterations_per_epoch - 1)
    at = min(query.epoch, run.epochs - 1) * run.iterations_per_epoch + in_epoch
    line = timeline(run, iteration=at, max_marks=query.max_marks)
    return {
        "rows": [
            asdict(row) for row in rows(run) + goals(run, updates=query.target_updates, update_ms=query.update_ms)
        ],
        "notes": list(run.notes),
        "timeline": _timeline_json(line, run),
        "targets": {name: {"epoch": at[0], "iteration": at[1]} for name, at in line.targets(run).items()},
        "too_large": too_large(run),
        "code": highlight(counts(run).rstrip()),
    }


def _timeline_json(line: Timeline, run: Plan) -> dict[str, Any]:
    """Return what the page draws; counts that may be too large for JavaScript's exact integers are strings."""
    return {
        "epoch": line.epoch,
        "iteration": line.in_epoch,
        "window": line.window,
        "closes_window": line.closes_window,
        "share_of_run": line.iteration / max(run.iterations - 1, 1),
        "examples": f"{format_number(line.first_example + 1)} to {format_number(line.first_example + line.examples)}",
        "position": line.describe_position(run),
        "coverage": line.describe_coverage(run),
        "epochs": list(_marks(line.epochs, lambda index: {"index": index, "name": format_number(index + 1)})),
        "windows": list(_marks(line.windows, _window)),
        "shares": list(
            _marks(line.shares, lambda share: asdict(share) | {"count": format_count(share.examples, "example")})
        ),
    }


def _marks(marks: Iterable[Mark | Gap], to_json: Callable[[Mark], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for mark in marks:
        yield {"hidden": format_number(mark.hidden)} if isinstance(mark, Gap) else to_json(mark)


def _window(window: Window) -> dict[str, Any]:
    return {
        "index": window.index,
        "name": format_number(window.index + 1),
        "missing": min(window.missing, MAX_MISSING_MARKS),
        "missing_count": format_count(window.missing, "iteration"),
        "iterations": list(_marks(window.iterations, asdict)),
    }
