"""`Push`: a complete dataset on its way to the Hugging Face hub."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from producer.counted import counted
from producer.dataset import Dataset
from producer.hub_prompts import first_line
from schemas.errors import InputError
from worker.part_names import CARD, DATA, LOG, MANIFEST


@dataclass(frozen=True)
class Push:
    """What will be uploaded.

    Attributes:
        out: its folder.
        repo: `owner/name` on the hub.
        files: what goes there, relative to the folder.
    """

    out: Path
    repo: str
    files: tuple[str, ...]

    @classmethod
    def of(cls, out: Path, target: str) -> Self:
        """Check that a dataset can go to `hf://datasets/owner/name`.

        Raises:
            InputError: an incomplete dataset, or another target.
        """
        owner_and_name = target.removeprefix("hf://datasets/").split("/")
        if not target.startswith("hf://datasets/") or len(owner_and_name) != 2 or not all(owner_and_name):
            raise InputError(f"the target must be hf://datasets/OWNER/NAME; received {target!r}")
        dataset = Dataset.open(out)
        if dataset.manifest.status != "complete":
            raise InputError("\n".join([*dataset.unfinished(), "only a complete dataset is pushed"]))
        parts = [shard.file for shard in dataset.manifest.shards]
        logs = sorted(f"{LOG}/{path.name}" for path in (out / LOG).glob("*.parquet"))
        missing = [name for name in (MANIFEST, CARD, *parts) if not (out / name).is_file()]
        if missing:
            raise InputError(f"{out} lacks {missing[0]}; `specmill verify {out}` says what is wrong with it")
        return cls(out, "/".join(owner_and_name), (CARD, MANIFEST, *parts, *logs))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum((self.out / name).stat().st_size for name in self.files)

    def send(self, *, private: bool, note: Callable[[str], None]) -> str:
        """Upload in one commit; part files of an earlier dataset there go. Returns the commit's address.

        Raises:
            InputError: the hub refuses, or cannot be reached; nothing has changed there then.
        """
        from huggingface_hub import HfApi

        try:
            hub = HfApi()
            hub.create_repo(self.repo, repo_type="dataset", private=private, exist_ok=True)
            note(f"uploading {counted(len(self.files), 'file')} to {self.repo}")
            done = hub.upload_folder(
                repo_id=self.repo,
                repo_type="dataset",
                folder_path=self.out,
                allow_patterns=list(self.files),
                delete_patterns=[f"{DATA}/*.parquet", f"{LOG}/*.parquet"],
                commit_message=f"{counted(len(self.files), 'file')} made by specmill",
            )
        except Exception as error:  # the hub passes on whatever its HTTP library raises
            raise InputError(f"cannot push to {self.repo}: {first_line(error)}; `hf auth login` says who you are") from error
        return str(done.commit_url)
