"""Profile a few windows of a run with torch's profiler, and sum up which parts take the time of an update."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, Final, cast

from torch.profiler import ProfilerActivity, profile, record_function

from trueloop.core.protocols import BatchSource, MicroBatch
from trueloop.training.loop import Assembly
from trueloop.training.profiling.pace import WARMUP_UPDATES, WindowRunner

_RANGE_PREFIX: Final = "trueloop: "
_NODE_PREFIX: Final = "autograd::engine::evaluate_function: "
PARTS: Final = ("data", "forward", "backward", "update", "the rest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of PyTorch, or one node of the backward pass, over all profiled updates."""

    name: str
    seconds: float
    """Number of seconds, on the GPU if there is one. An operation excludes those that it calls, a node does not."""
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Result of profiling some updates."""

    updates: int
    update_s: float
    """Number of seconds per update without the profiler."""
    profiled_s: float
    """Number of seconds per update with the profiler; the difference is its overhead."""
    split: Mapping[str, float]
    """Share of the profiled time for each of `PARTS`; the sum is 1."""
    operations: Sequence[Operation]
    """Operations, the most expensive first."""
    backward: Sequence[Operation]
    """Nodes of the autograd graph, the most expensive first."""
    device: str
    trace: Path | None = None

    @property
    def bottleneck(self) -> str:
        """The most expensive node of the backward pass: "ConvolutionBackward0"; "" if there was none."""
        return self.backward[0].name if self.backward else ""


def profile_updates(assembly: Assembly, source: BatchSource, *, updates: int, trace: Path | None = None) -> Profile:
    """Train on a few windows three times: to warm up, to measure the time, and under torch's profiler.

    Args:
        assembly: an assembled run; its weights change.
        source: training data.
        updates: number of windows to profile.
        trace: file for a trace for Chrome or Perfetto; it is compressed if the name ends in .gz.

    Raises:
        InvalidData: the training data contain no window.
    """
    _train(WindowRunner(assembly, source), WARMUP_UPDATES)
    update_s = _train(WindowRunner(assembly, source), updates)
    activities = [ProfilerActivity.CPU]
    if assembly.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(?:Profiler|profiler).*")  # warnings of torch about its profiler
        with profile(activities=activities, acc_events=True) as profiler:
            profiled_s = _train(_RecordedWindows(_record_parts(assembly), source), updates)
        averages = cast("Sequence[Any]", profiler.key_averages())
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    on_device = assembly.device.type == "cuda"
    nodes = [
        _to_operation(each, each.key[len(_NODE_PREFIX) :], on_device, inclusive=True)
        for each in averages
        if _is_node(each)
    ]
    operations = [_to_operation(each, each.key, on_device) for each in averages if _is_operation(each)]
    return Profile(
        updates=updates,
        update_s=update_s,
        profiled_s=profiled_s,
        split=_split(averages, profiled_s * updates),
        operations=_most_expensive(operations),
        backward=_most_expensive(nodes),
        device=str(assembly.device),
        trace=trace,
    )


class _RecordedWindows(WindowRunner):
    """Runs windows with a profiler range around the reading of data."""

    def read_batches(self, micros: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        while True:
            with record_function(_RANGE_PREFIX + "data"):
                micro = next(micros, None)
            if micro is None:
                return
            yield micro


def _train(windows: WindowRunner, updates: int) -> float:
    """Train for a number of updates; return the seconds per update."""
    windows.synchronize()
    started = perf_counter()
    for _ in islice(windows.train(), updates):
        pass
    windows.synchronize()
    return (perf_counter() - started) / updates


class _Recorded:
    """A part of the loop with a profiler range around its call and the given methods."""

    def __init__(self, wrapped: Any, part: str, *names: str) -> None:
        self._wrapped, self._part, self._names = wrapped, _RANGE_PREFIX + part, names

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._wrapped, name)
        return self._with_range(attribute) if name in self._names else attribute

    def __call__(self, *args: Any, **options: Any) -> Any:
        with record_function(self._part):
            return self._wrapped(*args, **options)

    def _with_range(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def ranged(*args: Any, **options: Any) -> Any:
            with record_function(self._part):
                return function(*args, **options)

        return ranged


def _record_parts(assembly: Assembly) -> Assembly:
    parallel = cast("Any", _Recorded(assembly.parallel, "forward"))
    update = cast("Any", _Recorded(assembly.update, "update", "zero_grad", "step"))
    # A compiled program cannot be divided into parts.
    return replace(assembly, parallel=parallel, update=update, compiled_step=None)


def _is_node(entry: Any) -> bool:
    return entry.key.startswith(_NODE_PREFIX)


def _is_operation(entry: Any) -> bool:
    return not entry.key.startswith((_RANGE_PREFIX, "autograd::", "ProfilerStep", "[", "Optimizer."))


def _to_operation(entry: Any, name: str, on_device: bool, *, inclusive: bool = False) -> Operation:
    prefix = "" if inclusive else "self_"
    microseconds = getattr(entry, f"{prefix}device_time_total" if on_device else f"{prefix}cpu_time_total")
    return Operation(name=name, seconds=microseconds / 1e6, calls=entry.count)


def _most_expensive(operations: Sequence[Operation]) -> list[Operation]:
    return sorted((each for each in operations if each.seconds > 0), key=lambda each: -each.seconds)


def _split(averages: Sequence[Any], total_s: float) -> dict[str, float]:
    """Split the time of the training thread by part; time on the GPU counts in the part that waits for it."""
    seconds = {
        each.key.removeprefix(_RANGE_PREFIX): each.cpu_time_total / 1e6
        for each in averages
        if each.key.startswith(_RANGE_PREFIX)
    }
    seconds["backward"] = sum(each.cpu_time_total for each in averages if _is_node(each)) / 1e6
    shares = {part: seconds.get(part, 0.0) / total_s for part in PARTS[:-1]}
    measured = sum(shares.values())
    if measured > 1:  # the profiler's clock differs a little from perf_counter
        shares = {part: share / measured for part, share in shares.items()}
    return {**shares, PARTS[-1]: max(0.0, 1 - measured)}
