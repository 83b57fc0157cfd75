"""`Reconciler`: finds shards that were handed out and that nobody has any more.

A shard is lost when, seen for at least `PATIENCE_SECONDS`, it is issued, has neither result nor lease, and its message is not queued. A
message that a worker has received and not acknowledged counts as queued for `UNACKED_SECONDS`: workers acknowledge at once, so after that
its receiver is dead or stopped, and kombu itself would give the message back only after a minute. Nothing is called lost until contact
with the broker has been unbroken, and the broker up, for a whole lease time: before that, workers could not have renewed what is theirs,
and every outage would end in a storm of duplicates.
"""

import base64
import binascii
import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import redis

from schemas.errors import DecodeError
from schemas.shard import ShardMessage
from worker.app import UNACKED_KEY, queue_keys
from worker.ledger import Ledger

INTERVAL_SECONDS = 2.0
PATIENCE_SECONDS = 6.0
UNACKED_SECONDS = 12.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Findings:
    """What one look found.

    Attributes:
        finished: issued shards whose results wait, whether or not anybody announced them.
        lost: issued shards that nobody has.
    """

    finished: tuple[int, ...]
    lost: tuple[int, ...]


class Reconciler:
    """The doubts of a coordinator, or of a keeper, about one run."""

    def __init__(self, client: redis.Redis, run_id: str, *, lease_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds; `lease_seconds` is the workers' own."""
        self._redis = client
        self._ledger = Ledger(client, run_id)
        self._run_id = run_id
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._contact_since = clock()
        self._missing_since: dict[int, float] = {}
        self._unacked_since: dict[int, float] = {}

    def contact_broken(self) -> None:
        """The broker could not be reached: start all waiting again."""
        self._contact_since = self._clock()
        self._missing_since.clear()
        self._unacked_since.clear()

    def look(self, issued: Iterable[int]) -> Findings:
        """Compare the issued shards with what the broker holds.

        Args:
            issued: shards that were handed out and have not landed.
        """
        states = self._ledger.states(issued)
        finished = tuple(shard for shard, state in states.items() if state == "result")
        absent = [shard for shard, state in states.items() if state == "absent"]
        queued, unacked = self._messages() if absent else (set(), set())
        now = self._clock()
        self._unacked_since = {shard: self._unacked_since.get(shard, now) for shard in absent if shard in unacked}
        queued |= {shard for shard, since in self._unacked_since.items() if now - since < UNACKED_SECONDS - PATIENCE_SECONDS}
        self._missing_since = {shard: self._missing_since.get(shard, now) for shard in absent if shard not in queued}
        if not self._missing_since or now - self._contact_since < self._lease_seconds or self._uptime() < self._lease_seconds:
            return Findings(finished, ())
        lost = tuple(shard for shard, since in self._missing_since.items() if now - since >= PATIENCE_SECONDS)
        for shard in lost:
            del self._missing_since[shard]
        return Findings(finished, lost)

    def adrift(self, issued: Iterable[int]) -> tuple[int, ...]:
        """Issued shards without result, lease and queued message: what a worker that is known to be dead may have had in its hands.

        A message that it had received and not yet acknowledged would come back by itself only after a minute.
        """
        absent = [shard for shard, state in self._ledger.states(issued).items() if state == "absent"]
        queued = self._messages()[0] if absent else set()
        return tuple(shard for shard in absent if shard not in queued)

    def _uptime(self) -> float:
        return float(self._redis.info("server")["uptime_in_seconds"])

    def _messages(self) -> tuple[set[int], set[int]]:
        """Shards of this run whose messages are in the queue, and those whose messages are unacknowledged."""
        with self._redis.pipeline(transaction=False) as pipe:
            for key in queue_keys():
                pipe.lrange(key, 0, -1)
            pipe.hvals(UNACKED_KEY)
            *queues, received = pipe.execute()
        queued = {_shard_of(text, self._run_id) for queue in queues for text in queue}
        unacked = {_shard_of(text, self._run_id, unacked=True) for text in received}
        return {shard for shard in queued if shard is not None}, {shard for shard in unacked if shard is not None}


def _shard_of(text: bytes, run_id: str, *, unacked: bool = False) -> int | None:
    """The shard that a message in kombu's own form names, if it is one of this run."""
    try:
        payload = json.loads(text)[0] if unacked else json.loads(text)
        arguments = json.loads(base64.b64decode(payload["body"]))[0]
        message = ShardMessage.decode(arguments[0])
    except (ValueError, KeyError, IndexError, TypeError, binascii.Error, DecodeError):
        return None  # somebody else's, or garbage
    return message.shard if message.run_id == run_id else None
