"""Pages over a cluster in memory: what they show, what a wrong address gets, what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest

from controllers.page.problems import LastPass
from controllers.page.site import POLICY
from libtortie.datastore.forwarding import ForwardingDatastore
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore, Listing, Op, Record
from libtortie.errors import Compacted, Unauthorized, Unavailable
from libtortie.kube.migrations import Migration
from libtortie.kube.objects import Meta, VirtualMachine, VirtualMachineInstance
from libtortie.model.history import Fact, Step, What
from libtortie.model.keys import Scope
from tests.fakes.gc_world import Town
from tests.fakes.ipam_world import START
from tests.fakes.page_site import PageSite, job, page_site, vmi

LATER = START + timedelta(minutes=1)
ADDRESSES = (ip_address("10.65.0.84"),)
AT_SIGN = datetime(2026, 1, 1, 0, 2, 3, tzinfo=UTC)
PATHS = ("/", "/vms", "/vms/shop/web", "/migrations", "/migrations/shop/move", "/ipam", "/problems")


@pytest.fixture
def site() -> Iterator[PageSite]:
    with page_site() as made:
        made.vm("web")
        made.vm("db", "n2")
        made.job("move", "web")
        made.job("old", "db", "Succeeded")
        yield made


def test_vms_have_their_node_addresses_and_migration(site: PageSite) -> None:
    address = site.vm("api", "n0")
    site.later(10)
    shown = {one["vm"]: one for one in site.json("/vms")["vms"]["items"]}
    assert list(shown) == ["shop/api", "shop/db", "shop/web"]
    assert shown["shop/api"] == {
        "vm": "shop/api",
        "phase": "Running",
        "node": "n0",
        "addresses": [address],
        "migration": None,
    }
    assert shown["shop/web"]["migration"] == "shop/move"
    assert shown["shop/db"]["migration"] is None, "it has ended"


def test_a_stopped_vm_is_there_as_long_as_it_has_an_address(site: PageSite) -> None:
    (before,) = [one for one in site.json("/vms")["vms"]["items"] if one["vm"] == "shop/db"]
    site.town.kube.remove(VirtualMachineInstance, "db", "shop")
    site.later(10)
    (after,) = [one for one in site.json("/vms")["vms"]["items"] if one["vm"] == "shop/db"]
    assert after == before | {"phase": "no instance", "node": ""}


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("WEB", {"shop/web"}),
        ("n2", {"shop/db"}),
        ("10.65.0.", {"shop/web", "shop/db"}),
        ("x", set()),
    ],
)
def test_vms_are_searched_for(site: PageSite, search: str, found: set[str]) -> None:
    page = site.json("/vms", q=search)
    assert {one["vm"] for one in page["vms"]["items"]} == found
    assert page["vms"]["total"] == len(found)
    assert f'value="{search}"' in site.html("/vms", q=search)


def test_one_vm_with_owners_migrations_and_history(site: PageSite) -> None:
    site.recorded(
        Fact(START, What.GRANTED, "n1", "h", ADDRESSES, "shop", "web", "pod", "n1"),
        Fact(LATER, What.HANDED_OVER, "n1", "h", ADDRESSES, "shop", "web"),
        Fact(START, What.GRANTED, "n2", "h2", ADDRESSES, "shop", "db", "other", "n2"),
        Fact(START, What.GRANTED, "n2", "h3", ADDRESSES, "shop", "", "web", "n2"),
    )
    page = site.json("/vms/shop/web")
    (owner,) = page["owners"]["items"]
    assert (owner["role"], owner["pod"], owner["node"]) == ("active", "virt-launcher-web-x", "n1")
    assert page["handle"] == "k8s-pod-network.vmi.shop.web"
    assert [one["migration"] for one in page["migrations"]["items"]] == ["shop/move"]
    assert [one["text"] for one in page["history"]["items"]] == [
        "10.65.0.84 kept for shop/web, which is stopped",
        "10.65.0.84 granted to shop/pod of VM web on n1",
    ], "newest first, and nobody else's"


def test_a_running_migration_goes_on_in_its_page(site: PageSite) -> None:
    def texts() -> list[str]:
        site.later(2)
        return [one["text"] for one in site.json("/migrations/shop/move")["moments"]["items"]]

    assert texts() == ["migration created", "migration Scheduling", "migration Running"]
    assert 'data-refresh="1"' in site.html("/migrations/shop/move")
    assert 'class="now"' in site.html("/migrations/shop/move")
    site.job("move", "web", "Succeeded")
    assert texts()[-1] == "migration ends"
    page = site.json("/migrations/shop/move")
    assert (page["running"], page["seconds"], page["ended"]) == (False, 9.0, "2026-01-01T00:02:09Z")
    assert 'class="now"' not in site.html("/migrations/shop/move")


def test_what_agents_recorded_stands_beside_what_kubevirt_says(site: PageSite) -> None:
    def step(uid: str, step: Step, at: datetime, **details: str) -> Fact:
        about = {"migration_uid": uid, "step": step.value, "source": "n1"} | details
        return Fact(
            at, What.MIGRATION, "n2", "h", ADDRESSES, "shop", "db", "pod", "n2", details=about
        )

    site.recorded(
        step("job-old", Step.HEARD, AT_SIGN),
        step("job-old", Step.RAISED, AT_SIGN, latency_ms="1.5"),
        step("job-old", Step.REACHED, AT_SIGN, downtime_ms="12"),
        step("job-old", Step.SETTLED, AT_SIGN),
        step("job-gone", Step.PREPARED, START),
        step("job-gone", Step.LEFT, LATER, reason="<b>none</b>"),
        step("job-lost", Step.PREPARED, START.replace(year=2020)),
    )
    past = {one["migration"]: one for one in site.json("/migrations")["past"]["items"]}
    assert set(past) == {"shop/old", "shop/job-gone", "shop/job-lost"}
    assert (past["shop/old"]["downtime_ms"], past["shop/old"]["sign_to_route_ms"]) == (12.0, 1.5)
    assert (past["shop/job-gone"]["phase"], past["shop/job-gone"]["seconds"]) == ("lost", 60.0)
    assert past["shop/job-lost"]["phase"] == "end not seen"
    assert list(past)[-1] == "shop/job-lost", "newest first"
    page = site.json("/migrations/shop/old")
    zero = [one for one in page["moments"]["items"] if one["since_zero"] == "+0.000 ms"]
    assert [one["text"] for one in zero][:1] == ["migration to shop/pod of VM db on n2: heard"]
    assert site.json("/migrations/shop/job-old") == page, "by its UID, too"
    assert site.json("/migrations")["running"]["total"] == 1


def test_pools_and_their_blocks(site: PageSite) -> None:
    page = site.json("/ipam")
    v4, v6 = page["pools"]["items"]
    assert (v4["cidr"], v4["total"], v4["used"], v4["free"]) == ("10.65.0.0/24", 256, 2, 254)
    assert (v4["blocks"], v4["nodes"], v4["used_percent"]) == (2, 2, 0.8)
    assert (v6["cidr"], v6["blocks"]) == ("fd65::/116", 0)
    assert {one["node"]: one["used"] for one in page["blocks"]["items"]} == {"n1": 1, "n2": 1}
    assert site.json("/ipam", pool="fd65::/116")["blocks"]["items"] == []
    assert site.json("/ipam", pool="10.65.0.0/24")["blocks"]["total"] == 2


def test_problems_are_those_of_the_check_and_of_the_collector() -> None:
    passes = LastPass()
    with page_site(passes=passes) as site:
        site.town.start("app")
        site.town.start("web")
        site.town.remove_pod("web")
        page = site.json("/problems")
        assert page["collected"] is None
        (one,) = page["problems"]["items"]
        assert (one["kind"], one["text"]) == ("leaked", "pod shop/web is gone")
        assert one["address"].startswith("10.65.")
        assert site.json("/")["problem_count"] == 1
        site.town.sweep()
        assert site.town.last is not None
        passes.keep(site.town.last, START, dry_run=False)
        told = site.json("/problems")
        assert told["collected"] == "2026-08-22T13:30:00Z"
        lines = [one["text"] for one in told["collector"]["items"]]
        assert any("pod shop/web is gone" in line for line in lines)
        assert lines[-1].startswith("pass: ")


def test_what_could_not_be_judged_is_no_proof_of_health(site: PageSite) -> None:
    for name in ("web", "db"):
        meta = Meta(namespace="shop", name=name, uid="vm-1")
        site.town.kube.put(VirtualMachine(metadata=meta))
    site.town.start("app")
    site.town.kube.fail(Unavailable("no pods today"), verb="list", plural="pods", times=9)
    page = site.json("/problems")
    assert page["read"]["problems"]["trouble"] == ""
    (one,) = page["unjudged"]["items"]
    assert one["addresses"] == 1
    assert "no pods today" in one["reason"]


@pytest.mark.parametrize("path", PATHS)
def test_each_page_forbids_what_is_not_ours(site: PageSite, path: str) -> None:
    for query in ({}, {"format": "json"}):
        got = site.ask(path, **query)
        assert got.status == 200
        assert got.headers["Content-Security-Policy"] == POLICY
        assert got.headers["Cache-Control"] == "private, no-cache"
    assert "script-src 'self'" in POLICY
    assert "unsafe" not in POLICY


@pytest.mark.parametrize("path", [*PATHS[:4], "/ipam", "/problems", "/page.css", "/page.js"])
def test_who_has_it_already_gets_no_body(site: PageSite, path: str) -> None:
    site.ask("/problems")  # which the overview does not wait for
    tag = site.ask(path).headers["ETag"]
    for given in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        again = site.ask(path, given)
        assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
    assert site.ask(path, '"x"').status == 200


def test_what_is_no_page_has_its_reason_whatever_one_has_already(site: PageSite) -> None:
    tag = site.ask("/nope").headers["ETag"]
    for given in (tag, "*"):
        again = site.ask("/nope", given)
        assert again.status == 404
        assert again.body


def test_what_changes_has_another_tag(site: PageSite) -> None:
    tag = site.ask("/vms").headers["ETag"]
    site.vm("new")
    site.later(10)
    assert site.ask("/vms", tag).status == 200


@pytest.mark.parametrize(
    ("path", "query", "status", "said"),
    [
        ("/nope", {}, 404, "there is no page /nope"),
        ("/vms/", {}, 404, "there is no page /vms/"),
        ("/vms/shop", {}, 404, "there is no page"),
        ("/vms/shop/nobody", {}, 404, "there is no VM shop/nobody"),
        ("/migrations/shop/none", {}, 404, "there is no migration shop/none"),
        ("/ipam", {"pool": "10.0.0.0/8"}, 404, "there is no pool 10.0.0.0/8"),
        ("/vms", {"page": "0"}, 400, "page '0': want a number from 1 to 1000000000"),
        ("/vms", {"page": "-1"}, 400, "want a number"),
        ("/vms", {"page": "1e3"}, 400, "want a number"),
        ("/vms", {"page": "9" * 30}, 400, "want a number"),
        ("/vms", {"size": "1001"}, 400, "size '1001': want a number from 1 to 1000"),
        ("/vms", {"format": "xml"}, 400, "format 'xml': want html or json"),
        (
            "/vms",
            {"sort": "name"},
            400,
            "'sort' is not known here: known are format, page, q, size",
        ),
        ("/ipam", {"q": "x"}, 400, "'q' is not known here"),
        ("/vms", {"q": "x" * 301}, 400, "q is longer than 300 characters"),
    ],
)
def test_a_wrong_address_is_told_what_is_wrong(
    site: PageSite, path: str, query: dict[str, str], status: int, said: str
) -> None:
    assert site.ask(path, **query).status == status
    if "format" not in query:
        assert said in " ".join(site.json(path, **query)["notes"])


@dataclass
class Away(ForwardingDatastore):
    """A store that can be away, and counts what it is asked."""

    inner: Datastore = field(default_factory=MemoryDatastore)
    away: bool = False
    asked: int = 0
    commits: int = 0
    broken: tuple[str, ...] = ()

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        self.commits += 1
        return self.inner.commit(ops)

    def parts(self, scope: Scope) -> Iterator[Listing]:
        self._ask()
        yield from (replace(one, malformed=self.broken) for one in self.inner.parts(scope))

    def list(self, scope: Scope) -> Listing:
        self._ask()
        return self.inner.list(scope)

    def _ask(self) -> None:
        self.asked += 1
        if self.away:
            raise Unavailable("etcd 192.0.2.1: no answer in 5 s")


def test_a_store_that_is_away_is_told_with_the_age_of_what_is_shown() -> None:
    town = Town()
    store = Away(town.world.store)
    with page_site(town=town, store=store) as site:
        address = site.vm("web")
        assert site.json("/vms")["read"]["ipam"] == {"at": "2026-08-22T13:30:00Z", "trouble": ""}
        store.away = True
        site.later(10)
        page = site.json("/vms")
        assert page["read"]["ipam"]["trouble"] == "etcd 192.0.2.1: no answer in 5 s"
        assert page["vms"]["items"][0]["addresses"] == [address]
        shown = site.html("/vms")
        assert "ipam: this is of 2026-08-22T13:30:00Z: etcd 192.0.2.1: no answer in 5 s" in shown
        assert address in shown
        assert "as far as is known: ipam: etcd" in site.html("/vms/shop/none")
        store.away = False
        site.later(10)
        assert 'class="alarm">' not in site.html("/vms")


def test_what_cannot_be_read_is_named_and_hides_nothing() -> None:
    town = Town()
    store = Away(town.world.store, broken=("block 10.65.0.0/30: no <JSON>",))
    with page_site(town=town, store=store) as site:
        address = site.vm("web")
        for path in ("/ipam", "/vms"):
            assert site.json(path)["notes"] == ["cannot be read: block 10.65.0.0/30: no <JSON>"]
        assert site.json("/vms")["vms"]["items"][0]["addresses"] == [address]
        kinds = {one["kind"] for one in site.json("/problems")["problems"]["items"]}
        assert "unreadable" in kinds


def test_a_list_whose_state_is_gone_meanwhile_is_read_at_once() -> None:
    with page_site() as site:
        site.vm("web")
        site.town.kube.fail(Compacted("too old"), plural="virtualmachineinstances")
        page = site.json("/vms")
        assert page["read"]["vms"]["trouble"] == ""
        assert page["vms"]["items"][0]["phase"] == "Running"


def test_where_nothing_was_ever_read_there_is_nothing_to_show() -> None:
    store = Away(away=True)
    with page_site(store=store) as site:
        got = site.ask("/ipam")
        assert got.status == 503
        assert "ipam: nothing is known yet: etcd 192.0.2.1" in site.html("/ipam")
        assert site.ask("/vms").status == 200, "the API is there"


def test_without_the_api_addresses_are_still_shown() -> None:
    with page_site() as site:
        address = site.vm("web")
        site.town.kube.fail(Unauthorized("cannot list"), plural="virtualmachineinstances")
        page = site.json("/vms")
        assert page["vms"]["items"][0]["addresses"] == [address]
        assert page["read"]["vms"] == {"at": None, "trouble": "cannot list"}


def test_without_kubevirt_there_is_a_note() -> None:
    with page_site() as site:
        site.town.kube.hide("kubevirt.io")
        page = site.json("/vms")
        assert page["vms"]["items"] == []
        assert any("virtualmachineinstances" in note for note in page["notes"])


def test_five_thousand_vms_are_read_once_and_shown_in_parts() -> None:
    town = Town()
    store = Away(town.world.store)
    for number in range(5000):
        town.kube.put(vmi(f"vm-{number:04}", node=f"n{number % 50}"), VirtualMachineInstance)
    town.kube.put(job("move", "vm-0001"), Migration)
    with page_site(town=town, store=store) as site:
        page = site.json("/vms")
        assert (page["vms"]["total"], page["vms"]["pages"], len(page["vms"]["items"])) == (
            5000,
            50,
            100,
        )
        asked, calls = store.asked, len(town.kube.calls)
        body = site.html("/vms", page="50")
        assert len(body) < 64_000
        assert "shop/vm-4999" in body
        assert "shop/vm-4899" not in body
        assert site.json("/vms", page="51")["vms"]["items"] == []
        assert len(site.json("/vms", size="1000")["vms"]["items"]) == 1000
        assert site.json("/vms", q="vm-1234")["vms"]["total"] == 1
        assert (store.asked, len(town.kube.calls)) == (asked, calls), "all of one reading"
        assert len(site.html("/")) < 64_000


def test_who_only_looks_writes_nothing() -> None:
    town = Town()
    town.start("app")
    store = Away(town.world.store)
    with page_site(town=town, store=store) as site:
        for path in ("/", "/vms", "/migrations", "/ipam", "/problems"):
            assert site.ask(path).status == 200
    assert store.commits == 0
    assert {verb for verb, _ in town.kube.calls} <= {"get", "list"}
