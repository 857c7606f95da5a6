"""Other threads, forked and spawned processes, hooks that raise: the program goes on, and so does the watch."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from trueloop.failures.load import catalogue
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import Watch

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def train(seed: int = 0, updates: int = 30) -> Tensor:
    """Train a small model with a generator of its own, and return its weights."""
    draws = torch.Generator().manual_seed(seed)
    model = nn.Linear(4, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draws))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(updates):
        x, y = torch.randn(6, 4, generator=draws), torch.randint(3, (6,), generator=draws)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.weight.detach()


def in_a_child(act: Callable[[], bool]) -> int:
    """Fork, do something there, and return 7 where it went well."""
    child = os.fork()
    if not child:
        code = 9
        try:
            code = 7 if act() else 8
        except BaseException:  # noqa: BLE001 - the child must not go on as a second test run
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def test_threads_that_train_at_the_same_time(new_watch: Callable[[], Watch]):
    alone = [train(seed) for seed in range(4)]
    together: dict[int, Tensor] = {}
    start = threading.Barrier(4)

    def run(seed: int) -> None:
        start.wait()
        together[seed] = train(seed)

    with new_watch() as watch:
        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(torch.equal(together[seed], alone[seed]) for seed in range(4))
    assert not watch.report().problems
    assert not watch.report().findings
    assert watch.report().updates >= 30


def every_failure() -> Watch:
    """The watch of the fixture, for a process without pytest."""
    return Watch([WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()])


def begin_together() -> None:
    """Which of them is followed is not decided yet: nobody may look at another's gradients meanwhile."""
    for _ in range(60):
        start = threading.Barrier(4)

        def run(start: threading.Barrier = start) -> None:
            model = nn.Sequential(nn.Linear(4, 3))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            x, y = torch.randn(6, 4), torch.randint(3, (6,))
            start.wait()
            for _ in range(8):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

        with every_failure():
            in_new_threads([run] * 4)


Job = Callable[[], None]


def in_new_threads(jobs: list[Job]) -> None:
    """A new thread often has the number of one that has ended."""
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_a_pool() -> Callable[[list[Job]], None]:
    """Threads that stay, and get one job now and another one then."""
    pool = ThreadPoolExecutor(4)

    def run(jobs: list[Job]) -> None:
        list(pool.map(lambda job: job(), jobs))

    return run


def wander(run: Callable[[list[Job]], None]) -> None:
    """Who looked at the gradients of a model that it trained before would read what another one is writing."""
    draws = random.Random(0)
    for _ in range(40):
        models = [nn.Sequential(nn.Linear(4, 3)) for _ in range(4)]
        pairs = [(model, torch.optim.AdamW(model.parameters(), lr=0.01)) for model in models]

        def job(model: nn.Module, optimizer: torch.optim.Optimizer, start: threading.Barrier) -> None:
            x = torch.randn(6, 4)
            y = x[:, :3].argmax(1)
            start.wait()
            for _ in range(3):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

        with every_failure() as watch:
            for _ in range(20):
                draws.shuffle(pairs)
                start = threading.Barrier(4)
                run([partial(job, *pair, start) for pair in pairs])
        report = watch.report()
        assert not report.problems, report.problems
        assert not report.findings, report.findings


RACES: dict[str, Job] = {
    "begun together": begin_together,
    "new threads": lambda: wander(in_new_threads),
    "a pool": lambda: wander(in_a_pool()),
}


@pytest.mark.parametrize("race", RACES)
def test_threads_that_train_concurrently_do_not_crash(race: str):
    """Each in a process of its own, which tells where it was if it ends in a crash."""
    words = [sys.executable, "-X", "faulthandler", __file__, race]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_watches_of_several_threads(new_watch: Callable[[], Watch]):
    """They begin and end at any moment; there is one attachment, and in the end it is off."""
    before = nn.Module.__call__, torch.autograd.backward
    reports, start = [], threading.Barrier(3)

    def run(seed: int) -> None:
        start.wait()
        for _ in range(5):
            with new_watch() as watch:
                train(seed, updates=3)
            reports.append(watch.report())

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 15
    assert not [report.problems for report in reports if report.problems]
    assert before == (nn.Module.__call__, torch.autograd.backward)


@forks
def test_a_forked_child_is_not_traced_and_the_parent_goes_on(new_watch: Callable[[], Watch]):
    alone = train(3)
    with new_watch() as watch:
        train(1)
        seen = watch.report().updates

        def act() -> bool:
            return torch.equal(train(3), alone) and watch.report().updates == seen

        assert in_a_child(act) == 7
        train(2)
    assert watch.report().updates == seen + 30
    assert not watch.report().problems


@forks
def test_a_forked_child_may_start_its_own_watch(new_watch: Callable[[], Watch]):
    def act() -> bool:
        reports = []
        for updates in (5, 4):
            own = new_watch()
            own.start()
            train(updates=updates)
            reports.append(own.stop())
        return [report.updates for report in reports] == [5, 4] and not any(report.problems for report in reports)

    with new_watch() as watch:
        train(updates=3)
        assert in_a_child(act) == 7
    assert watch.report().updates == 3


@forks
def test_a_watch_from_before_the_fork_may_stop_in_the_child(new_watch: Callable[[], Watch]):
    before = nn.Module.__call__, torch.autograd.backward
    watch = new_watch()

    def act() -> bool:
        with new_watch():  # one of its own first, so that the other is a stranger here
            train(updates=2)
        watch.stop()
        return before == (nn.Module.__call__, torch.autograd.backward)

    def at_once() -> bool:
        watch.stop()
        return before == (nn.Module.__call__, torch.autograd.backward)

    watch.start()
    train(updates=3)
    assert (in_a_child(act), in_a_child(at_once)) == (7, 7)
    assert watch.stop().updates == 3


@forks
def test_a_fork_within_an_update(new_watch: Callable[[], Watch]):
    """At each moment."""
    for moment in ("forward", "backward", "step"):
        codes: list[int] = []
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def fork(codes: list[int] = codes) -> None:
            with torch.enable_grad():
                codes.append(in_a_child(lambda: train(updates=2).shape == (3, 4)))

        model.register_forward_hook(lambda *args, now=moment, fork=fork: fork() if now == "forward" else None)
        model.weight.register_hook(lambda gradient, now=moment, fork=fork: fork() if now == "backward" else None)
        optimizer.register_step_pre_hook(lambda *args, now=moment, fork=fork: fork() if now == "step" else None)
        with new_watch() as watch:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert codes == [7]
        assert watch.report().updates == 1
        assert not watch.report().problems


class Squares(Dataset[Tensor]):
    """Can be sent to a spawned process."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((4,), float(index**2))


def test_spawned_workers(new_watch: Callable[[], Watch], tmp_path: Path):
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(
            """
            import torch
            from torch import nn

            class Squares(torch.utils.data.Dataset):
                def __len__(self):
                    return 8
                def __getitem__(self, index):
                    return torch.full((4,), float(index ** 2))

            if __name__ == "__main__":
                from trueloop.sanitizer.watch import Watch
                model = nn.Linear(4, 1)
                optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
                loader = torch.utils.data.DataLoader(Squares(), 4, num_workers=1, multiprocessing_context="spawn")
                with Watch([]) as watch:
                    for x in loader:
                        optimizer.zero_grad()
                        model(x).square().mean().backward()
                        optimizer.step()
                print(watch.report().updates, watch.report().problems, float(x.sum()))
            """
        )
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False, env=environment)
    assert (done.stdout, done.returncode) == ("2 () 504.0\n", 0), done.stderr


@forks
def test_an_error_in_a_worker_is_the_programs_error(new_watch: Callable[[], Watch]):
    class Failing(Squares):
        def __getitem__(self, index: int) -> Tensor:
            if index == 6:
                raise ValueError("six")
            return super().__getitem__(index)

    with new_watch() as watch:
        with pytest.raises(ValueError, match="six"):
            for _ in DataLoader(Failing(), batch_size=2, num_workers=1):
                pass
        train(updates=3)
    assert watch.report().updates == 3
    assert not watch.report().problems


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_hooks_of_the_program_that_raise(new_watch: Callable[[], Watch], error: type[BaseException]):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail(*args: object) -> None:
        raise error

    def update() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    with new_watch() as watch:
        for hook in (
            lambda: model.register_forward_pre_hook(fail),
            lambda: model.register_forward_hook(fail),
            lambda: model.weight.register_hook(fail),
            lambda: model.bias.register_post_accumulate_grad_hook(fail),
            lambda: optimizer.register_step_pre_hook(fail),
            lambda: optimizer.register_step_post_hook(fail),
        ):
            handle = hook()
            with pytest.raises(error):
                update()
            handle.remove()
            update()
        program = watch._attachment.program
        assert (program.forward_depth, program.backward_depth, program.step_depth) == (0, 0, 0)
    assert not watch.report().problems
    assert watch.report().updates >= 6


class Odd(nn.Module):
    """Takes an argument that is called as one of our own might be."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Tensor, module: int = 0, stream: int = 0, original: int = 0) -> Tensor:
        return self.inner(x) + module + stream + original


def test_arguments_of_any_name(new_watch: Callable[[], Watch]):
    model = Odd()
    with new_watch() as watch:
        out = model(torch.zeros(1, 2), module=1, stream=2, original=3)
    assert torch.equal(out, model.inner(torch.zeros(1, 2)) + 1 + 2 + 3)
    assert not watch.report().problems


class Listed(nn.Module):
    """Gives its parameters as a list, as the MAML code that is passed around does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def parameters(self, recurse: bool = True) -> list[nn.Parameter]:  # type: ignore[override]
        return [self.inner.weight, self.inner.bias]


def test_parameters_that_are_no_iterator(new_watch: Callable[[], Watch]):
    model = Listed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with new_watch() as watch:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert watch.report().updates == 3
    assert not watch.report().problems


def test_a_loader_whose_iterator_the_program_has_replaced(
    new_watch: Callable[[], Watch], monkeypatch: pytest.MonkeyPatch
):
    """Before the watch begins, by a generator, which takes no attributes."""
    before = DataLoader.__iter__
    monkeypatch.setattr(DataLoader, "__iter__", lambda loader: (batch * 2 for batch in before(loader)))
    with new_watch() as watch:
        seen = [float(batch.sum()) for batch in DataLoader(Squares(), batch_size=4)]
    assert seen == [112.0, 1008.0]
    assert not watch.report().problems


class Speechless(Exception):
    """Cannot say itself."""

    def __str__(self) -> str:
        raise ZeroDivisionError


def test_an_error_may_fail_to_format_itself(new_watch: Callable[[], Watch]):
    class Model(nn.Linear):
        def modules(self) -> Any:
            raise Speechless

    with new_watch() as watch:
        model = Model(4, 3)
        nn.Module.train(nn.Linear(1, 1))
        out = model(torch.ones(1, 4))
    assert out.shape == (1, 3)
    assert any("Speechless" in problem for problem in watch.report().problems)


def test_a_program_that_needs_nearly_all_of_the_stack(new_watch: Callable[[], Watch]):
    """What fails in here for want of it is told in what is left."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    def deep(depth: int) -> None:
        update() if depth == 0 else deep(depth - 1)

    def goes(depth: int) -> bool:
        try:
            deep(depth)
        except RecursionError:
            return False
        return True

    update()
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(600)
    try:
        deepest = next(depth for depth in range(600, 0, -1) if goes(depth))
    finally:
        sys.setrecursionlimit(usual)
    for spare in range(1, 24):  # frames
        with new_watch():
            sys.setrecursionlimit(600)
            try:
                assert goes(deepest - spare)
            finally:
                sys.setrecursionlimit(usual)


def test_a_mocked_method_is_called_unchanged(new_watch: Callable[[], Watch]):
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with mock.patch.object(torch.optim.Optimizer, "zero_grad") as mocked:
        with new_watch():
            optimizer.zero_grad()
        mocked.assert_called_once_with()


def test_seeds_during_another_threads_batch_do_not_count(new_watch: Callable[[], Watch]):
    """As by a program that seeds every update, with a thread that draws ahead."""
    current_loader_pass, seeded = threading.Event(), threading.Event()

    class Slow(Squares):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Tensor:
            current_loader_pass.set()
            seeded.wait(5)
            seeded.clear()
            return super().__getitem__(index)

    seen: list[Tensor] = []
    with new_watch() as watch:
        thread = threading.Thread(target=lambda: seen.extend(DataLoader(Slow(), batch_size=1)))
        thread.start()
        for _ in range(40):
            current_loader_pass.wait(5)
            current_loader_pass.clear()
            torch.manual_seed(0)
            seeded.set()
        thread.join()
        nn.Linear(4, 1)(seen[0]).sum().backward()
    assert len(seen) == 40
    assert not watch.report().findings


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-6)
    RACES[sys.argv[1]]()
