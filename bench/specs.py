"""`bench_spec`: a run as the benchmarks need it, with everything said that none of them varies."""

from producer.run_plan import head_ref, model_ref
from schemas.profile import ExecutionProfile
from schemas.run_spec import RunSpec
from schemas.sampler import SamplerConfig

UNCHANGED = SamplerConfig()


def bench_spec(
    model: str,
    head: str | None = None,
    *,
    slots: int = 8,
    depth: int = 0,
    sampler: SamplerConfig = UNCHANGED,
    max_tokens: int = 32,
    records: int = 1,
    shard_size: int | None = None,
    run_id: str = "bench",
) -> RunSpec:
    """One completion of the rejection coupling per record; a head is left out at depth 0, and without one the depth is 0.

    Args:
        model: as `--model` names it, scripted ones included.
        head: as `--mtp` names it.
        slots: B.
        depth: K.
        sampler: the model's own distribution when not given.
        max_tokens: completion budget.
        records: prompts.
        shard_size: records per shard; None is one shard.
        run_id: where runs meet a broker, each needs one of its own.
    """
    drafts = head is not None and depth > 0
    return RunSpec(
        run_id=run_id,
        model=model_ref(model, print),
        head=head_ref(head) if head is not None and drafts else None,
        sampler=sampler,
        max_tokens=max_tokens,
        stop=(),
        samples=1,
        seed=0,
        coupling="rejection",
        profile=ExecutionProfile(slots=slots, depth=depth if drafts else 0),
        raw=False,
        logprobs=False,
        shard_size=shard_size or records,
        records=records,
        prompts_digest="",
    )
