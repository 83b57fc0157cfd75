"""How long a worker waits for its engine before it does something about it; options of `specmill worker`."""

STALL_SECONDS = 600.0  # without a new token
DRAIN_SECONDS = 30.0  # from SIGTERM on, for the shard in work; then it is given back
