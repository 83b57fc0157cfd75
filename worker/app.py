"""The Celery application: its name, its queue and every setting that differs from Celery's default, with the reason.

Messages are hints; the ledger and the part files are the truth. So nothing here asks Celery for delivery guarantees.
"""

from celery import Celery
from kombu import Queue

from worker.redis_client import secured
from worker.run_terms import PRIORITIES

QUEUE = "specmill"
TASK = "specmill.generate_shard"

PRIORITY_STEPS = tuple(range(2 * len(PRIORITIES)))  # of messages: the lowest number is served first
PRIORITY_SEPARATOR = "\x06\x16"  # kombu's own default, spelled out because the reconciler reads the lists

VISIBILITY_SECONDS = 60  # covers only the gap between receipt and acknowledgement
UNACKED_KEY = "unacked"


def make_app(broker_url: str) -> Celery:
    """A Celery application that speaks to one broker; the caller registers the task.

    Args:
        broker_url: `redis://…`, `rediss://…` or `redis+socket://…`, with its password.
    """
    app = Celery("specmill", broker=secured(broker_url), set_as_current=False)
    app.conf.update(
        task_queues=(Queue(QUEUE, routing_key=QUEUE),),
        task_default_queue=QUEUE,
        task_default_routing_key=QUEUE,
        # The lease, not the acknowledgement, says who works on a shard.
        task_acks_late=False,
        task_reject_on_worker_lost=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,  # lost a task for good when it was on
        # No shard waits behind a running one while another worker idles.
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_SECONDS,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "unacked_mutex_expire": 10,
            "socket_timeout": 15,
            "socket_connect_timeout": 5,
            "health_check_interval": 10,
            "priority_steps": list(PRIORITY_STEPS),
            "sep": PRIORITY_SEPARATOR,
            "unacked_key": UNACKED_KEY,
        },
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_publish_retry=False,  # the coordinator has its own idea of an outage
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        worker_send_task_events=True,
        task_track_started=True,
        task_send_sent_event=False,  # halves the enqueue rate
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        enable_utc=True,
    )
    return app


def message_priority(priority: str, *, again: bool = False) -> int:
    """The step of a run's messages; within a run, those of shards that are handed out again go first.

    Args:
        priority: the run's, one of `PRIORITIES`.
        again: whether the shard was handed out before.
    """
    return 2 * PRIORITIES.index(priority) + (0 if again else 1)


def queue_keys() -> tuple[str, ...]:
    """The Redis lists that hold the queue, one per priority."""
    return tuple(QUEUE if priority == 0 else f"{QUEUE}{PRIORITY_SEPARATOR}{priority}" for priority in PRIORITY_STEPS)
