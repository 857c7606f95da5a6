"""Connect the processes of a run, and detect a machine that stops answering.

A process that ends closes its connections, and gloo reports that immediately. A machine that loses power, or a cable
that is cut, closes nothing: a process then waits as long as gloo's timeout. So keepalive is enabled on these
connections: the other machine's kernel answers it, also while its process computes for an hour.
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
"""Seconds a process waits for the others: longer than the slowest evaluation or save of one of them."""
KEEPALIVE_TIMEOUT_S: Final = 60.0
"""Seconds without an answer after which another machine counts as lost; longer than a switch takes to restart."""

_POLL_INTERVAL_S: Final = 0.02  # between two checks of which processes have connected
_SCAN_INTERVAL_S: Final = 5.0  # between two scans for new connections


def init_process_group(
    info: LaunchInfo, backend: str, *, timeout_s: float = TIMEOUT_S, keepalive_timeout_s: float = KEEPALIVE_TIMEOUT_S
) -> None:
    """Join the processes of a run in torch's default process group.

    Args:
        info: this process among them.
        backend: as torch's `init_process_group` takes it.
        timeout_s: how long to wait for the others, now and in every collective.
        keepalive_timeout_s: how long a machine may not answer, on Linux.

    Raises:
        ProcessLost: the others do not connect; the message names them.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # trueloop reports a lost peer, once
    if info.nodes > 1:
        _choose_interface(info)
    timeout, before = timedelta(seconds=timeout_s), _open_sockets()
    try:
        store = _fresh_store(_open_store(info, timeout), info, timeout_s)
        dist.init_process_group(backend, store=store, rank=info.rank, world_size=info.size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise ProcessLost(
            f"Process {info.rank} of {info.size} could not connect to the others at {info.address}:{info.port}.",
            why=str(error).split("\n", 1)[0],
            fix="Check that the host and port can be reached from every machine, and that all processes were started.",
        ) from error
    enable_keepalive(_open_sockets() - before, keepalive_timeout_s)


def _open_store(info: LaunchInfo, timeout: timedelta) -> dist.Store:
    """Open the store: torchrun serves it at that address; otherwise the first process does."""
    elsewhere = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return dist.TCPStore(
        info.address,
        info.port,
        info.size,
        is_master=info.rank == 0 and not elsewhere,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=not elsewhere,
    )


def _fresh_store(store: dist.Store, info: LaunchInfo, timeout_s: float) -> dist.Store:
    """Agree on a prefix of the store that no earlier attempt has written to.

    Since torch 2.5, torchrun keeps one store for all restarts, and gloo reads the peers' addresses from it: after a
    restart, those may be the old ones. The number of restarts does not distinguish attempts, because each machine
    counts its own. So every process brings a random token, and the first process answers it with the prefix.
    """
    control_store, own = dist.PrefixStore("trueloop", store), secrets.token_hex(8)
    if info.rank:
        control_store.set(f"token/{info.rank}", own)
        prefix = control_store.get(f"prefix/{own}").decode()
        control_store.set(f"ack/{prefix}/{info.rank}", "")
        return dist.PrefixStore(prefix, store)
    missing, deadline = range(1, info.size), time.monotonic() + timeout_s
    while missing := _handshake(control_store, own, missing):
        if time.monotonic() > deadline:
            names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            raise ProcessLost(
                f"{format_count(len(missing), 'process')} of {info.size} did not connect to "
                f"{info.address}:{info.port}: rank {names}.",
                why=f"The first process has waited {timeout_s:.0f} s (parallel.timeout_s).",
                fix="Read the output of those processes; check that all were started and can reach that address.",
            )
        time.sleep(_POLL_INTERVAL_S)
    return dist.PrefixStore(own, store)


def _handshake(control_store: dist.Store, prefix: str, missing: Sequence[int]) -> list[int]:
    """Answer all processes that have connected, dead ones too; return those that have not acknowledged."""
    for rank in missing:
        if control_store.check([f"token/{rank}"]):
            control_store.set(f"prefix/{control_store.get(f'token/{rank}').decode()}", prefix)
    return [rank for rank in missing if not control_store.check([f"ack/{prefix}/{rank}"])]


def _choose_interface(info: LaunchInfo) -> None:
    """Point gloo to the network of the other machines, where this host name only resolves to loopback (127.0.1.1).

    Gloo listens at the address of the host name, which on Debian is often a loopback address.
    """
    try:
        named = {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        named = set[str]()
    if any(not ip_address(each.partition("%")[0]).is_loopback for each in named):
        return
    name = _interface_of(local_address_for(info.address, info.port))
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _interface_of(address: str) -> str:
    """Return the name of the network interface with an IPv4 address; "" where it is not found."""
    if sys.platform != "linux":
        return ""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # one without an address
                answer = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


# Keepalive -------------------------------------------------------------------------------------------------------


def _open_sockets() -> set[tuple[int, str]]:
    """Return every socket of this process: descriptor and the kernel's name, as a descriptor may be used again."""
    found: set[tuple[int, str]] = set()
    for path in Path("/proc/self/fd").iterdir() if sys.platform == "linux" else ():
        with suppress(OSError):  # closed meanwhile, such as the descriptor of this folder
            target = str(path.readlink())
            if target.startswith("socket:"):
                found.add((int(path.name), target))
    return found


def enable_keepalive(sockets: set[tuple[int, str]], keepalive_timeout_s: float) -> None:
    """Have the kernel close connections whose other side stops answering; on Linux only.

    Args:
        sockets: descriptors, as `_open_sockets` names them.
        keepalive_timeout_s: seconds without an answer.
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
            libc.setsockopt(descriptor, level, option, ctypes.byref(ctypes.c_int(value)), 4)  # fails unless TCP


@contextmanager
def keepalive_for_new_connections(keepalive_timeout_s: float) -> Generator[None]:
    """Enable keepalive on every connection made inside, by any thread; for torchrun's own store.

    Args:
        keepalive_timeout_s: seconds without an answer.
    """
    known, done = _open_sockets(), Event()

    def scan() -> None:
        seen = known
        while not done.wait(_SCAN_INTERVAL_S):
            now = _open_sockets()
            enable_keepalive(now - seen, keepalive_timeout_s)
            seen = now

    Thread(target=scan, daemon=True, name="connections").start()
    try:
        yield
    finally:
        done.set()
