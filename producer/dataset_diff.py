"""Two datasets, row by row: equal, different (and where), or only in one of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from producer.counted import counted
from producer.dataset import Dataset, row_name
from producer.row_comparison import compare_rows, first_difference
from producer.run_summary import RunSummary
from schemas.wire import Json
from worker.remote_path import Place

SHOWN = 20
Key = tuple[str, int]


@dataclass(frozen=True)
class RowDifference:
    """One row that both datasets have and that is not the same in them.

    Attributes:
        name: how people call it.
        token: index of the first differing token, or None when the tokens are the same.
        fields: the columns that differ.
        text: the differences for people.
    """

    name: str
    token: int | None
    fields: tuple[str, ...]
    text: str


@dataclass
class DatasetDiff:
    """Two datasets compared by record id and sample.

    Attributes:
        left, right: their folders.
        settings: contract fields in which the runs differ, `field: left / right`.
        equal: rows that are the same in every column that both have.
        same_tokens: rows among the differing ones whose tokens are the same.
        different: rows that differ, counted.
        shown: the first few of them.
        only_left, only_right: rows that one alone has, counted.
        summaries: a line for each dataset: rows, tokens, lengths, acceptance.
    """

    left: Place
    right: Place
    settings: list[str] = field(default_factory=list)
    equal: int = 0
    same_tokens: int = 0
    different: int = 0
    shown: list[RowDifference] = field(default_factory=list)
    only_left: list[str] = field(default_factory=list)
    only_right: list[str] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, left: Place, right: Place) -> "DatasetDiff":
        """Compare two folders; a part file of each is in memory at a time, and the place of every row of the right one.

        Raises:
            InputError, DecodeError, LandingError: a folder without a dataset, or one that cannot be read.
        """
        mine, theirs = Dataset.open(left), Dataset.open(right)
        diff = cls(left, right, settings=mine.manifest.spec.differences(theirs.manifest.spec))
        rows = _Rows(theirs)
        for row in _rows_of(mine):
            other = rows.take((row["record_id"], row["sample"]))
            if other is None:
                diff.only_left.append(row_name(row))
            else:
                diff._compare(row, other)
        diff.only_right = rows.left_over()
        diff.summaries = [_summary(dataset) for dataset in (mine, theirs)]
        return diff

    @property
    def exit_code(self) -> int:
        """0 when both hold the same rows, else 1; settings alone do not count."""
        return int(bool(self.different or self.only_left or self.only_right))

    def text(self) -> str:
        """The comparison for people."""
        head = "the same rows" if self.exit_code == 0 else "not the same rows"
        lines = [f"{self.left} / {self.right}: {head}", f"  equal      {self.equal:,}"]
        lines.append(
            f"  different  {self.different:,}" + (f", {self.same_tokens:,} of them with the same tokens" if self.different else "")
        )
        lines += [f"    {row.name}: {row.text}" for row in self.shown]
        lines += [f"    … and {self.different - len(self.shown):,} more"] if self.different > len(self.shown) else []
        for folder, names in ((self.left, self.only_left), (self.right, self.only_right)):
            listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            lines.append(f"  only in {folder}: {len(names):,}" + (f" ({listed})" if names else ""))
        lines += [f"  settings   {line}" for line in self.settings]
        return "\n".join([*lines, *(f"  {line}" for line in self.summaries)])

    def to_json(self) -> dict[str, Json]:
        """The comparison for programs; differing rows are listed up to 20."""
        return {
            "left": str(self.left),
            "right": str(self.right),
            "exit_code": self.exit_code,
            "settings": list(self.settings),
            "equal": self.equal,
            "different": self.different,
            "same_tokens": self.same_tokens,
            "rows": [{"name": row.name, "token": row.token, "fields": list(row.fields), "text": row.text} for row in self.shown],
            "only_left": list(self.only_left),
            "only_right": list(self.only_right),
        }

    def _compare(self, mine: dict[str, Any], theirs: dict[str, Any]) -> None:
        differences = compare_rows(mine, theirs, [name for name in mine if name in theirs and name != "row"])
        if not differences:
            self.equal += 1
            return
        self.different += 1
        token = first_difference(mine["token_ids"] or [], theirs["token_ids"] or [])
        self.same_tokens += token is None
        if len(self.shown) < SHOWN:
            fields = tuple(difference.field for difference in differences)
            first = [difference for difference in differences if difference.field == "token_ids"] or differences[:1]
            others = [name for name in fields if name != first[0].field]
            text = str(first[0]) + (f"; also {', '.join(others)}" if others else "")
            self.shown.append(RowDifference(row_name(mine), token, fields, text))


class _Rows:
    """The rows of a dataset by key; the part file that was asked for last stays in memory, because neighbours are asked for together."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._places: dict[Key, tuple[int, int]] = {}
        self._loaded: int | None = None
        self._rows: list[dict[str, Any]] = []
        for number, shard in enumerate(dataset.manifest.shards):
            keys = dataset.table(shard, ["record_id", "sample"])
            for index, key in enumerate(zip(keys["record_id"].to_pylist(), keys["sample"].to_pylist(), strict=True)):
                self._places[key] = (number, index)

    def take(self, key: Key) -> dict[str, Any] | None:
        place = self._places.pop(key, None)
        if place is None:
            return None
        if self._loaded != place[0]:
            self._loaded, self._rows = place[0], self._dataset.table(self._dataset.manifest.shards[place[0]]).to_pylist()
        return self._rows[place[1]]

    def left_over(self) -> list[str]:
        return [row_name({"record_id": record_id, "sample": sample}) for record_id, sample in self._places]


def _rows_of(dataset: Dataset) -> Iterator[dict[str, Any]]:
    for shard in dataset.manifest.shards:
        yield from dataset.table(shard).to_pylist()


def _summary(dataset: Dataset) -> str:
    summary = RunSummary.of_dataset(dataset.out, dataset.manifest)
    ok = summary.rows - summary.failed
    length = f"{summary.completion_tokens / ok:.1f} tokens per row" if ok else "no row without an error"
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(summary.finish_reasons.items()))
    shares = summary.acceptance_text(" ")
    per_cycle = f", {summary.tokens_per_cycle:.2f} tokens per cycle" if summary.tokens_per_cycle else ""
    return f"{dataset.out}: {counted(summary.rows, 'row')}, {length}, {reasons}" + (f"; acceptance {shares}{per_cycle}" if shares else "")
