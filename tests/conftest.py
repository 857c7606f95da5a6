"""One thread per test: two shared cores make torch's thread pool slower, not faster."""

import gc
import operator
import os
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("trueloop", deadline=None)  # timing is never asserted in a test
settings.load_profile("trueloop")
if hasattr(os, "register_at_fork"):
    # A process group of an earlier test, dead but not collected, waits for its threads when a forked child collects it.
    os.register_at_fork(after_in_child=gc.freeze)


SLOW = {
    "browser/": "drives a real browser",
    "deploy/": "starts containers' entry points",
    "distributed/": "starts several processes",
    "faults/": "kills and damages dozens of runs",
    "promises/test_elsewhere.py": "starts processes and threads that train",
    "app/runs/test_rollback.py": "trains and continues whole runs",
    "runs/tracking/test_mlflow_sink.py": "needs databases",
    "lab/teaching/production/test_program.py": "trains every variant of a generated program",
    "test_examples.py": "trains all examples and their broken copies",
    "test_site.py": "drives a real browser",
    "lab/test_workers.py": "starts and kills worker processes",
    "lab/arena/test_judge_client.py": "judges runs in processes of their own",
    "training/compiled/test_compiled_loop.py": "compiles with Inductor",
} | {
    f"{file}::test_{name}": why
    for why, tests in {
        "starts several processes": {
            "cli/test_torchrun.py": (
                "two_machines_meet",
                "the_first_error_is_shown",
                "a_setting_that_cannot_work",
                "a_killed_process_brings",
                "a_process_that_is_always_killed",
                "a_signal_reaches_them",
            ),
            "failures/distributed/test_batches_repeated.py": ("an_untraced_rank",),
            "failures/distributed/test_ranks_diverged.py": ("an_untraced_rank", "run_"),
            "runs/tracking/test_sync_process.py": (
                "ctrl_c_reaches",
                "a_terminated_process",
                "the_process_syncs",
                "the_process_never",
                "runs_sync_repairs",
            ),
        },
        "kills and resumes many runs": {
            "app/training/test_trainer.py": ("a_shuffling_loader_resumes",),
            "app/training/test_data_feed.py": ("shards_killed", "data_that_knows"),
            "training/test_fit.py": ("resuming_is_going_on",),
            "training/checkpoint/test_checkpoints.py": ("sigkill_at", "a_crash_at_every"),
            "runs/tracking/test_sync_client.py": (
                "a_run_is_in_the_store",
                "points_are",
                "a_failed_run",
                "postgres_killed",
                "a_slow_sync",
                "a_forked_child",
                "a_resumed_run",
                "the_store_changes",
            ),
        },
        "trains until a claim can be judged": {
            "lab/teaching/test_scenarios.py": ("the_claim_is_held",),
            "cli/test_train.py": ("digits_reaches",),
            "failures/environment/test_starved.py": ("run_",),
        },
        "counts tens of thousands of draws": {"data/test_order.py": ("every_permutation", "positions_and_adjacent")},
        "parses the flags of every setting": {"app/training/test_recipe_settings.py": ("formatted_flags",)},
    }.items()
    for file, names in tests.items()
    for name in names
}
"""Files, folders and tests below tests/ that run in `make test-all` only, and why."""
QUICK = (
    "browser/test_app.py::test_what_the_modules_do",
    "browser/test_app.py::test_every_page_is",
    "browser/test_app.py::test_a_page_is_reached_by_keyboard",
    "browser/test_app.py::test_an_address_that_is_none",
    "distributed/test_collectives.py",
    "app/training/test_trainer.py::test_a_shuffling_loader_resumes_in_the_same_order[21-2-True]",
)
"""Of those, what `make test` runs nevertheless."""


def _slow_reason(item: pytest.Item) -> str | None:
    path = item.path.relative_to(Path(__file__).parent).as_posix() + "::" + item.name
    if path.startswith(QUICK):
        return None
    return next((why for start, why in SLOW.items() if path.startswith(start)), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := _slow_reason(item):
            item.add_marker(pytest.mark.slow(reason=reason))
    # Files with slow tests first, then those of many tests: the last one keeps one worker busy, with nothing left to do
    # for the others.
    long = {item.path for item in items if item.get_closest_marker("slow")}
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in long, -tests[item.path]))
    for name, lacks in LACKS.items():
        marked = [item for item in items if item.get_closest_marker(name)]
        if marked and lacks():
            for item in marked:
                item.add_marker(pytest.mark.skip(f"{name}: this version of torch cannot"))


def _of_torch(path: str) -> bool:
    import torch._dynamo.config

    return hasattr(operator.attrgetter(path.rpartition(".")[0])(torch), path.rpartition(".")[2])


LACKS = {
    "reads_saved": lambda: not _of_torch("_C._autograd.SavedTensor.unpack_hook"),
    "compiles_updates": lambda: not _of_torch("_dynamo.config.trace_autograd_ops"),
    "shards_on_cpu": lambda: not _of_torch("cpu.Stream.record_event"),
}
"""Markers of tests -> whether this version of torch lacks what they need."""


@pytest.fixture(autouse=True, scope="module")
def only_the_new_is_collected():
    """What is there before a file's first test stays: a search for garbage would take a second longer."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def the_process_goes_on():
    """A program run in this process may not have ended it: pools would refuse work in every later test."""
    hook = sys.excepthook
    yield
    from concurrent.futures import thread

    sys.excepthook = hook  # torch puts its own in place with a process group, and leaves it there
    assert not thread._shutdown


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    import torch

    torch.set_num_threads(1)


def _beside(name: str):
    """Load a module of this folder: what a test file cannot import from here."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def made_runs_module():
    """The module `made_runs.py`."""
    return _beside("made_runs")


@pytest.fixture(scope="session")
def forker():
    """Starts Python programs in forks of one process that has imported torch; see `forked.py`."""
    module = _beside("forked")
    forker = module.Forker()
    yield forker
    forker.close()


@pytest.fixture(scope="module")
def forker_with():
    """The same of a process that has imported a framework too, which takes longer than any script of the tests."""
    module, made = _beside("forked"), {}
    yield lambda name: made.get(name) or made.setdefault(name, module.Forker(name))
    for forker in made.values():
        forker.close()


@pytest.fixture
def nothing_drawn(request, monkeypatch):
    """Runs draw no pictures, a second for each, which have tests of their own; but in tests that are marked `draws`."""
    if not request.node.get_closest_marker("draws"):
        from trueloop.runs import curves, report

        monkeypatch.setattr(curves, "save_panels", lambda shown, title, path_png: path_png.write_bytes(b""))
        monkeypatch.setattr(report, "render_svg", lambda panel: '<svg viewBox="0 0 1 1"></svg>')


@pytest.fixture
def made(tmp_path, made_runs_module):
    """A folder of runs, made by hand."""
    return made_runs_module.MadeRuns(tmp_path / "runs")


@pytest.fixture(scope="session")
def served():
    """`Served(home, *words)`: the lab's server in a process of its own; see `served.py`."""
    return _beside("served").Served


@pytest.fixture(scope="session")
def lab_home(tmp_path_factory):
    """The folder in which the lab finds runs (``runs``) and programs that tell how they are (``session``)."""
    home = tmp_path_factory.mktemp("lab")
    (home / "session").mkdir(mode=0o700)
    return home


@pytest.fixture(scope="session")
def lab(served, lab_home):
    """The address of a lab that runs as a user would start it."""
    with served(lab_home, str(lab_home / "runs")) as address:
        yield address


@pytest.fixture(scope="session")
def made_artifacts(tmp_path_factory):
    """Exported models of three layers, each made once; see `made_artifacts.py`."""
    import torch

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9):
        pytest.skip("this version of torch writes pickles into .pt2, which are refused")
    return _beside("made_artifacts").MadeArtifacts(tmp_path_factory.mktemp("artifacts"))


@cache
def made_up_module() -> ModuleType:
    """Load it under a name inside of the package, so that its frames are taken for ours, as a real source's are."""
    import trueloop

    assert trueloop.__file__
    name = Path(trueloop.__file__).with_name("tracing") / "hooks" / "made_up.py"
    module = ModuleType("trueloop.tracing.hooks.made_up")
    exec(compile(Path(__file__).with_name("made_up.py").read_text(), str(name), "exec"), module.__dict__)
    return module


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the made-up catalogue and source in the place of the real ones."""
    from trueloop.failures import selection
    from trueloop.tracing.attach import Attachment

    world = made_up_module()
    entries = {entry.code: entry for entry in world.entries()}
    attachment = Attachment(world.sources)
    monkeypatch.setattr("trueloop.sanitizer.watch._attachment", lambda: attachment)
    monkeypatch.setattr(selection, "catalogue", lambda: entries)
    by_name = {name: entry for entry in entries.values() for name in (entry.code.lower(), entry.slug)}
    monkeypatch.setattr(selection, "find_failure", lambda word: by_name.get(word.lower()))


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
    from trueloop.lab.arena.judge_client import JudgeClient
    from trueloop.lab.arena.trial import Found, Job, Trial

    jobs: list[Any] = []

    def run(
        self: JudgeClient, job: Job, tell: Any = lambda points: None, *, on_start: Any = lambda number: None
    ) -> Trial:
        jobs.append(job)
        on_start(len(jobs))
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

    monkeypatch.setattr(JudgeClient, "run", run)
    monkeypatch.setattr(JudgeClient, "versions", lambda self: {"torch": "2.0"})
    return jobs
