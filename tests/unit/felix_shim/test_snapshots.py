"""Values that differ little from the one before, and say in what."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from felix_shim.snapshots import Snapshot, TextSet, touched

texts = st.sets(st.text(max_size=2), max_size=30)
items = st.dictionaries(st.integers(0, 9), st.integers(0, 2))
changes = st.lists(st.tuples(items, st.sets(st.integers(0, 9))), min_size=1, max_size=5)


@settings(deadline=None, derandomize=True, database=None)
@given(texts, texts, texts)
def test_a_text_set_is_a_set(first: set[str], come: set[str], gone: set[str]) -> None:
    before = TextSet.of(first)
    after = before.next(come, gone - come)
    wanted = (first - (gone - come)) | come
    assert set(after) == wanted and len(after) == len(wanted)
    assert set(before) == first, "it stays what it was"
    assert after.without(before) == wanted - first
    assert before.without(after) == first - wanted
    assert (after == TextSet.of(wanted)) and (after == before) is (wanted == first)


def test_what_did_not_change_is_shared() -> None:
    before = TextSet.of(map(str, range(10_000)))
    after = before.next(["new"], ["77"])
    others = [one is not two for one, two in zip(before.buckets, after.buckets, strict=True)]
    assert 1 <= sum(others) <= 2


@settings(deadline=None, derandomize=True, database=None)
@given(items, changes)
def test_a_snapshot_names_every_key_that_differs(
    first: dict[int, int], later: list[tuple[dict[int, int], set[int]]]
) -> None:
    snapshots, plain = [Snapshot(first)], [dict(first)]
    for come, gone in later:
        snapshots.append(snapshots[-1].next(come, gone - come.keys()))
        kept = {key: value for key, value in plain[-1].items() if key not in gone - come.keys()}
        plain.append(kept | come)
    assert snapshots == plain
    for place, before in enumerate(snapshots):
        for other, after in enumerate(snapshots):
            keys = plain[place].keys() | plain[other].keys()
            differ = {one for one in keys if plain[place].get(one) != plain[other].get(one)}
            assert differ <= set(touched(before, after)), (place, other)
    last, come, gone = snapshots[-1], *later[-1]
    assert set(touched(snapshots[-2], last)) <= come.keys() | gone
    assert set(touched(last, last)) == set()


def test_mappings_of_other_kinds_may_differ_anywhere() -> None:
    assert set(touched({1: "a"}, {2: "b"})) == {1, 2}
    assert set(touched({1: "a"}, Snapshot({2: "b"}))) == {1, 2}
