"""Connect the processes of a run, and detect a machine that stops answering.

When a process ends, its connections are closed, and gloo reports that immediately. When a machine loses power or its
network, nothing is closed, and the others would wait until gloo's timeout. So keepalive is enabled on gloo's
connections: the kernel of a working machine answers, even while its process computes for an hour.
"""

import ctypes
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from threading import Event, Thread
from typing import Final

import torch.distributed as dist

from trueloop.core.errors import ProcessLost
from trueloop.core.formatting import format_count
from trueloop.training.distributed.launcher_env import LaunchInfo, local_address_for

TIMEOUT_S: Final = 1800.0
"""Number of seconds that a process waits for the others: longer than the slowest evaluation or save."""
KEEPALIVE_TIMEOUT_S: Final = 60.0
"""Number of seconds without an answer after which a machine counts as lost; a network switch restarts faster."""

_POLL_INTERVAL_S: Final = 0.02  # time between two checks of which processes have connected
_SCAN_INTERVAL_S: Final = 5.0  # time between two scans for new connections


def init_process_group(
    info: LaunchInfo, backend: str, *, timeout_s: float = TIMEOUT_S, keepalive_timeout_s: float = KEEPALIVE_TIMEOUT_S
) -> None:
    """Join the processes of a run in torch's default process group.

    Args:
        info: rank of this process and address of the first one.
        backend: ``backend`` of `torch.distributed.init_process_group`.
        timeout_s: seconds to wait for the others, now and in every collective.
        keepalive_timeout_s: seconds without an answer after which a machine counts as lost; on Linux only.

    Raises:
        ProcessLost: some processes do not connect; the message lists them.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch would log a lost process, which trueloop reports
    if info.nodes > 1:
        _choose_interface(info)
    timeout, old_sockets = timedelta(seconds=timeout_s), _open_sockets()
    try:
        store = _fresh_store(_open_store(info, timeout), info, timeout_s)
        dist.init_process_group(backend, store=store, rank=info.rank, world_size=info.size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise ProcessLost(
            f"Process {info.rank} of {info.size} could not connect to the others at {info.address}:{info.port}.",
            why=str(error).split("\n", 1)[0],
            fix="Check that the host and port can be reached from every machine, and that all processes were started.",
        ) from error
    enable_keepalive(_open_sockets() - old_sockets, keepalive_timeout_s)


def _open_store(info: LaunchInfo, timeout: timedelta) -> dist.Store:
    """Connect to the store, which torchrun serves, or else the first process."""
    torchrun_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return dist.TCPStore(
        info.address,
        info.port,
        info.size,
        is_master=info.rank == 0 and not torchrun_serves,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=not torchrun_serves,
    )


def _fresh_store(store: dist.Store, info: LaunchInfo, timeout_s: float) -> dist.Store:
    """Agree on a prefix of the store that no earlier attempt has used.

    Since torch 2.5, torchrun keeps one store for all restarts, from which gloo reads the addresses of the processes:
    after a restart, these may be old. The number of restarts does not distinguish attempts, because each machine counts
    only its own. So every process writes a random token, and the first process answers each token with the prefix.
    """
    control_store, token = dist.PrefixStore("trueloop", store), secrets.token_hex(8)
    if info.rank:
        control_store.set(f"token/{info.rank}", token)
        prefix = control_store.get(f"prefix/{token}").decode()
        control_store.set(f"ack/{prefix}/{info.rank}", "")
        return dist.PrefixStore(prefix, store)
    missing, deadline = range(1, info.size), time.monotonic() + timeout_s
    while missing := _handshake(control_store, token, missing):
        if time.monotonic() > deadline:
            ranks = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            raise ProcessLost(
                f"{format_count(len(missing), 'process')} of {info.size} did not connect to "
                f"{info.address}:{info.port}: rank {ranks}.",
                why=f"The first process has waited for {timeout_s:.0f} s (parallel.timeout_s).",
                fix="Read the output of these processes; check that all were started and can reach that address.",
            )
        time.sleep(_POLL_INTERVAL_S)
    return dist.PrefixStore(token, store)


def _handshake(control_store: dist.Store, prefix: str, missing: Sequence[int]) -> list[int]:
    """Answer all processes that have written a token; return the ranks that have not acknowledged the answer."""
    for rank in missing:
        if control_store.check([f"token/{rank}"]):
            control_store.set(f"prefix/{control_store.get(f'token/{rank}').decode()}", prefix)
    return [rank for rank in missing if not control_store.check([f"ack/{prefix}/{rank}"])]


def _choose_interface(info: LaunchInfo) -> None:
    """If this machine's host name only resolves to loopback, make gloo listen in the network of the other machines.

    Gloo listens at the address of the host name, which on Debian is often a loopback address (127.0.1.1).
    """
    try:
        addresses = {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        addresses = set[str]()
    if any(not ip_address(each.partition("%")[0]).is_loopback for each in addresses):
        return
    name = _interface_of(local_address_for(info.address, info.port))
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _interface_of(address: str) -> str:
    """Return the name of the network interface that has this IPv4 address; "" if there is none."""
    if sys.platform != "linux":
        return ""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # raised for an interface without an address
                answer = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


# Keepalive -------------------------------------------------------------------------------------------------------


def _open_sockets() -> set[tuple[int, str]]:
    """Return (descriptor, kernel's name) of every socket of this process; descriptors alone may be used again."""
    sockets: set[tuple[int, str]] = set()
    for path in Path("/proc/self/fd").iterdir() if sys.platform == "linux" else ():
        with suppress(OSError):  # raised if it was closed meanwhile, such as the descriptor of this folder
            target = str(path.readlink())
            if target.startswith("socket:"):
                sockets.add((int(path.name), target))
    return sockets


def enable_keepalive(sockets: set[tuple[int, str]], keepalive_timeout_s: float) -> None:
    """Make the kernel close connections whose other side stops answering; on Linux only.

    Args:
        sockets: sockets, from `_open_sockets`.
        keepalive_timeout_s: seconds without an answer after which a connection is closed.
    """
    if sys.platform != "linux":
        return
    probe_s = max(1, round(keepalive_timeout_s / 4))
    options = {
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): probe_s,
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): probe_s,
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 3,
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): max(1, round(1000 * keepalive_timeout_s)),
    }
    libc = ctypes.CDLL(None)  # a Python socket could change the blocking mode of gloo's descriptor
    for descriptor, _ in sockets:
        for (level, option), value in options.items():
            libc.setsockopt(descriptor, level, option, ctypes.byref(ctypes.c_int(value)), 4)  # only works for TCP


@contextmanager
def keepalive_for_new_connections(keepalive_timeout_s: float) -> Generator[None]:
    """Enable keepalive on every connection that any thread makes within the context; for torchrun's store.

    Args:
        keepalive_timeout_s: seconds without an answer after which a connection is closed.
    """
    old_sockets, stopped = _open_sockets(), Event()

    def scan() -> None:
        handled = old_sockets
        while not stopped.wait(_SCAN_INTERVAL_S):
            current = _open_sockets()
            enable_keepalive(current - handled, keepalive_timeout_s)
            handled = current

    Thread(target=scan, daemon=True, name="connections").start()
    try:
        yield
    finally:
        stopped.set()
