"""Keeps a rerun of a program away from the user's files: what it writes goes to a temporary folder.

Three layers. The functions of ``os`` and ``open`` write to a copy of a file below the temporary folder, and read that
copy afterwards, so that the program sees its own files. An audit hook refuses what Python would still write elsewhere.
On Linux, Landlock makes the kernel refuse it too, for native code and child processes.
"""

import builtins
import contextlib
import ctypes
import functools
import io
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DEVICES: Final = ("/dev/", "/proc/", "/sys/")
"""Folders whose files are not copied: they are devices and interfaces of the kernel."""
READERS: Final = ("stat", "lstat", "listdir", "scandir", "access", "readlink", "chdir")
WRITERS: Final = ("mkdir", "chmod", "utime", "truncate", "chown")
REMOVERS: Final = ("remove", "unlink", "rmdir")
TWO_PATHS: Final = ("rename", "replace", "link", "symlink")
REFUSED_EVENTS: Final = {
    "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.truncate": 1, "os.chmod": 1, "os.chown": 1, "os.utime": 1,
    "os.rename": 2, "os.link": 2, "os.symlink": 2, "shutil.rmtree": 1, "sqlite3.connect": 1,
}  # fmt: skip
"""Audit event -> how many of its first arguments are paths that would be changed."""


class ContainedFiles:
    """The temporary folders that contain what a rerun writes; a later folder covers the earlier ones.

    Args:
        folder: an existing folder. Nothing outside of it is written.
    """

    def __init__(self, folder: Path) -> None:
        self._root = str(folder.resolve())
        self._layers: list[str] = []
        self.kernel_refuses = False
        """Whether the kernel also refuses what native code and child processes write elsewhere."""
        self.add_layer("program")

    def add_layer(self, name: str) -> None:
        """Write to one more folder from now on, so that the files of other experiments do not change."""
        layer = os.path.join(self._root, name)  # noqa: PTH118 - the functions below are called for every path
        os.makedirs(layer, exist_ok=True)  # noqa: PTH103
        self._layers.append(layer)

    def install(self) -> None:
        """Contain all writes of this process, irreversibly."""
        sys.dont_write_bytecode = True
        temporary = os.path.join(self._root, "tmp")  # noqa: PTH118
        os.makedirs(temporary, exist_ok=True)  # noqa: PTH103
        tempfile.tempdir = os.environ["TMPDIR"] = temporary
        original: Mapping[str, Callable[..., Any]] = {
            name: getattr(os, name) for name in (*READERS, *WRITERS, *REMOVERS, *TWO_PATHS, "open") if hasattr(os, name)
        }
        for name, function in original.items():
            setattr(os, name, self._replacement(name, function))
        replaced = self._open_replacement(builtins.open)
        builtins.open = io.open = replaced
        shutil.rmtree = self._rmtree_replacement(shutil.rmtree)
        sys.addaudithook(self._refuse)
        self.kernel_refuses = _restrict_with_landlock(self._root)

    def write_path(self, path: Any) -> Any:
        """Return the path that a file is written to instead, with a copy of its present content."""
        found = self._absolute(path)
        if found is None:
            return path
        target = self._layers[-1] + found
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
        source = self._newest(found)
        if source != target and os.path.isfile(source):  # noqa: PTH113
            with contextlib.suppress(OSError):
                shutil.copyfile(source, target)
        elif source != target and os.path.isdir(source):  # noqa: PTH112
            os.makedirs(target, exist_ok=True)  # noqa: PTH103
        return target

    def read_path(self, path: Any) -> Any:
        """Return the path that a file is read from."""
        found = self._absolute(path)
        return path if found is None else self._newest(found)

    def _absolute(self, path: Any) -> str | None:
        """Return an absolute path; None for a file that is not contained: open already, a device, or in our folder."""
        if isinstance(path, int) or path is None:
            return None
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        return None if text.startswith((self._root, *DEVICES)) else text

    def _newest(self, absolute: str) -> str:
        return next((p for layer in reversed(self._layers) if os.path.lexists(p := layer + absolute)), absolute)

    def _replacement(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def replaced(*args: Any, **options: Any) -> Any:
            if not args or options.get("dir_fd") is not None or options.get("src_dir_fd") is not None:
                return function(*args, **options)
            return function(*self._paths(name, args), **options)

        return replaced

    def _paths(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        path, *rest = args
        if name == "open":
            return (self.write_path(path) if rest and rest[0] & WRITES else self.read_path(path), *rest)
        if name in READERS:
            return (self.read_path(path), *rest)
        if name in TWO_PATHS:
            source = path if name == "symlink" else self.write_path(path)
            return (source, self.write_path(rest[0]), *rest[1:])
        return (self._made(path) if name == "mkdir" else self.write_path(path), *rest)

    def _made(self, path: Any) -> Any:
        """Return the path of a new folder, of which only its parents exist; an existing one fails as it should."""
        found = self._absolute(path)
        if found is None or os.path.lexists(self._newest(found)):
            return self.write_path(path)
        target = self._layers[-1] + found
        if os.path.isdir(self._newest(os.path.dirname(found))):  # noqa: PTH112, PTH120
            os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
        return target

    def _open_replacement(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def replaced(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            writes = bool(set(mode) & set("wax+"))
            return function(self.write_path(file) if writes else self.read_path(file), mode, *args, **options)

        return replaced

    def _rmtree_replacement(self, function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def replaced(path: Any, *args: Any, **options: Any) -> Any:
            return function(self.write_path(path), *args, **options)

        return replaced

    def _refuse(self, event: str, args: tuple[Any, ...]) -> None:
        """Raise PermissionError for an audit event that changes a file outside of the folder."""
        if event == "open":
            path, _, flags = args
            changed = (path,) if isinstance(flags, int) and flags & WRITES else ()
        elif event.startswith("os.") and event != "os.truncate" and args and args[-1] != -1:
            changed = ()  # relative to an open folder, not to the current one: left to Landlock
        else:
            changed = args[: REFUSED_EVENTS.get(event, 0)]
        for path in changed:
            if isinstance(path, str | bytes) and path not in (":memory:", b":memory:", "") and self._absolute(path):
                raise PermissionError(f"trueloop diagnose keeps experiments from changing {os.fsdecode(path)!r}")


# Landlock, https://docs.kernel.org/userspace-api/landlock.html
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITING: Final = sum(1 << bit for bit in (1, 4, 5, 7, 8, 9, 10, 12, 13))
"""Access rights: write a file; remove folders and files; make folders, files, sockets, pipes and links; rename."""
_TRUNCATE: Final = 1 << 14
_MIN_VERSION, _TRUNCATE_VERSION = 2, 3
"""Versions of Landlock that can allow renames between folders, and refuse to truncate files."""
_NO_NEW_PRIVILEGES: Final = 38
_PATH_BENEATH: Final = 1


def _restrict_with_landlock(folder: str) -> bool:
    """Make the kernel refuse writes outside of a folder; return False where it cannot."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < _MIN_VERSION:
        return False
    rights = _WRITING | (_TRUNCATE if version >= _TRUNCATE_VERSION else 0)
    ruleset = libc.syscall(_CREATE_RULESET, struct.pack("Q", rights), ctypes.c_size_t(8), 0)
    for path in (folder, *(device for device in DEVICES if os.path.isdir(device))):  # noqa: PTH112
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, handle), 0)
        os.close(handle)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    done = libc.syscall(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return done == 0
