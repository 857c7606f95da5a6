"""Where a user's lab can be reached on this machine, and how one is started that outlives who started it.

LIVE/lab.json   the port and process of the newest lab; whoever finds nobody there starts one
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trueloop.core.errors import MissingExtra
from trueloop.core.json_text import parse_json
from trueloop.runs.live.folder import ensure_private_folder, is_private_folder, live_folder
from trueloop.runs.live.process_alive import is_alive, process_start_ticks

ADDRESS, LOG = "lab.json", "lab.log"
HOST: Final = "127.0.0.1"
LAB: Final = ("-P", "-m", "trueloop")
"""What Python is started with. -P: a user's folder with a random.py in it is not to be imported from."""
IDLE_HOURS: Final = "12"  # that a lab nobody started by hand waits for visitors, once no script runs any more
NEEDED: Final = ("starlette", "uvicorn", "websockets")
KNOCK_S: Final = 0.25  # that a lab on this machine may take to accept a connection


def write_address(environment: Mapping[str, str], port: int) -> None:
    """Say where this process's lab is reached; the newest one counts. Where that cannot be written, nobody finds it."""
    folder = live_folder(environment)
    try:
        ensure_private_folder(folder)
        beside = folder / f"{ADDRESS}.{os.getpid()}"
        told = {"port": port, "pid": os.getpid(), "mark": process_start_ticks(os.getpid())}
        beside.write_text(json.dumps(told), encoding="ascii")
        beside.replace(folder / ADDRESS)
    except OSError:
        return


def read_address(environment: Mapping[str, str]) -> str:
    """Return where a lab of this user runs, "http://127.0.0.1:8321"; "" where none does."""
    folder = live_folder(environment)
    if not is_private_folder(folder):
        return ""
    try:
        told: Any = parse_json((folder / ADDRESS).read_bytes()[:4096])
        port, pid, mark = int(told["port"]), int(told["pid"]), str(told["mark"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if not 0 < port < 65536 or not is_alive(pid, mark):
        return ""
    try:
        socket.create_connection((HOST, port), timeout=KNOCK_S).close()
    except OSError:
        return ""
    return f"http://{HOST}:{port}"


def start_lab(environment: Mapping[str, str], runs: Path) -> str:
    """Start a lab and return its address at once, while it still starts.

    Args:
        environment: says where feeds belong.
        runs: a folder of runs that it may show, too.

    It is nobody's child: a program that waits for its children does not meet it, and Ctrl-C does not reach it.

    Raises:
        MissingExtra: what a lab needs is not installed.
        OSError: it cannot be started.
    """
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "lab")
    folder = live_folder(environment)
    ensure_private_folder(folder)
    port = _free_port()
    words = ("--port", str(port), "--no-browser", "--idle-hours", IDLE_HOURS)
    command = [sys.executable, *LAB, "lab", str(runs), *words]
    _detach(command, folder / LOG)
    return f"http://{HOST}:{port}"


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind((HOST, 0))
        return int(asked.getsockname()[1])


def _detach(command: list[str], log: Path) -> None:
    with log.open("wb") as told:
        os.chmod(log, 0o600)  # noqa: PTH101 - of the file that is open
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": told, "stderr": told, "cwd": log.parent}
        if os.name == "posix":
            shell = ["/bin/sh", "-c", '"$@" &', "sh", *command]
            subprocess.run(shell, start_new_session=True, check=True, **streams)  # noqa: S603 - our own words
        else:
            detached = getattr(subprocess, "DETACHED_PROCESS", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
            subprocess.Popen(command, creationflags=detached, **streams)  # noqa: S603
