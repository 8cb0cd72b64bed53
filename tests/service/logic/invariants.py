"""The invariants of a dispatcher's state: tests and simulations check them after every fact."""

from penstock.errors import InternalError
from penstock.service.logic.dispatcher_records import HERE, IterationRecord
from penstock.service.logic.leases import Group, Ranges
from penstock.service.logic.state import State


def check(state: State) -> None:
    """Raises InternalError if the state breaks an invariant."""
    for record in state.iterations.values():
        for name, group in record.groups.items():
            _check_group(state, record, name, group)
        _check_clients(state, record)
        _check_places(state, record)
    _check_workers(state)
    _require(set(state.active) | set(state.idle) == set(state.iterations), "active or idle")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InternalError(f"dispatcher: the state is broken: {what}")


def _check_group(state: State, record: IterationRecord, name: str, group: Group) -> None:
    where = f"{record.work.job}, group {name!r}"
    consumed: dict[int, list[tuple[int, int]]] = {}
    for member in record.members.values():
        if member.group == name:
            for stream, ranges in member.consumed.items():
                consumed.setdefault(stream, []).extend(ranges)
    for stream in range(group.begun):
        track = group.tracks.get(stream)
        reached = track.reached if track is not None else record.ends.get(stream, -1)
        parts = list(consumed.pop(stream, ()))
        if track is not None:
            parts += [*track.free, *(r for held in track.held.values() for r in held)]
        _check_partition(f"{where}, stream {stream}", parts, reached)
        _require(reached <= record.ends.get(stream, reached), f"{where}: {stream} has ended")
        _require((stream in group.done) == (track is None), f"{where}: {stream} is done or not")
    _require(not consumed, f"{where}: elements of streams that were not begun are consumed")
    _check_holders(state, where, group)


def _check_partition(where: str, parts: list[tuple[int, int]], reached: int) -> None:
    """Every element before `reached` is in exactly one of the parts."""
    union = Ranges(parts)
    _require(union.count == sum(stop - start for start, stop in parts), f"{where}: given twice")
    _require(list(union) == ([(0, reached)] if reached > 0 else []), f"{where}: lost elements")


def _check_holders(state: State, where: str, group: Group) -> None:
    held: dict[str, int] = {}
    at: dict[str, dict[int, None]] = {}
    for stream, track in group.tracks.items():
        for client, ranges in track.held.items():
            held[client] = held.get(client, 0) + ranges.count
            at.setdefault(client, {})[stream] = None
            known = state.clients.get(client)
            _require(known is not None and known.standing == HERE, f"{where}: {client} is not here")
    _require(held == group.holders, f"{where}: holders {group.holders}, but leases {held}")
    _require(
        at == group.held_streams,
        f"{where}: clients are at {group.held_streams}, but leases are of {at}",
    )


def _check_clients(state: State, record: IterationRecord) -> None:
    here = {name for name, member in record.members.items() if member.standing == HERE}
    _require(here == set(record.clients), f"{record.work.job}: who is here")
    _require(here <= set(state.silent), f"{record.work.job}: a client would never be missed")
    _require(bool(here) == (record.work.job in state.active), f"{record.work.job}: is active")


def _check_places(state: State, record: IterationRecord) -> None:
    for place in record.places:
        if place.worker is not None:
            worker = state.roster.workers.get(place.worker)
            known = worker is not None and (record.work.job, place.stream) in worker.streams
            _require(known, f"{record.work.job}: stream {place.stream} is made by nobody")


def _check_workers(state: State) -> None:
    for name, worker in state.roster.workers.items():
        for job, stream in worker.streams:
            record = state.iterations.get(job)
            mine = record is not None and record.places.worker(stream) == name
            _require(mine, f"worker {name} makes stream {stream} of {job}, which is not its")
    usable = {name for name, worker in state.roster.workers.items() if worker.usable}
    listed = [worker.info.worker for worker in state.roster.usable()]
    _require(sorted(listed) == sorted(usable), "workers that may get more")
