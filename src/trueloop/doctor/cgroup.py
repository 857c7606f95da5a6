"""Read the cgroup limits of this process, for example the limits of a container, which most programs ignore."""

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
    return min((limit for _, _, limit in _memory_limits(root)), default=None)


def memory_left(root: Path) -> int | None:
    """Return how many bytes remain within the memory limits. Reclaimable cache counts as free.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory
    """
    remaining: list[int] = []
    for folder, is_v1, limit in _memory_limits(root):
        used = read_text(folder / ("memory.usage_in_bytes" if is_v1 else "memory.current"))
        cache = "total_inactive_file" if is_v1 else "inactive_file"
        if used.isdecimal():
            remaining.append(limit - int(used) + _read_entry(read_text(folder / "memory.stat"), cache))
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
    """Return the number next to ``name`` in a table of names and numbers; 0 if the name is missing."""
    for line in stat.splitlines():
        entry, _, number = line.strip().partition(" ")
        if entry == name and number.isdecimal():
            return int(number)
    return 0


def _memory_limits(root: Path) -> Iterator[tuple[Path, bool, int]]:
    """Yield folder, version flag and memory limit in bytes of each group from `_group_folders` that has a limit."""
    for folder, is_v1 in _group_folders(root, "memory"):
        limit = read_text(folder / ("memory.limit_in_bytes" if is_v1 else "memory.max"))
        if limit.isdecimal() and int(limit) < 2**60:  # version 1 writes 2**63 for "no limit"
            yield folder, is_v1, int(limit)


def _group_folders(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's group and its parents, each with True if it belongs to cgroup version 1."""
    for line in group_names(root).splitlines():
        _, _, controllers_and_name = line.partition(":")
        controllers, _, name = controllers_and_name.partition(":")
        is_v1 = bool(controllers)
        if is_v1 and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if is_v1 else "")
        group = PurePosixPath(name.lstrip("/"))
        yield from ((mount / folder, is_v1) for folder in (group, *group.parents))


def read_text(path: Path) -> str:
    """Return the text of a small kernel file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):  # a container can name groups that are not mounted in it
        return ""
