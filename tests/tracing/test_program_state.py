"""Which thread trains: one at a time, and another one only once it has ended."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

import torch

from trueloop.tracing.program_state import Known, Program


def elsewhere(act: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    thread.join()
    return found[0]


def test_the_first_to_ask_trains_and_no_other_as_long_as_it_runs():
    program = Program()
    assert program.trains_here()
    assert elsewhere(program.trains_here) is False
    assert elsewhere(program.elsewhere) is True
    assert program.trains_here()
    assert not program.elsewhere()


def test_where_it_has_ended_another_one_takes_over():
    program = Program()
    assert elsewhere(program.trains_here) is True
    assert program.thread is None
    assert program.trains_here()


def test_of_many_that_ask_at_once_one_is_told_so():
    program = Program()
    start, asked, told = threading.Barrier(4), threading.Barrier(4), list[bool]()

    def changes() -> None:
        """Let the others come as far as they can."""
        threading.Event().wait(0.02)

    def ask() -> None:
        start.wait()
        told.append(program.trains_here())
        asked.wait()

    program.changes_thread.append(changes)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == [False, False, False, True]


def test_a_number_is_never_given_to_another_thread():
    """Python's own are: a thread that has ended has often the one of the next."""
    program = Program()
    numbers = [elsewhere(program.number) for _ in range(20)]
    assert len(set(numbers)) == 20
    assert program.number() == program.number()


def test_with_the_thread_goes_what_was_its_own():
    program, told = Program(), list[str]()
    program.changes_thread.append(lambda: told.append("forgotten"))
    parameter = torch.ones(1, requires_grad=True)
    first, second = (torch.optim.SGD([parameter], lr=0.1) for _ in range(2))

    def train() -> None:
        program.trains_here()
        program.optimizers.put(first, Known(trains=True, whole=True))

    elsewhere(train)
    known = program.optimizers.put(second, Known(whole=True))
    assert program.mine() == [first]
    program.trains_here()
    assert told == ["forgotten", "forgotten"]
    assert program.mine() == []
    assert known.whole, "it is this thread's"


def test_a_watch_of_another_session_does_not_end_this_one():
    """The thread of the one before ends while another one trains."""
    program = Program()
    go, done = threading.Event(), threading.Event()

    def first() -> None:
        program.trains_here()
        done.set()
        go.wait()

    thread = threading.Thread(target=first)
    thread.start()
    done.wait()
    program.begin()
    assert program.trains_here()
    go.set()
    thread.join()
    assert program.thread == threading.get_ident()


def test_backward_on_another_thread_is_noted_but_not_torchs_own():
    program = Program()
    program.trains_here()
    elsewhere(program.shared)
    assert program.crowded
    program.begin()
    assert not program.crowded
    program.trains_here()
    program.in_backward = 1
    done = threading.Event()

    def on_a_thread_that_python_has_not_begun() -> None:
        program.shared()
        done.set()

    _thread.start_new_thread(on_a_thread_that_python_has_not_begun, ())
    done.wait()
    assert not program.crowded
    elsewhere(program.shared)
    assert program.crowded
