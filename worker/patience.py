"""How long workers, and those who wait for them, have patience; they import nothing, so that a command line can name them."""

STALL_SECONDS = 600.0  # without a new token
DRAIN_SECONDS = 30.0  # from SIGTERM on, for the shard in work; then it is given back
LEASE_SECONDS = 20.0  # with 20-25 s a killed worker's shard was queued again after 26-31 s
