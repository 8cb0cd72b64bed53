"""`Options`: how a dataset is run, never what it contains.

Every option is declared once, as an `Option` (or an `_alias` of one). A plan contains only frozen
options: `make_frozen()` returns an immutable, hashable copy.
"""

from __future__ import annotations

import copy
import difflib
import enum
import functools
from collections.abc import Iterator
from typing import Any, Generic, NoReturn, TypeVar, cast, overload

from penstock.errors import InvalidArgumentError, InvalidTypeError

T = TypeVar("T")
D = TypeVar("D")
SomeOptions = TypeVar("SomeOptions", bound="OptionsBase")


class AutoShardPolicy(enum.IntEnum):
    """How a dataset is divided between the workers of a strategy.

    >>> options = Options()
    >>> options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    >>> options
    Options(experimental_distribute=DistributeOptions(auto_shard_policy=AutoShardPolicy.DATA))
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class ShardingPolicy(enum.IntEnum):
    """How the workers of a service divide a dataset.

    OFF gives every worker the whole dataset. DYNAMIC hands out pieces of the source on demand. The
    static policies give each worker a fixed shard: of the files, of the elements, of the files if
    possible and else of the elements, or as `shard(SHARD_HINT, SHARD_HINT)` says.

    >>> import penstock
    >>> service = penstock.data.experimental.service
    >>> dataset = penstock.data.Dataset.range(4)
    >>> print(*dataset.apply(service.distribute(ShardingPolicy.DYNAMIC, "local://1")))
    0 1 2 3
    """

    OFF = 0
    DYNAMIC = 1
    FILE = 2
    DATA = 3
    FILE_OR_DATA = 4
    HINT = 5


class ExternalStatePolicy(enum.Enum):
    """What to do when a function depends on state outside the plan.

    >>> ExternalStatePolicy["WARN"]
    <ExternalStatePolicy.WARN: 0>
    """

    WARN = 0
    IGNORE = 1
    FAIL = 2


class AutotuneAlgorithm(enum.Enum):
    """How AUTOTUNE searches.

    >>> options = Options()
    >>> options.autotune.autotune_algorithm = AutotuneAlgorithm.STAGE_BASED
    >>> options
    Options(autotune=AutotuneOptions(autotune_algorithm=AutotuneAlgorithm.STAGE_BASED))
    """

    DEFAULT = 0
    HILL_CLIMB = 1
    GRADIENT_DESCENT = 2
    MAX_PARALLELISM = 3
    STAGE_BASED = 4


class Option(property, Generic[T, D]):
    """One option: has its default until it is set, and checks the values that it is set to.

    Setting a `weak` option to its default counts as not setting it, as in TensorFlow: such a value
    overrides nothing in `merge`.
    """

    def __init__(
        self,
        kind: type[T],
        doc: str,
        default: D,
        choices: tuple[D, ...] = (),
        weak: bool = False,
    ) -> None:
        super().__init__(self._read, self._write, doc=doc)
        self.kind, self.default, self.choices, self.weak = kind, default, choices, weak

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None, /) -> Option[T, D]: ...
    @overload
    def __get__(self, instance: Any, owner: type | None = None, /) -> T | D: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> Any:
        return super().__get__(instance, owner)

    def __set__(self, instance: Any, value: T | D, /) -> None:
        super().__set__(instance, value)

    def _read(self, options: OptionsBase) -> Any:
        value = options._values.get(self.name, self.default)
        return list(value) if isinstance(value, tuple) else value

    def _write(self, options: OptionsBase, value: Any) -> None:
        self._check(f"{type(options).__name__}.{self.name}", value)
        options._values[self.name] = tuple(value) if isinstance(value, list) else value

    def _check(self, call: str, value: Any) -> None:
        if self.choices and value is None:
            return
        if not isinstance(value, self.kind):
            raise InvalidTypeError(
                f"{call}: must be {_with_article(self.kind)}, got {_show_with_type(value)}"
            )
        if self.choices and value not in self.choices:
            allowed = ", ".join(_show(choice) for choice in self.choices)
            raise InvalidArgumentError(f"{call}: must be {allowed} or None, got {_show(value)}")


def _optional(kind: type[T], doc: str) -> Option[T, None]:
    return Option(kind, doc, None)


def _part(kind: type[SomeOptions], doc: str) -> Option[SomeOptions, SomeOptions]:
    """A field that contains a group of options; each `Options` has its own."""
    return Option(kind, doc, cast(SomeOptions, None))


def _alias(target: str) -> property:
    """Another name of a field. It is not a field: the value is stored and printed once."""
    return property(
        lambda options: getattr(options, target),
        lambda options, value: setattr(options, target, value),
        doc=f"The older name of `{target}`.",
    )


def _show(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _show_with_type(value: Any) -> str:
    return f"{_show(value)} ({type(value).__name__})"


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'aeioAEIO' else 'a'} {kind.__name__}"


def _is_set(field: Option[Any, Any], value: Any) -> bool:
    """Whether `value` means that the user set the field."""
    if isinstance(value, OptionsBase):
        return bool(value._set())
    return value is not _UNSET and not (field.weak and value == field.default)


class OptionsBase:
    """The base of all groups of options: named fields, compared by value, frozen or not."""

    _values: dict[str, Any]
    _frozen: bool

    def __init__(self, **values: Any) -> None:
        self.__dict__["_values"] = {name: kind() for name, kind in self._parts()}
        self.__dict__["_frozen"] = False
        for name, value in values.items():
            setattr(self, name, value)

    @classmethod
    @functools.cache
    def _fields(cls) -> tuple[Option[Any, Any], ...]:
        return tuple(field for field in vars(cls).values() if isinstance(field, Option))

    @classmethod
    def _parts(cls) -> Iterator[tuple[str, type[OptionsBase]]]:
        return ((f.name, f.kind) for f in cls._fields() if issubclass(f.kind, OptionsBase))

    def _set(self) -> dict[str, Any]:
        """The fields that were set, in their order; groups only if a field of them was set."""
        values = [(field, self._values.get(field.name, _UNSET)) for field in self._fields()]
        return {field.name: value for field, value in values if _is_set(field, value)}

    def merge(self: SomeOptions, options: SomeOptions) -> SomeOptions:
        """New options: these, overridden by every field that `options` sets."""
        kind = type(self)
        if not isinstance(options, kind):
            raise InvalidTypeError(
                f"{kind.__name__}.merge: options must be {_with_article(kind)}, "
                f"got {_show_with_type(options)}"
            )
        merged = kind()
        for field, value in (*self._set().items(), *options._set().items()):
            part = isinstance(value, OptionsBase)
            merged._values[field] = merged._values[field].merge(value) if part else value
        return merged

    def make_frozen(self: SomeOptions) -> SomeOptions:
        """An equal copy that is immutable and hashable."""
        if self._frozen:
            return self
        frozen = copy.copy(self)
        frozen.__dict__["_frozen"] = True
        frozen._values.update(
            {name: frozen._values[name].make_frozen() for name, _ in self._parts()}
        )
        return frozen

    def __copy__(self: SomeOptions) -> SomeOptions:
        return self if self._frozen else type(self)().merge(self)

    def __deepcopy__(self: SomeOptions, memo: dict[int, Any]) -> SomeOptions:
        return copy.copy(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(getattr(type(self), name, None), property):
            self._raise_unknown(name)
        if self._frozen:
            raise InvalidArgumentError(
                f"{type(self).__name__}.{name}: these options belong to a dataset and cannot "
                "change; make new ones and pass them to with_options"
            )
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        self._raise_unknown(name)

    def _raise_unknown(self, name: str) -> NoReturn:
        cls = type(self)
        names = [n for n in dir(cls) if isinstance(getattr(cls, n), property)]
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise AttributeError(f"{cls.__name__}.{name}: there is no such option; {hint}")

    def _key(self) -> tuple[Any, ...]:
        """Every value, set or default: setting a field to its default changes nothing here."""
        return tuple(self._values.get(field.name, field.default) for field in self._fields())

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, OptionsBase)
            and type(self) is type(other)
            and self._key() == other._key()
        )

    def __hash__(self) -> int:
        if not self._frozen:
            name = type(self).__name__
            raise InvalidTypeError(
                f"{name}: cannot be hashed while it can change; use make_frozen()"
            )
        return hash((type(self), self._key()))

    def __repr__(self) -> str:
        parts = (f"{name}={_show(getattr(self, name))}" for name in self._set())
        return f"{type(self).__name__}({', '.join(parts)})"


_UNSET = object()


class AutotuneOptions(OptionsBase):
    """What AUTOTUNE may use.

    >>> options = Options()
    >>> options.autotune.cpu_budget = 4
    >>> options
    Options(autotune=AutotuneOptions(cpu_budget=4))
    """

    enabled = _optional(bool, "Whether AUTOTUNE adapts anything; by default it does.")
    cpu_budget = _optional(int, "How many threads AUTOTUNE may use.")
    ram_budget = _optional(int, "How many bytes AUTOTUNE may buffer.")
    autotune_algorithm = _optional(AutotuneAlgorithm, "How AUTOTUNE searches.")
    initial_parallelism = _optional(int, "Where AUTOTUNE starts.")
    min_parallelism = _optional(int, "What AUTOTUNE never goes below.")


class DistributeOptions(OptionsBase):
    """How a strategy divides the dataset.

    >>> options = Options()
    >>> options.experimental_distribute.num_devices = 8
    >>> options
    Options(experimental_distribute=DistributeOptions(num_devices=8))
    """

    auto_shard_policy = Option(
        AutoShardPolicy, "How workers share the data.", default=AutoShardPolicy.AUTO, weak=True
    )
    num_devices = _optional(int, "How many devices one host feeds.")


class OptimizationOptions(OptionsBase):
    """Rewrites of the plan, by TensorFlow's names; None leaves them to penstock.

    >>> options = Options()
    >>> options.experimental_optimization.inject_prefetch = False
    >>> options
    Options(experimental_optimization=OptimizationOptions(inject_prefetch=False))
    """

    apply_default_optimizations = _optional(bool, "Whether those left at None are applied.")
    filter_fusion = _optional(bool, "Consecutive filters as one.")
    filter_parallelization = _optional(bool, "Filters in parallel.")
    inject_prefetch = _optional(bool, "A prefetch at the end.")
    map_and_batch_fusion = _optional(bool, "A map and the batch after it as one.")
    map_and_filter_fusion = _optional(bool, "A map and the filter after it as one.")
    map_fusion = _optional(bool, "Consecutive maps as one.")
    map_parallelization = _optional(bool, "Maps in parallel.")
    noop_elimination = _optional(bool, "Steps without effect left out.")
    parallel_batch = _optional(bool, "Batches copied in parallel.")
    seq_interleave_prefetch = _optional(bool, "A prefetch inside sequential interleaves.")
    shuffle_and_repeat_fusion = _optional(bool, "A shuffle and the repeat after it as one.")


class ServiceOptions(OptionsBase):
    """How the data service treats the dataset.

    >>> options = Options()
    >>> options.service.stateful = "per_worker"
    >>> options
    Options(service=ServiceOptions(stateful="per_worker"))
    """

    pinned = _optional(bool, "Whether batches arrive in pinned memory.")
    reader_memory = _optional(
        int,
        "How many bytes a reader may hold that it has requested and not handed out; by default an "
        "eighth of the machine's memory. It uses 64 MB, or as much as three elements per worker "
        "need.",
    )
    stateful = Option(
        str,
        'Where operators that see all elements run: "global" (the result is that of the local '
        'dataset; the default) or "per_worker" (each worker on its share, as TensorFlow does).',
        default=None,
        choices=("global", "per_worker"),
    )


class ThreadingOptions(OptionsBase):
    """Threads of one iterator.

    >>> import penstock
    >>> options = Options()
    >>> options.threading.private_threadpool_size = 2
    >>> dataset = penstock.data.Dataset.range(3).map(lambda x: x + 1, num_parallel_calls=2)
    >>> print(*dataset.with_options(options))
    1 2 3
    """

    max_intra_op_parallelism = _optional(int, "Threads inside one call.")
    private_threadpool_size = _optional(int, "Threads for parallel calls; 0 for one per core.")


class Options(OptionsBase):
    """Options of a dataset, for `Dataset.with_options`.

    >>> options = Options()
    >>> options.deterministic = False
    >>> options.threading.private_threadpool_size = 4
    >>> options
    Options(deterministic=False, threading=ThreadingOptions(private_threadpool_size=4))
    """

    autotune = _part(AutotuneOptions, "What AUTOTUNE may use.")
    deterministic = _optional(bool, "Whether parallel calls keep the order; by default they do.")
    experimental_deterministic = _alias("deterministic")
    cache_dir = _optional(
        str, "A folder of this machine in which bytes of remote files are kept for the next use."
    )
    cache_bytes = _optional(int, "How many bytes the folder may have; by default 64 GiB.")
    dataset_name = _optional(str, "A name for the dataset.")
    framework_type = _optional(list, "Names of the frameworks that read the dataset.")
    experimental_distribute = _part(DistributeOptions, "How a strategy divides the dataset.")
    experimental_external_state_policy = _optional(
        ExternalStatePolicy, "What to do when a function depends on state outside the plan."
    )
    experimental_optimization = _part(OptimizationOptions, "Rewrites of the plan.")
    service = _part(ServiceOptions, "How the data service treats the dataset.")
    experimental_service = _alias("service")
    experimental_slack = _optional(bool, "Whether the last prefetch leaves room for the caller.")
    experimental_symbolic_checkpoint = _optional(bool, "Whether states are positions, not buffers.")
    experimental_warm_start = _optional(bool, "Whether work starts before the first `next`.")
    threading = _part(ThreadingOptions, "Threads of one iterator.")
    experimental_threading = _alias("threading")
    executor = Option(
        str,
        'Where parallel calls run: "threads", "processes" of this machine, or "auto" (the '
        "default): they begin in threads, and move to processes once it shows that threads do not "
        'scale, because functions hold the lock of the interpreter. "inline" runs prefetch and '
        "parallel calls in the caller's thread, for debugging.",
        default="auto",
        choices=("auto", "threads", "processes", "inline"),
    )
