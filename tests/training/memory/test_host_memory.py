"""Available memory according to the kernel's files, for all versions of cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueloop.training.memory.host_memory import available_bytes

MEMINFO = "MemTotal: 8000 kB\nMemAvailable:    4000 kB\nSwapFree: 9 kB\n"


def write_files(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def group(mount: str, limit: str, used: int, cache: int) -> dict[str, str]:
    names = ("limit_in_bytes", "usage_in_bytes", "total_inactive_file") if "cgroup/memory" in mount else (
        "max", "current", "inactive_file")  # fmt: skip
    return {
        f"{mount}/memory.{names[0]}": f"{limit}\n",
        f"{mount}/memory.{names[1]}": f"{used}\n",
        f"{mount}/memory.stat": f"anon 5\n{names[2]} {cache}\nactive_file 7\n",
    }


def test_a_system_without_these_files(tmp_path: Path):
    assert available_bytes(tmp_path) is None


def test_a_machine_without_limits(tmp_path: Path):
    write_files(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"})
    assert available_bytes(tmp_path) == 4000 * 1024
    write_files(tmp_path, group("sys/fs/cgroup", "max", 1, 1))
    assert available_bytes(tmp_path) == 4000 * 1024


@pytest.mark.parametrize(
    ("line", "mount"),
    [
        ("0::/a/b", "sys/fs/cgroup/a/b"),
        ("0::/a/b", "sys/fs/cgroup/a"),
        ("0::/a/b", "sys/fs/cgroup"),  # as seen from within a container
        ("4:memory:/a", "sys/fs/cgroup/memory/a"),
        ("4:memory:/docker/0", "sys/fs/cgroup/memory"),
    ],
)
def test_the_limit_of_a_cgroup_or_of_a_parent(tmp_path: Path, line: str, mount: str):
    write_files(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": f"1:cpu:/x\n{line}\n"})
    write_files(tmp_path, group(mount, "1000000", 300_000, 100_000))
    assert available_bytes(tmp_path) == 800_000


def test_the_machine_has_less_than_the_limit(tmp_path: Path):
    write_files(
        tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"} | group("sys/fs/cgroup", "9" * 12, 0, 0)
    )
    assert available_bytes(tmp_path) == 4000 * 1024


def test_this_machine():
    assert available_bytes() is None or available_bytes() > 2**20  # type: ignore[operator]
