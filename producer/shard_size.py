"""`default_shard_size`: how many prompts make a part file where nobody says so."""

MOST_RECORDS = 64  # of a shard, unless the user says otherwise
FEWEST_SHARDS, ENOUGH_SHARDS = 2, 8


def default_shard_size(records: int, samples: int, slots: int) -> int:
    """Records per shard where nobody asks for a number: small files give several shards too, so that a stop keeps what is done.

    A shard fills all slots where there are rows enough for that, because rows decoded side by side cost less.

    Args:
        records: of the prompts file.
        samples: completions per record, ≥ 1.
        slots: rows decoded side by side.
    """
    batches = -(-records * samples // slots)
    shards = min(max(batches, FEWEST_SHARDS), ENOUGH_SHARDS)
    return min(MOST_RECORDS, -(-records // shards))
