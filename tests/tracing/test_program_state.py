"""The training thread: one at a time; another thread can follow only when it has ended."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

import torch

from trueloop.tracing.program_state import OptimizerState, ProgramState


def on_other_thread(function: Callable[[], object]) -> object:
    """Call a function in a new thread; return its result."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_the_first_thread_is_the_training_thread_while_it_runs():
    program = ProgramState()
    assert program.is_training_thread()
    assert on_other_thread(program.is_training_thread) is False
    assert on_other_thread(program.is_other_thread) is True
    assert program.is_training_thread()
    assert not program.is_other_thread()


def test_another_thread_takes_over_after_the_end():
    program = ProgramState()
    assert on_other_thread(program.is_training_thread) is True
    assert program.training_thread is None
    assert program.is_training_thread()


def test_only_one_of_many_threads_becomes_the_training_thread():
    program = ProgramState()
    start, queried, results = threading.Barrier(4), threading.Barrier(4), list[bool]()

    def changes() -> None:
        """Let the others come as far as they can."""
        threading.Event().wait(0.02)

    def ask() -> None:
        start.wait()
        results.append(program.is_training_thread())
        queried.wait()

    program.on_thread_change.append(changes)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, False, False, True]


def test_a_thread_number_is_never_reused():
    """Python's own are: a thread that has ended has often the one of the next."""
    program = ProgramState()
    numbers = [on_other_thread(program.thread_number) for _ in range(20)]
    assert len(set(numbers)) == 20
    assert program.thread_number() == program.thread_number()


def test_thread_state_ends_with_the_thread():
    program, results = ProgramState(), list[str]()
    program.on_thread_change.append(lambda: results.append("forgotten"))
    parameter = torch.ones(1, requires_grad=True)
    first, second = (torch.optim.SGD([parameter], lr=0.1) for _ in range(2))

    def train() -> None:
        program.is_training_thread()
        program.optimizers.put(first, OptimizerState(in_training_thread=True, fully_traced=True))

    on_other_thread(train)
    known = program.optimizers.put(second, OptimizerState(fully_traced=True))
    assert program.training_optimizers() == [first]
    program.is_training_thread()
    assert results == ["forgotten", "forgotten"]
    assert program.training_optimizers() == []
    assert known.fully_traced, "it is this thread's"


def test_a_watch_of_another_session_does_not_end_this_one():
    """The thread of the one before ends while another one trains."""
    program = ProgramState()
    go, done = threading.Event(), threading.Event()

    def first() -> None:
        program.is_training_thread()
        done.set()
        go.wait()

    thread = threading.Thread(target=first)
    thread.start()
    done.wait()
    program.reset()
    assert program.is_training_thread()
    go.set()
    thread.join()
    assert program.training_thread == threading.get_ident()


def test_a_second_thread_is_detected_but_not_pytorchs_own():
    program = ProgramState()
    program.is_training_thread()
    on_other_thread(program.detect_second_thread)
    assert program.multi_threaded
    program.reset()
    assert not program.multi_threaded
    program.is_training_thread()
    program.backward_depth = 1
    done = threading.Event()

    def on_a_thread_that_python_has_not_begun() -> None:
        program.detect_second_thread()
        done.set()

    _thread.start_new_thread(on_a_thread_that_python_has_not_begun, ())
    done.wait()
    assert not program.multi_threaded
    on_other_thread(program.detect_second_thread)
    assert program.multi_threaded
