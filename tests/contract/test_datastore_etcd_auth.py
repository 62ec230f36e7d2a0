"""etcd with TLS, client certificates and users: refusals, tokens that expire, files that rotate."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig, Timing
from libtortie.datastore.port import Create, Record, Update
from libtortie.errors import InvalidInput, Unauthorized, Unavailable
from libtortie.model.keys import HandleKey, Handles, Kind, ResourceKey, Resources
from libtortie.model.resources import IPPool
from tests.fakes.certificates import Authority, Pair
from tests.fakes.etcd_client import BRISK, KEY, add, eventually, following, handle
from tests.fakes.etcd_server import EtcdMember, etcd_members, tls_arguments
from tests.fakes.patience import CALM

USER, PASSWORD = "calico", "a-secret"
TOKEN_SECONDS = 1
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"


@dataclass
class Guarded:
    """A member that wants certificates, and the settings that satisfy it."""

    member: EtcdMember
    config: EtcdConfig
    directory: Path
    timing: Timing = CALM

    def store(self, tell: Callable[[str], None] | None = None, /, **changed: str) -> EtcdDatastore:
        config = replace(self.config, **changed)
        return EtcdDatastore(config, timing=self.timing, on_call=tell)


@contextmanager
def guarded_member(tmp_path: Path, *more: str) -> Iterator[Guarded]:
    files = tmp_path / "files"
    files.mkdir()
    authority = Authority(files)
    server, client = authority.server("server"), authority.client("node-1")
    with etcd_members(tmp_path, arguments=[*tls_arguments(authority, server), *more]) as (member,):
        config = EtcdConfig(
            member.secure_url,
            ca_cert_file=str(authority.cert),
            cert_file=str(client.cert),
            key_file=str(client.key),
            username=USER,
            password=PASSWORD,
        )
        yield Guarded(member, config, files)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    with guarded_member(tmp_path) as made:
        yield made


@pytest.fixture
def locked(guarded: Guarded) -> Guarded:
    """The same with users."""
    guarded.member.enable_users(USER, PASSWORD)
    return guarded


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Guarded]:
    """The same, and their tokens expire soon."""
    with guarded_member(tmp_path, f"--auth-token-ttl={TOKEN_SECONDS}") as made:
        made.member.enable_users(USER, PASSWORD)
        yield made


def once_expired(calls: list[str], work: Callable[[], object]) -> None:
    """Do it after a time in which a token dies, which etcd sees a little later; again, if it has
    not yet seen it. A token is asked for once, and once more for each life of one that it took."""
    for _ in range(10):
        time.sleep(3 * TOKEN_SECONDS)
        calls.clear()
        begun = time.monotonic()
        try:
            work()
        except (AssertionError, Unauthorized):
            if time.monotonic() - begun < TOKEN_SECONDS:
                raise
            continue  # the new one died, too, before it was used
        took = time.monotonic() - begun
        if AUTHENTICATE in calls:
            assert calls.count(AUTHENTICATE) <= 1 + took / TOKEN_SECONDS
            return
    raise AssertionError("tokens do not expire")


def pool(**metadata: str) -> IPPool:
    return IPPool.model_validate(
        {"metadata": {"name": "p", **metadata}, "spec": {"cidr": "10.0.0.0/16"}}
    )


def test_everything_works_for_whom_it_should(locked: Guarded) -> None:
    calls: list[str] = []
    with closing(locked.store(calls.append)) as store, following(store) as follow:
        first = store.create(KEY, handle())
        store.commit([Update(KEY, handle(2), first.revision), Create(HandleKey("h2"), handle())])
        follow.expect("h1", "h1", "h2")
        born = store.create(ResourceKey(Kind.IP_POOL, "p"), pool())
        assert store.update(born.key, pool(), born.revision).value == born.value
        store.delete(KEY)
        follow.expect("h1", "h1", "h2", "h1-")
        assert calls.count(AUTHENTICATE) == 1


def test_a_wrong_password_is_unauthorized(locked: Guarded) -> None:
    with closing(locked.store(password="wrong")) as store:
        for call in (
            lambda: store.get(KEY),
            lambda: store.create(KEY, handle()),
            lambda: list(store.watch(Handles(), "1")),
        ):
            with pytest.raises(Unauthorized, match="authentication failed") as caught:
                call()
            assert "wrong" not in str(caught.value)
    assert "a-secret" not in repr(locked.config)


def test_without_a_user_the_certificates_name_counts_and_it_has_no_rights(locked: Guarded) -> None:
    with closing(locked.store(username="", password="")) as store:
        with pytest.raises(Unauthorized):
            store.get(KEY)
        with pytest.raises(Unauthorized):
            list(store.watch(Handles(), "1"))


def test_what_the_role_does_not_cover_is_unauthorized_and_unwritten(guarded: Guarded) -> None:
    member = guarded.member
    member.ask("auth/user/add", {"name": "ipam-only", "password": "p"})
    member.enable_users(USER, PASSWORD)
    with closing(guarded.store(username="ipam-only", password="p")) as store:
        for call in (
            lambda: store.list(Resources(Kind.IP_POOL)),
            lambda: store.create(KEY, handle()),
            lambda: store.commit([Create(KEY, handle())]),
            lambda: store.delete(KEY),
            lambda: list(store.watch(Handles(), "1")),
        ):
            with pytest.raises(Unauthorized, match="permission denied"):
                call()
    with closing(guarded.store()) as store:
        assert store.list(Handles()).records == ()


@pytest.mark.parametrize("fault", ["no certificate", "stranger's certificate", "stranger's ca"])
def test_a_handshake_that_fails_is_unavailable(locked: Guarded, fault: str) -> None:
    locked.timing = replace(BRISK, call=1.0)
    (locked.directory / "stranger").mkdir()
    stranger = Authority(locked.directory / "stranger")
    theirs = stranger.client("node-1")
    changed = {
        "no certificate": {"cert_file": "", "key_file": ""},
        "stranger's certificate": {"cert_file": str(theirs.cert), "key_file": str(theirs.key)},
        "stranger's ca": {"ca_cert_file": str(stranger.cert)},
    }[fault]
    with closing(locked.store(**changed)) as store:
        with pytest.raises(Unavailable, match=locked.config.endpoints.removeprefix("https://")):
            store.get(KEY)
        with pytest.raises(Unavailable):
            store.create(KEY, handle())


def test_tokens_expire_and_nobody_notices(forgetful: Guarded) -> None:
    """Idle for longer than a token lives, then each kind of call as the first one."""
    calls: list[str] = []
    with closing(forgetful.store(calls.append)) as store, following(store) as idle:
        records: list[Record | None] = [store.create(KEY, handle())]
        idle.expect("h1")

        def raise_it() -> None:
            newest = records[-1]
            assert newest is not None
            records.extend(store.commit([Update(KEY, handle(len(records)), newest.revision)]))

        once_expired(calls, lambda: store.get(KEY))
        assert [store.get(KEY)] == records
        once_expired(calls, raise_it)
        assert store.get(KEY) == records[-1]
        idle.expect(*["h1"] * len(records))
        with ExitStack() as stack:
            lates = []

            def follow() -> None:
                (first, *_) = records
                assert first is not None
                lates.append(stack.enter_context(following(store, first.revision)))
                lates[-1].expect(*["h1"] * (len(records) - 1))

            once_expired(calls, follow)
            store.delete(KEY)
            lates[-1].expect(*["h1"] * (len(records) - 1), "h1-")
        idle.expect(*["h1"] * len(records), "h1-")


def test_a_restarted_server_has_forgotten_the_tokens(locked: Guarded) -> None:
    with closing(locked.store()) as store, following(store) as follow:
        add(store, "a")
        follow.expect("a")
        locked.member.stop()
        locked.member.start()
        add(store, "b")
        follow.expect("a", "b")
        eventually(lambda: store.delete(HandleKey("a")))
        follow.expect("a", "b", "a-")


def test_a_user_is_no_harm_where_authentication_is_off_and_good_once_it_is_on(
    guarded: Guarded,
) -> None:
    with closing(guarded.store()) as store, closing(guarded.store(username="", password="")) as no:
        record = store.create(KEY, handle())
        assert no.get(KEY) == record
        guarded.member.enable_users(USER, PASSWORD)
        assert store.get(KEY) == record
        store.delete(KEY)
        with pytest.raises(Unauthorized):
            no.get(KEY)


def test_certificates_are_read_again_when_they_were_replaced(guarded: Guarded) -> None:
    with closing(guarded.store()) as store:
        store.create(KEY, handle())
        (guarded.directory / "new").mkdir()
        renewed = Authority(guarded.directory / "new")
        server, client = renewed.server("server"), renewed.client("node-1")
        mine = Pair(Path(guarded.config.cert_file), Path(guarded.config.key_file))
        for source, target in (
            (renewed.cert, guarded.directory / "test-ca.pem"),
            (server.cert, guarded.directory / "server.crt"),
            (server.key, guarded.directory / "server.key"),
            (client.cert, mine.cert),
            (client.key, mine.key),
        ):
            shutil.copyfile(source, target)
        guarded.member.stop()
        guarded.member.start()
        guarded.member.wait_healthy()
        eventually(lambda: store.get(KEY))
        store.delete(KEY)


BAD_SETTINGS = {
    "etcd_endpoints: want one": {"endpoints": " , "},
    "is not http": {"endpoints": "127.0.0.1:2379"},
    "'https://h' is not": {"endpoints": "https://h"},
    "more than": {"endpoints": "https://h:1/path"},
    "'https://h:99999'": {"endpoints": "https://h:99999"},
    "cannot be mixed": {"endpoints": "https://h:1,http://h:2"},
    "uses no certificate": {"endpoints": "http://h:1"},
    "etcd_ca_cert_file: https needs": {"ca_cert_file": ""},
    "etcd_cert_file and etcd_key_file": {"key_file": ""},
    "etcd_username and etcd_password": {"username": "u"},
    "etcd_cert_file: .*No such file": {"cert_file": "/nowhere"},
    "etcd_ca_cert_file: .* no PEM": {"ca_cert_file": __file__},
    "etcd_ca_cert_file: .*not a regular file": {"ca_cert_file": "/dev/null"},
}


@pytest.mark.parametrize("message", list(BAD_SETTINGS))
def test_settings_that_cannot_be_meant(tmp_path: Path, message: str) -> None:
    authority = Authority(tmp_path)
    client = authority.client("c")
    good = EtcdConfig("https://h:1", str(authority.cert), str(client.cert), str(client.key))
    EtcdDatastore(good).close()
    with pytest.raises(InvalidInput, match=message):
        EtcdDatastore(replace(good, **BAD_SETTINGS[message]))
