"""Exchanges digests between the processes of a group; no process ever waits for another one.

Each process writes its digest to the store of the process group, and polls for the digest of another rank. No
collective is used: if a rank is not traced, has raised or has ended, its digest never arrives. The store is accessed on
a separate thread with a separate connection, so a slow network does not delay training. The thread exists only while a
digest is in flight.
"""

import base64
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from struct import pack, unpack
from time import monotonic
from typing import Any, Final, cast

import torch.distributed as dist

from trueloop.tracing.replicas.tensor_digest import WIDTH, TensorDigest

RESPONSE_TIMEOUT_S: Final = 60.0  # time after which a response counts as missing
DETACH_TIMEOUT_S: Final = 0.5  # wait for digests in flight at the end of the watch
CONNECTION_TIMEOUT: Final = timedelta(seconds=10)  # for one operation on the store
POLL_INTERVALS_S: Final = (0.002, 0.5)  # first and longest interval between two polls of the store
MAX_IN_FLIGHT: Final = 16  # digests that are sent or awaited at a time
SLOTS: Final = 4  # keys of each rank for one model, which are reused in turn

Numbers = list[list[float]]


@dataclass(slots=True, kw_only=True)
class RankDigest:
    """The digest of one rank after one round of a model, and the rank to compare it with."""

    store: Callable[[], Any]
    """Function that opens the store; called on the exchange thread."""
    name: str
    """Name of the model, the same in every process."""
    round_key: tuple[int, int]
    """Identifies the round; only digests with equal keys are compared."""
    slot: int
    rank: int
    other_rank: int | None
    """Rank whose digest is awaited; None = this digest is only sent."""
    digest: TensorDigest
    context: Any = None
    """Data with which the sender handles the response."""
    is_sent: bool = False
    created_s: float = field(default_factory=monotonic)

    def key(self, rank: int) -> str:
        """Return the store key of a rank's digest."""
        return f"trueloop/{self.name}/{self.slot % SLOTS}/{rank}"


class DigestStore:
    """Digests in flight and received responses of this process; forked children have their own."""

    def __init__(self) -> None:
        self.responses: deque[tuple[RankDigest, Numbers]] = deque(maxlen=MAX_IN_FLIGHT)
        self.errors: deque[Exception] = deque(maxlen=1)
        """Internal errors on the exchange thread."""
        self._pending: deque[RankDigest] = deque(maxlen=MAX_IN_FLIGHT)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake_up = threading.Event()

    def send(self, message: RankDigest) -> None:
        """Send a digest; the response to it, if any, is added to ``responses``."""
        with self._lock:
            self._pending.append(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trueloop-ranks", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait briefly for digests in flight, then drop those that remain."""
        thread = self._thread
        if thread is None:
            return
        thread.join(DETACH_TIMEOUT_S)
        self._pending.clear()
        self._wake_up.set()
        thread.join(DETACH_TIMEOUT_S)

    def _run(self) -> None:
        interval_s, max_interval_s = POLL_INTERVALS_S
        while True:
            with self._lock:
                pending = list(self._pending)
                if not pending:
                    self._thread = None
                    return
            for message in pending:
                if not self._advance(message):
                    with self._lock:
                        if message in self._pending:
                            self._pending.remove(message)
                    interval_s = POLL_INTERVALS_S[0]
            self._wake_up.wait(interval_s)
            interval_s = min(1.5 * interval_s, max_interval_s)

    def _advance(self, message: RankDigest) -> bool:
        """Advance the exchange of a digest by one step; return False once the exchange is finished."""
        if monotonic() - message.created_s > RESPONSE_TIMEOUT_S or not dist.is_initialized():
            return False
        if not message.is_sent and not message.digest.ready():
            return True
        try:
            return self._exchange(message, message.store())
        except RuntimeError:  # the store is closed, as at the end of a run, or too slow: no comparison
            return False
        except Exception as error:  # noqa: BLE001 - an internal error must never reach the program
            self.errors.append(error)
            return False

    def _exchange(self, message: RankDigest, store: Any) -> bool:
        if not message.is_sent:
            store.set(message.key(message.rank), _encode(message.round_key, message.digest.numbers.tolist()))
            message.is_sent = True
        if message.other_rank is None:
            return False
        key = message.key(message.other_rank)
        if not store.check([key]):
            return True
        round_key, numbers = _decode(store.get(key))
        if round_key == message.round_key:
            self.responses.append((message, numbers))
        return round_key < message.round_key


class StoreConnection:
    """Opens the store of this process's groups, over a separate connection.

    A store in a file or in memory has no connection: then the program's store is used, and released after each digest.
    """

    def __init__(self) -> None:
        self._address: tuple[str, int] | None = None
        self._client: Any = None

    def opener(self) -> Callable[[], Any]:
        """Return a function, to be called on the exchange thread, that opens the store; this does not block."""
        store: Any = cast("Any", dist).distributed_c10d._get_default_store()  # noqa: SLF001
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        if not isinstance(store, dist.TCPStore):
            return lambda: store
        address = (store.host, store.port)
        return lambda: self._connect(address)

    def _connect(self, address: tuple[str, int]) -> Any:
        if self._address != address:
            host, port = address
            self._client = dist.TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=CONNECTION_TIMEOUT
            )
            self._address = address
        return self._client


def _encode(round_key: tuple[int, int], numbers: Sequence[Sequence[float]]) -> str:
    flat = [value for each in numbers for value in each]
    return base64.b64encode(pack(f"<2q{len(flat)}d", *round_key, *flat)).decode()


def _decode(text: bytes) -> tuple[tuple[int, int], Numbers]:
    content = base64.b64decode(text)
    first, second, *flat = unpack(f"<2q{(len(content) - 16) // 8}d", content)
    return (first, second), [list(flat[start : start + WIDTH]) for start in range(0, len(flat), WIDTH)]
