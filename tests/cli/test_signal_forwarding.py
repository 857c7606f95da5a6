"""The launcher's signals: the first is torchrun's to pass on, the second ends everything."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

import pytest

from trueloop.cli import signal_forwarding
from trueloop.cli.signal_forwarding import SignalForwarder, torchrun_log_disabled


class Stop(Exception):
    def __init__(self, message: str, signal: signal.Signals) -> None:
        super().__init__(message)
        self.signal = signal


class Left(BaseException):
    pass


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch):
    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(signal_forwarding.os, "_exit", leave)


def first(folder: Path, number: signal.Signals) -> SignalForwarder:
    signals = SignalForwarder(folder, Stop)
    with pytest.raises(Stop) as stop:
        signals(number, None)
    assert stop.value.signal is number
    return signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_leaves_and_takes_the_folder_along(leaving, monkeypatch, tmp_path: Path, number, code):
    monkeypatch.setattr(signal_forwarding, "FORWARDED_WITHIN_S", -1.0)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(Left) as left:
        first(folder, number)(number, None)
    assert left.value.args == (code,)
    assert not folder.exists()


def test_a_second_sigterm_within_moments_is_the_first_one_again(leaving, tmp_path: Path):
    first(tmp_path, signal.SIGTERM)(signal.SIGTERM, None)
    assert tmp_path.exists()


def test_torchrun_installs_this_handler_and_has_its_own_back_afterwards(tmp_path: Path):
    from torch.distributed.elastic.multiprocessing import api

    own = api._terminate_process_handler
    signals = SignalForwarder(tmp_path, Stop)
    with signals.replace_handlers():
        assert api._terminate_process_handler is signals
    assert api._terminate_process_handler is own


def test_torchrun_is_quiet_only_inside():
    from torch.distributed.elastic.agent.server import api

    level = logging.getLogger(api.__name__).level
    with torchrun_log_disabled():
        assert not logging.getLogger(api.__name__).isEnabledFor(logging.ERROR)
    assert logging.getLogger(api.__name__).level == level
