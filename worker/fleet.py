"""`Fleet`: what a broker knows of all its runs and workers.

    fleet:runs            zset    run_id → when it was opened, seconds since the epoch
    fleet:workers         zset    worker → when its card was written
    fleet:worker:{name}   string  WorkerCard, for CARD_SECONDS

Both sets live for a week after their last change; entries whose run or card is gone are removed when somebody looks.
"""

import time
from dataclasses import dataclass
from typing import cast

import redis

from schemas.errors import DecodeError
from schemas.wire import Wire, added

CARD_SECONDS = 15.0
INDEX_SECONDS = 7 * 24 * 3600
RUNS = "fleet:runs"
WORKERS = "fleet:workers"


@dataclass(frozen=True)
class WorkerCard(Wire):
    """A worker in its own words.

    Attributes:
        name: `host:pid`, or the name it was given.
        run_id: the run it works on, or None.
        shard: the shard in work, or None.
        model: name of the model that its engine holds, or None before the first.
        models: names of the models that it may load; none means any.
        refused: what the last message that it had to leave to others wanted, a model or a backend class, or None.
        resting: whether it takes no shard because of its quiet hours.
        keeps: runs that it feeds because their coordinator is away.
        backend: its backend class, or None before a run has asked for it.
    """

    name: str
    run_id: str | None
    shard: int | None
    model: str | None
    models: tuple[str, ...]
    refused: str | None
    resting: bool
    keeps: tuple[str, ...]
    backend: str | None = added(None)

    def takes(self, model: str, backend: str | None = None) -> bool:
        """Whether the worker may load a model now and, as far as it is known, is of the backend class that is wanted."""
        return not self.resting and (not self.models or model in self.models) and not self.differs(backend)

    def differs(self, backend: str | None) -> bool:
        """Whether the worker is known to be of another backend class than the one that is wanted."""
        return None not in (backend, self.backend) and backend != self.backend


class Fleet:
    """Runs and workers of one broker."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def add_run(self, run_id: str) -> None:
        """Make a run known to workers and to `specmill status`."""
        with self._redis.pipeline() as pipe:
            pipe.zadd(RUNS, {run_id: time.time()}, nx=True)
            pipe.expire(RUNS, INDEX_SECONDS)
            pipe.execute()

    def remove_run(self, run_id: str) -> None:
        """The run is over."""
        self._redis.zrem(RUNS, run_id)

    def runs(self) -> list[str]:
        """Runs that are open, oldest first."""
        found = [member.decode() for member in cast("list[bytes]", self._redis.zrange(RUNS, 0, -1))]
        with self._redis.pipeline(transaction=False) as pipe:
            for run_id in found:
                pipe.exists(f"run:{run_id}:spec")
            alive = pipe.execute()
        gone = [run_id for run_id, exists in zip(found, alive, strict=True) if not exists]
        if gone:
            self._redis.zrem(RUNS, *gone)
        return [run_id for run_id in found if run_id not in gone]

    def show(self, card: WorkerCard) -> None:
        """Write a worker's card; it fades when it is not written again."""
        with self._redis.pipeline() as pipe:
            pipe.set(f"fleet:worker:{card.name}", card.to_json(), px=int(CARD_SECONDS * 1000))
            pipe.zadd(WORKERS, {card.name: time.time()})
            pipe.expire(WORKERS, INDEX_SECONDS)
            pipe.execute()

    def remove_worker(self, name: str) -> None:
        """The worker has left."""
        with self._redis.pipeline() as pipe:
            pipe.delete(f"fleet:worker:{name}")
            pipe.zrem(WORKERS, name)
            pipe.execute()

    def workers(self) -> list[WorkerCard]:
        """Cards of the workers that are there, by name; cards of another version are left out."""
        names = sorted(member.decode() for member in cast("list[bytes]", self._redis.zrange(WORKERS, 0, -1)))
        texts = cast("list[bytes | None]", self._redis.mget([f"fleet:worker:{name}" for name in names])) if names else []
        cards = []
        for name, text in zip(names, texts, strict=True):
            if text is None:
                self._redis.zrem(WORKERS, name)
                continue
            try:
                cards.append(WorkerCard.from_json(text))
            except DecodeError:
                continue
        return cards
