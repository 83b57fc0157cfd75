"""`KeeperLock`: who feeds and reconciles a run: one coordinator, or, while there is none, one worker.

The lock is `run:{run_id}:keeper`, a token that lives for `KEEPER_SECONDS` unless it is renewed. A coordinator takes it from a worker at
any time, from another coordinator only when that one is known to be dead or has been silent for that long.
"""

import os
import socket
import uuid
from typing import cast

import redis

KEEPER_SECONDS = 10.0
COORDINATOR = "coordinator"
WORKER = "worker"

_TAKE = """
local holder = redis.call('GET', KEYS[1])
local token, ttl, over = unpack(ARGV)
local outranked = holder and string.sub(token, 1, 12) == 'coordinator/' and string.sub(holder, 1, 7) == 'worker/'
if holder and holder ~= token and holder ~= over and not outranked then return holder end
redis.call('SET', KEYS[1], token, 'PX', ttl)
return token
"""

_LEAVE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class KeeperLock:
    """One candidate's view of one run's lock."""

    def __init__(self, client: redis.Redis, run_id: str, role: str) -> None:
        """`role` is `COORDINATOR` or `WORKER`."""
        self._redis = client
        self._key = f"run:{run_id}:keeper"
        self._token = f"{role}/{socket.gethostname()}:{os.getpid()}/{uuid.uuid4().hex}"

    def take(self) -> str | None:
        """Take or renew the lock.

        Returns:
            None when it is ours, else who holds it: `host:pid`.
        """
        holder = self._take(over="")
        if holder != self._token and _is_dead(holder):
            holder = self._take(over=holder)
        return None if holder == self._token else holder.split("/")[1]

    def leave(self) -> None:
        """Give the lock back if it is ours."""
        self._redis.register_script(_LEAVE)(keys=[self._key], args=[self._token])

    def _take(self, over: str) -> str:
        script = self._redis.register_script(_TAKE)
        return cast("bytes", script(keys=[self._key], args=[self._token, int(KEEPER_SECONDS * 1000), over])).decode()


def _is_dead(holder: str) -> bool:
    """Whether a holder was a process of this machine that has ended."""
    _, place, _ = holder.split("/")
    host, _, pid = place.rpartition(":")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, ValueError):
        return False
    return False
