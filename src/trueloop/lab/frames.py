"""Builds and sends the frames of a run at the pace at which the page paints them."""

from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from trueloop.app.web.wire_format import encode_frame
from trueloop.lab.teaching.decision_planes import Plane, build_planes
from trueloop.lab.teaching.player import Curves, Play

MIN_INTERVAL_S: Final = 1 / 31  # a page paints 30 times a second
MAX_TIME_SHARE: Final = 0.5  # fraction of the time that frames may take from training
MAX_UNPAINTED: Final = 2  # frames sent but not painted yet
PAINT_TIMEOUT_S: Final = 5.0  # training pauses when nothing was painted for this time
LARGE_FRAME_INTERVAL: Final = 3  # every third frame has weights and neuron maps
MAX_WEIGHTS: Final = 1200  # weights of larger networks are not sent


class FrameSender:
    """Sends frames while the page paints them.

    Args:
        send: sends the bytes of a frame.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send_bytes = send
        self._number = self._painted = 0
        self._run = 0
        self._due_s = 0.0
        self._rate_start: tuple[float, int] = (0.0, 0)
        self._rate: float | None = None
        self._last_paint_s = 0.0
        self.neurons = False

    def start_run(self, run: int) -> None:
        """Reset the pace for a new run."""
        self._run, self._due_s, self._rate = run, 0.0, None
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

    def send(self, play: Play, state: str) -> None:
        """Build a frame and send it."""
        start_s = perf_counter()
        self._number += 1
        large = state != "running" or self._number % LARGE_FRAME_INTERVAL == 0
        curves = play.take_curves()
        with play.isolated():
            planes = build_planes(play.model, play.half_width, neurons=self.neurons and large)
            header = self._header(play, state, curves)
            if large and sum(p.numel() for p in play.model.parameters()) <= MAX_WEIGHTS:
                header["weights"] = {name: p.detach().tolist() for name, p in play.model.named_parameters()}
        header["planes"] = [_plane_header(plane) for plane in planes]
        self._send_bytes(encode_frame(header, [plane.data for plane in planes]))
        now_s = perf_counter()
        self._due_s = max(start_s + MIN_INTERVAL_S, now_s + (now_s - start_s) * (1 / MAX_TIME_SHARE - 1))

    def _header(self, play: Play, state: str, curves: Curves) -> dict[str, Any]:
        return {
            "frame": self._number,
            "run": self._run,
            "state": state,
            "update": play.update,
            "epoch": play.epoch,
            "points": {
                "update": curves.update, "loss": curves.loss, "norm": curves.norm, "rate": curves.rate,
            },
            "evaluations": curves.evaluations,
            "first_not_finite": play.first_not_finite,
            "memory_mib": round(play.memory_mib(), 4),
            "graphs": play.graphs,
            "updates_per_s": self._updates_per_s(play.update),
        }  # fmt: skip

    def _updates_per_s(self, update: int) -> float | None:
        now_s = perf_counter()
        start_s, start_update = self._rate_start
        if now_s - start_s >= 0.25:
            self._rate = round((update - start_update) / (now_s - start_s), 1)
            self._rate_start = (now_s, update)
        return self._rate


def _plane_header(plane: Plane) -> dict[str, Any]:
    header = {"name": plane.name, "width": plane.width, "height": plane.height}
    return header | ({"steps": plane.steps} if plane.steps else {"scale": plane.scale})
