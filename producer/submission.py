"""`submit`: hand a whole run to a broker and leave; workers feed, generate and reconcile it, `specmill run` collects it."""

from collections.abc import Callable, Sequence

import redis

from producer.backend_rule import BackendRule
from producer.run_folder import RunFolder
from producer.run_lock import RunLock
from producer.run_options import RunOptions
from producer.run_plan import make_plan
from producer.shards import ShardSource
from schemas.errors import BrokerError, InputError, UnwritableError
from worker.fleet import Fleet
from worker.keeper_lock import COORDINATOR, KeeperLock
from worker.landing import written_whole
from worker.ledger import SUBMITTED_SECONDS, Ledger
from worker.part_names import INPUTS, input_name
from worker.redis_client import make_client, unusable
from worker.run_terms import RunTerms

DEFAULT_BROKER_MB = 512


def submit(options: RunOptions, note: Callable[[str], None], broker_mb: float = DEFAULT_BROKER_MB) -> str | None:
    """Put every shard that is missing into the broker; the same again does no harm.

    Args:
        options: as for `producer.run.run`; `broker` must be given.
        note: receives a line per step that takes a while.
        broker_mb: most megabytes of inputs that may lie in the broker; the rest lies in `out`, where workers reach that.

    Returns:
        The run's id, or None when its dataset is complete.

    Raises:
        SpecmillError: of any kind; then nothing of the run is in the broker.
    """
    assert options.broker is not None
    plan = make_plan(options, note)
    if plan.complete(options.out):
        note(f"{options.out} is complete: nothing to do")
        return None
    spec, source = plan.spec, ShardSource(plan.source)
    with RunLock(options.out), make_client(options.broker) as client:
        folder = RunFolder(options.out, spec)
        folder.open()
        rule = BackendRule.of(spec)
        rule.check_landed(folder.records.values())
        ledger, lock = Ledger(client, spec.run_id), KeeperLock(client, spec.run_id, COORDINATOR)
        try:
            if (holder := lock.take()) is not None:
                raise BrokerError(f"the coordinator {holder} runs this run; wait for it or stop it")
            ledger.submit()
            ledger.open(spec, folder.records)
            ledger.set_terms(RunTerms(options.priority, options.max_error_rate, not options.ignore_calibration))
            rule.announce(ledger)
            if options.lands_directly:
                ledger.share(str(options.out.resolve()))
            missing = [shard for shard in range(spec.shards) if shard not in folder.records]
            sizes = _store_inputs(options, ledger, missing, source, broker_mb)
            Fleet(client).add_run(spec.run_id)
            lock.leave()
        except (InputError, UnwritableError):
            ledger.close()
            raise
        except (redis.RedisError, OSError) as error:
            raise unusable(options.broker, error) from error
        finally:
            folder.close()
    days = SUBMITTED_SECONDS // 86_400
    elsewhere = f", {sizes[1] / 1e6:,.1f} MB more in {options.out / INPUTS}" if sizes[1] else ""
    note(f"run {spec.run_id[:12]} is with the broker, {sizes[0] / 1e6:,.1f} MB of inputs{elsewhere}; it stays there for {days} days")
    return spec.run_id


def _store_inputs(options: RunOptions, ledger: Ledger, shards: Sequence[int], source: ShardSource, broker_mb: float) -> tuple[int, int]:
    """Put the inputs where keepers and workers find them: into the broker while it has room, then into the dataset's folder.

    Returns:
        Bytes in the broker and in the folder.

    Raises:
        InputError: there is no room, and workers do not reach the folder.
        UnwritableError: the folder does not take a file.
    """
    in_broker = in_folder = 0
    for shard in shards:
        blob = source.blob(shard)
        if not in_folder and in_broker + len(blob) <= broker_mb * 1e6:
            ledger.store(shard, blob)
            in_broker += len(blob)
            continue
        if not options.lands_directly:
            raise InputError(
                f"the prompts are larger than the {broker_mb:g} MB that may lie in the broker (--max-broker-mb); `specmill run` feeds them "
                "bit by bit, and with --shared, or with --out in an object store, the rest lies there"
            )
        if not in_folder:
            (options.out / INPUTS).mkdir(parents=True, exist_ok=True)
            ledger.store_no_more(shard)
        with written_whole(options.out / input_name(shard)) as file:
            file.write(blob)
        in_folder += len(blob)
    return in_broker, in_folder
