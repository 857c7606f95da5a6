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
def test_a_second_signal_exits_and_removes_the_folder(leaving, monkeypatch, tmp_path: Path, number, code):
    monkeypatch.setattr(signal_forwarding, "FORWARDED_WITHIN_S", -1.0)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(Left) as left:
        first(folder, number)(number, None)
    assert left.value.args == (code,)
    assert not folder.exists()


def test_a_duplicate_sigterm_is_ignored(leaving, tmp_path: Path):
    first(tmp_path, signal.SIGTERM)(signal.SIGTERM, None)
    assert tmp_path.exists()


def test_torchruns_handler_is_replaced_and_restored(tmp_path: Path):
    from torch.distributed.elastic.multiprocessing import api

    own = api._terminate_process_handler
    signals = SignalForwarder(tmp_path, Stop)
    with signals.replace_handlers():
        assert api._terminate_process_handler is signals
    assert api._terminate_process_handler is own


def test_torchruns_log_is_disabled_only_in_the_block():
    from torch.distributed.elastic.agent.server import api

    level = logging.getLogger(api.__name__).level
    with torchrun_log_disabled():
        assert not logging.getLogger(api.__name__).isEnabledFor(logging.ERROR)
    assert logging.getLogger(api.__name__).level == level
