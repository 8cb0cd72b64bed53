import os
import ssl
import stat
import threading

import pytest

from penstock.cli.certificates import make_certificates
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from penstock.service.host.security import (
    Security,
    check_folder,
    check_secret,
    find_token,
    is_proof,
    make_proof,
    read_token,
    write_token,
)
from penstock.service.host.sockets import is_loopback, split_address

TOKEN = "a token that is long enough"
NAMES = ("PENSTOCK_TOKEN", "PENSTOCK_TOKEN_FILE", "PENSTOCK_CERTIFICATES")


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """A user without a token; returns the path at which the token will be created."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "penstock" / "token"


def private(path, text: str):
    path.write_text(text)
    path.chmod(0o600)
    return path


def mode(path) -> int:
    return os.stat(path).st_mode & 0o777


# The user's own token


def test_server_and_client_of_one_user_find_the_same_token(state):
    server = Security.of_server("localhost", 5050)
    client = Security.of_client("localhost:5050")
    assert server.token == client.token
    assert not server.given
    assert server.origin == str(state)


def test_the_token_is_in_a_private_file(state):
    find_token()
    assert (mode(state), mode(state.parent)) == (0o600, 0o700)
    assert [file.name for file in state.parent.iterdir()] == ["token"]


def test_the_token_is_not_shown():
    assert TOKEN not in repr(Security(TOKEN.encode()))


def test_many_who_come_first_agree(state):
    state.parent.mkdir(parents=True, mode=0o700)
    found, start = [], threading.Barrier(8)

    def find() -> None:
        start.wait()
        found.append(find_token().token)

    threads = [threading.Thread(target=find) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_without_a_home_the_token_is_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(
        "penstock.service.host.security._token_paths",
        lambda: [str(tmp_path / "file" / "p" / "token"), str(tmp_path / "other" / "token")],
    )
    assert find_token().origin == str(tmp_path / "other" / "token")


def test_nowhere_to_keep_a_token(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(
        "penstock.service.host.security._token_paths",
        lambda: [str(tmp_path / "file" / "p" / "token")],
    )
    with pytest.raises(FailedPreconditionError, match="no private file can be made at .*; set PEN"):
        find_token()


@pytest.mark.parametrize("open_to_others", [0o640, 0o604, 0o620])
def test_a_token_that_other_users_could_read_or_write(state, open_to_others):
    find_token()
    state.chmod(open_to_others)
    with pytest.raises(
        PermissionDeniedError, match=f"is open to other users .mode {open_to_others:o}"
    ):
        find_token()


def test_a_folder_that_other_users_could_write_to(state):
    find_token()
    state.parent.chmod(0o777)
    with pytest.raises(PermissionDeniedError, match="is open to other users .mode 777.*remove it"):
        find_token()


def test_a_symbolic_link_instead_of_the_token(state, tmp_path):
    find_token()
    state.rename(tmp_path / "elsewhere")
    state.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionDeniedError, match="is a symbolic link"):
        find_token()


def test_a_symbolic_link_instead_of_the_folder(state, tmp_path):
    find_token()
    state.parent.rename(tmp_path / "elsewhere")
    state.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionDeniedError, match="is a symbolic link"):
        find_token()


def test_a_folder_instead_of_the_token(state):
    state.mkdir(parents=True)
    state.parent.chmod(0o700)
    with pytest.raises(PermissionDeniedError, match="is of the wrong kind"):
        find_token()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_token_of_another_user(state):
    find_token()
    os.chown(state, 12345, 12345)
    with pytest.raises(PermissionDeniedError, match="belongs to user 12345"):
        find_token()


def test_a_token_that_was_cut(state):
    find_token()
    state.write_text("short")
    with pytest.raises(InvalidArgumentError, match="at least 16 characters, got 5; make one with"):
        find_token()


def test_a_second_token_does_not_replace_the_first(state):
    first = find_token().token
    assert write_token(str(state)) == first


# Tokens that are given


def test_what_is_given_goes_before_what_is_found(tmp_path, monkeypatch):
    private(tmp_path / "secret", TOKEN + " in a file\n")
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(tmp_path / "secret"))
    found = [find_token()]
    monkeypatch.setenv("PENSTOCK_TOKEN", TOKEN + " in a variable")
    found += [find_token(), find_token(TOKEN)]
    assert [each.token.decode() for each in found] == [
        TOKEN + " in a file",
        TOKEN + " in a variable",
        TOKEN,
    ]
    assert all(each.given for each in found)


def test_a_short_token():
    with pytest.raises(InvalidArgumentError, match="token: a token must have at least 16 .* got 3"):
        find_token("abc")


def test_a_short_token_in_the_environment(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TOKEN", "abc")
    with pytest.raises(InvalidArgumentError, match="PENSTOCK_TOKEN: a token must have"):
        find_token()


def test_a_file_that_does_not_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(NotFoundError, match="PENSTOCK_TOKEN_FILE: .*none' does not exist; write"):
        find_token()


def test_a_file_that_cannot_be_read(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(tmp_path))
    with pytest.raises(PermissionDeniedError, match="cannot be read .*; make it readable"):
        find_token()


# Files that other users can read


@pytest.fixture
def token_file(tmp_path, monkeypatch):
    """A file with a token, which an environment variable names."""
    path = private(tmp_path / "given", TOKEN)
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(path))
    return path


@pytest.mark.parametrize("open_to_others", [0o640, 0o604, 0o620, 0o602, 0o644, 0o777])
def test_a_given_file_that_other_users_can_read_or_write(token_file, open_to_others):
    token_file.chmod(open_to_others)
    cure = f"is open to other users .mode {open_to_others:o}.; chmod 600 {token_file}$"
    with pytest.raises(PermissionDeniedError, match=f"PENSTOCK_TOKEN_FILE: .*{cure}"):
        find_token()
    with pytest.raises(PermissionDeniedError, match=f"--token-file: .*{cure}"):
        read_token(str(token_file), "--token-file")
    token_file.chmod(0o600)
    assert find_token().token == TOKEN.encode()


def test_a_given_file_may_be_a_link_to_a_private_one(token_file, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(token_file)
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(tmp_path / "link"))
    assert find_token().token == TOKEN.encode()
    token_file.chmod(0o644)
    with pytest.raises(PermissionDeniedError, match="chmod 600 .*link"):
        find_token()


def test_a_path_that_a_shell_would_take_apart(tmp_path):
    path = private(tmp_path / "my token", TOKEN)
    path.chmod(0o644)
    with pytest.raises(PermissionDeniedError, match="chmod 600 '.*my token'$"):
        read_token(str(path), "--token-file")


def file_of(owner: int, mode: int) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("user", "owner", "mode"),
    [(7, 7, 0o600), (7, 7, 0o400), (7, 0, 0o440), (7, 0, 0o640), (0, 0, 0o600)],
)
def test_files_that_are_secret(monkeypatch, user, owner, mode):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    check_secret("file", file_of(owner, mode), "call")


@pytest.mark.parametrize(
    ("user", "owner", "mode", "cure"),
    [
        (7, 7, 0o640, "mode 640.; chmod 600 file"),
        (7, 0, 0o444, "mode 444.; chmod 600 file"),
        (7, 0, 0o660, "mode 660.; chmod 600 file"),
        (0, 0, 0o440, "mode 440.; chmod 600 file"),
        (7, 8, 0o600, "belongs to user 8, and this process runs as user 7; chown 7 file"),
        (0, 8, 0o600, "belongs to user 8, and this process runs as user 0; chown 0 file"),
    ],
)
def test_files_that_are_no_secret(monkeypatch, user, owner, mode, cure):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(PermissionDeniedError, match=f"call: 'file' .*{cure}$"):
        check_secret("file", file_of(owner, mode), "call")


def test_a_folder_of_root_is_not_this_users(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setattr(os, "stat", lambda path: file_of(0, 0o700))
    with pytest.raises(
        PermissionDeniedError, match="belongs to user 0, .* not exist yet, which is"
    ):
        check_folder(str(tmp_path), "work_dir")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_is_made_here_is_private_with_any_umask(state, tmp_path, umask):
    before = os.umask(umask)
    try:
        find_token()
        make_certificates(str(tmp_path / "set"))
    finally:
        os.umask(before)
    assert (mode(state), mode(state.parent), mode(tmp_path / "set")) == (0o600, 0o700, 0o700)
    assert find_token().origin == str(state)
    assert Security.of_server("localhost", 0, certificates=str(tmp_path / "set")).given


@pytest.mark.parametrize("name", ["server-key.pem", "token", "ca.pem", "server.pem"])
def test_certificates_that_other_users_can_write(tmp_path, name):
    make_certificates(str(tmp_path / "set"))
    path = tmp_path / "set" / name
    path.chmod(0o666)
    with pytest.raises(PermissionDeniedError, match=f"certificates: .*; chmod 6.. {path}"):
        Security.of_server("localhost", 0, certificates=str(tmp_path / "set")).server_context()


def test_other_users_may_read_certificates_but_not_keys(tmp_path):
    make_certificates(str(tmp_path / "set"))
    for name in ("ca.pem", "server.pem"):
        (tmp_path / "set" / name).chmod(0o644)
    security = Security(b"", str(tmp_path / "set"))
    assert security.server_context() is not None
    (tmp_path / "set" / "server-key.pem").chmod(0o640)
    with pytest.raises(PermissionDeniedError, match="server-key.pem' is open .*; chmod 600 "):
        security.server_context()


# Where a server may be


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.3.2.1", "::1", "[::1]"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "node7", "localhost.evil.com"])
def test_not_loopback(host):
    assert not is_loopback(host)


def test_no_server_for_other_machines_without_a_given_token(caplog):
    with pytest.raises(
        FailedPreconditionError, match="0.0.0.0:5050 can be reached .*; set PENSTOCK_TOKEN .*certs"
    ):
        Security.of_server("0.0.0.0", 5050)
    assert Security.of_server("0.0.0.0", 5050, token=TOKEN).given
    assert caplog.text.count("server at 0.0.0.0:5050: without TLS, anyone on the net") == 1


def test_no_client_of_other_machines_without_a_given_token(caplog):
    with pytest.raises(
        UnauthenticatedError, match="dispatcher node7:5050 is on another machine.*; set PENSTOCK_"
    ):
        Security.of_client("node7:5050")
    for _ in range(3):
        assert Security.of_client("grpc://node7:5050", token=TOKEN).token == TOKEN.encode()
    assert caplog.text.count("dispatcher grpc://node7:5050: without TLS, anyone on") == 1


def test_a_token_without_tls_beyond_this_machine_is_warned_of_once(caplog, folder):
    Security.of_server("0.0.0.0", 5050, token=TOKEN)
    (record,) = caplog.records
    assert "make certificates with: penstock certs FOLDER" in record.getMessage()
    caplog.clear()
    Security.of_server("localhost", 5050, token=TOKEN)
    Security.of_server("0.0.0.0", 5050, token=TOKEN, certificates=folder)
    Security.of_client("node7:5050", token=TOKEN, certificates=folder)
    assert caplog.text == ""


@pytest.mark.parametrize(
    "address", ["", "localhost", "localhost:", ":5050", "a:b", "a:0", "a:65536"]
)
def test_addresses_that_are_none(address):
    with pytest.raises(InvalidArgumentError, match="must be host:port with a port of 1 to 65535"):
        split_address(address)


def test_addresses():
    assert split_address("grpc://node7:5050") == ("node7", 5050)
    assert split_address("[::1]:5050") == ("::1", 5050)


# Proofs


def test_a_proof_is_of_its_token_and_of_every_part():
    claim = make_proof(b"token", b"ab", b"c")
    assert is_proof(claim, b"token", b"ab", b"c")
    assert not is_proof(claim, b"other", b"ab", b"c")
    assert not is_proof(claim, b"token", b"a", b"bc")
    assert not is_proof(claim, b"token", b"ab", b"c", b"")
    assert not is_proof(claim[:-1], b"token", b"ab", b"c")
    assert not is_proof(b"", b"token", b"ab", b"c")


# Certificates


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("certificates") / "set")
    make_certificates(path, ["node7", "10.1.2.3", "*.cluster.local"])
    return path


def test_a_set_is_private(folder):
    assert sorted(os.listdir(folder)) == [
        *("ca.pem", "client-key.pem", "client.pem", "server-key.pem", "server.pem", "token"),
    ]
    assert {mode(os.path.join(folder, name)) for name in os.listdir(folder)} == {0o600}


def test_a_set_has_its_token(folder, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CERTIFICATES", folder)
    server = Security.of_server("0.0.0.0", 5050)
    assert server == Security.of_client("node7:5050")
    assert server.given
    assert server.origin == os.path.join(folder, "token")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Both sides of a connection, in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    sides[0].write(b"x")
    assert sides[1].read(1) == b"x"


@pytest.mark.parametrize(
    "name", ["localhost", "127.0.0.1", "::1", "node7", "10.1.2.3", "a.cluster.local"]
)
def test_both_sides_of_a_set_know_each_other(folder, name):
    security = Security(b"", folder)
    handshake(security.server_context(), security.client_context(), name)


def test_a_server_elsewhere(folder):
    security = Security(b"", folder)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(security.server_context(), security.client_context(), "node8")


def test_a_client_of_another_set(folder, tmp_path):
    make_certificates(str(tmp_path / "set"))
    other = Security(b"", str(tmp_path / "set"))
    with pytest.raises(ssl.SSLCertVerificationError, match="CERTIFICATE_VERIFY_FAILED"):
        handshake(Security(b"", folder).server_context(), other.client_context(), "localhost")


def test_a_client_does_not_pass_for_a_server(folder):
    security = Security(b"", folder)
    posing = security.server_context()
    posing.load_cert_chain(f"{folder}/client.pem", f"{folder}/client-key.pem")
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        handshake(posing, security.client_context(), "localhost")


def test_without_certificates_there_is_no_tls():
    assert Security(b"").server_context() is None
    assert Security(b"").client_context() is None


def test_a_folder_without_certificates(tmp_path):
    with pytest.raises(NotFoundError, match="server.pem' does not exist; make .* penstock certs"):
        Security(b"", str(tmp_path)).server_context()
    with pytest.raises(NotFoundError, match="token' does not exist; write a token into it"):
        Security.of_server("localhost", 0, certificates=str(tmp_path))


def test_a_folder_that_is_not_there(tmp_path):
    folder = str(tmp_path / "none")
    with pytest.raises(
        NotFoundError, match=f"no folder '{folder}'; make .*: penstock certs {folder}"
    ):
        Security.of_client("localhost:1", certificates=folder)


def test_certificates_that_are_none(tmp_path):
    for name in ("ca.pem", "client.pem", "client-key.pem"):
        private(tmp_path / name, "no")
    with pytest.raises(InvalidArgumentError, match="no usable client certificate"):
        Security(b"", str(tmp_path)).client_context()


def test_a_set_is_not_overwritten(folder):
    with pytest.raises(AlreadyExistsError, match="has certificates already; name another folder"):
        make_certificates(folder)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedPreconditionError, match="cannot be made .Not a directory"):
        make_certificates(str(tmp_path / "file" / "set"))


def test_hosts_and_days_that_are_none(tmp_path):
    with pytest.raises(InvalidArgumentError, match="'bücher..' is not the name or address"):
        make_certificates(str(tmp_path / "set"), ["bücher.."])
    with pytest.raises(InvalidArgumentError, match="days must be at least 1, got 0"):
        make_certificates(str(tmp_path / "set"), days=0)
