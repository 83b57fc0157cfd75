"""What runs on a worker: the Celery task, the lease and the ledger, landing, and the engine behind them."""
