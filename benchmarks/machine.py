"""The machine of a measurement: its parts, and how much time it spent on other work."""

from __future__ import annotations

import os
import platform
import resource

TOO_MUCH = 0.05


def description() -> str:
    """Processor, cores, memory, system and the launcher's Python, in a line."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    system = f"{platform.system()} {platform.machine()}"
    python = f"Python {platform.python_version()}"
    return f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {system}, {python}"


class OtherWork:
    """Counts, from its making on, the processor time that went neither to us nor to idleness.

    Read it after the children have ended: only then the system adds their time to ours.
    """

    def __init__(self) -> None:
        self.busy, self.total = _processor_seconds()
        self.own = _own_seconds()

    def share(self) -> float:
        """Other processes' (and the virtual machine's host's) part of the processor time."""
        busy, total = _processor_seconds()
        others = (busy - self.busy) - (_own_seconds() - self.own)
        return max(0.0, others / (total - self.total)) if total > self.total else 0.0

    def words(self) -> str:
        taken = self.share()
        advice = "; the ratios are not to be trusted, measure again" if taken > TOO_MUCH else ""
        return f"{taken:.0%} of the processor time{advice}"


def _processor_seconds() -> tuple[float, float]:
    """Seconds that all cores together were busy, and seconds in all, since the machine started."""
    with open("/proc/stat") as lines:
        ticks = [int(word) for word in next(lines).split()[1:9]]
    idle = ticks[3] + ticks[4]
    frequency = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - idle) / frequency, sum(ticks) / frequency


def _own_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _processor() -> str:
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
