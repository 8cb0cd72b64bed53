import copy
import pickle
import re

import pytest

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.plan.options import (
    AutoShardPolicy,
    AutotuneAlgorithm,
    AutotuneOptions,
    DistributeOptions,
    ExternalStatePolicy,
    OptimizationOptions,
    Options,
    ServiceOptions,
    ThreadingOptions,
)

PARTS = {
    "autotune": AutotuneOptions,
    "experimental_distribute": DistributeOptions,
    "experimental_optimization": OptimizationOptions,
    "service": ServiceOptions,
    "threading": ThreadingOptions,
}
SURFACE = {
    Options: (
        "autotune cache_bytes cache_dir dataset_name deterministic executor "
        "experimental_deterministic experimental_distribute "
        "experimental_external_state_policy experimental_optimization "
        "experimental_service experimental_slack experimental_symbolic_checkpoint "
        "experimental_threading experimental_warm_start framework_type service threading"
    ),
    AutotuneOptions: (
        "autotune_algorithm cpu_budget enabled initial_parallelism min_parallelism ram_budget"
    ),
    DistributeOptions: "auto_shard_policy num_devices",
    OptimizationOptions: (
        "apply_default_optimizations filter_fusion filter_parallelization inject_prefetch "
        "map_and_batch_fusion map_and_filter_fusion map_fusion map_parallelization "
        "noop_elimination parallel_batch seq_interleave_prefetch shuffle_and_repeat_fusion"
    ),
    ServiceOptions: "pinned reader_memory stateful",
    ThreadingOptions: "max_intra_op_parallelism private_threadpool_size",
}


def some() -> Options:
    options = Options(deterministic=True, framework_type=["jax"])
    options.threading.private_threadpool_size = 3
    return options


@pytest.mark.parametrize("kind", SURFACE, ids=lambda kind: kind.__name__)
def test_every_public_field_is_a_documented_property(kind):
    fields = [name for name in dir(kind) if isinstance(getattr(kind, name), property)]
    assert fields == SURFACE[kind].split()
    assert all(getattr(kind, name).__doc__ for name in fields)


@pytest.mark.parametrize("kind", SURFACE, ids=lambda kind: kind.__name__)
def test_defaults_are_none_except_the_shard_policy_and_the_executor(kind):
    for name in SURFACE[kind].split():
        value = getattr(kind(), name)
        if name == "auto_shard_policy":
            assert value is AutoShardPolicy.AUTO
        elif name == "executor":
            assert value == "auto"
        elif name in ("experimental_service", "experimental_threading") or name in PARTS:
            assert value == type(value)()
        else:
            assert value is None


@pytest.mark.parametrize(("name", "kind"), PARTS.items())
def test_each_options_object_has_its_own_parts(name, kind):
    first, second = Options(), Options()
    assert type(getattr(first, name)) is kind
    assert getattr(first, name) is not getattr(second, name)


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        (Options(), "deterministic", False),
        (Options(), "dataset_name", "abc"),
        (Options(), "framework_type", ["a"]),
        (Options(), "experimental_external_state_policy", ExternalStatePolicy.FAIL),
        (Options(), "executor", "inline"),
        (Options(), "executor", None),
        (Options(), "threading", ThreadingOptions()),
        (ThreadingOptions(), "private_threadpool_size", -1),
        (AutotuneOptions(), "autotune_algorithm", AutotuneAlgorithm.HILL_CLIMB),
        (DistributeOptions(), "auto_shard_policy", AutoShardPolicy.OFF),
        (ServiceOptions(), "stateful", "per_worker"),
    ],
)
def test_a_field_keeps_what_it_was_set_to(options, name, value):
    setattr(options, name, value)
    assert getattr(options, name) == value
    assert type(getattr(options, name)) is type(value)


@pytest.mark.parametrize(
    ("options", "name", "value", "message"),
    [
        (
            Options(),
            "deterministic",
            "yes",
            'Options.deterministic: must be a bool, got "yes" (str)',
        ),
        (
            Options(),
            "experimental_deterministic",
            1,
            "Options.deterministic: must be a bool, got 1",
        ),
        (Options(), "deterministic", None, "must be a bool, got None (NoneType)"),
        (Options(), "threading", 5, "Options.threading: must be a ThreadingOptions, got 5 (int)"),
        (Options(), "executor", 5, "Options.executor: must be a str, got 5 (int)"),
        (
            Options(),
            "experimental_external_state_policy",
            1,
            "must be an ExternalStatePolicy, got 1 (int)",
        ),
        (
            ThreadingOptions(),
            "private_threadpool_size",
            2.5,
            "ThreadingOptions.private_threadpool_size: must be an int, got 2.5 (float)",
        ),
        (DistributeOptions(), "auto_shard_policy", None, "must be an AutoShardPolicy, got None"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(options, name, value, message):
    before = getattr(options, name)
    with pytest.raises(InvalidTypeError, match=re.escape(message)):
        setattr(options, name, value)
    assert getattr(options, name) == before


def test_a_word_that_is_no_choice_is_refused():
    with pytest.raises(
        InvalidArgumentError,
        match=(
            r'^Options\.executor: must be "auto", "threads", "processes", "inline" or None, '
            r'got "process"$'
        ),
    ):
        Options(executor="process")
    with pytest.raises(InvalidArgumentError, match='must be "global", "per_worker" or None'):
        ServiceOptions(stateful="local")


def test_an_unknown_name_gets_the_nearest_one():
    message = r"^Options\.determinstic: there is no such option; did you mean deterministic\?$"
    with pytest.raises(AttributeError, match=message):
        Options().determinstic = True
    with pytest.raises(AttributeError, match=message):
        Options().determinstic  # noqa: B018


def test_an_unknown_name_without_a_near_one_gets_all():
    with pytest.raises(
        AttributeError, match="no such option; there are auto_shard_policy, num_devices"
    ):
        DistributeOptions().xyz = 1
    with pytest.raises(AttributeError, match=r"Options\.merge: there is no such option"):
        Options().merge = 1


def test_older_names_are_the_same_option():
    options = Options(experimental_deterministic=False)
    options.experimental_threading.private_threadpool_size = 2
    options.experimental_service = ServiceOptions(pinned=True)
    assert options.deterministic is False
    assert options.threading.private_threadpool_size == 2
    assert options.service.pinned is True


def test_merge_takes_later_fields_that_were_set():
    slack = Options(experimental_slack=True)
    merged = some().merge(Options(deterministic=False)).merge(slack)
    assert merged.deterministic is False
    assert merged.threading.private_threadpool_size == 3
    assert merged.experimental_slack is True
    assert merged.framework_type == ["jax"]


def test_a_policy_that_is_set_to_auto_overrides_nothing():
    off = Options(experimental_distribute=DistributeOptions(auto_shard_policy=AutoShardPolicy.OFF))
    auto = Options(
        experimental_distribute=DistributeOptions(auto_shard_policy=AutoShardPolicy.AUTO)
    )
    assert off.merge(auto) == off
    assert auto.merge(off).experimental_distribute.auto_shard_policy is AutoShardPolicy.OFF
    assert off.merge(Options()) == off


def test_merge_changes_neither_side():
    first, second = some(), Options(deterministic=False)
    merged = first.merge(second)
    merged.threading.private_threadpool_size = 99
    assert first == some()
    assert second == Options(deterministic=False)


def test_merge_with_something_else_is_refused():
    with pytest.raises(
        InvalidTypeError,
        match=r"^Options\.merge: options must be an Options, got None \(NoneType\)$",
    ):
        Options().merge(None)
    with pytest.raises(InvalidTypeError, match="options must be a ThreadingOptions, got Options"):
        ThreadingOptions().merge(Options())


def test_equality_is_by_value():
    assert some() == some()
    assert some() != Options()
    assert Options() != ThreadingOptions()
    assert Options() != "Options()"
    assert DistributeOptions(auto_shard_policy=AutoShardPolicy.AUTO) == DistributeOptions()


def test_frozen_options_do_not_change():
    frozen = some().make_frozen()
    assert frozen == some()
    assert frozen.make_frozen() is frozen
    for change in (
        lambda: setattr(frozen, "deterministic", None),
        lambda: setattr(frozen, "experimental_deterministic", False),
        lambda: setattr(frozen.threading, "private_threadpool_size", 1),
    ):
        with pytest.raises(
            InvalidArgumentError,
            match="these options belong to a dataset and cannot change; make new ones",
        ):
            change()
    frozen.framework_type.append("torch")
    assert frozen == some()


def test_a_frozen_copy_does_not_follow_the_original():
    options = some()
    frozen = options.make_frozen()
    options.deterministic = False
    options.threading.private_threadpool_size = 1
    assert frozen == some()


def test_only_frozen_options_can_be_keys():
    assert hash(some().make_frozen()) == hash(some().make_frozen())
    with pytest.raises(InvalidTypeError, match=r"^Options: cannot be hashed while it can change"):
        hash(some())


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))]
)
def test_copies_are_equal_and_apart(copied):
    options = some()
    other = copied(options)
    other.deterministic = False
    other.threading.private_threadpool_size = 1
    assert options == some()
    frozen = copied(some().make_frozen())
    assert frozen == some()
    assert hash(frozen) == hash(some().make_frozen())


def test_repr_shows_what_was_set():
    assert repr(Options()) == "Options()"
    options = some()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    options.executor = "inline"
    assert repr(options.make_frozen()) == (
        "Options(deterministic=True, framework_type=['jax'], experimental_distribute="
        "DistributeOptions(auto_shard_policy=AutoShardPolicy.OFF), "
        'threading=ThreadingOptions(private_threadpool_size=3), executor="inline")'
    )


def test_enums_have_the_numbers_of_tensorflow():
    def numbers(kind):
        return {member.name: int(member.value) for member in kind}

    assert numbers(AutoShardPolicy) == {"OFF": -1, "AUTO": 0, "FILE": 1, "DATA": 2, "HINT": 3}
    assert numbers(ExternalStatePolicy) == {"WARN": 0, "IGNORE": 1, "FAIL": 2}
    assert numbers(AutotuneAlgorithm) == {
        "DEFAULT": 0,
        "HILL_CLIMB": 1,
        "GRADIENT_DESCENT": 2,
        "MAX_PARALLELISM": 3,
        "STAGE_BASED": 4,
    }
    assert repr(AutoShardPolicy.AUTO) == "<AutoShardPolicy.AUTO: 0>"
    assert AutoShardPolicy.OFF == -1
