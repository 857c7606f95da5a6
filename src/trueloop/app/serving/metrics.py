"""Metrics of the server in Prometheus's text format."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

SECOND_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SAMPLE_BOUNDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
PATHS: Final = frozenset(("/", "/predict", "/health", "/ready", "/metrics"))
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Counts of values by upper bound, and the sum of the values."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> list[str]:
        """Return the cumulative counts, the sum and the number of values as Prometheus lines."""
        total, buckets = 0, list[str]()
        for bound, count in zip((*map(_format_number, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*buckets, f"{name}_sum {self._sum!r}", f"{name}_count {total}"]


class Metrics:
    """All metrics of one server; thread-safe.

    Args:
        info: labels of `trueloop_model_info`.
        gauges: functions that return the current value, by name.
    """

    def __init__(self, info: Mapping[str, str], gauges: Mapping[str, Callable[[], float]]) -> None:
        self._info, self._gauges = info, gauges
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._request_seconds = Histogram(SECOND_BOUNDS)
        self._batch_samples, self._batch_seconds = Histogram(SAMPLE_BOUNDS), Histogram(SECOND_BOUNDS)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count a response; its time is recorded only for predictions."""
        with self._lock:
            self._requests[path if path in PATHS else "other", status] += 1
            if path == "/predict":
                self._request_seconds.add(seconds)

    def count_batch(self, samples: int, seconds: float) -> None:
        """Count one batch."""
        with self._lock:
            self._batch_samples.add(samples)
            self._batch_seconds.add(seconds)

    def text(self) -> str:
        """Return all metrics in Prometheus's text format."""
        labels = ",".join(f'{name}="{_escape_label(value)}"' for name, value in self._info.items())
        with self._lock:
            counts = [
                f'trueloop_requests_total{{path="{path}",status="{status}"}} {count}'
                for (path, status), count in sorted(self._requests.items())
            ]
            metrics = [
                ("trueloop_model_info", "gauge", "The served model.", [f"trueloop_model_info{{{labels}}} 1"]),
                ("trueloop_requests_total", "counter", "Responses by path and status.", counts),
                _histogram("trueloop_request_seconds", "Time to answer /predict.", self._request_seconds),
                _histogram("trueloop_batch_samples", "Samples per batch.", self._batch_samples),
                _histogram("trueloop_batch_seconds", "Model time per batch.", self._batch_seconds),
            ]
        for name, read in self._gauges.items():
            metrics.append((name, "gauge", "Current value.", [f"{name} {_format_number(float(read()))}"]))
        lines = [
            line
            for name, metric_type, description, values in metrics
            for line in (f"# HELP {name} {description}", f"# TYPE {name} {metric_type}", *values)
        ]
        return "\n".join(lines) + "\n"


def _histogram(name: str, description: str, histogram: Histogram) -> tuple[str, str, str, list[str]]:
    return name, "histogram", description, histogram.lines(name)


def _format_number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
