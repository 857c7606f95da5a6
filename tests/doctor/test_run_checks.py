"""The results of all checks: order, errors, summary and JSON."""

from __future__ import annotations

from dataclasses import replace

from trueloop.doctor.diagnosis import Level, RunRequirements
from trueloop.doctor.machine import Gpu, Machine, Space, TorchInstall
from trueloop.doctor.run_checks import all_checks, has_errors, run_checks, summarize
from trueloop.failures.load import find_failure

MACHINE = Machine(torch=TorchInstall(version="2.13.0+cpu"), cores=2, available_bytes=2 * 2**30, open_files=(1024, 1024))


def test_checks_are_discovered_and_ordered_by_group():
    groups = [check.group for check in all_checks().values()]
    assert groups == sorted(groups, key=list(dict.fromkeys(groups)).index)
    assert list(dict.fromkeys(groups))[:2] == ["software", "accelerator"]
    assert len({check.title for check in all_checks().values()}) == len(groups) >= 15


def test_the_failure_pages_exist():
    assert all(find_failure(check.failure) for check in all_checks().values() if check.failure)


def test_the_summary_names_the_machine_and_the_worst_problem():
    found = run_checks(MACHINE, RunRequirements())
    assert summarize(MACHINE, [each for each in found if each.diagnosis.level is Level.OK]) == (
        "torch 2.13.0+cpu (CPU only), 2 cores, 2.0 GiB of memory free; nothing is wrong"
    )
    worse = replace(MACHINE, open_files=(70, 70), shared=Space(total_bytes=1, free_bytes=1))
    found = run_checks(worse, RunRequirements(workers=9, batch_bytes=1))
    assert has_errors(found)
    line = summarize(worse, found)
    assert "2 cores" in line
    assert "; 2 errors, 1 warning: 70 files may be open" in line
    assert line.endswith("(2 more: trueloop doctor)")


def test_the_summary_counts_gpus_and_reports_missing_torch():
    gpus = (Gpu(name="NVIDIA H200", memory_bytes=140 * 2**30),) * 2
    on_gpus = replace(MACHINE, torch=TorchInstall(version="2.13.0", cuda="12.8", gpus=gpus))
    assert summarize(on_gpus, []).startswith("torch 2.13.0 (CUDA 12.8), 2 x NVIDIA H200 (140.0 GiB), 2 cores")
    assert summarize(replace(MACHINE, torch=None, quota=1.0), []).startswith("no torch, 1 core,")


def test_json_has_remedy_and_page_of_problems_only():
    found = {each.check.name: each.as_json() for each in run_checks(MACHINE, RunRequirements(workers=9))}
    assert found["worker-count"]["page"] == "ENV002"
    assert found["worker-count"]["remedy"]
    assert found["python"] == {
        "check": "python", "group": "software", "title": "Python", "level": "ok", "message": "Python 3.11.0 on Linux.",
    }  # fmt: skip
