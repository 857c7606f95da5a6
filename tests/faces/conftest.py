"""A made-up sanitizer behind the real doors; see `made_up.py`."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@cache
def made_up_module() -> ModuleType:
    """Load it under a name inside of the package, so that its frames are taken for ours, as a real source's are."""
    import trueloop

    assert trueloop.__file__
    name = Path(trueloop.__file__).with_name("engines") / "watch" / "sources" / "made_up.py"
    module = ModuleType("trueloop.engines.watch.sources.made_up")
    exec(compile(Path(__file__).with_name("made_up.py").read_text(), str(name), "exec"), module.__dict__)
    return module


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the made-up catalogue and source in the place of the real ones."""
    from trueloop.engines.watch.attach import Attachment
    from trueloop.faces import choice

    world = made_up_module()
    entries = {entry.code: entry for entry in world.entries()}
    attachment = Attachment(world.sources)
    monkeypatch.setattr("trueloop.engines.watch.watch._attachment", lambda: attachment)
    monkeypatch.setattr(choice, "catalogue", lambda: entries)
    by_name = {name: entry for entry in entries.values() for name in (entry.code.lower(), entry.slug)}
    monkeypatch.setattr(choice, "find", lambda word: by_name.get(word.lower()))


def _wait_for_threads() -> None:
    """What a program's end does to its threads, without ending this process: no pool would take work any more."""
    for thread in threading.enumerate():
        if thread not in (threading.main_thread(), threading.current_thread()) and not thread.daemon:
            thread.join(30)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Write programs in a folder that is the current one; what running them leaves in this process is put back."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr("threading._shutdown", _wait_for_threads)
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    yield write
    sys.modules["__main__"] = main


@pytest.fixture
def made_up_referee(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A referee that knows at once what a job comes to, by its learning rate; returns the jobs it was given."""
    from trueloop.engines.arena.trial import Found, Trial
    from trueloop.faces.arena.job import Job
    from trueloop.faces.arena.referee import Referee

    jobs: list[Any] = []

    def run(self: Referee, job: Job, tell: Any = lambda points: None, *, began: Any = lambda number: None) -> Trial:
        jobs.append(job)
        began(len(jobs))
        updates = round(1000 * job.entry.lr)
        tell([(1, 32, 0.5), (updates, 32 * updates, 0.97)])
        if job.entry.lr > 5:
            found = Found(code="GRD007", title="Not finite", severity="error", message="the loss is nan", line=80)
            return Trial(seed=job.seed, end="found", updates=7, examples=224, found=found)
        if job.entry.lr < 0.001:
            return Trial(seed=job.seed, end="not reached", updates=1500, examples=48000, accuracy=0.5)
        return Trial(
            seed=job.seed, end="reached", updates=updates, examples=32 * updates, accuracy=0.97, time=0.5, digest="ab"
        )  # fmt: skip

    monkeypatch.setattr(Referee, "run", run)
    monkeypatch.setattr(Referee, "versions", lambda self: {"torch": "2.0"})
    return jobs
