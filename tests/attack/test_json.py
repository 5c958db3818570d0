"""JSON from outside that no parser or number can hold: each reader fails in its own words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.cli.policies import _columns
from promptcodebook.config.schema import Init
from promptcodebook.deploy.http.completions import Refusal, parse_body
from promptcodebook.errors import ConfigError, DataError, RewardError
from promptcodebook.method.init import Earlier
from promptcodebook.models.providers.library import Declined, arguments_of
from promptcodebook.run.evaluation import Side
from promptcodebook.tasks.program import body_fields
from promptcodebook.tasks.rewards import apply_reward, make_reward
from promptcodebook.tools.proposal import Column
from promptcodebook.types import Output

LISTS, OBJECTS = "[" * 200_000, '{"a":' * 200_000
# It is valid JSON, and deeper than what walks it later can go.
NESTED = "[" * 500 + "]" * 500
HUGE = "1" * 400
EXAMPLE = pco.Example("e1", "x", "y")


def of_file(read: Callable[[Path], object]) -> Callable[[str, Path], object]:
    def written(text: str, folder: Path) -> object:
        path = folder / "file.json"
        path.write_text(text, "utf-8")
        return read(path)

    return written


READERS: list[tuple[str, Callable[[str, Path], object], type[Exception] | object]] = [
    ("a request", lambda text, _: parse_body(text.encode()), Refusal),
    ("a tool call", lambda text, _: arguments_of({"function": {"arguments": text}}), Declined),
    ("a codebook", of_file(lambda p: Earlier.read(Init(kind="file", path=str(p)), p)), ConfigError),
    ("a schema", of_file(lambda p: make_reward({"kind": "schema", "schema": str(p)}, p.parent)),
     ConfigError),
    ("an evaluation", of_file(Side.known), None),
    ("a column of chats", lambda text, _: pco.load([{"c": text, "t": "1"}] * 3, messages="c",
                                                  target="t"), DataError),
    ("a column of tools",
     lambda text, _: body_fields(pco.Example("e", "x", "y", fields={"tools": text})), DataError),
    ("columns of an input", lambda text, _: _columns('{"a":' + text, "{a} and {b}"), DataError),
    ("a column of objects", lambda text, _: Column("c", [text]).keys, []),
]  # fmt: skip


@pytest.mark.parametrize("text", [LISTS, OBJECTS, NESTED, f"[{HUGE}]"])
@pytest.mark.parametrize(("_", "read", "outcome"), READERS, ids=[name for name, *_ in READERS])
def test_a_reader_says_what_is_wrong_with_hostile_json(
    _: str, read: Callable[[str, Path], object], outcome: Any, text: str, tmp_path: Path
) -> None:
    if isinstance(outcome, type):
        with pytest.raises(outcome):
            read(text, tmp_path)
    else:
        assert not read(text, tmp_path)


def returns(value: Any) -> Any:
    return lambda example, output: value


async def test_no_number_from_outside_is_too_large_for_a_float(tmp_path: Path) -> None:
    saved = f'{{"examples": [{{"id": 1, "reward": {HUGE}}}], "split": "test", "simulated": false}}'
    assert of_file(Side.known)(saved, tmp_path) is None
    steps = pco.rewards.schema({"type": "number", "multipleOf": 0.1})
    assert (await apply_reward(steps, EXAMPLE, Output(HUGE), (0.0, 1.0))).value == 0.0
    for returned in (10**400, pco.Score(10**400), {"score": -(10**400)}):
        with pytest.raises(RewardError, match="e1"):
            await apply_reward(returns(returned), EXAMPLE, Output(""), (0.0, 1.0))
