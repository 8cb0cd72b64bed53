"""Every module has a test file of its own name, or a contract: other tests that say they cover it.

A test file has the name of its module, in the same folder below `tests`, perhaps followed by a
subject: `test_orders_laps.py` tests laps, which are in `orders.py`.
"""

import pytest

from scripts.architecture_map import ROOT
from tests.test_architecture import SOURCES, is_door

TESTS = ROOT / "tests"
CONTRACTS = {
    # Every operator, format, table and backend takes these tests.
    "engine/test_stream_contract.py": """
        engine.access engine.caching engine.collate engine.context engine.contract engine.logs
        engine.lower engine.user_calls engine.streams.choosing engine.streams.counting
        engine.streams.elementwise engine.streams.merging engine.streams.ordering
        engine.streams.sources plan.block_lengths plan.functions
        plan.packed plan.resume
    """,
    "engine/formats/test_format_contract.py": "engine.formats.inflate engine.formats.records",
    "engine/formats/test_table_contract.py": """
        engine.memory_tables engine.table_access engine.formats.array_records
        engine.formats.arrow_columns engine.formats.arrow_files engine.formats.bad_files
        engine.formats.extras engine.formats.flat_tables
        engine.formats.lance_tables engine.formats.numpy_files engine.formats.parquet
        engine.formats.record_spans
    """,
    "distribute/backends/test_backends.py": """
        distribute.backends.jax_backend distribute.backends.numpy_backend
        distribute.backends.torch_backend
    """,
    # These operations are compared with recorded answers of TensorFlow.
    "tf/test_operations.py": """
        element.hashing tf.arrays tf.control tf.debugging tf.distributions tf.dtypes
        tf.errors tf.io tf.lookup tf.math tf.missing_operations tf.ragged tf.ragged_shapes
        tf.ragged_values tf.random tf.reductions tf.regexes tf.selection tf.sparse tf.strings
        tf.image.colors tf.image.cropping tf.image.random_images
        tf.image.resizing
    """,
    # Modules that are tested together, through what users call.
    "data/adapters/test_apart.py": "data.adapters.jax_adapter data.adapters.keras_adapter",
    "data/adapters/test_torch.py": "data.adapters.torch_adapter",
    "data/experimental/test_named_datasets.py": """
        data.experimental.csv_files data.experimental.example_datasets
        data.experimental.lookup_tables data.experimental.record_writers data.experimental.sql
        data.experimental.transformations
    """,
    "data/experimental/test_saving.py": "data.experimental.service.saving data.shard_contents",
    "data/experimental/test_service.py": """
        data.experimental.service.remote_datasets
        data.experimental.service.servers
    """,
    "data/test_by_index.py": "element.index",
    "data/test_dataset.py": "data.padding",
    "data/test_delivered.py": "delivery.delivery_stream",
    "data/test_inspection.py": "data.element_specs missing_names",
    "data/test_randomness.py": "data.sampling random",
    "data/test_readers.py": "data.file_datasets",
    "data/test_states.py": "data.iterator",
    "data/test_table_plans.py": "data.foreign_datasets",
    "data/test_trace_files.py": "data.tracing engine.spans",
    "delivery/test_reused_memory.py": "delivery.jax_berths delivery.locked_memory",
    "delivery/test_sharded.py": "delivery.jax_sharded",
    "delivery/test_torch_cuda.py": "delivery.cuda",
    "distribute/backends/test_delivery.py": """
        delivery.jax_delivery delivery.moving delivery.torch_delivery
    """,
    "distribute/backends/test_jax_compiled.py": "distribute.backends.jax_global",
    "distribute/input/test_input.py": """
        distribute.strategy_options distribute.input.delivery_plan distribute.input.distributed
        distribute.input.portion_rules distribute.input.portions
    """,
    "distribute/input/test_row_numbers.py": "delivery.row_numbers",
    "distribute/test_context.py": "distribute.replica_context",
    "distribute/test_devices.py": "config",
    "distribute/test_strategy.py": "distribute.extended distribute.replicas",
    "distribute/values/test_values.py": """
        distribute.values.operators distribute.values.per_replica distribute.values.trees
    """,
    "distribute/values/test_variables.py": """
        distribute.values.indexed_slices distribute.values.mirrored distribute.values.storage
        distribute.values.texts
    """,
    "distribute/workers/test_cluster.py": "distribute.cluster_resolver",
    "distribute/workers/test_multiworker.py": """
        distribute.multiworker distribute.workers.collectives distribute.workers.jax_collectives
        distribute.workers.torch_collectives
    """,
    "element/test_spec.py": "element.dtypes element.optional",
    "engine/formats/test_chunks.py": """
        element.descriptions engine.formats.arrow_layouts engine.formats.checked_files
    """,
    "engine/formats/test_examples.py": """
        engine.formats.examples.feature_columns engine.formats.examples.features
        engine.formats.examples.heads engine.formats.examples.keys engine.formats.examples.parsing
        engine.formats.examples.protobuf_lists engine.formats.examples.ragged_features
        engine.formats.examples.reading engine.formats.examples.sequences
        engine.formats.examples.varints engine.formats.examples.wire
        engine.formats.examples.writing
    """,
    "engine/formats/test_images.py": "io",
    "engine/formats/test_packaged_formats.py": "engine.formats.tables",
    "engine/formats/test_remote_files.py": "engine.formats.remote_requests",
    "engine/formats/test_writers.py": """
        engine.formats.exact_values engine.formats.new_files engine.formats.table_writers
    """,
    "engine/processes/test_batch_memory.py": "element.reused",
    "engine/processes/test_call_processes.py": """
        engine.processes.call_process_main engine.processes.descriptors
    """,
    "engine/test_origins.py": "engine.trail",
    "engine/test_profiles.py": "engine.advice engine.meters",
    "engine/test_shared_arrays.py": """
        engine.processes.array_holder engine.processes.array_memory engine.processes.array_offers
        engine.processes.shared_arrays
    """,
    "engine/test_specs.py": "engine.trial_calls",
    "engine/test_threads.py": "engine.calling engine.parallel engine.pool engine.prefetch",
    "integration/test_distribute_numbers.py": "engine.numbering",
    "integration/test_ray.py": "data.adapters.ray_adapter launch.ray_actors launch.ray_service",
    "launch/test_hosted_service_local.py": "cli.local_worker_main",
    "plan/test_references.py": "plan.array_references plan.typed",
    "plan/test_splits.py": "plan.bounds plan.cuts plan.parts",
    "service/host/test_dispatcher_server.py": "service.host.server_setup",
    "service/host/test_remote_stream.py": "service.host.deliveries",
    "service/logic/test_dispatcher_recovery.py": "service.logic.facts",
    "service/logic/test_status.py": "service.logic.dispatcher_records",
    "test_cli.py": "cli.certificates cli.commands cli.overview cli.server_processes",
    "test_deploy.py": "cli.deploy",
    "test_doctor.py": "cli.doctor",
    "test_nest.py": "shim.tf_nest",
    "test_project.py": "version",
    "test_public_names.py": "experimental distribute.experimental",
    "test_shim.py": "shim.arrays shim.literals shim.printing shim.signature",
    "test_top.py": "cli.top",
    "tf/test_checkpoints.py": "data.checkpoints tf.train.ported_checkpoints",
    "tf/test_datasets.py": "tf.drawing tf.ported_datasets tf.ported_functions",
    "tf/test_messages.py": "tf.train.messages",
    "tf/test_page.py": """
        tf.autograph tf.data.experimental.service tf.distribute tf.experimental tf.linalg tf.nn
    """,
    "tf/test_variable_updates.py": "tf.ported_variables",
}
"""For each test file the modules that it covers; one file is named, if several cover a module."""


def has_test_file(module: str) -> bool:
    *rooms, name = module.split(".")
    # The files of formats have names such as `test_format_csv.py`.
    patterns = [f"test_{name}.py", f"test_{name}_*.py", f"test_format_{name}.py"]
    folder = TESTS.joinpath(*rooms)
    return any(file for pattern in patterns for file in folder.glob(pattern))


MODULES = {module for module in SOURCES if not is_door(module) and module != "__main__"}
COVERED = [module for modules in CONTRACTS.values() for module in modules.split()]


def test_every_module_has_a_test_file_or_a_contract() -> None:
    alone = {module for module in MODULES if not has_test_file(module)}
    assert sorted(alone - {*COVERED}) == [], (
        "write a test file with the name of the module, or say in CONTRACTS which tests cover it"
    )


def test_contracts_are_for_modules_without_a_test_file() -> None:
    assert [module for module in COVERED if module not in MODULES or has_test_file(module)] == []
    assert len(COVERED) == len({*COVERED}), "a module has one contract"


@pytest.mark.parametrize("file", CONTRACTS)
def test_the_file_of_a_contract_exists(file: str) -> None:
    assert (TESTS / file).is_file()
