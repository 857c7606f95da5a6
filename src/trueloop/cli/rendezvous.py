"""Connect several machines at a rendezvous: the address at which one of them listens."""

import re
import socket
import time

from trueloop.core.errors import InvalidConfig, ProcessLost


def host_and_port(rendezvous: str) -> tuple[str, int]:
    """Split "host:port" or "[address]:port".

    Raises:
        InvalidConfig: the text has neither form.
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([\w.-]+)):([0-9]{1,5})", rendezvous)
    if not match or not 0 < int(match[3]) < 65536:
        raise InvalidConfig(f"--rendezvous is {rendezvous!r}.", fix="Write host:port, such as node1:29500.")
    return match[1] or match[2], int(match[3])


def is_local(rendezvous: str) -> bool:
    """Return True if the host is this machine: a socket can be bound only to the machine's own addresses."""
    host, _ = host_and_port(rendezvous)
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, socket_type, protocol, _, address in addresses:
        try:
            with socket.socket(family, socket_type, protocol) as probe:
                probe.bind(address)
        except OSError:
            continue
        return True
    return False


def wait_for_listener(rendezvous: str | None, *, timeout_s: float) -> None:
    """Wait until the rendezvous accepts connections; torch's own wait ignores signals, and its error names no host.

    Args:
        rendezvous: "host:port"; for None or this machine, the function returns immediately.
        timeout_s: maximum number of seconds to wait.

    Raises:
        ProcessLost: the rendezvous did not accept connections within that time.
    """
    if rendezvous is None or is_local(rendezvous):
        return
    host, port = host_and_port(rendezvous)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError as error:
            if time.monotonic() < deadline:
                time.sleep(0.5)
                continue
            raise ProcessLost(
                f"Nothing answers at {rendezvous} ({error}).",
                why=f"This machine waited {timeout_s:.0f} s for the machine that must listen there.",
                fix=f"Start the same command on {host}, which must be one of the machines, and check that "
                f"port {port} is open between the machines.",
            ) from error
        return


def open_store(rendezvous: str | None) -> object:
    """Open the rendezvous store if it is on this machine; torchrun shares it, and it stays open after torchrun's end.

    Otherwise torch closes the store with the last process of this machine, and other machines print broken connections.
    """
    if rendezvous is None or not is_local(rendezvous):
        return None
    from torch.distributed import TCPStore

    host, port = host_and_port(rendezvous)
    try:
        return TCPStore(host, port, is_master=True, multi_tenant=True, wait_for_workers=False)
    except RuntimeError:  # the port is in use, perhaps by another launcher here; otherwise torchrun reports it
        return None
