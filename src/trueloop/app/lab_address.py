"""Find the user's running lab on this machine, or start a lab that continues after this process.

LIVE/lab.json   port and process of the newest lab
"""

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

ADDRESS_FILE, LOG_FILE = "lab.json", "lab.log"
HOST: Final = "127.0.0.1"
LAB_ARGUMENTS: Final = ("-P", "-m", "trueloop")
"""Arguments of Python. With -P, a file such as random.py in the user's folder is not imported."""
IDLE_HOURS: Final = "12"  # an automatically started lab exits after this idle time if no script runs
REQUIRED_PACKAGES: Final = ("starlette", "uvicorn", "websockets")
CONNECT_TIMEOUT_S: Final = 0.25


def write_address(environment: Mapping[str, str], port: int) -> None:
    """Write the address of this process's lab to the address file; errors while writing are ignored."""
    folder = live_folder(environment)
    try:
        ensure_private_folder(folder)
        temporary = folder / f"{ADDRESS_FILE}.{os.getpid()}"
        record = {"port": port, "pid": os.getpid(), "start_ticks": process_start_ticks(os.getpid())}
        temporary.write_text(json.dumps(record), encoding="ascii")
        temporary.replace(folder / ADDRESS_FILE)
    except OSError:
        return


def read_address(environment: Mapping[str, str]) -> str:
    """Return the address of this user's running lab, "http://127.0.0.1:8321"; "" if no lab is running."""
    folder = live_folder(environment)
    if not is_private_folder(folder):
        return ""
    try:
        record: Any = parse_json((folder / ADDRESS_FILE).read_bytes()[:4096])
        port, pid, start_ticks = int(record["port"]), int(record["pid"]), str(record["start_ticks"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if not 0 < port < 65536 or not is_alive(pid, start_ticks):
        return ""
    try:
        socket.create_connection((HOST, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError:
        return ""
    return f"http://{HOST}:{port}"


def start_lab(environment: Mapping[str, str], runs: Path) -> str:
    """Start a lab and return its address immediately, while the lab is still starting.

    The lab is detached from this process: a program that waits for its children does not wait for the lab, and Ctrl-C
    does not reach the lab.

    Args:
        environment: environment variables, which determine the folder of feeds.
        runs: folder of runs that the lab also lists.

    Raises:
        MissingExtra: packages for the lab are not installed.
        OSError: the lab cannot be started.
    """
    for module in REQUIRED_PACKAGES:
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "lab")
    folder = live_folder(environment)
    ensure_private_folder(folder)
    port = _free_port()
    options = ("--port", str(port), "--no-browser", "--idle-hours", IDLE_HOURS)
    command = [sys.executable, *LAB_ARGUMENTS, "lab", str(runs), *options]
    _spawn_detached(command, folder / LOG_FILE)
    return f"http://{HOST}:{port}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _spawn_detached(command: list[str], log: Path) -> None:
    with log.open("wb") as output:
        os.chmod(log, 0o600)  # noqa: PTH101 - changes the file that is open
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "cwd": log.parent}
        if os.name == "posix":
            shell = ["/bin/sh", "-c", '"$@" &', "sh", *command]
            subprocess.run(shell, start_new_session=True, check=True, **streams)  # noqa: S603 - a constant command
        else:
            detached = getattr(subprocess, "DETACHED_PROCESS", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
            subprocess.Popen(command, creationflags=detached, **streams)  # noqa: S603
