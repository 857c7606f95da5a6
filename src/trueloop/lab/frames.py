"""Build and send the frames of a run at the pace at which the page paints them."""

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from trueloop.app.web.wire_format import encode_frame
from trueloop.lab.teaching.decision_planes import Plane, build_planes
from trueloop.lab.teaching.script_run import Curves, ScriptRun

MIN_INTERVAL_S: Final = 1 / 31  # shortest time between two frames; a page paints 30 times a second
MAX_TIME_SHARE: Final = 0.5  # fraction of the time that frames usually take at most
MAX_UNPAINTED: Final = 2  # largest number of frames that are sent but not painted yet
PAINT_TIMEOUT_S: Final = 5.0  # training pauses when nothing was painted for this time
LARGE_FRAME_INTERVAL: Final = 3  # the first frame of a run and every third one have weights and neuron maps
SMOOTHING: Final = 0.95  # weight of the previous mean in the smoothed loss: about the last 20 updates
MAX_WEIGHTS: Final = 1200  # the weights of a larger network are not sent


class RunningMean:
    """An exponential mean without the bias towards its start; non-finite values are left out."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float) -> float:
        """Add a value and return the mean; NaN before the first finite value and for each non-finite one."""
        if not math.isfinite(value):
            return math.nan
        self._sum = SMOOTHING * self._sum + (1 - SMOOTHING) * value
        self._weight = SMOOTHING * self._weight + 1 - SMOOTHING
        return self._sum / self._weight


class FrameSender:
    """Sends frames while the page paints them.

    Args:
        send: sends the bytes of a frame.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send_bytes = send
        self._number = 0  # of the newest frame that was sent
        self._painted = 0  # number of the newest frame that was painted
        self._run = 0
        self._run_frames = 0  # number of frames of the current run
        self._smoothed_loss = RunningMean()
        self._due_s = 0.0
        self._rate_start: tuple[float, int] = (0.0, 0)  # time and update at which the measurement of the rate began
        self._latest_rate: float | None = None
        self._last_paint_s = 0.0
        self.max_time_share = MAX_TIME_SHARE
        """Fraction of the time that frames may take from training."""
        self.neurons = False
        """True if frames include the maps of the hidden neurons."""

    def start_run(self, run: int) -> None:
        """Reset the pace for a new run."""
        self._run, self._due_s, self._latest_rate, self._run_frames = run, 0.0, None, 0
        self._smoothed_loss = RunningMean()
        self._rate_start = (perf_counter(), 0)
        self._last_paint_s = perf_counter()

    def acknowledge(self, number: int) -> None:
        """Record the newest painted frame; numbers of frames never sent are ignored."""
        self._painted = max(self._painted, min(number, self._number))
        self._last_paint_s = perf_counter()

    @property
    def page_keeps_up(self) -> bool:
        """True while the page paints the frames soon after they are sent."""
        return self._number - self._painted < MAX_UNPAINTED

    @property
    def page_stopped(self) -> bool:
        """True if the page has painted nothing for a while, for example in a hidden tab."""
        return not self.page_keeps_up and perf_counter() - self._last_paint_s > PAINT_TIMEOUT_S

    @property
    def is_due(self) -> bool:
        """True if the next frame should be sent."""
        return self.page_keeps_up and perf_counter() >= self._due_s

    def send(self, script_run: ScriptRun, state: str) -> None:
        """Build a frame and send it."""
        start_s = perf_counter()
        self._number += 1
        with_details = state != "running" or self._run_frames % LARGE_FRAME_INTERVAL == 0
        self._run_frames += 1
        curves = script_run.take_curves()
        with script_run.isolated():
            planes = build_planes(script_run.model, script_run.half_width, neurons=self.neurons and with_details)
            header = self._header(script_run, state, curves)
            if with_details and sum(p.numel() for p in script_run.model.parameters()) <= MAX_WEIGHTS:
                header["weights"] = {name: p.detach().tolist() for name, p in script_run.model.named_parameters()}
        header["planes"] = [_plane_header(plane) for plane in planes]
        self._send_bytes(encode_frame(header, [plane.data for plane in planes]))
        now_s = perf_counter()
        self._due_s = max(start_s + MIN_INTERVAL_S, now_s + (now_s - start_s) * (1 / self.max_time_share - 1))

    def _header(self, script_run: ScriptRun, state: str, curves: Curves) -> dict[str, Any]:
        return {
            "frame": self._number,
            "run": self._run,
            "state": state,
            "update": script_run.update,
            "window": script_run.window,
            "epoch": script_run.epoch,
            "points": {
                "update": curves.update, "loss": curves.loss, "norm": curves.norm, "rate": curves.rate,
                "smooth": [self._smoothed_loss.add(loss) for loss in curves.loss],
            },
            "evaluations": curves.evaluations,
            "first_not_finite": script_run.first_not_finite,
            "memory_mib": round(script_run.memory_mib(), 4),
            "graphs": script_run.graphs,
            "updates_per_s": self._updates_per_s(script_run.window),
        }  # fmt: skip

    def _updates_per_s(self, update: int) -> float | None:
        now_s = perf_counter()
        start_s, start_update = self._rate_start
        if now_s - start_s >= 0.25:
            self._latest_rate = round((update - start_update) / (now_s - start_s), 1)
            self._rate_start = (now_s, update)
        return self._latest_rate


def _plane_header(plane: Plane) -> dict[str, Any]:
    header = {"name": plane.name, "width": plane.width, "height": plane.height}
    return header | ({"steps": plane.steps} if plane.steps else {"scale": plane.scale})
