"""`WaitingNote`: says it once when no worker that is there may take a run's shards."""

import logging

import redis

from producer.fleet_status import run_status
from worker.fleet import Fleet

logger = logging.getLogger(__name__)


class WaitingNote:
    """What was said last of one run."""

    def __init__(self, client: redis.Redis, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._said = ""

    def look(self) -> None:
        """Warn when shards have begun to wait for another kind of worker; where there is no worker at all, more are awaited anyway."""
        cards = tuple(Fleet(self._client).workers())
        status = run_status(self._client, self._run_id, cards) if cards else None
        waits = status is not None and status.state == "waiting"
        text = "; ".join([status.why, *(f"{name} is of another class" for name in status.refusing)]) if status and waits else ""
        if text and text != self._said:
            logger.warning("shards wait: %s", text)
        self._said = text
