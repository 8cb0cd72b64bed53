"""Launched services on Ray: they have a name, and run until they are closed."""

from __future__ import annotations

import secrets
from typing import Any, Self

from penstock.errors import AlreadyExistsError, InvalidArgumentError
from penstock.service.host.ray_options import AUTO, LOCAL, RayOptions, load_ray, make_options
from penstock.service.host.ray_service import connect_ray, end_actor, reach_actor, start_actor

_CALL = "launch.ray"


def launch(
    name: Any, *, workers: Any, cpus: Any, work_dir: Any, wait: Any, runtime_env: Any
) -> LaunchedService:
    """Starts a service under a name, or finds it if it runs with the same options."""
    if not isinstance(name, str) or not name or name in (AUTO, LOCAL) or set("?/:") & set(name):
        raise InvalidArgumentError(
            f"{_CALL}: name must be a word other than auto and local, without ? / and :, got "
            f"{name!r}"
        )
    options = make_options(
        _CALL,
        name=name,
        workers=workers,
        cpus=cpus,
        work_dir=work_dir,
        wait=wait,
        lasting=True,
    )
    connect_ray(AUTO)
    token = secrets.token_hex(16)
    actor, _, _ = reach_actor(options, lambda: start_actor(options, name, token, runtime_env))
    _compare(options, load_ray().get(actor.options.remote()))
    return LaunchedService(name, actor)


def _compare(wanted: RayOptions, found: RayOptions) -> None:
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
        """Ends the dispatcher and its workers; may be repeated."""
        end_actor(self._actor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
