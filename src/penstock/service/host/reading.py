"""Reading frames: bytes from a channel, read ahead in the hope of whole messages."""

from __future__ import annotations

from penstock.errors import DataLossError
from penstock.service.host.wires import Channel
from penstock.service.protocol.frames import HEAD_SIZE, checksum, read_head

_AHEAD = 16 << 10


class FrameReader:
    """What comes out of a channel; EOFError where it ends inside of something."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ahead = memoryview(bytearray(_AHEAD))
        self._start = self._end = 0

    def frame(self) -> tuple[int, memoryview, int]:
        """The kind of the next frame, its message, and the size of its body, still to be read.

        The message is valid until more is read; DataLossError if it arrived damaged.
        """
        kind, size, body, check = read_head(self.bytes(HEAD_SIZE))
        message = self.bytes(size)
        if checksum((message,)) != check:
            raise DataLossError(f"data connection: a message of {size} bytes arrived damaged")
        return kind, message, body

    def bytes(self, size: int) -> memoryview:
        """The next bytes; valid until more are read."""
        if size > _AHEAD:
            large = memoryview(bytearray(size))
            self.fill(large)
            return large
        if self._start + size > _AHEAD:
            self._compact()
        while self._end - self._start < size:
            if not (count := self._channel.receive(self._ahead[self._end :])):
                raise EOFError
            self._end += count
        self._start += size
        return self._ahead[self._start - size : self._start]

    def fill(self, target: memoryview) -> None:
        """Reads as many bytes as `target` has, without a detour if they are many."""
        here = min(self._end - self._start, len(target))
        target[:here] = self._ahead[self._start : self._start + here]
        self._start += here
        if self._start == self._end:
            self._start = self._end = 0
        left = len(target) - here
        if left and self._channel.receive_all(target[here:]) < left:
            raise EOFError

    def look(self) -> None:
        """Reads ahead what is there, without waiting."""
        if self._start:
            self._compact()
        if self._end < _AHEAD:
            self._end += self._channel.receive_now(self._ahead[self._end :])

    def complete(self) -> bool:
        """Whether `frame` would not have to wait: for a whole frame, or to raise."""
        here = self._end - self._start
        if here < HEAD_SIZE:
            return False
        try:
            _, message, body, _ = read_head(self._ahead[self._start : self._start + HEAD_SIZE])
        except DataLossError:
            return True
        return here >= HEAD_SIZE + message + body

    def _compact(self) -> None:
        left = self._end - self._start
        self._ahead[:left] = self._ahead[self._start : self._end].tobytes()
        self._start, self._end = 0, left
