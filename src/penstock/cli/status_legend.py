"""The legend of `penstock status`: what each column of its tables means.

docs/metrics.md describes the same fields as programs see them (`--json`).
"""

from __future__ import annotations

LEGEND = {
    "workers": {
        "address": "where readers reach it",
        "tags": "the words of penstock worker --tag",
        "version": "its version of penstock",
        "streams": "streams that are placed on it",
        "rate": "elements per second that it makes",
        "byte_rate": "bytes per second of these elements",
        "busy": "the share of its time that it computes, 0 to 1",
        "buffered": "bytes of elements that it keeps for readers",
        "restarts": "plan processes that crashed",
        "last_seen": "seconds since its last heartbeat",
        "state": "here; suspected: a reader cannot reach it; draining: it is about to leave",
    },
    "jobs": {
        "name": "the job_name; - for an anonymous job",
        "repetition": "which iteration of the job it is, from 0",
        "dataset_id": "the dataset that it reads",
        "mode": "the sharding policy; DYNAMIC is distributed_epoch, OFF parallel_epochs",
        "form": "how it is divided; random: any worker makes any element",
        "consumers": "the consumers of a coordinated read; 0 for other reads",
        "missing_consumers": "the numbers of consumers that have not come",
        "clients": "its readers",
        "streams": "streams that have begun",
        "leased": "elements that readers hold a lease on",
        "consumed": "leased elements that readers have handed out",
        "rate": "elements per second that its readers hand out",
        "byte_rate": "bytes per second of these elements",
        "held": "bytes that its readers have requested and not handed out",
        "budget": "the most bytes that its readers may hold",
        "lag": "the share of their time that programs wait for elements, 0 to 1",
        "finished": "whether readers with leases have read it to its end",
        "limit": "what sets its pace: source, function, wire, program, device, ...",
        "advice": "what would help",
        "slowest": "the slowest operator on the workers, if a reader knows it",
        "delivering": "the share of their time that readers copy to devices, 0 to 1",
    },
    "readers": {
        "client": "its id",
        "consumer": "its number in a coordinated read; -1 in other reads",
        "consumed": "leased elements that it has handed out",
        "rate": "elements per second that it hands out",
        "held": "bytes that it has requested and not handed out",
        "budget": "the most bytes that it may hold",
        "lag": "the share of its time that its program waits for elements, 0 to 1",
        "last_seen": "seconds since its last heartbeat",
    },
    "datasets": {
        "dataset_id": "its id",
        "kind": "how workers divide it: random, split or single",
        "streams": "its pieces; -1 if they have no end",
        "cardinality": "its elements",
    },
    "events": {
        "time": "when; with --json, in seconds since 1970",
        "kind": "joined, left, lost, moved, failed, ...",
        "text": "what happened",
    },
}


def legend() -> str:
    """The legend as text, for `penstock status --help`."""
    lines = ["columns:"]
    for table, columns in LEGEND.items():
        lines.append(f"  {table}:")
        lines += [f"    {name:<18} {meaning}" for name, meaning in columns.items()]
    return "\n".join(lines)
