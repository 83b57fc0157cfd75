"""A fleet per module, for runs of the module's SHAPE by its number of WORKERS, and what such a run makes in peace."""

import uuid
from collections.abc import Iterator

import pytest
from chaos_fleet import HASTY, MARK, ChaosFleet, files_of, poll, processes


@pytest.fixture(scope="module")
def machines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosFleet]:
    """A broker and supervised workers; each of these and the coordinator have a network that can be broken."""
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        with ChaosFleet(tmp_path_factory.mktemp("chaos"), mark, request.module.SHAPE, HASTY) as made:
            for _ in range(request.module.WORKERS):
                made.start_worker()
            yield made
    poll(lambda: not processes(mark), 20, "the end of every process")


@pytest.fixture(scope="module")
def undisturbed(machines: ChaosFleet) -> dict[str, str]:
    """The files of a run in peace."""
    machines.next_run()
    machines.finish()
    return files_of(machines.out)
