"""Marks slow tests, runs each test on one thread, and provides the fixtures that several folders of tests share."""

import gc
import operator
import os
import re
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
    # A forked child that collected an earlier test's process group would wait for threads that it does not have.
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
    "lab/arena/test_judge_client.py": "judges runs in separate processes",
    "training/compiled/test_compiled_loop.py": "compiles with Inductor",
} | {
    f"{file}::test_{name}": reason
    for reason, tests in {
        "starts several processes": {
            "cli/test_torchrun.py": (
                "two_machines_connect",
                "only_the_first_error",
                "an_invalid_setting_is",
                "a_killed_process_restarts",
                "a_repeatedly_killed",
                "a_signal_lets",
            ),
            "failures/distributed/test_batches_repeated.py": ("an_untraced_rank", "run_"),
            "failures/distributed/test_ranks_diverged.py": ("an_untraced_rank", "run_", "the_message_names"),
            "runs/tracking/test_sync_process.py": (
                "ctrl_c_reaches",
                "a_terminated_process",
                "the_process_syncs",
                "the_process_never",
                "runs_sync_repairs",
                "a_password_is_in",
            ),
        },
        "kills and resumes many runs": {
            "app/training/test_trainer.py": ("a_shuffling_loader_resumes", "a_second_call_resumes"),
            "app/training/test_data_feed.py": ("shards_killed", "data_that_knows"),
            "training/test_fit.py": ("a_resumed_run_equals",),
            "training/checkpoint/test_checkpoints.py": ("sigkill_at", "a_crash_at_any_file"),
            "runs/tracking/test_sync_client.py": (
                "a_run_is_in_the_store",
                "a_crashed_sync",
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
            "app/diagnosis/test_diagnose_command.py": (
                "nothing_helps_a_healthy",
                "files_of_the_script_are",
                "a_script_that_cannot_be",
                "a_spent_budget",
            ),
            "lab/teaching/test_scenarios.py": ("the_claim_is_checked_against",),
            "cli/test_train.py": ("digits_reaches",),
            "failures/environment/test_starved.py": ("run_",),
        },
        "compiles with Inductor": {
            "autograd/test_stable_logs.py": ("compiled_functions_are",),
            "healthy/test_healthy.py": tuple(
                f"a_correct_program_has_no_findings[compiled_{kind}" for kind in ("trainer", "model", "step")
            ),
            "training/test_seeding.py": ("deterministic_mode",),
        },
        "starts interpreters that import PyTorch": {
            "app/sanitizer/test_watch.py": ("an_unstopped_watch", "an_uncaught"),
            "app/test_pytest_plugin.py": ("a_pytorch_error", "a_test_with_a_silent", "a_failing_proof"),
            "cli/test_run.py": ("a_pytorch_error_is", "another_error_is_not", "os_exit_ends"),
            "cli/test_torchrun.py": ("every_process_gets", "processes_save_and_end_if_the_launcher"),
            "cli/test_train.py": ("the_printed_command",),
            "data/test_worker_signals.py": ("only_a_sigterm_from_the_parent_ends_a_worker[1",),
            "failures/pytorch_errors/test_worker_died.py": ("a_worker_that_exits",),
            "lab/test_simulator.py": ("trueloop_run_reports_the_same", "steps_run_until"),
            "test_docs.py": ("the_report_is",),
        },
        "starts many loader workers": {
            "data/test_loader.py": ("the_number_of_workers_does_not",),
            "data/test_shard_lanes.py": (
                "a_dataset_that_splits",
                "an_unfinished_epoch_ends",
                "a_lane_ends_at_any",
                "workers_yield_the_same",
            ),
            "data/test_streaming.py": ("more_workers_than",),
        },
        "runs thousands of updates": {
            "guilty/test_guilty.py": ("the_one_failure_is_found_at_its_line_and_nothing_else[seq2seq_graph",),
            "healthy/test_healthy.py": tuple(
                f"a_correct_program_has_no_findings[{program}"
                for program in ("continual_ewc", "late_change", "long_", "tbptt_overlapping")
            ),
            "promises/test_bounded.py": ("many_fully_traced", "many_updates", "models_that_come"),
            "promises/test_restored.py": ("sampled_tracing_replaces",),
            "verification/proofs/test_overfits_one_batch.py": ("an_input_that", "a_loss_whose_floor", "numbers_are"),
        },
        "tries many inputs": {
            "core/test_untrusted_input.py": ("any_input",),
            "data/test_streaming.py": ("resuming_at_any_window",),
            "lab/teaching/test_inject.py": ("two_failures_give",),
            "lab/teaching/test_pipeline.py": ("batches_and_left_out", "the_program_runs_as_a_file"),
            "promises/test_any_text.py": ("every_program_keeps",),
            "training/checkpoint/test_manifest.py": ("every_flipped_bit",),
            "training/checkpoint/test_tensor_file.py": ("a_flipped_bit",),
        },
        "counts tens of thousands of draws": {
            "data/test_order.py": ("all_permutations_of_few", "positions_and_adjacent")
        },
        "parses the flags of every setting": {"app/training/test_recipe_settings.py": ("formatted_flags",)},
    }.items()
    for file, names in tests.items()
    for name in names
}
"""Files, folders and tests below tests/ that only `make test-all` runs -> the reason why they are slow."""
QUICK = (
    "browser/test_app.py::test_functions_of_the_modules",
    "browser/test_app.py::test_every_page_is",
    "browser/test_app.py::test_a_page_is_reached_by_keyboard",
    "browser/test_app.py::test_an_unknown_address",
    "distributed/test_collectives.py",
    "app/training/test_trainer.py::test_a_shuffling_loader_resumes_in_the_same_order[21-2-True]",
)
"""Tests of slow files that `make test` runs nevertheless."""


TESTS = Path(__file__).parent.as_posix() + "/"


def _name(item: pytest.Item) -> str:
    return item.path.as_posix().removeprefix(TESTS) + "::" + item.name


def _function(item: pytest.Item) -> str:
    """Return the name of a test without its parameters."""
    return _name(item).partition("[")[0]


def _is_quick(item: pytest.Item) -> bool:
    return _name(item).startswith(QUICK)


def _slow_reason(item: pytest.Item) -> str | None:
    if _is_quick(item):
        return None
    name = _name(item)
    return next((reason for start, reason in SLOW.items() if name.startswith(start)), None)


TEST_FILE = re.compile(r"(test_\w+|conftest)\.py")
EACH = 10
"""Of each test, `make test` runs one of so many parameter sets; `make test-all` runs all of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    parameter_sets = Counter(_function(item) for item in items)
    position = Counter[str]()
    slow_files = set[Path]()
    for item in sorted(items, key=_name):  # not in the random order of this run, or both runs could leave out a test
        function = _function(item)
        position[function] += 1
        if reason := _slow_reason(item):
            item.add_marker(pytest.mark.slow(reason=reason))
            slow_files.add(item.path)
        elif position[function] % EACH != 1 and not _is_quick(item):
            item.add_marker(pytest.mark.slow(reason=f"one of {parameter_sets[function]} parameter sets"))
    # Files with slow tests start first, then files with many tests: if a long file came last, all workers but one would
    # wait for it.
    test_counts = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow_files, -test_counts[item.path]))
    for name, is_unsupported in UNSUPPORTED.items():
        marked = [item for item in items if item.get_closest_marker(name)]
        if marked and is_unsupported():
            for item in marked:
                item.add_marker(pytest.mark.skip(f"{name}: this version of torch does not support it"))


def _torch_has(path: str) -> bool:
    import torch._dynamo.config

    return hasattr(operator.attrgetter(path.rpartition(".")[0])(torch), path.rpartition(".")[2])


UNSUPPORTED = {
    "reads_saved": lambda: not _torch_has("_C._autograd.SavedTensor.unpack_hook"),
    "compiles_updates": lambda: not _torch_has("_dynamo.config.trace_autograd_ops"),
    "shards_on_cpu": lambda: not _torch_has("cpu.Stream.record_event"),
}
"""Marker of tests -> function that returns whether this version of torch lacks what these tests need."""


@pytest.fixture(autouse=True, scope="module")
def freeze_existing_objects():
    """Exempt objects that exist before a file's first test from garbage collection, which takes a second otherwise."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def interpreter_keeps_running():
    """Fail if a test has shut down the interpreter's threads: pools would refuse work in every later test."""
    hook = sys.excepthook
    yield
    from concurrent.futures import thread

    sys.excepthook = hook  # PyTorch sets another hook when it creates a process group, and never restores this one
    assert not thread._shutdown


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def modules_of_tests_are_no_programs():
    """Hide the test files that this process has imported from detectors that read all files of a running program."""
    from trueloop.tracing import running_code

    is_user_file = running_code.is_user_file

    @cache  # asked for each of 2,800 imported modules, several times per program
    def is_program_file(name: str) -> bool:
        return is_user_file(name) and not TEST_FILE.fullmatch(Path(name).name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_code, "is_user_file", is_program_file)
        yield


def _load_module(name: str):
    """Load a module of this folder, which test files in other folders cannot import."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fake_runs_module():
    """The module `fake_runs.py`."""
    return _load_module("fake_runs")


@pytest.fixture(scope="session")
def forker():
    """Starts Python programs in forks of one process that has imported torch; see `forked.py`."""
    module = _load_module("forked")
    forker = module.Forker()
    yield forker
    forker.close()


@pytest.fixture(scope="module")
def forker_with():
    """`forker_with(framework)`: a forker whose process has also imported a framework, which takes seconds."""
    module, forkers = _load_module("forked"), {}
    yield lambda name: forkers.get(name) or forkers.setdefault(name, module.Forker(name))
    for forker in forkers.values():
        forker.close()


@pytest.fixture
def plots_disabled(request, monkeypatch):
    """Let runs draw no plots, which take a second and are tested elsewhere; tests marked `draws` still draw them."""
    if not request.node.get_closest_marker("draws"):
        from trueloop.runs import curves, html_page

        monkeypatch.setattr(curves, "save_panels", lambda panels, title, path_png: path_png.write_bytes(b""))
        monkeypatch.setattr(html_page, "render_svg", lambda panel: '<svg viewBox="0 0 1 1"></svg>')


@pytest.fixture
def fake_runs(tmp_path, fake_runs_module):
    """A folder to which a test adds the runs it needs; see `fake_runs.py`."""
    return fake_runs_module.FakeRuns(tmp_path / "runs")


@pytest.fixture(scope="session")
def served():
    """`Served(home, *arguments)`: the lab's server in a separate process; see `served.py`."""
    return _load_module("served").Served


@pytest.fixture(scope="session")
def lab_home(tmp_path_factory):
    """The folder in which the lab finds runs (``runs``) and the addresses of watched programs (``session``)."""
    home = tmp_path_factory.mktemp("lab")
    (home / "session").mkdir(mode=0o700)
    return home


@pytest.fixture(scope="session")
def lab(served, lab_home):
    """The address of a lab that was started as a user starts it."""
    with served(lab_home, str(lab_home / "runs")) as address:
        yield address


@pytest.fixture(scope="session")
def tiny_artifacts(tmp_path_factory):
    """Exported tiny models, each exported once per session; see `tiny_artifacts.py`."""
    import torch

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9):
        pytest.skip("this version of torch writes pickles into .pt2, which are refused")
    return _load_module("tiny_artifacts").TinyArtifacts(tmp_path_factory.mktemp("artifacts"))


@cache
def made_up_module() -> ModuleType:
    """Load `made_up.py` under a name in the package, so that its frames count as trueloop's, like those of hooks."""
    import trueloop

    assert trueloop.__file__
    path = Path(trueloop.__file__).with_name("tracing") / "hooks" / "made_up.py"
    module = ModuleType("trueloop.tracing.hooks.made_up")
    exec(compile(Path(__file__).with_name("made_up.py").read_text(), str(path), "exec"), module.__dict__)
    return module


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the catalogue and the tracing hooks by made-up ones; see `made_up.py`."""
    from trueloop.failures import selection
    from trueloop.tracing.attach import Attachment

    module = made_up_module()
    entries = {entry.code: entry for entry in module.entries()}
    attachment = Attachment(module.hooks)
    monkeypatch.setattr("trueloop.sanitizer.watch._attachment", lambda: attachment)
    monkeypatch.setattr(selection, "catalogue", lambda: entries)
    by_name = {name: entry for entry in entries.values() for name in (entry.code.lower(), entry.slug)}
    monkeypatch.setattr(selection, "find_failure", lambda name: by_name.get(name.lower()))


def _wait_for_threads() -> None:
    """Wait for threads as the end of a program does, but without a shutdown, after which no pool would accept work."""
    for thread in threading.enumerate():
        if thread not in (threading.main_thread(), threading.current_thread()) and not thread.daemon:
            thread.join(30)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Write programs to the current folder; restore afterwards what running them has changed in this process."""
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
def fake_judge(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the judge by one whose results depend only on the learning rate; return the list of its jobs."""
    from trueloop.lab.arena.judge_client import JudgeClient
    from trueloop.lab.arena.trial import Job, Trial, TrialFinding

    jobs: list[Any] = []

    def run(
        self: JudgeClient, job: Job, on_points: Any = lambda points: None, *, on_start: Any = lambda number: None
    ) -> Trial:
        jobs.append(job)
        on_start(len(jobs))
        updates = round(1000 * job.entry.lr)
        on_points([(1, 32, 0.5), (updates, 32 * updates, 0.97)])
        if job.entry.lr > 5:
            found = TrialFinding(
                code="GRD007", title="Not finite", severity="error", message="the loss is nan", line=80
            )
            return Trial(seed=job.seed, end="found", updates=7, examples=224, found=found)
        if job.entry.lr < 0.001:
            return Trial(seed=job.seed, end="not reached", updates=1500, examples=48000, accuracy=0.5)
        return Trial(
            seed=job.seed, end="reached", updates=updates, examples=32 * updates, accuracy=0.97, time=0.5, digest="ab",
            step_ms=2.5, memory_mib=3.0,
        )  # fmt: skip

    monkeypatch.setattr(JudgeClient, "run", run)
    monkeypatch.setattr(JudgeClient, "versions", lambda self: {"torch": "2.0"})
    return jobs
