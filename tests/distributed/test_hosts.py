"""Two machines, as two network namespaces with a cable between them, that is cut in the middle of a run."""

import os
import shutil
import subprocess
import sys

import pytest

PORT = 29400
NET = "10.213.7"


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip() or f"ip {' '.join(arguments)}")


@pytest.fixture
def machines():
    """Two namespaces that reach each other, by name and address."""
    if sys.platform != "linux" or not shutil.which("ip"):
        pytest.skip("there is no `ip` (iproute2)")
    names = [f"trueloop-{os.getpid()}-{end}" for end in "ab"]
    made = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"{NET}.{number}/24", "dev", "cable")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "cable", "up")
    except OSError as error:
        for name in made:
            ip("netns", "del", name)
        pytest.skip(f"no network namespaces can be made here: {error}")
    yield names
    for name in names:
        ip("netns", "del", name)


def test_a_machine_that_is_cut_off_is_noticed_and_the_run_goes_on(machines, run_folder, uninterrupted):
    arguments = (
        "--processes",
        "1",
        "--nodes",
        "2",
        "--rendezvous",
        f"{NET}.1:{PORT}",
        "--parallel.keepalive-timeout-s",
        "2",
    )
    both = [run_folder.launch(*arguments, prefix=("ip", "netns", "exec", name), slow_s=0.2) for name in machines]
    both[0].wait_until((run_folder.run_dir / "checkpoints" / "update-000000004").exists)
    ip("-n", machines[1], "link", "set", "cable", "down")
    for rank, each in enumerate(both):
        each.wait_until(
            lambda each=each, rank=rank: (
                f"Rank {rank}: Another process of this run is gone, or cannot be reached" in each.output()
            )
        )
    ip("-n", machines[1], "link", "set", "cable", "up")
    assert [each.wait() for each in both] == [[0], [0]], [each.output() for each in both]
    assert run_folder.result() == uninterrupted
    assert "cannot be reached" in run_folder.notices()["process_lost"]
