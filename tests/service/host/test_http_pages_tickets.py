"""Tickets prove that their maker knew the token, for one purpose, until they expire."""

import pytest

from penstock.service.host.http_pages import make_ticket, read_expiry

TOKEN = b"a token of these tests"


def test_a_ticket_says_when_it_expires() -> None:
    ticket = make_ticket(TOKEN, b"look", 1234.9)
    assert read_expiry(ticket, TOKEN, b"look") == 1234
    assert make_ticket(TOKEN, b"look", 1234.9) != ticket
    assert TOKEN.decode() not in ticket


@pytest.mark.parametrize(
    "change",
    [
        lambda ticket: "",
        lambda ticket: "no ticket",
        lambda ticket: "é" + ticket,
        lambda ticket: ticket[:-2],
        lambda ticket: ticket.replace("1234", "9999", 1),
        lambda ticket: "x" + ticket,
    ],
)
def test_other_texts_are_no_tickets(change) -> None:
    assert read_expiry(change(make_ticket(TOKEN, b"look", 1234.0)), TOKEN, b"look") is None


def test_a_ticket_is_for_one_service_and_one_purpose() -> None:
    ticket = make_ticket(TOKEN, b"look", 1234.0)
    assert read_expiry(ticket, TOKEN, b"touch") is None
    assert read_expiry(ticket, b"a token of another service", b"look") is None
