"""What runs on a worker: the Celery task, the lease and the ledger, landing, and the engine behind them."""

BROKER_VARIABLE = "SPECMILL_BROKER"  # a password on the command line would be visible to every user of the machine
