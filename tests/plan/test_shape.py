import msgspec
import pytest

from penstock.plan.shape import ENDLESS, Shape, Turns
from penstock.service.protocol.messages import RegisterDataset


@pytest.mark.parametrize(
    "shape", [Shape("random"), Shape("split", ENDLESS), Shape("split", 3, 9, Turns(2, 1, -2))]
)
def test_a_message_carries_a_shape_unchanged(shape: Shape):
    request = RegisterDataset("digest", "structure", b"spec", shape, 5)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=RegisterDataset)
    assert again == request
    assert type(again.shape.turns) is type(shape.turns)


def test_fields_that_a_message_leaves_out_have_their_defaults():
    data = msgspec.msgpack.encode({"kind": "single"})
    assert msgspec.msgpack.decode(data, type=Shape) == Shape("single", 1, -2, None)
