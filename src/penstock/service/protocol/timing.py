"""Every duration of the service, in seconds, and the inequalities that hold between them.

Import the module and write `timing.LEASE`, so that a test can replace a value in one place.
`check` runs when this module is imported.
"""

from __future__ import annotations

from collections.abc import Mapping

# Leases and heartbeats: no element is handed out twice because of these.

LEASE = 10.0
"""A dispatcher expires the leases of a client that it has not heard for this time."""

LEASE_TRUST = 0.75
"""The fraction of a lease's time in which a reader relies on it, counted from the moment when it
sent the last request that was answered. The rest is a margin for handing out elements in hand."""

CLIENT_HEARTBEAT, LONGEST_CLIENT_HEARTBEAT = 0.5, 2.0
"""The time between two heartbeats of a client: the first if there are few clients, at most the
second if there are many."""

HEARTBEATS = 500.0
"""How many heartbeats per second a dispatcher gets of all clients, and of all workers, before the
time between two of them grows."""

EAGER_HEARTBEAT = 0.1
"""The fraction of that time between heartbeats while the client waits for consumers, for a first
worker, or for an agreement about new streams."""

LEASE_RETRY = 0.2
"""A client that was granted nothing asks again after this time, or after the time for which it
leases (`LEASED_WORK`) if that is longer."""

TICK = 0.5
"""The time between two looks of a dispatcher at what has expired."""

SUSPENSION = 3.0
"""A dispatcher that reads its clock after a longer time was suspended; the rest does not count, so
that clients whose messages wait in its sockets keep their leases."""

CLIENT_CALL = 2.0
"""The time limit of requests that a client can do without: to leave, or for news at its end."""

DISPATCHER_ABSENCE = 300.0
"""A client repeats its requests for this time while the dispatcher does not answer."""

LEASED_WORK, LONGEST_LEASED_WORK = 0.1, 1.0
"""A reader leases about as many elements as the user consumes in this time, and reports them when
it leases the next: the first if there are few clients, at most the second if there are many."""

LEASES = 1000.0
"""How many requests for leases per second a dispatcher gets before that time grows."""

UNREPORTED_WORK = 0.05
"""A reader hands out at most the elements of this time before it reports them as consumed."""

# Workers

WORKER_HEARTBEAT, LONGEST_WORKER_HEARTBEAT = 1.0, 3.0
"""The time between two heartbeats of a worker: the first if there are few workers, at most the
second if there are many. `heartbeat_interval_ms` sets another time, which is then fixed."""

WORKER_HEARTBEAT_CALL = 5.0
"""A heartbeat that is not answered in this time is given up; the next one follows."""

WORKER_TIMEOUT = 10.0
"""A dispatcher gives a silent worker's streams to other workers after this time;
`worker_timeout_ms` changes it."""

WORKER_SILENCE = 0.75
"""The fraction of that time after which a client leaves a worker that says nothing, and after which
the system closes a connection whose other side confirms nothing."""

PROGRESS = 0.5
"""The time between two reports of a worker about a request that takes long."""

DISPATCHER_TIMEOUT = 30.0
"""A worker that starts waits this long for the dispatcher; `dispatcher_timeout_ms` changes it."""

PACE = 10.0
"""The other consumers of a coordinated read wait this long for a consumer that fetches nothing."""

IDLE_STREAM = 10.0
"""A worker keeps a stream without readers open for this time: a client may reconnect."""

STREAM_POLL = 0.05
"""A thread that waits for another thread's elements looks this often whether its client is gone."""

HAND_BACK = 0.005
"""A worker that leaves looks this often for requests that were on their way, to refuse them."""

DRAIN = 30.0
"""The grace period of a worker that leaves; `--drain-timeout` sets another."""

MOVE = 0.5
"""The fraction of its grace period in which a worker that leaves makes further elements, while the
states of their streams travel to other workers."""

SWITCH = 1.0
"""A worker that leaves begins no element of a stream for so long, until another worker has what has
changed in the state since it was sent."""

SHORT_COPY = 0.02
"""A state that is sent in this time is sent once more, and then the other worker continues."""

MOVED_STREAM = 600.0
"""A worker keeps a state that another one handed to it for this time, while the job is read."""

MARK = 0.5
"""A worker saves the state of a stream after it has computed for this time."""

WORKER_LEAVE = 0.5
"""A worker that stops waits this long for the dispatcher to confirm that it left."""

WORKER_CLOSE = 0.5
"""A worker that stops waits this long for its streams to close."""

# Processes

PLAN_PROCESS_IDLE = 30.0
"""A worker ends a plan process without clients after this time; the next epoch begins sooner."""

PLAN_PROCESS_CLOSE = 0.4
"""A plan process that ends waits this long for its streams to close."""

PLAN_PROCESS_END = 0.5
"""A worker kills plan processes that have not ended after this time."""

EARLY_CRASH = 5.0
"""A process that ends within this time after its start may never have worked."""

CRASH_FIRST_PAUSE, CRASH_LONGEST_PAUSE = 0.5, 30.0
"""The pauses before a worker restarts a process whose predecessors crashed early."""

CALL_WATCH = 60.0
"""A plan process records its calls for this time, if its predecessor crashed: that costs time."""

CRASH_MEMORY = 600.0
"""A worker remembers for this time how the last process of a plan crashed."""

LOCAL_WORKER_END = 2.0
"""`local://` kills worker processes that have not ended after this time."""

SCALING = 1.0
"""The time between two looks of `local://1..8` at how many workers its readers can use."""

SHRINK_AFTER = 10.0
"""Workers that no reader could use for this time are ended."""

LOCAL_LINGER = 0.5
"""A service that a client started waits this long for another reader before it ends."""

# Ray

RAY_CONNECT = 5.0
"""A program waits this long for a connection to the Ray that it is to use."""

RAY_WAIT = 20.0
"""A reader waits this long for the actor of its service on Ray, and then for the first worker;
`?wait=` changes it."""

RAY_ERROR = 30.0
"""A reader raises an error about a service on Ray before this time, unless `?wait=` is longer."""

RAY_RENEWAL = 1.0
"""The time between two messages of a program to the actor of a service on Ray that it reads."""

RAY_CALL = 5.0
"""A message to that actor that is not answered in this time is given up; the next one follows."""

RAY_RETRY = 0.2
"""After this time a reader looks again for an actor that has ended."""

RAY_SILENCE = 3.0
"""If a program is silent for this time, a service on Ray looks whether its job has ended."""

RAY_ORPHAN = 3600.0
"""The journal of a service on Ray is removed if no dispatcher has touched it for this time."""

RAY_UNUSED = 15.0
"""A service on Ray ends if no program has sent a message for this time."""

DASHBOARD_SAMPLE = 1.0
"""The time between two samples that the dashboard of a dispatcher shows."""

# Connections

HANDSHAKE = 10.0
"""A connection whose handshake takes longer is closed."""

CONTROL_ATTEMPT = 10.0
"""A request to the dispatcher that is not answered in this time is sent again."""

CONTROL_FAILOVER = 2.0
"""The same for the first attempt of a call to a dispatcher with several addresses: the process at
the first address may be stopped. It doubles with each attempt, because a dispatcher may be slow."""

CONTROL_SHORTEST_ATTEMPT = 5.0
"""An attempt may take this long, even if the time in which it is repeated is over sooner."""

CONTROL_FIRST_PAUSE, CONTROL_LONGEST_PAUSE = 0.02, 0.5
"""The pauses between two attempts."""

CONTROL_WARNING, CONTROL_WARNING_CALLS = 2.0, 10.0
"""A call is logged if it waits for the first of these times and may take more than the second."""

CONTROL_MESSAGE = 10.0
"""A message to or from the dispatcher that has begun must be complete after this time."""

CONTROL_TURN = 5.0
"""A large message waits this long for its turn to be read."""

CONTROL_GRACE = 1.0
"""A dispatcher that stops finishes the requests in hand in this time."""

STATUS_CALL = 5.0
"""A request for the status of a service must be answered in this time."""

SERVER_CLOSE = 5.0
"""A server that stops waits this long for the threads of its connections."""

DISPATCHER_CLOSE = 10.0
"""A dispatcher that stops waits this long for the thread of its ticks."""

EXHAUSTED = 0.1
"""A server without descriptors or threads waits this long for them."""

REFUSAL_LOG = 60.0
"""The time between two log lines about connections that were refused."""

SLOW_SLICE = 0.003
"""A slice of a body that takes longer to send is slow: its thread waits for the GIL, or the network
is so slow that the time of a checksum does not matter."""

RECONNECT = 2.0
"""After this time a client tries again to reach a worker that it could not reach."""

FIRST_RECONNECT = 0.02
"""The same after a connection was cut; it grows if that happens again."""

HEAR_OUT = 0.5
"""A reader waits this long for the rest of a message of a worker that is gone."""

WORKER_REFUSAL = 1.0
"""After this time a client asks again a worker that refused its requests."""

JOURNAL_BUSY = 2.0
"""A dispatcher waits this long for a journal that another process uses."""

HOLD_RENEWAL = 0.5
"""The time between two signs of a dispatcher that it is alive, in its `work_dir`."""

HOLD_TRUST = 2.0
"""A dispatcher that gave no sign for this time assumes that a standby is taking over."""

HOLD_SILENCE = 3.0
"""A standby takes over from a dispatcher that gave no sign for this time."""

HOLD_LOOK = 0.1
"""The time between two looks of a standby at the signs of the dispatcher."""

KEEP_ALIVE_IDLE, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_PROBES = 5, 2, 4
"""The system probes a connection that was silent for the first time, and again after the second
time, until so many probes (the third) were not answered: it notices after 13 seconds that a machine
is gone."""

# Waits of users

WAIT_WARNING, WAIT_WARNING_LONGEST = 5.0, 60.0
"""A wait is logged after the first of these times, and then after pauses that double up to the
second."""

WAIT_REPORT = 0.5
"""A reader that waits for longer reports it before the wait is over."""

WAIT_LIMIT = 900.0
"""Waiting for a worker or a consumer for longer is an error."""

UNREACHABLE = 15.0
"""If a reader never reached a worker, it raises an error after this time. A worker that was reached
may come back, so a reader waits for it longer."""

QUIET_WORKER = 2.0
"""A log line says how long a worker has been silent if it is longer than this."""

LONGEST_LOOK = 1.0
"""A reader that waits for messages looks at everything else at least this often."""

DASHBOARD_LINK = 3600.0
"""A link to the dashboard is valid for this time, unless it is used before."""

DASHBOARD_SESSION = 7 * 24 * 3600.0
"""A browser that has used such a link may look at the dashboard for this time."""

# Arrays that clients and workers on different machines share

ARRAY_PAUSE = 0.02
"""A worker that waits for a part of an array asks the dispatcher for it this often. A client that
has just sent a part asks as often which part is wanted next."""

ARRAY_QUESTION = 1.0
"""A client asks at least this often whether a worker wants a part of its arrays."""

ARRAY_SILENCE = 20.0
"""A worker waits this long for a part of an array while no client has the array."""

# What a dispatcher remembers

UNREAD_DATASET = 60.0
"""A dispatcher forgets a dataset that was registered and not read after this time."""

FINISHED_ITERATION = 3600.0
"""A dispatcher forgets a named iteration that was read to its end after this time without clients;
`forget_after_ms` changes it."""

SEVERAL = 3
"""So many heartbeats in a row may be lost without a consequence."""


def broken_rules(times: Mapping[str, float]) -> list[str]:
    """The inequalities that do not hold between the durations in `times`."""
    t = times
    trusted = t["LEASE_TRUST"] * t["LEASE"]
    left_worker = t["WORKER_SILENCE"] * t["WORKER_TIMEOUT"]
    rules = {
        # The dispatcher hears a request after the client sent it, so its count of the lease begins
        # later than the client's. A client that stops earlier hands out nothing of a lease that
        # the dispatcher has given to another client. Suspensions only make the dispatcher later.
        "a reader stops relying on a lease before it expires": trusted < t["LEASE"],
        "the margin is longer than the elements handed out at once": (
            t["LEASE"] - trusted > SEVERAL * t["UNREPORTED_WORK"]
        ),
        "a lease outlives several heartbeats": trusted > SEVERAL * t["LONGEST_CLIENT_HEARTBEAT"],
        "clients and workers call no more often if there are many": (
            t["CLIENT_HEARTBEAT"] <= t["LONGEST_CLIENT_HEARTBEAT"]
            and t["LEASED_WORK"] <= t["LONGEST_LEASED_WORK"]
            and t["WORKER_HEARTBEAT"] <= t["LONGEST_WORKER_HEARTBEAT"]
        ),
        "a reader consumes what it leased while it may": t["LONGEST_LEASED_WORK"] < trusted,
        "a dispatcher that was suspended hears its clients before it expires their leases": (
            t["SUSPENSION"] + t["TICK"] + t["LONGEST_CLIENT_HEARTBEAT"] < trusted
        ),
        # Otherwise idle time would count as suspension, and no lease would ever expire.
        "ticks are not taken for suspensions": SEVERAL * t["TICK"] < t["SUSPENSION"],
        "an array outlives several questions of its client": (
            SEVERAL * (t["ARRAY_QUESTION"] + t["CLIENT_CALL"]) < t["ARRAY_SILENCE"]
        ),
        "a worker outlives several heartbeats": (
            SEVERAL * t["LONGEST_WORKER_HEARTBEAT"] < t["WORKER_TIMEOUT"]
        ),
        "a worker outlives a heartbeat that was not answered": (
            t["WORKER_HEARTBEAT_CALL"] + t["LONGEST_WORKER_HEARTBEAT"] < t["WORKER_TIMEOUT"]
        ),
        "a client leaves a silent worker before the dispatcher does": (
            left_worker < t["WORKER_TIMEOUT"]
        ),
        "a client outwaits several reports of progress": SEVERAL * t["PROGRESS"] < left_worker,
        "a stream outlives the reconnecting of its client": t["IDLE_STREAM"] > t["RECONNECT"],
        "a worker that leaves can finish its last elements": (
            SEVERAL * t["SWITCH"] < (1 - t["MOVE"]) * t["DRAIN"]
        ),
        "a client waits for a worker that hands over its last element": t["SWITCH"] < left_worker,
        "the last copy fits into the switch": 10 * t["SHORT_COPY"] < t["SWITCH"],
        "a state that was moved outlives its reader's pause": t["MOVED_STREAM"] > t["IDLE_STREAM"],
        "a plan process closes before it is killed": (
            t["PLAN_PROCESS_CLOSE"] < t["PLAN_PROCESS_END"]
        ),
        "a local worker stops before it is killed": (
            t["WORKER_LEAVE"] + t["WORKER_CLOSE"] < t["LOCAL_WORKER_END"]
        ),
        "a service on Ray outlives several messages of a program": (
            SEVERAL * t["RAY_RENEWAL"] < t["RAY_UNUSED"]
            and t["RAY_CALL"] + t["RAY_RENEWAL"] < t["RAY_UNUSED"]
            and t["RAY_RENEWAL"] < t["RAY_SILENCE"] < t["RAY_UNUSED"]
        ),
        "a service on Ray says in time what is wrong": (
            t["RAY_CONNECT"] + t["RAY_WAIT"] + t["RAY_RENEWAL"] < t["RAY_ERROR"]
        ),
        "a journal on Ray outlives the restart of its dispatcher": (
            SEVERAL * (t["RAY_WAIT"] + t["HOLD_SILENCE"]) < t["RAY_ORPHAN"]
        ),
        "a crashed process is remembered for longer than the pauses": (
            t["CRASH_LONGEST_PAUSE"] + t["EARLY_CRASH"] < t["CRASH_MEMORY"]
        ),
        "a plan process records its calls for longer than an early crash takes": (
            t["EARLY_CRASH"] < t["CALL_WATCH"] < t["CRASH_MEMORY"]
        ),
        "a dispatcher gives several signs before it distrusts its hold": (
            SEVERAL * t["HOLD_RENEWAL"] < t["HOLD_TRUST"]
        ),
        # Both sides count from the same sign, and the standby sees it later than it was given. The
        # rest is a margin for clocks that run at different rates.
        "a dispatcher distrusts its hold before a standby takes over": (
            t["HOLD_TRUST"] + SEVERAL * t["HOLD_LOOK"] < t["HOLD_SILENCE"]
        ),
        "a standby takes over while readers rely on their leases": (
            t["HOLD_SILENCE"] + t["CONTROL_FAILOVER"] + t["CONTROL_LONGEST_PAUSE"] < trusted
        ),
        "a handshake ends before its worker counts as unreachable": (
            t["HANDSHAKE"] < t["UNREACHABLE"]
        ),
    }
    return [rule for rule, holds in rules.items() if not holds]


def check() -> None:
    """Raises AssertionError if an inequality does not hold."""
    if broken := broken_rules(globals()):
        raise AssertionError(f"penstock.service.protocol.timing: not true: {'; '.join(broken)}")


check()
