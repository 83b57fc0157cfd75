"""`Feeder`: hands the shards of one run out, for the coordinator or for a keeper in its place."""

from celery import Celery

from schemas.shard import ShardMessage
from worker.app import QUEUE, TASK, message_priority
from worker.ledger import Ledger
from worker.run_terms import PRIORITIES

WINDOW = 4  # shards in flight per worker: one in work, the others so that it never waits for us
CAREFUL_AFTER = 2  # attempts, before a shard runs record by record


class Feeder:
    """The queue's end of one run.

    Attributes:
        priority: the run's, one of `worker.run_terms.PRIORITIES`.
    """

    def __init__(self, app: Celery, run_id: str, priority: str = PRIORITIES[1]) -> None:
        self.priority = priority
        self._app = app
        self._run_id = run_id

    def send(self, shard: int, *, again: bool = False) -> None:
        """Put a message for a shard that is issued onto the queue; one too many does no harm."""
        priority = message_priority(self.priority, again=again)
        message = ShardMessage(run_id=self._run_id, shard=shard)
        self._app.send_task(
            TASK, args=(message.encode(),), queue=QUEUE, priority=priority, ignore_result=True, argsrepr=f"{message.run_id}/{shard}"
        )

    def send_again(self, ledger: Ledger, shard: int, blob: bytes | None = None) -> None:
        """Hand a shard out again; from the second attempt that ended in a death on, record by record."""
        if ledger.attempts(shard) >= CAREFUL_AFTER:
            ledger.be_careful(shard)
        ledger.issue(shard, blob)
        self.send(shard, again=True)
