"""`head_acceptance`: any head judged on any rows of its model, in text."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from producer.counted import counted
from producer.head_training import TEMPERATURES
from producer.model_list import acceptance_table
from producer.step_display import StepDisplay
from producer.training_data import read_training_data
from schemas.errors import HeadError
from worker.distill.evaluator import Evaluator
from worker.distill.hidden_states import HiddenStates
from worker.engine import model_store
from worker.engine.mtp_head import MTPHead
from worker.engine.trunk import Trunk


def head_acceptance(
    head: Path,
    sources: tuple[Path, ...],
    model: str,
    depth: int,
    by: str | None,
    context: int,
    display: StepDisplay,
    stopped: Callable[[], bool],
    *,
    trust_remote_code: bool,
) -> str | None:
    """A table over all rows and one per value of the column `by`; None when it was asked to stop while reading.

    `trust_remote_code` as in `Trunk.load`.

    Raises:
        HeadError: the head does not fit, or reads hidden states from before the final norm, which are not kept.
        InputError: there are no rows, or no such column.
    """
    folder = model_store.resolve_model(model, report=display.note)
    files = model_store.digest_folder(folder)
    trunk = Trunk.load(folder, mx.float32, trust_remote_code=trust_remote_code)
    loaded = MTPHead.load(model_store.resolve_head(str(head)), trunk, mx.float32)
    if loaded.deeper:
        raise HeadError(f"{head} has {1 + len(loaded.deeper)} MTP layers; only a head of one layer can be judged without decoding")
    before, after = mx.zeros(1), mx.ones(1)
    if loaded.base_hidden(before, after) is before:
        raise HeadError(f"{head} reads hidden states from before the final norm; only those behind it can be judged")
    data = read_training_data(sources, trunk, files, context, display.note, by)
    digest = model_store.combined_digest(files)
    cache = HiddenStates.beneath(model_store.cache_dir() / "distill", data.corpus, trunk, digest, "float32")
    if not cache.fill(trunk, lambda done: display.step("reading positions", done, cache.positions), stopped):
        return None
    groups = {"all rows": list(range(len(data.labels)))}
    if by is not None:
        for label in sorted(set(data.labels)):
            groups[f"{by} = {label}"] = [i for i, mine in enumerate(data.labels) if mine == label]
    lines = []
    for name, indices in groups.items():
        found = Evaluator(trunk, data.corpus, cache, indices, depth).evaluate(loaded, TEMPERATURES)
        lines += [f"{name}: {counted(found.rows, 'row')}, {found.positions:,} positions, {found.mass:.1%} of p on the head's ids"]
        lines.append(acceptance_table(found))
    if data.temperature is not None:
        replay = Evaluator(trunk, data.corpus, cache, groups["all rows"], depth).replay(loaded, data.temperature)
        lines.append(f"decoding these rows at T = {data.temperature:g} would take a cycle per {replay.tokens_per_cycle:.3f} tokens")
    return "\n".join(lines)
