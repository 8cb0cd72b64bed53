"""The real remote stream on the virtual clock, with checks of its rules at each step."""

from __future__ import annotations

from collections.abc import Callable

from penstock.service.host.remote_stream import RemoteStream
from penstock.service.logic.feeds import DEPTH, KEPT_BLOCK
from penstock.service.protocol.messages import OpenIteration, OpenIterationReply, StreamRange
from tests.simulation.kernel import World


class CheckedStream(RemoteStream):
    """Reports to `world` if it requests more than its limits allow."""

    world: World
    repeats: Callable[[tuple[StreamRange, ...]], None]
    """Called with the elements that other readers got, too, as the dispatcher says."""

    def _open_again(self) -> tuple[OpenIteration, OpenIterationReply]:
        request, opened = super()._open_again()
        self.repeats(opened.repeated)
        return request, opened

    def _attend(self) -> None:
        super()._attend()
        self._check_memory()

    def _check_memory(self) -> None:
        """Checks the number of elements that were requested and not handed out yet."""
        reader, limits = self._reading.fetcher, self._opening.limits
        waiting = reader._here + reader._owed
        if limits.elements is not None:
            # Where turns are taken, every slot may have an element.
            turns = self._opening.shape.turns
            most = limits.elements + max(DEPTH, turns[0] if turns else 0)
        else:
            # Before the first element has arrived, their size is not known.
            most = (
                limits.nbytes // 8
                + KEPT_BLOCK * reader._in_blocks
                + 8 * max(limits.request_rows, DEPTH * len(reader.workers))
            )
            if self._opening.shape.turns:
                # Several inputs are requested at once, for half of the bytes.
                most += limits.nbytes // 16
        if waiting > most or reader._owed < 0 or reader._here < 0:
            self.world.report_violation(
                f"{reader._here} elements are here and {reader._owed} are owed, "
                f"where {most} are allowed"
            )

    def abandon(self) -> None:
        """Forgets it without a close, because its process is dead."""
        self._end.forget()
