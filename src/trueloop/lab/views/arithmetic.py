"""The arithmetic of a run, and the run drawn around one of its iterations."""

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
    """Write the program. It holds its own check, and takes no memory for the order, however large the dataset."""
    sizes = [f"dataset={plan.dataset:_}", f"batch={plan.batch:_}", f"epochs={plan.epochs:_}"]
    sizes += [f"accumulate={plan.accumulate:_}"] if plan.accumulate > 1 else []
    sizes += [f"processes={plan.processes:_}"] if plan.processes > 1 else []
    sizes += ["drop_last=True"] if plan.drop_last else []
    sizes += [f"sample_bytes={plan.sample_bytes:_}"] if plan.sample_bytes is not None else []
    share = f", processes={plan.processes:_}, rank=0" if plan.processes > 1 else ""
    dropped = ", drop_last=True" if plan.drop_last else ""
    whose = "the first process's loader" if plan.processes > 1 else "the loader"
    return f'''\
from torch.utils.data import DataLoader

from trueloop import plan
from trueloop.data import OrderSampler

run = plan({", ".join(sizes)})
for name, value in run.as_dict().items():
    print(name, value)

# The same sizes given to torch. Any dataset of that length does; this sampler shuffles without keeping a list.
sampler = OrderSampler(run.dataset, seed=0{share}{dropped})
loader = DataLoader(range(run.dataset), batch_size=run.batch, sampler=sampler{dropped})
assert len(loader) == run.iterations_per_epoch, "{whose} has as many batches as there are iterations"
print("first micro-batch", next(iter(loader)).tolist())
'''


NEEDS_TORCH = False
MISSING_DRAWN = 8

Mark = TypeVar("Mark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The sizes of a run, a goal if there is one, and where in the run one is."""

    dataset: Annotated[int, Bounds(1, 10**12), "N: examples in the training set"] = 10_000
    batch: Annotated[int, Bounds(1, 10**9), "B: examples per micro-batch, on each process"] = 32
    epochs: Annotated[int, Bounds(1, 10**6), "passes over the training set"] = 3
    accumulate: Annotated[int, Bounds(1, 10**6), "K: micro-batches per update"] = 4
    processes: Annotated[int, Bounds(1, 10**5), "P: processes that train together"] = 1
    drop_last: Annotated[bool, "leave out the partial iteration at the end of an epoch"] = False
    target_updates: Annotated[int, Bounds(1, 10**12), "updates you want: how many epochs are they?"] | None = None
    update_ms: Annotated[float, Bounds(0.001, 10**7), "milliseconds an update takes: how long is the run?"] | None = (
        None
    )
    sample_bytes: Annotated[int, Bounds(1, 10**12), "bytes of one example: how large is a batch?"] | None = None
    epoch: Annotated[int, Bounds(0, 10**6), "where in the run, from 0"] = 0
    iteration: Annotated[int, Bounds(0, 10**12), "where in the epoch, from 0"] = 0
    room: Annotated[int, Bounds(8, 240), "marks that fit side by side"] = 60


def answer(query: Query) -> dict[str, Any]:
    """Give the numbers with formulas and sentences, the timeline, and the code."""
    made = plan(
        dataset=query.dataset,
        batch=query.batch,
        epochs=query.epochs,
        accumulate=query.accumulate,
        processes=query.processes,
        drop_last=query.drop_last,
        sample_bytes=query.sample_bytes,
    )
    inside = min(query.iteration, made.iterations_per_epoch - 1)
    line = timeline(made, at=min(query.epoch, made.epochs - 1) * made.iterations_per_epoch + inside, room=query.room)
    return {
        "rows": [
            asdict(row) for row in rows(made) + goals(made, updates=query.target_updates, update_ms=query.update_ms)
        ],
        "notes": list(made.notes),
        "timeline": _drawn(line, made),
        "moves": {name: {"epoch": at[0], "iteration": at[1]} for name, at in line.moves(made).items()},
        "too_large": too_large(made),
        "code": highlight(counts(made).rstrip()),
    }


def _drawn(line: Timeline, made: Plan) -> dict[str, Any]:
    """Give what is to be drawn; counts that may exceed what a browser counts exactly are texts."""
    return {
        "epoch": line.epoch,
        "iteration": line.in_epoch,
        "window": line.window,
        "closes_window": line.closes_window,
        "share_of_run": line.iteration / max(made.iterations - 1, 1),
        "examples": f"{format_number(line.first_example + 1)} to {format_number(line.first_example + line.examples)}",
        "says": line.says(made),
        "drawn": line.drawn(made),
        "epochs": list(_marks(line.epochs, lambda place: {"place": place, "name": format_number(place + 1)})),
        "windows": list(_marks(line.windows, _window)),
        "shares": list(
            _marks(line.shares, lambda share: asdict(share) | {"holds": format_count(share.examples, "example")})
        ),
    }


def _marks(marks: Iterable[Mark | Gap], drawn: Callable[[Mark], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for mark in marks:
        yield {"hidden": format_number(mark.hidden)} if isinstance(mark, Gap) else drawn(mark)


def _window(window: Window) -> dict[str, Any]:
    return {
        "place": window.place,
        "name": format_number(window.place + 1),
        "missing": min(window.missing, MISSING_DRAWN),
        "lacks": format_count(window.missing, "iteration"),
        "iterations": list(_marks(window.iterations, asdict)),
    }
