"""TensorFlow's ways to reduce between devices are accepted by the strategy."""

import numpy as np
import pytest

from penstock import distribute

KINDS = (
    distribute.HierarchicalCopyAllReduce,
    distribute.NcclAllReduce,
    distribute.ReductionToOneDevice,
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_strategy_takes_them_by_name_and_in_tensorflows_place(kind):
    by_name = distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=kind())
    in_place = distribute.MirroredStrategy(["CPU:0", "CPU:1"], kind())
    for strategy in (by_name, in_place):
        total = strategy.reduce("SUM", strategy.run(lambda: np.ones(2)), axis=None)
        assert total.tolist() == [2.0, 2.0]


def test_wrong_values_are_refused():
    with pytest.raises(TypeError, match="cross_device_ops must be a distribute.CrossDeviceOps"):
        distribute.MirroredStrategy(["CPU:0"], cross_device_ops="nccl")
    with pytest.raises(ValueError, match="NcclAllReduce: num_packs must be at least 0, got -1"):
        distribute.NcclAllReduce(num_packs=-1)
