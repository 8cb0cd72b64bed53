"""A reader opens an iteration while the dispatcher forgets the dataset."""

from typing import Any

import pytest

from penstock.data import Dataset
from penstock.errors import NotFoundError
from penstock.service.host.services import Session
from penstock.service.protocol.messages import GetDataset, OpenIteration
from tests.integration.clusters import Cluster, until


@pytest.mark.parametrize("request_type", [GetDataset, OpenIteration])
@pytest.mark.parametrize("times", [1, 2])
def test_the_last_reader_of_a_dataset_leaves_while_another_one_opens_it(
    monkeypatch: pytest.MonkeyPatch, request_type: type, times: int
) -> None:
    call = Session.call
    left = times

    def leave_first(self: Session, request: Any, *arguments: Any) -> Any:
        """Makes the dispatcher forget the dataset of the request, as its last reader leaves."""
        nonlocal left
        if isinstance(request, request_type) and left:
            left -= 1
            with monkeypatch.context() as undone:
                undone.setattr(Session, "call", call)
                last = iter(dataset)
                next(last)
                last.close()
                until(lambda: is_forgotten(self, request.dataset_id))
        return call(self, request, *arguments)

    def is_forgotten(session: Session, dataset_id: str) -> bool:
        try:
            session.dataset(dataset_id)
        except NotFoundError:
            return True
        return False

    with Cluster(1) as cluster:
        dataset = Dataset.range(5).apply(cluster.distribute())
        monkeypatch.setattr(Session, "call", leave_first)
        assert [int(x) for x in dataset] == [0, 1, 2, 3, 4]
    assert not left
