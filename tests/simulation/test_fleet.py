"""Many readers of one job and many workers, of which some die all the time."""

import pytest

from penstock.service.protocol import timing
from tests.simulation.fleet import run


@pytest.mark.parametrize("scale", [1.0, 0.02])
def test_a_fleet_reads_everything_while_readers_and_workers_die(
    monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    """The intervals are those of a service that is fifty times as large."""
    monkeypatch.setattr(timing, "HEARTBEATS", scale * timing.HEARTBEATS)
    monkeypatch.setattr(timing, "LEASES", scale * timing.LEASES)
    fleet = run(workers=20, readers=20, seconds=10.0, deaths=1)
    assert fleet.died == 20
    assert fleet.progress > 0.9
    assert 0 < fleet.requests / fleet.seconds < 20 * 20
