"""Runs scripts in two processes that torchrun might have started, one pair and one group for all scripts of a file.

One group, since gloo in torch 2.13 hangs now and then where a process makes its group again after a few others.
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
PATIENCE_S = 60


class OnRank(NamedTuple):
    """What one process says of one script."""

    found: set[tuple[str, int]]
    """(code, line) of what is more than a note."""
    messages: list[str]
    problems: list[str]
    judged: dict[str, tuple[str, str]]
    printed: list[str]
    """What it left in ``results``."""


def expected(script: str) -> set[tuple[str, int]]:
    """Return what the script's marks say."""
    lines = textwrap.dedent(script).splitlines()
    return {(mark[1], number) for number, line in enumerate(lines, 1) for mark in MARK.finditer(line)}


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, list[OnRank]]]:
    """Run scripts one after the other in each process, where the group is there already."""

    def run(scripts: Mapping[str, str], *, unwatched: tuple[int, ...] = (), ranks: int = 2) -> Any:
        import torch.distributed as dist

        folder = tmp_path_factory.mktemp("ranks")
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        processes = [
            multiprocessing.get_context("fork").Process(
                target=_one_rank, args=(rank, ranks, store.port, dict(scripts), folder, rank not in unwatched)
            )
            for rank in range(ranks)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside the store's thread
            for process in processes:
                process.start()
        deadline = monotonic() + PATIENCE_S
        while any(process.is_alive() for process in processes) and monotonic() < deadline:
            sleep(0.02)
        for process in processes:
            process.kill()
        complaints = "".join(path.read_text() for path in sorted(folder.glob("*.log")))
        results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        assert len(results) == ranks, f"exit codes {[process.exitcode for process in processes]}:\n{complaints}"
        broken = [f"rank {rank}: {each['error']}" for rank, each in enumerate(results) if each["error"]]
        assert not broken, "\n".join(broken)
        return {
            name: [OnRank(found={tuple(one) for one in each[name]["found"]}, **_rest(each[name])) for each in results]
            for name in scripts
        }

    return run


def _rest(result: dict[str, Any]) -> dict[str, Any]:
    judged = {code: tuple(each) for code, each in result["judged"].items()}
    return {
        "messages": result["messages"],
        "problems": result["problems"],
        "judged": judged,
        "printed": result["printed"],
    }


def _one_rank(rank: int, ranks: int, port: int, scripts: dict[str, str], folder: Path, watched: bool) -> None:
    """Play torchrun's worker: its variables, its store."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    log = (folder / f"{rank}.log").open("w")
    os.dup2(log.fileno(), 2)
    faulthandler.enable(log)
    faulthandler.dump_traceback_later(PATIENCE_S - 5, file=log)
    warnings.simplefilter("ignore")  # torch 2.13 deprecates options of DistributedDataParallel
    results: dict[str, Any] = {"error": ""}
    try:
        import torch.distributed as dist

        from trueloop.tracing.replicas import digest_exchange

        digest_exchange.FAREWELL_S = 5.0  # a letter takes longer on a machine that is busy with other tests
        dist.init_process_group("gloo")
        for number, (name, script) in enumerate(scripts.items()):
            dist.barrier()
            results[name] = _run(folder / f"{rank}-{number}.py", script, watched=watched)
    except BaseException:  # noqa: BLE001 - all that is known of the process's end
        results["error"] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(results))


def _run(path: Path, script: str, *, watched: bool) -> dict[str, Any]:
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
    watch = Watch([WatchedFailure(each.failure, each.slug) for each in catalogue().values()] if watched else [])
    if watched:
        watch.start()
    try:
        left = runpy.run_path(str(path), run_name="__main__")
    finally:
        report = watch.stop() if watched else watch.report()
    grave = [found for found in report.findings if found.severity != Severity.NOTE]
    return {
        "found": [
            (each.code, each.location.line if each.location and each.location.path == str(path) else -1)
            for each in grave
        ],
        "messages": [each.message for each in grave],
        "problems": list(report.problems),
        "judged": {each.code: (str(each.verdict), each.reason) for each in report.verdicts},
        "printed": [str(each) for each in left.get("results", ())],
    }
