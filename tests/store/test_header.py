from __future__ import annotations

import hmac
import json

import pytest

from promptcodebook.config import load_config
from promptcodebook.errors import RunChanged
from promptcodebook.store.header import (
    Difference,
    check_resumable,
    differences,
    digest,
    is_sealed,
    seal,
)

SAME = ({"train": "aa"}, {"train": "aa"})


def test_a_tree_does_not_differ_from_itself_as_json() -> None:
    tree = load_config({"task": "constraints"}).model_dump(mode="python")
    assert differences(tree, load_config({"task": "constraints"}).model_dump(mode="json")) == ()
    assert digest(tree) == digest(load_config({"task": "constraints"}).model_dump(mode="json"))


def test_differences_are_dotted_and_hold_both_values() -> None:
    old = load_config({"seed": 0}).model_dump()
    new = load_config({"seed": 7, "update": {"batch_size": 5}}).model_dump()
    assert differences(old, new) == (
        Difference("seed", 0, 7),
        Difference("update.batch_size", 15, 5),
    )
    assert digest(old) != digest(new)


@pytest.mark.parametrize(
    "free",
    [
        {"budget": {"usd": 5.0}},
        {"concurrency": 8},
        {"timeout": 9.0},
        {"retries": 0},
        {"cache": False},
        {"data_dir": "/elsewhere"},
        {"prices": {"m": {"prompt": 1.0, "completion": 2.0}}},
        {"roles": {"critic": {"headers": {"X-Title": "blue"}}}},
        {"max_reply_mb": 3.0},
        {"user_code": {"threads": 2}},
        *({"data": {key: f"{key}.jsonl"}} for key in ("path", "train", "val", "test")),
    ],
)
def test_what_to_spend_and_how_fast_may_change(free: dict[str, object]) -> None:
    old = load_config({}).model_dump()
    assert differences(old, load_config(free).model_dump()) == ()


@pytest.mark.parametrize(
    "kept",
    [
        {"roles": {"critic": {"temperature": 0.25}}},
        {"roles": {"executor": {"model": "simulated?world=2"}}},
        {"data": {"input": "question"}},
        {"data": {"split_seed": 5}},
        {"validation": {"every": 3}},
        {"keep": "last"},
    ],
)
def test_what_decides_the_replies_or_the_policy_may_not(kept: dict[str, object]) -> None:
    """Nor is the key beside one that may change taken for it."""
    old = load_config({}).model_dump()
    assert len(differences(old, load_config(kept).model_dump())) == 1


def test_a_key_only_one_side_has_differs() -> None:
    assert differences({}, {"a": {"b": 1}}, ignore=()) == (Difference("a.b", None, 1),)
    assert differences({"a": 1}, {"a": {}}, ignore=()) == (Difference("a", 1, {}),)


def test_a_changed_setting_is_named_with_both_values() -> None:
    with pytest.raises(RunChanged, match=r"(?m)seed: 0 → 7; select: 4 → 2$") as caught:
        check_resumable("r1", ({"seed": 0, "select": 4}, {"seed": 7, "select": 2}), SAME)
    assert "--resume" in caught.value.hint
    assert caught.value.exit_code == 2


def test_many_changes_are_counted_and_long_values_cut() -> None:
    old = {f"k{i}": "x" * 200 for i in range(9)}
    with pytest.raises(RunChanged, match="and 4 more") as caught:
        check_resumable("r1", (old, {}), SAME)
    assert len(str(caught.value)) < 400


def test_changed_data_names_the_split() -> None:
    now = {"train": "aa", "val": "XX", "test": "cc"}
    with pytest.raises(RunChanged, match="changed since it started: test, val"):
        check_resumable("r1", ({}, {}), ({"train": "aa", "val": "bb"}, now))


def test_an_unchanged_run_passes() -> None:
    check_resumable("r1", ({"seed": 1, "budget": 1}, {"seed": 1, "budget": 2}), SAME)


SECRET = bytes(range(32))
TEXT = r'{"id": "r1", "base": "/Gr\u00fc\udcff", "config": {"b": 2, "a": [1, 0.5]}}'


def test_a_mark_is_of_the_same_form_in_every_version() -> None:
    """HMAC-SHA-256 over JSON in ASCII, its keys in order: another form would make strangers of all
    runs there are."""
    plain = rb'{"base":"/Gr\u00fc\udcff","config":{"a":[1,0.5],"b":2},"id":"r1"}'
    sealed = seal(TEXT, SECRET)
    mark = hmac.new(SECRET, plain, "sha256").hexdigest()
    assert json.loads(sealed) == {**json.loads(TEXT), "seal": mark}
    assert sealed.isascii(), "a path may hold what no UTF-8 is"
    assert seal(sealed, SECRET) == sealed


def test_a_mark_holds_for_its_header_and_its_secret_alone() -> None:
    tree = json.loads(seal(TEXT, SECRET))
    assert is_sealed(json.dumps(tree), SECRET) is True
    assert is_sealed(json.dumps(dict(reversed(tree.items()))), SECRET) is True
    others: list[dict[str, object]] = [
        *({**tree, **edit} for edit in ({"id": "r2"}, {"config": {}}, {"more": 1})),
        *({**tree, "seal": mark} for mark in ("", "\u00fc", None, 1)),
        json.loads(TEXT),
    ]
    assert [is_sealed(json.dumps(other), SECRET) for other in others] == [False] * len(others)
    assert is_sealed(json.dumps(tree), SECRET[::-1]) is False
    assert is_sealed(json.dumps(tree), None) is False
