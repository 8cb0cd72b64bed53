"""`ray://`: a service whose dispatcher and workers are actors of Ray.

A reader finds the actor with the dispatcher by its name, and starts it if there is none. A thread
of the reader calls the actor while the program reads, and learns where the dispatcher is: Ray may
have restarted it on another node. A launched service has a name, and runs until it is closed.
"""

from __future__ import annotations

import atexit
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self
from weakref import WeakSet

from penstock.engine.formats.extras import load_extra
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from penstock.launch.ray_actors import JOURNAL, STARTING, ServiceActor, ServicePlace
from penstock.launch.ray_options import (
    AUTO,
    LOCAL,
    NAMESPACE,
    RayOptions,
    is_launched,
    load_ray,
    make_options,
    parse_rest,
)
from penstock.service.host.control_connection import ControlClient
from penstock.service.host.runtime import MACHINE
from penstock.service.host.security import Security
from penstock.service.host.services import Session
from penstock.service.host.sockets import split_address
from penstock.service.protocol import timing

_HEAD = "node:__internal_head__"
"""A resource that only the head node of a cluster has."""

_CALLS = 64
"""How many calls of readers the actor of a service answers at the same time."""


def start_service(rest: str) -> RayService:
    """The service that `ray://rest` names, which is started if necessary."""
    options = parse_rest(rest)
    connect_ray(options.name)
    if options.name == LOCAL and load_ray().get_runtime_context().gcs_address not in _OWN_RAYS:
        options = replace(options, name=AUTO)  # It may have nodes on other machines.
    return RayService(options)


_OWN_RAYS: set[str] = set()
"""The addresses of Rays that this program has started, on this machine."""


def connect_ray(name: str) -> None:
    """Connects this program to Ray, unless it is; starts a Ray only for the name `LOCAL`."""
    ray = load_ray()
    if ray.is_initialized():
        return
    try:
        if name != LOCAL:
            _check_cluster()
        ray.init(address=LOCAL if name == LOCAL else AUTO)
        if name == LOCAL:
            _OWN_RAYS.add(ray.get_runtime_context().gcs_address)
    except ConnectionError as error:
        raise FailedPreconditionError(
            f"ray://{name}: no Ray can be reached ({error}); start one with: ray start --head, or "
            "use ray://local for a Ray that ends with this program"
        ) from None
    except Exception as error:
        raise FailedPreconditionError(
            f"ray://{name}: this program cannot use this Ray: {error}"
        ) from error


def _check_cluster() -> None:
    """Raises ConnectionError if nothing listens where Ray expects a cluster.

    Ray itself would try for minutes to reach a cluster that has ended.
    """
    bootstrap = load_extra("ray._private.services", "ray://", "ray")
    with suppress(AttributeError, ValueError):  # Not of this version; not the address of a host.
        address = bootstrap.canonicalize_bootstrap_address(AUTO)
        if address is not None:
            _check_port(address)


def _check_port(address: str) -> None:
    try:
        socket.create_connection(split_address(address), timing.RAY_CONNECT).close()
    except OSError as error:
        raise ConnectionError(f"{address}: {error}") from None


def find_actor(options: RayOptions, token: str) -> Any:
    """The actor of a service. Only a service of readers is started if there is none."""
    if options.name in (AUTO, LOCAL):
        namespace = load_ray().get_runtime_context().namespace
        return start_actor(options, f"{namespace} {options.text}", token)
    try:
        return load_ray().get_actor(options.name, namespace=NAMESPACE)
    except ValueError:
        raise NotFoundError(
            f"ray://{options.name}: Ray has no such service; start it with: "
            f"penstock.launch.ray(name={options.name!r}), or use ray://auto"
        ) from None


def start_actor(options: RayOptions, name: str, token: str, runtime_env: Any = None) -> Any:
    """The actor of a service that has a name in Ray, which is started if there is none."""
    ray = load_ray()
    # Without a folder that all nodes see, the journal is on the node of the actor. Ray restarts
    # the actor on this node, the one whose end the cluster does not survive.
    has_place = options.work_dir is None and _HEAD in ray.cluster_resources()
    make = ray.remote(ServiceActor).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_concurrency=_CALLS,
        num_cpus=0,
        resources={_HEAD: 0.001} if has_place else {},
        runtime_env=runtime_env,
    )
    return make.remote(options, token, f"{JOURNAL}{uuid.uuid4().hex}")


def reach_actor(options: RayOptions, find: Callable[[], Any]) -> tuple[Any, str, ServicePlace]:
    """The actor that `find` returns, its token and its place, once it answers."""
    ray = load_ray()
    own_job = str(ray.get_runtime_context().get_job_id())
    patience = max(options.wait, timing.RAY_WAIT)
    deadline, deaths = time.monotonic() + patience, 0
    while True:
        actor = find()
        try:
            left = max(deadline - time.monotonic(), 0.0)
            return actor, *ray.get(actor.connect.remote(_PROGRAM, own_job), timeout=left)
        except ray.exceptions.GetTimeoutError:
            with suppress(ray.exceptions.RayError):
                ray.kill(actor)
            raise UnavailableError(
                f"{options.text}: the actor of the service has not answered for "
                f"{patience:g} s; look at: ray status"
            ) from None
        except ray.exceptions.RayActorError as error:
            # It may have just ended, for want of readers, or be about to be restarted.
            deaths += isinstance(error, ray.exceptions.ActorDiedError)
            if deaths == _MOST_DEATHS:
                raise FailedPreconditionError(
                    f"{options.text}: the actor of the service cannot run; every node needs "
                    f"the same penstock, and what your functions import: {error}"
                ) from None
            time.sleep(timing.RAY_RETRY)


_MOST_DEATHS = 3


class RayService:
    """A service on Ray, for readers of this program."""

    def __init__(self, options: RayOptions) -> None:
        self._ray = load_ray()
        self._options = options
        self._token = secrets.token_hex(16)
        self._closed = threading.Event()
        self._is_reached = False
        self._begun = time.monotonic()
        place = self._reach()
        self._started, self._has_worked = time.monotonic(), False
        security = Security.of_client(place.address, self._token)
        # Ray restarts a dispatcher that ends; on a busy cluster that takes as long as its start.
        patience = max(options.wait, timing.DISPATCHER_TIMEOUT)
        self._control = ControlClient(place.address, security, patience)
        self.session = Session(place.address, security, self._control.call)
        self._note(place)
        _OPEN.add(self)
        MACHINE.start(self._follow, "penstock-ray")

    def close(self) -> None:
        """Ends this use of the actors. They end when no program has used them for a while."""
        self._closed.set()

    def _reach(self) -> ServicePlace:
        """Finds the actor of the service, or starts it with the token that its readers know."""
        options = self._options
        token, launched = self._token, is_launched(options.name)
        found = reach_actor(options, lambda: find_actor(options, self._token))
        self._actor, self._token, place = found
        if launched and self._is_reached and self._token != token:
            raise UnavailableError(
                f"ray://{options.name}: the service was closed and launched again, and the new one "
                "knows no readers of the old one; begin a new iteration"
            )
        self._is_reached = True
        _leave_at_exit(options.text, self._actor)
        return place

    def is_current(self) -> bool:
        """Whether no other service has got the name of a launched service since."""
        if self.session.failure is not None or not self._ray.is_initialized():
            return False
        try:
            found = self._ray.get_actor(self._options.name, namespace=NAMESPACE)
        except ValueError:
            return False
        return bool(found == self._actor)

    def _follow(self) -> None:
        """Calls the actor while this program reads, until the service is closed or has failed."""
        while self.session.failure is None and not self._closed.wait(timing.RAY_RENEWAL):
            try:
                self._note(self._renew())
            except OpError as error:
                self.session.failure = error

    def _renew(self) -> ServicePlace | None:
        """The place of the service; None if the actor is being restarted."""
        ray, errors = self._ray, self._ray.exceptions
        if not ray.is_initialized():  # A call would start a new Ray.
            raise UnavailableError(f"{self._options.text}: this program has shut down Ray")
        try:
            place: ServicePlace = ray.get(
                self._actor.renew.remote(_PROGRAM), timeout=timing.RAY_CALL
            )
            return place
        except errors.ActorDiedError:
            # A program that leaves has ended the actor itself; it must not start another one.
            return None if self._closed.is_set() else self._reach()
        except errors.RayError:
            return None

    def _note(self, place: ServicePlace | None) -> None:
        if place is None:
            return
        self._control.move(place.address)
        if place.problem is None:
            self._has_worked = True
            return
        self.session.no_workers = place.problem
        # Ray may be slow to start the actor and then a worker. Without room, that changes nothing.
        since = self._started if place.problem == STARTING else self._begun
        if not self._has_worked and time.monotonic() - since > self._options.wait:
            self._actor.leave.remote(_PROGRAM)
            raise ResourceExhaustedError(
                f"{self._options.text}: waited {self._options.wait:g} s, and {place.problem}; "
                "ask for fewer CPU (?cpus=), add nodes, or wait longer (?wait=600)"
            )


_FOUND: dict[str, RayService] = {}
"""The launched services that this program has called, by their URLs; guarded by `_FINDING`."""
_FINDING = threading.Lock()


def find_session(rest: str) -> Session:
    """The session with a launched service, for calls of this program besides reading."""
    with _FINDING:
        found = _FOUND.get(rest)
        if found is None or not found.is_current():
            if found is not None:
                found.close()
            found = _FOUND[rest] = start_service(rest)
        return found.session


_PROGRAM = uuid.uuid4().hex
"""The name of this program, for the actors that it uses."""

_USED: dict[str, Any] = {}
"""The actors of services that this program has used."""

_OPEN: WeakSet[RayService] = WeakSet()
"""The services that this program reads from."""


def _leave_at_exit(name: str, actor: Any) -> None:
    """Makes this program leave a service when it ends."""
    if not _USED:
        # Now, after ray was imported: what is registered last runs first.
        atexit.register(_leave_all)
    _USED[name] = actor


def _leave_all() -> None:
    ray = load_ray()
    for service in list(_OPEN):
        service.close()
    answers = [actor.leave.remote(_PROGRAM) for actor in _USED.values() if ray.is_initialized()]
    for answer in answers:
        with suppress(ray.exceptions.RayError):  # It has ended with this call.
            ray.get(answer, timeout=timing.RAY_CALL)


# Launched services

_CALL = "launch.ray"


def launch_service(name: Any, *, runtime_env: Any, **given: Any) -> LaunchedService:
    """Starts a service under a name, or finds it if it runs with the same options.

    `given` are the arguments of `make_options`.
    """
    if not isinstance(name, str) or not name or name in (AUTO, LOCAL) or set("?/:") & set(name):
        raise InvalidArgumentError(
            f"{_CALL}: name must be a word other than auto and local, without ? / and :, got "
            f"{name!r}"
        )
    options = make_options(_CALL, name=name, lasting=True, **given)
    connect_ray(AUTO)
    token = secrets.token_hex(16)
    actor, _, _ = reach_actor(options, lambda: start_actor(options, name, token, runtime_env))
    _check_options(options, load_ray().get(actor.options.remote()))
    return LaunchedService(name, actor)


def _check_options(wanted: RayOptions, found: RayOptions) -> None:
    if wanted.text != found.text:
        raise AlreadyExistsError(
            f"{_CALL}: {wanted.name!r} runs with other options ({found.text} instead of "
            f"{wanted.text}); close it first, or use another name"
        )


class LaunchedService:
    """A service on Ray; `close` ends it, for all programs."""

    def __init__(self, name: str, actor: Any) -> None:
        self._name, self._actor = name, actor

    @property
    def url(self) -> str:
        """The `service` argument of `distribute`, in any program of this Ray."""
        return f"ray://{self._name}"

    def close(self) -> None:
        """Ends the dispatcher and its workers, and returns when Ray has noticed that; may be
        repeated."""
        ray = load_ray()
        with suppress(ray.exceptions.RayActorError):  # It ends instead of an answer.
            ray.get(self._actor.end.remote(), timeout=timing.RAY_CALL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
