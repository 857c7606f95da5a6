"""Exchanges numbers between the processes of a group, without any of them ever waiting for another.

Each one writes its own under a key of the store by which torch's processes find each other, and looks whether those of
another one are there. No collective is used: a rank that is not watched, that raised or that has ended is one whose
numbers never come. All talk with the store is on a thread of its own, and over a connection of its own, so that a slow
network holds nobody up either. The thread lives only while something is on its way.
"""

from __future__ import annotations

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

RESPONSE_TIMEOUT_S: Final = 60.0  # until numbers that have not come are given up
DETACH_TIMEOUT_S: Final = 0.5  # that the end of the watch waits for those on their way
TIMEOUT: Final = timedelta(seconds=10)  # of the connection
POLL_INTERVALS_S: Final = (0.002, 0.5)  # between two looks into the store, at first and at last
MAX_IN_FLIGHT: Final = 16  # on their way at a time
SLOTS: Final = 4  # keys of each rank for one model, written in turn

Numbers = list[list[float]]


@dataclass(slots=True, kw_only=True)
class RankDigest:
    """What one process has to say of a model at one moment, and whose it wants to hear."""

    store: Callable[[], Any]
    """Opens the store; called on the thread."""
    name: str
    """Of the model, the same in every process."""
    round_key: tuple[int, int]
    """Only numbers of the same moment are compared."""
    slot: int
    rank: int
    other_rank: int | None
    """None = nobody's: it only tells."""
    digest: TensorDigest
    context: Any = None
    """What the sender wants to have at hand when the answer comes."""
    is_sent: bool = False
    created_s: float = field(default_factory=monotonic)

    def key(self, rank: int) -> str:
        """Where a rank's numbers are."""
        return f"trueloop/{self.name}/{self.slot % SLOTS}/{rank}"


class DigestStore:
    """Letters on their way, and answers that have come; of one process, and not of a child that it forks."""

    def __init__(self) -> None:
        self.responses: deque[tuple[RankDigest, Numbers]] = deque(maxlen=MAX_IN_FLIGHT)
        self.errors: deque[Exception] = deque(maxlen=1)
        """What went wrong here."""
        self._letters: deque[RankDigest] = deque(maxlen=MAX_IN_FLIGHT)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()

    def send(self, letter: RankDigest) -> None:
        """Put a letter on its way; its answer will be among ``responses``, if one comes."""
        with self._lock:
            self._letters.append(letter)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trueloop-ranks", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait a moment for what is on its way, and give up the rest."""
        thread = self._thread
        if thread is None:
            return
        thread.join(DETACH_TIMEOUT_S)
        self._letters.clear()
        self._hurry.set()
        thread.join(DETACH_TIMEOUT_S)

    def _run(self) -> None:
        pause_s, last_s = POLL_INTERVALS_S
        while True:
            with self._lock:
                letters = list(self._letters)
                if not letters:
                    self._thread = None
                    return
            for letter in letters:
                if not self._carry(letter):
                    with self._lock:
                        if letter in self._letters:
                            self._letters.remove(letter)
                    pause_s = POLL_INTERVALS_S[0]
            self._hurry.wait(pause_s)
            pause_s = min(1.5 * pause_s, last_s)

    def _carry(self, letter: RankDigest) -> bool:
        """Take a letter one step further; False once it is done with."""
        if monotonic() - letter.created_s > RESPONSE_TIMEOUT_S or not dist.is_initialized():
            return False
        if not letter.is_sent and not letter.digest.ready():
            return True
        try:
            return self._deliver(letter, letter.store())
        except RuntimeError:  # the store is gone, as at the end of a run, or too slow: this one is not compared
            return False
        except Exception as error:  # noqa: BLE001 - the host is sacred: nothing of ours is printed by its threads
            self.errors.append(error)
            return False

    def _deliver(self, letter: RankDigest, store: Any) -> bool:
        if not letter.is_sent:
            store.set(letter.key(letter.rank), _packed(letter.round_key, letter.digest.numbers.tolist()))
            letter.is_sent = True
        if letter.other_rank is None:
            return False
        key = letter.key(letter.other_rank)
        if not store.check([key]):
            return True
        moment, numbers = _unpacked(store.get(key))
        if moment == letter.round_key:
            self.responses.append((letter, numbers))
        return moment < letter.round_key


class StoreConnection:
    """Opens the store of this process's groups, over a connection of our own.

    A store in a file or in memory has no connection: there the program's own is used, and let go after each letter.
    """

    def __init__(self) -> None:
        self._address: tuple[str, int] | None = None
        self._client: Any = None

    def opener(self) -> Callable[[], Any]:
        """Return what opens it, to be called on the thread; here nothing is waited for."""
        store: Any = cast("Any", dist).distributed_c10d._get_default_store()  # noqa: SLF001
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        if not isinstance(store, dist.TCPStore):
            return lambda: store
        address = (store.host, store.port)
        return lambda: self._connected(address)

    def _connected(self, address: tuple[str, int]) -> Any:
        if self._address != address:
            host, port = address
            self._client = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)
            self._address = address
        return self._client


def _packed(moment: tuple[int, int], numbers: Sequence[Sequence[float]]) -> str:
    flat = [value for each in numbers for value in each]
    return base64.b64encode(pack(f"<2q{len(flat)}d", *moment, *flat)).decode()


def _unpacked(text: bytes) -> tuple[tuple[int, int], Numbers]:
    content = base64.b64decode(text)
    first, second, *flat = unpack(f"<2q{(len(content) - 16) // 8}d", content)
    return (first, second), [list(flat[start : start + WIDTH]) for start in range(0, len(flat), WIDTH)]
