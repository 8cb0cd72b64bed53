"""`tf.train`: examples as protobuf's bytes, and checkpoints."""

from penstock.data.checkpoints import (
    CheckpointManager,
    latest_checkpoint,
    list_variables,
)
from penstock.distribute.workers.cluster import ClusterSpec
from penstock.tf.missing_operations import refuse_names_of_tf
from penstock.tf.train.messages import (
    BytesList,
    Example,
    FeatureList,
    FeatureLists,
    Features,
    FloatList,
    Int64List,
    SequenceExample,
)
from penstock.tf.train.messages import TrainFeature as Feature
from penstock.tf.train.ported_checkpoints import CheckpointOptions
from penstock.tf.train.ported_checkpoints import PortedCheckpoint as Checkpoint

__all__ = [
    "BytesList",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "ClusterSpec",
    "Example",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FloatList",
    "Int64List",
    "SequenceExample",
    "latest_checkpoint",
    "list_variables",
]

__getattr__ = refuse_names_of_tf("train", __all__)
