"""`ShardMessage`: the small Celery message. The rows themselves lie in a blob beside it (`schemas.tables`)."""

from dataclasses import dataclass

from schemas.wire import Wire


@dataclass(frozen=True)
class ShardMessage(Wire):
    """A hint that a shard may be worth claiming; the ledger decides.

    Attributes:
        run_id: the run's name in the ledger.
        shard: shard index, ≥ 0.
    """

    run_id: str
    shard: int

    def __post_init__(self) -> None:
        if not (self.run_id.isalnum() and self.run_id.isascii() and len(self.run_id) <= 64):
            raise ValueError(f"run_id must be 1 to 64 letters or digits; received {self.run_id!r}")
        if self.shard < 0:
            raise ValueError(f"shard must be >= 0; received {self.shard}")
