"""Control messages on the wire."""

import msgspec
import pytest

from penstock.plan.shape import Form
from penstock.service.protocol.messages import Work

DECODE = msgspec.msgpack.Decoder(Work).decode


@pytest.mark.parametrize("form", Form)
def test_a_form_of_work_travels_as_its_name(form: Form) -> None:
    work = Work("digest", "job", form, 0, 1, 0, (0,))
    encoded = msgspec.msgpack.encode(work)
    assert msgspec.msgpack.decode(encoded)["form"] == form.value
    assert DECODE(encoded) == work
    assert type(DECODE(encoded).form) is Form


def test_an_unknown_form_of_work_is_refused() -> None:
    work = {"digest": "d", "job": "j", "form": "odd", "stream": 0, "streams": 1, "key": 0}
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'odd'"):
        DECODE(msgspec.msgpack.encode({**work, "epoch": ()}))
