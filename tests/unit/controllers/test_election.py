"""Who leads: taking, keeping, losing and giving up a lease; nobody's clock but one's own counts."""

from __future__ import annotations

import pytest

from controllers.election import LONGEST, Timing
from libtortie.errors import InvalidInput, Unauthorized, Unavailable
from libtortie.kube.leases import Lease
from tests.fakes.electorate import NAME, NAMESPACE, Electorate, away

LATER = 2.0


@pytest.fixture
def site() -> Electorate:
    return Electorate()


def test_the_first_makes_the_lease_and_leads(site: Electorate) -> None:
    one = site.candidate("a")
    assert not one.leads()
    one.attempt()
    assert site.leaders == ["a"]
    spec = site.lease().spec
    assert (spec.holder_identity, spec.lease_duration_seconds) == ("a", 15)
    assert spec.lease_transitions == 0
    assert spec.acquire_time == spec.renew_time is not None
    assert site.news == ["a: lease kube-system/tortie-controllers: held by a"]


def test_a_second_waits_as_long_as_the_first_renews(site: Electorate) -> None:
    one, two = site.candidate("a"), site.candidate("b")
    for _ in range(50):
        one.attempt()
        two.attempt()
        assert site.leaders == ["a"]
        site.now += LATER
    assert site.complaints == []


def test_a_renewal_keeps_when_it_was_acquired(site: Electorate) -> None:
    one = site.candidate("a")
    one.attempt()
    acquired = site.lease().spec.acquire_time
    site.now += LATER
    one.attempt()
    spec = site.lease().spec
    assert spec.acquire_time == acquired
    assert spec.renew_time is not None
    assert acquired is not None
    assert (spec.renew_time - acquired).total_seconds() == LATER


def test_a_renewal_is_one_request(site: Electorate) -> None:
    one = site.candidate("a")
    one.attempt()
    site.kube.calls.clear()
    one.attempt()
    assert site.kube.calls == [("update", "leases")]


@pytest.mark.parametrize("skew", [-86400.0, 0.0, 86400.0])
def test_a_dead_leader_is_followed_when_its_lease_is_over_on_our_clock(
    site: Electorate, skew: float
) -> None:
    one, two = site.candidate("a", skew=skew), site.candidate("b", skew=-skew)
    one.attempt()
    site.now += 3
    two.attempt()
    site.now += 14.9
    two.attempt()
    assert site.leaders == []
    site.now += 0.2
    two.attempt()
    assert site.leaders == ["b"]
    assert site.lease().spec.lease_transitions == 1


def test_who_comes_late_waits_a_whole_lease_after_the_first_look(site: Electorate) -> None:
    """When it was renewed last nobody else can know: the writer's clock says nothing."""
    site.candidate("a").attempt()
    site.now += 1000
    two = site.candidate("b")
    two.attempt()
    assert site.leaders == []
    site.now += 15
    two.attempt()
    assert site.leaders == ["b"]


def test_a_leader_whose_api_is_away_stops_before_anybody_can_follow(site: Electorate) -> None:
    one = site.candidate("a")
    one.attempt()
    site.before = away
    site.now += 9.9
    one.attempt()
    assert site.leaders == ["a"]
    assert one.pause() == pytest.approx(0.1)
    site.now += 0.2
    assert site.leaders == []
    one.attempt()
    assert site.complaints == [f"a: lease {NAMESPACE}/{NAME}: connection refused"]
    site.before = lambda verb: None
    one.attempt()
    assert site.leaders == ["a"], "nobody has taken it meanwhile"


def test_a_trouble_that_lasts_is_told_once_and_again_when_it_comes_again(site: Electorate) -> None:
    one = site.candidate("a")
    for _ in range(3):
        site.kube.fail(Unauthorized("may not get leases"), verb="get")
        one.attempt()
    one.attempt()
    site.now += 11
    site.kube.fail(Unauthorized("may not get leases"), verb="get")
    one.attempt()
    assert site.complaints == [f"a: lease {NAMESPACE}/{NAME}: may not get leases"] * 2


def test_a_leader_that_was_stopped_does_not_act_when_it_wakes(site: Electorate) -> None:
    one, two = site.candidate("a"), site.candidate("b")
    one.attempt()
    two.attempt()
    site.now += 60
    assert not one.leads()
    two.attempt()
    assert site.leaders == ["b"]
    one.attempt()
    assert site.leaders == ["b"]


def test_a_leader_that_was_stopped_in_the_middle_of_a_renewal_leads_from_before_it(
    site: Electorate,
) -> None:
    one = site.candidate("a")
    one.attempt()

    def stopped(verb: str) -> None:
        site.now += 60

    site.before = stopped
    one.attempt()
    assert site.leaders == []


def test_a_renewal_whose_answer_was_lost(site: Electorate) -> None:
    one = site.candidate("a")
    one.attempt()
    site.now += LATER
    site.after = away
    one.attempt()
    site.after = lambda verb: None
    site.now += LATER
    one.attempt()
    assert site.leaders == ["a"]
    assert one.election.remaining(site.now) == 10


def test_a_creation_whose_answer_was_lost_leads_after_the_next_write_only(
    site: Electorate,
) -> None:
    one = site.candidate("a")
    site.after = lambda verb: away(verb) if verb == "create" else None
    one.attempt()
    assert site.leaders == []
    site.after = lambda verb: None
    one.attempt()
    assert site.leaders == ["a"]


def test_of_two_that_write_at_once_one_leads(site: Electorate) -> None:
    one, two = site.candidate("a"), site.candidate("b")

    def overtaken(verb: str) -> None:
        if verb == "create":
            site.before = lambda verb: None
            two.attempt()

    site.before = overtaken
    one.attempt()
    assert site.leaders == ["b"]
    assert site.complaints == []


def test_a_lease_that_is_given_up_is_taken_at_once(site: Electorate) -> None:
    one, two = site.candidate("a"), site.candidate("b")
    one.attempt()
    two.attempt()
    one.give_up()
    assert site.leaders == []
    assert site.lease().spec.lease_duration_seconds == 1
    two.attempt()
    assert site.leaders == ["b"]


def test_a_resignation_whose_answer_was_lost_ends_it_all_the_same(site: Electorate) -> None:
    one, two = site.candidate("a"), site.candidate("b")
    one.attempt()
    site.after = away
    one.give_up()
    site.after = lambda verb: None
    two.attempt()
    assert site.leaders == ["b"]


def test_who_does_not_hold_it_gives_nothing_up(site: Electorate) -> None:
    one, two = site.candidate("a"), site.candidate("b")
    two.give_up()
    one.attempt()
    two.attempt()
    two.give_up()
    assert site.lease().spec.holder_identity == "a"
    site.now += 60
    two.attempt()
    one.give_up()
    assert site.lease().spec.holder_identity == "b"
    assert any("is not given up" in line for line in site.complaints)


@pytest.mark.parametrize("holder", ["somebody", ""])
def test_a_lease_that_was_taken_by_hand_is_lost_at_the_next_renewal(
    site: Electorate, holder: str
) -> None:
    one = site.candidate("a")
    one.attempt()
    reign = one.election.reign
    site.edit(holderIdentity=holder)
    site.now += LATER
    one.attempt()
    if holder:
        assert site.leaders == []
    else:
        assert one.election.reign != reign, "a new term"
        assert site.lease().spec.lease_transitions == 1


def test_a_lease_that_comes_back_is_ours_after_a_write_only(site: Electorate) -> None:
    one = site.candidate("a")
    one.attempt()
    site.edit(holderIdentity="b")
    one.attempt()
    site.edit(holderIdentity="a")
    site.kube.fail(Unavailable("late"), verb="update")
    one.attempt()
    assert site.leaders == []
    one.attempt()
    assert site.leaders == ["a"]


def test_a_lease_that_was_deleted_by_hand(site: Electorate) -> None:
    one, two = site.candidate("a"), site.candidate("b")
    one.attempt()
    two.attempt()
    reign = one.election.reign
    site.kube.remove(Lease, NAME, NAMESPACE)
    two.attempt()
    assert site.leaders == ["a"], "its holder may not know yet"
    site.now += LATER
    one.attempt()
    assert site.leaders == ["a"]
    assert one.election.reign != reign, "a new term"
    site.kube.remove(Lease, NAME, NAMESPACE)
    site.now += 15
    two.attempt()
    assert site.leaders == ["b"]


@pytest.mark.parametrize("seconds", [None, 0, 1, -5])
def test_a_lease_of_no_time_is_waited_for_as_long_as_ours(
    site: Electorate, seconds: int | None
) -> None:
    one, two = site.candidate("a"), site.candidate("b")
    one.attempt()
    site.edit(leaseDurationSeconds=seconds)
    two.attempt()
    site.now += 14
    two.attempt()
    assert site.leaders == []
    site.now += 1
    two.attempt()
    assert site.leaders == ["b"]


def test_a_lease_for_ever_ends_all_the_same(site: Electorate) -> None:
    one, two = site.candidate("a"), site.candidate("b")
    one.attempt()
    site.edit(leaseDurationSeconds=2147483647)
    two.attempt()
    site.now += LONGEST - 1
    two.attempt()
    assert site.leaders == []
    site.now += 1
    two.attempt()
    assert site.leaders == ["b"]


def test_the_last_transition_that_the_api_can_hold_is_not_the_last(site: Electorate) -> None:
    site.candidate("a").attempt()
    site.edit(holderIdentity="gone", leaseTransitions=2**31 - 1)
    b = site.candidate("b")
    b.attempt()
    site.now += 16
    b.attempt()
    assert site.leaders == ["b"]
    assert site.lease().spec.lease_transitions == 0


def test_what_others_wrote_beside_the_spec_stays(site: Electorate) -> None:
    one = site.candidate("a")
    one.attempt()
    note = {"metadata": {"labels": {"by": "hand"}, "finalizers": ["example.org/keep"]}}
    site.kube.patch(Lease, NAME, NAMESPACE, note)
    one.attempt()
    one.attempt()
    meta = site.lease().metadata.model_dump(by_alias=True)
    assert meta["labels"] == {"by": "hand"}
    assert meta["finalizers"] == ["example.org/keep"]
    assert site.leaders == ["a"]


@pytest.mark.parametrize(
    ("timing", "said"),
    [
        (Timing(lease=10, renew=10), "longer than the renewal deadline"),
        (Timing(renew=2), "1.2 times the retry period"),
        (Timing(retry=0), "1.2 times the retry period"),
        (Timing(lease=0.5, renew=0.2, retry=0.1), "whole seconds"),
        (Timing(lease=15.5), "whole seconds"),
        (Timing(lease=301), "the longest is 300 s"),
    ],
)
def test_times_that_leave_no_room(timing: Timing, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        timing.check()


def test_the_default_times_are_client_gos() -> None:
    Timing().check()
    assert Timing() == Timing(lease=15, renew=10, retry=2)


def test_an_election_that_stands_still_is_told(site: Electorate) -> None:
    one = site.candidate("a")
    assert one.stalled() == ""
    one.attempt()
    site.now += 60
    assert one.stalled() == ""
    site.now += 1
    assert one.stalled() == "the lease was last looked at 61 s ago"
    site.before = away
    one.attempt()
    assert one.stalled() == "", "an API that is away is nothing that a restart cures"
    assert one.trouble
