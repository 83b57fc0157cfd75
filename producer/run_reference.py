"""`RunReference`: which run a person means, and the broker it is in."""

from dataclasses import dataclass

import redis

from producer.broker import url_of
from producer.local_side import local_side
from producer.manifest_file import read_manifest
from producer.run_lock import SCRATCH
from schemas.errors import BrokerError, InputError
from worker.fleet import Fleet
from worker.redis_client import make_client, unusable
from worker.remote_path import place_of


@dataclass(frozen=True)
class RunReference:
    """One run.

    Attributes:
        broker_url: the broker.
        run_id: the run's name there.
    """

    broker_url: str
    run_id: str

    @classmethod
    def find(cls, text: str, broker_url: str | None) -> "RunReference":
        """The run that `text` names: a dataset's folder, or the beginning of a run's id.

        Args:
            text: as the user gave it.
            broker_url: the broker, or None for the embedded one of the folder.

        Raises:
            InputError: no such run, or more than one.
            BrokerError: no broker is known, or it cannot be reached.
        """
        folder = place_of(text)
        manifest = read_manifest(folder) if folder.is_dir() else None
        if manifest is not None:
            broker_url = url_of(local_side(folder) / SCRATCH / "broker") or broker_url
            if broker_url is None:
                raise BrokerError(f"nothing runs in {folder}; for a run on a shared broker give --broker")
            return cls(broker_url, manifest.spec.run_id)
        if broker_url is None:
            raise BrokerError(f"{text!r} is no dataset's folder; for the id of a run give --broker")
        return cls(broker_url, _complete(text, open_runs(broker_url)))


def open_runs(broker_url: str) -> list[str]:
    """Ids of the runs that a broker has, oldest first.

    Raises:
        BrokerError: it cannot be reached.
    """
    with make_client(broker_url, patient=False) as client:
        try:
            return Fleet(client).runs()
        except (redis.RedisError, OSError) as error:
            raise unusable(broker_url, error) from error


def _complete(text: str, runs: list[str]) -> str:
    found = [run_id for run_id in runs if run_id.startswith(text)]
    if len(found) != 1:
        known = ", ".join(run_id[:12] for run_id in runs) or "none"
        raise InputError(f"{'no run begins' if not found else 'more than one run begins'} with {text!r}; runs on the broker: {known}")
    return found[0]
