"""One thread per test: two shared cores make torch's thread pool slower, not faster."""

import gc
import operator
import os
from collections import Counter

import pytest
from hypothesis import settings

settings.register_profile("trueloop", deadline=None)  # timing is never asserted in a test
settings.load_profile("trueloop")
if hasattr(os, "register_at_fork"):
    # A process group of an earlier test, dead but not collected, waits for its threads when a forked child collects it.
    os.register_at_fork(after_in_child=gc.freeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
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
    import sys

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
    import sys
    from pathlib import Path

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
        from trueloop.engines.store import curves, report

        monkeypatch.setattr(curves, "save_panels", lambda shown, title, path_png: path_png.write_bytes(b""))
        monkeypatch.setattr(report, "svg", lambda panel: '<svg viewBox="0 0 1 1"></svg>')


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
