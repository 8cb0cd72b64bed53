"""The data service: other processes compute datasets, here or on other machines.

A dispatcher registers datasets and workers, workers compute elements, and `distribute` reads them.
The modules that do this load when they are first needed.

>>> import penstock
>>> service = penstock.data.experimental.service
>>> with service.DispatchServer() as dispatcher:
...     address = dispatcher.target.split("://")[1]
...     with service.WorkerServer(service.WorkerConfig(dispatcher_address=address)):
...         squares = penstock.data.Dataset.range(5).map(lambda x: x * x)
...         remote = squares.apply(service.distribute("distributed_epoch", dispatcher.target))
...         print(*remote)
0 1 4 9 16
"""

from typing import TYPE_CHECKING

from penstock.data.experimental.service.remote_datasets import (
    CrossTrainerCache,
    distribute,
    from_dataset_id,
    merge_states,
    register_dataset,
    register_scheme,
    status,
)
from penstock.data.experimental.service.saving import distributed_save
from penstock.data.experimental.service.servers import DispatchServer, WorkerServer
from penstock.missing_names import refuse_names
from penstock.plan.options import ShardingPolicy
from penstock.service.host.server_setup import DispatcherConfig, WorkerConfig

__all__ = [
    "DispatcherConfig",
    "WorkerConfig",
    "DispatchServer",
    "WorkerServer",
    "CrossTrainerCache",
    "ShardingPolicy",
    "distribute",
    "register_dataset",
    "from_dataset_id",
    "distributed_save",
    "merge_states",
    "register_scheme",
    "status",
]


if not TYPE_CHECKING:  # A type checker would take any name.
    __getattr__ = refuse_names("data.experimental.service", __all__)
