"""The first signal requests a stop, the second exits; other handlers stay installed."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from trueloop.training.interrupt import EXIT_CODES, Interrupt

TAKEN = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def restore_handlers():
    before = [signal.getsignal(number) for number in TAKEN]
    yield
    assert [signal.getsignal(number) for number in TAKEN] == before


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "preempted"), (signal.SIGUSR1, "preempted")],
)
def test_the_first_signal_requests_a_stop(number: signal.Signals, reason: str):
    with Interrupt() as interrupt:
        assert interrupt.requested is None
        send(number)
        assert (interrupt.requested, interrupt.signal) == (reason, number.name)


@pytest.mark.parametrize("first", TAKEN)
@pytest.mark.parametrize("second", TAKEN)
def test_the_second_signal_exits(first: signal.Signals, second: signal.Signals):
    with pytest.raises((KeyboardInterrupt, SystemExit)) as left, Interrupt():
        send(first)
        send(second)
    if second is signal.SIGINT:
        assert left.type is KeyboardInterrupt
    else:
        assert left.value.code == EXIT_CODES["preempted"] == 128 + signal.SIGTERM


def test_the_end_of_torchrun_exits_and_duplicates_are_ignored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with Interrupt() as interrupt:
        send(signal.SIGTERM)
        monkeypatch.setattr("trueloop.training.interrupt.os.getppid", lambda: 1)
        send(signal.SIGTERM)  # for another of its threads
        assert interrupt.requested == "preempted"
        monkeypatch.setattr("trueloop.training.interrupt.DUPLICATE_WITHIN_S", 0.0)
        with pytest.raises(SystemExit):
            send(signal.SIGTERM)


def test_a_signal_that_torchrun_forwards_counts_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with Interrupt() as interrupt:
        send(signal.SIGTERM)
        send(signal.SIGTERM)
        assert interrupt.requested == "preempted"
        monkeypatch.setattr("trueloop.training.interrupt.FORWARDED_WITHIN_S", 0.0)
        with pytest.raises(SystemExit):
            send(signal.SIGTERM)


def test_a_custom_handler_is_not_replaced():
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    try:
        with Interrupt() as interrupt:
            send(signal.SIGTERM)
            assert interrupt.requested is None
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signals == [signal.SIGTERM]


def test_outside_the_main_thread_it_does_nothing():
    signals = []

    def work():
        with Interrupt() as interrupt:
            signals.append(interrupt.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert signals == [None]
