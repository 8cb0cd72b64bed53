"""Disks that are full for a while: readers wait and repeat, as for an absent dispatcher."""

import shutil
import threading

import pytest

from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.errors import ResourceExhaustedError
from tests.integration.clusters import Cluster


def fill(journal, monkeypatch) -> threading.Semaphore:
    """The disk of a journal is full from now on; the result counts what it refuses."""
    refused = threading.Semaphore(0)

    def refuse(*_: object, **__: object) -> None:
        refused.release()
        raise ResourceExhaustedError("the disk is full")

    monkeypatch.setattr(journal, "_write", refuse)
    return refused


@pytest.mark.parametrize("name", ["shared", None])
def test_readers_wait_for_a_full_disk_and_continue(name, tmp_path, monkeypatch):
    with Cluster(1, work_dir=str(tmp_path)) as cluster:
        dataset = Dataset.range(200).apply(
            cluster.distribute(job_name=name, max_outstanding_requests=1)
        )
        iterator = iter(dataset)
        got = [int(next(iterator)) for _ in range(5)]
        journal = cluster.dispatcher._hosted._handler.ledger._journal
        with monkeypatch.context() as full:
            refused = fill(journal, full)
            rest = []
            reader = threading.Thread(target=lambda: rest.extend(map(int, iterator)))
            reader.start()
            if name is None:
                reader.join()  # It decides by itself what it reads, and needs no journal.
            else:
                for _ in range(4):
                    assert refused.acquire(timeout=60)
                assert reader.is_alive()
        reader.join()
        assert sorted(got + rest) == list(range(200))


@pytest.mark.parametrize("way", ["continues", "has read everything", "closes"])
def test_a_reader_settles_what_its_dispatcher_has_lost(way, tmp_path, caplog):
    """The journal loses its last facts, with the leases and reports in them."""
    work, copy = tmp_path / "work", tmp_path / "copy"
    with Cluster(1, work_dir=str(work)) as cluster:
        sharing = cluster.distribute(job_name="shared", max_outstanding_requests=1)
        iterator = iter(Dataset.range(100).apply(sharing))
        got = [int(next(iterator)) for _ in range(3)]
        shutil.copytree(work, copy)
        got += [int(next(iterator)) for _ in range(97 if way == "has read everything" else 20)]
        iterator.state_dict()
        port = int(cluster.address.rpartition(":")[2])
        cluster.dispatcher.stop()
        shutil.rmtree(work)
        shutil.move(copy, work)
        config = service.DispatcherConfig(port=port, work_dir=str(work))
        cluster.dispatcher = service.DispatchServer(config)
        if way == "closes":
            iterator.close()
        else:
            got += map(int, iterator)
        got += map(int, Dataset.range(100).apply(sharing))
        assert sorted(got) == list(range(100))
    assert "the dispatcher has lost facts" in caplog.text
    assert "other readers have got" not in caplog.text
