"""Runs scripts in two processes as torchrun starts them, with one process group for all scripts of a test file.

All scripts share a group because gloo in torch 2.13 sometimes hangs when a process creates a group several times.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import random
import re
import runpy
import textwrap
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import pytest

MARK = re.compile(r"#\s*<-\s*([A-Z]{3}\d{3})")
TIMEOUT_S = 300  # for machines that are busy with other work


class RankResult(NamedTuple):
    """Result of one script in one process."""

    reported_lines: set[tuple[str, int]]
    """(code, line) of each finding that is more than a note."""
    messages: list[str]
    problems: list[str]
    verdicts: dict[str, tuple[str, str]]
    results: list[str]
    """The elements of the script's variable ``results`` after the run, as text."""


def marked_lines(script: str) -> set[tuple[str, int]]:
    """Return (code, line) of every mark of a script, such as ``# <- DST001``."""
    lines = textwrap.dedent(script).splitlines()
    return {(mark[1], number) for number, line in enumerate(lines, 1) for mark in MARK.finditer(line)}


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, list[RankResult]]]:
    """`on_ranks(scripts)`: the results of each script by rank; all scripts run in the same process group."""

    def run(scripts: Mapping[str, str], *, untraced: tuple[int, ...] = (), ranks: int = 2) -> Any:
        import torch.distributed as dist

        folder = tmp_path_factory.mktemp("ranks")
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        processes = [
            multiprocessing.get_context("fork").Process(
                target=_one_rank, args=(rank, ranks, store.port, dict(scripts), folder, rank not in untraced)
            )
            for rank in range(ranks)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of a fork while the store's thread runs
            for process in processes:
                process.start()
        deadline = monotonic() + TIMEOUT_S
        while any(process.is_alive() for process in processes) and monotonic() < deadline:
            sleep(0.02)
        for process in processes:
            process.kill()
        stderr = "".join(path.read_text() for path in sorted(folder.glob("*.log")))
        results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        assert len(results) == ranks, f"exit codes {[process.exitcode for process in processes]}:\n{stderr}"
        errors = [f"rank {rank}: {each['error']}" for rank, each in enumerate(results) if each["error"]]
        assert not errors, "\n".join(errors)
        return {name: [_rank_result(each[name]) for each in results] for name in scripts}

    return run


def _rank_result(record: dict[str, Any]) -> RankResult:
    reported_lines = {tuple(each) for each in record["reported_lines"]}
    verdicts = {code: tuple(each) for code, each in record["verdicts"].items()}
    return RankResult(**{**record, "reported_lines": reported_lines, "verdicts": verdicts})


def _one_rank(rank: int, ranks: int, port: int, scripts: dict[str, str], folder: Path, traced: bool) -> None:
    """Run as a worker of torchrun, with its environment variables and its store; write the results as JSON."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    log = (folder / f"{rank}.log").open("w")
    os.dup2(log.fileno(), 2)
    faulthandler.enable(log)
    faulthandler.dump_traceback_later(TIMEOUT_S - 5, file=log)
    warnings.simplefilter("ignore")  # torch 2.13 deprecates options of DistributedDataParallel
    results: dict[str, Any] = {"error": ""}
    try:
        import torch.distributed as dist

        from trueloop.tracing.replicas import digest_exchange

        digest_exchange.DETACH_TIMEOUT_S = 5.0  # a digest takes longer on a machine that is busy with other tests
        dist.init_process_group("gloo")
        for number, (name, script) in enumerate(scripts.items()):
            dist.barrier()
            results[name] = _run(folder / f"{rank}-{number}.py", script, traced=traced)
    except BaseException:  # noqa: BLE001 - reported to the parent process
        results["error"] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(results))


def _run(path: Path, script: str, *, traced: bool) -> dict[str, Any]:
    import numpy as np
    import torch

    from trueloop.core.findings import Severity
    from trueloop.failures.load import catalogue
    from trueloop.sanitizer.dispatch import WatchedFailure
    from trueloop.sanitizer.watch import Watch

    path.write_text(textwrap.dedent(script))
    torch.set_num_threads(1)
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    watch = Watch([WatchedFailure(each.failure, each.slug) for each in catalogue().values()] if traced else [])
    if traced:
        watch.start()
    try:
        variables = runpy.run_path(str(path), run_name="__main__")
    finally:
        report = watch.stop() if traced else watch.report()
    findings = [each for each in report.findings if each.severity != Severity.NOTE]
    return {
        "reported_lines": [
            (each.code, each.location.line if each.location and each.location.path == str(path) else -1)
            for each in findings
        ],
        "messages": [each.message for each in findings],
        "problems": list(report.problems),
        "verdicts": {each.code: (str(each.verdict), each.reason) for each in report.verdicts},
        "results": [str(each) for each in variables.get("results", ())],
    }
