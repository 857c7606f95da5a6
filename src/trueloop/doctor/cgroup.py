"""Reads the cgroup limits of this process, such as those of its container, which most programs ignore."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def cores_quota(root: Path) -> float | None:
    """Return the CPU quota in cores; None = there is no limit, or it is unknown.

    Args:
        root: folder that contains /proc and /sys.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu, and cpu.cfs_quota_us of cgroup version 1.
    """
    quotas: list[float] = []
    for folder, is_v1 in _group_folders(root, "cpu"):
        if is_v1:
            quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
        else:
            quota, _, period = read_text(folder / "cpu.max").partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit(root: Path) -> int | None:
    """Return the smallest memory limit of this process's groups in bytes; None = no limit."""
    limits = _read_numbers(root, "memory", "memory.max", "memory.limit_in_bytes")
    return min((limit for limit in limits if limit < 2**60), default=None)  # version 1 writes 2**63 for "no limit"


def memory_left(root: Path) -> int | None:
    """Return how many bytes remain within the memory limits. Reclaimable cache counts as free.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory
    """
    remaining: list[int] = []
    for folder, is_v1 in _group_folders(root, "memory"):
        limit = read_text(folder / ("memory.limit_in_bytes" if is_v1 else "memory.max"))
        used = read_text(folder / ("memory.usage_in_bytes" if is_v1 else "memory.current"))
        cache = "total_inactive_file" if is_v1 else "inactive_file"
        if limit.isdecimal() and used.isdecimal() and int(limit) < 2**60:
            remaining.append(int(limit) - int(used) + _read_entry(read_text(folder / "memory.stat"), cache))
    return min(remaining, default=None)


def processes_left(root: Path) -> int | None:
    """Return how many more processes and threads may start; None = no limit."""
    remaining: list[int] = []
    for folder, _ in _group_folders(root, "pids"):
        limit, used = read_text(folder / "pids.max"), read_text(folder / "pids.current")
        if limit.isdecimal() and used.isdecimal():
            remaining.append(int(limit) - int(used))
    return min(remaining, default=None)


def group_names(root: Path) -> str:
    """Return the names of this process's groups; they often contain the name of the container engine."""
    return read_text(root / "proc/self/cgroup")


def _read_entry(stat: str, name: str) -> int:
    """Return the number of ``name`` in a table of names and numbers; 0 if it is missing."""
    words = (line.split() for line in stat.splitlines())
    return next((int(pair[1]) for pair in words if len(pair) == 2 and pair[0] == name and pair[1].isdecimal()), 0)


def _read_numbers(root: Path, controller: str, file_v2: str, file_v1: str) -> Iterator[int]:
    for folder, is_v1 in _group_folders(root, controller):
        text = read_text(folder / (file_v1 if is_v1 else file_v2))
        if text.isdecimal():
            yield int(text)


def _group_folders(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's group and its parents; True = the folder belongs to cgroup version 1."""
    for line in group_names(root).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        is_v1 = bool(controllers)
        if is_v1 and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if is_v1 else "")
        group = PurePosixPath(name.lstrip("/"))
        yield from ((mount / each, is_v1) for each in (group, *group.parents))


def read_text(path: Path) -> str:
    """Return the text of a small kernel file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):  # a container can name groups that are not mounted in it
        return ""
