"""Redis clients with timeouts, and broker addresses that are safe to print."""

import re
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

from schemas.errors import BrokerError
from worker import BROKER_VARIABLE

BROKER_ERRORS: tuple[type[Exception], ...] = (redis.ConnectionError, redis.TimeoutError, ConnectionError)
"""What an outage looks like to a client; everything else is a bug or a refusal."""


def make_client(broker_url: str, *, patient: bool = True) -> redis.Redis:
    """A client of the broker; connects when first used.

    Args:
        broker_url: `redis://`, `rediss://` or `redis+socket://`, as Celery takes it.
        patient: three quick retries and 15 s per answer; else no retry and 2 s, for the thread that renews leases.

    Raises:
        BrokerError: an address that is none of these.
    """
    timeout = 15.0 if patient else 2.0
    url = secured(broker_url).replace("redis+socket://", "unix://", 1)
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=timeout,
            socket_connect_timeout=min(timeout, 5.0),
            health_check_interval=10,
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), 3) if patient else Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise BrokerError(f"{masked(broker_url)} is no broker address: {error}; give redis://, rediss:// or redis+socket://") from error


def unusable(broker_url: str, error: Exception) -> BrokerError:
    """What to raise where a broker does not answer, or does not let us in."""
    what = str(error).rstrip(".")
    return BrokerError(
        f"the broker {masked(broker_url)} cannot be used: {what}. Check that it runs and that --broker or {BROKER_VARIABLE} names it; "
        "whatever has landed stays, and the same command goes on"
    )


def secured(broker_url: str) -> str:
    """The address, with the certificate of a `rediss://` server verified unless it says otherwise: kombu's bare form does not verify it."""
    if not broker_url.startswith("rediss://") or "ssl_cert_reqs=" in broker_url:
        return broker_url
    return f"{broker_url}{'&' if '?' in broker_url else '?'}ssl_cert_reqs=required"


def masked(broker_url: str) -> str:
    """The address with its password replaced by `***`."""
    return re.sub(r"(?<=://)([^/@]*?):[^@]*@", r"\1:***@", broker_url)


def password_of(broker_url: str) -> str | None:
    """The password in an address, as it is written there."""
    userinfo, at, _ = urlsplit(broker_url).netloc.rpartition("@")
    return userinfo.partition(":")[2] or None if at else None
