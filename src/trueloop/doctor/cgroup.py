"""What the group of this process may take: a container's limits, of which most programs know nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def cores_quota(root: Path) -> float | None:
    """Return how many cores' worth of time there is; None = no limit, or the system does not say.

    Args:
        root: where /proc and /sys are.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu, and the first version's cpu.cfs_quota_us.
    """
    found: list[float] = []
    for folder, first in _folders(root, "cpu"):
        if first:
            quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
        else:
            quota, _, period = read_text(folder / "cpu.max").partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def memory_limit(root: Path) -> int | None:
    """Return the memory that this process and its group may take, in bytes; None = no limit."""
    found = _numbers(root, "memory", "memory.max", "memory.limit_in_bytes")
    return min((limit for limit in found if limit < 2**60), default=None)  # the first version writes 2**63 for none


def memory_left(root: Path) -> int | None:
    """Return what the groups around this process leave of their limits, in bytes; cache is given back, and not counted.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory
    """
    found: list[int] = []
    for folder, first in _folders(root, "memory"):
        limit = read_text(folder / ("memory.limit_in_bytes" if first else "memory.max"))
        used = read_text(folder / ("memory.usage_in_bytes" if first else "memory.current"))
        cache = "total_inactive_file" if first else "inactive_file"
        if limit.isdecimal() and used.isdecimal() and int(limit) < 2**60:
            found.append(int(limit) - int(used) + _entry(read_text(folder / "memory.stat"), cache))
    return min(found, default=None)


def processes_left(root: Path) -> int | None:
    """Return how many processes and threads the group may still start; None = no limit."""
    found: list[int] = []
    for folder, _ in _folders(root, "pids"):
        limit, used = read_text(folder / "pids.max"), read_text(folder / "pids.current")
        if limit.isdecimal() and used.isdecimal():
            found.append(int(limit) - int(used))
    return min(found, default=None)


def names(root: Path) -> str:
    """Return the names of the groups, in which the engine of a container can be read."""
    return read_text(root / "proc/self/cgroup")


def _entry(stat: str, name: str) -> int:
    """Return one number of a table of names and numbers; 0 where it is not in it."""
    words = (line.split() for line in stat.splitlines())
    return next((int(pair[1]) for pair in words if len(pair) == 2 and pair[0] == name and pair[1].isdecimal()), 0)


def _numbers(root: Path, controller: str, second: str, first: str) -> Iterator[int]:
    for folder, old in _folders(root, controller):
        text = read_text(folder / (first if old else second))
        if text.isdecimal():
            yield int(text)


def _folders(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folder of this process's group and of every group around it, and whether they are of version 1."""
    for line in names(root).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        first = bool(controllers)
        if first and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if first else "")
        group = PurePosixPath(name.lstrip("/"))
        yield from ((mount / each, first) for each in (group, *group.parents))


def read_text(path: Path) -> str:
    """Return what a small file of the kernel says; "" where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):  # the kernel of a container names groups that it does not mount
        return ""
