"""Options that would have no effect, and hints that lead on."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from promptcodebook.cli import app as tree
from promptcodebook.cli.usage import typed_words
from tests.build.cases import table
from tests.build.cli import pco
from tests.build.project import folder as folder


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group, with the words that are typed for it."""
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from leaves(command.get_command(None, name), (*path, name))


LEAVES = dict(leaves(typer.main.get_command(tree.app)))
KINDS = ("needs", "beside")


def of(kind: str, path: tuple[str, ...]) -> dict[str, str]:
    """What the table says of the options of a command."""
    known = typed_words()[kind]
    return {**known["*"], **(known.get(" ".join(path)) or known.get(path[-1]) or {})}


def test_every_option_of_every_command_says_when_it_takes_effect() -> None:
    seen = set[str]()
    for path, command in LEAVES.items():
        options = [p for p in command.params if p.opts[0].startswith("-")]
        names = {max(p.opts, key=len): {*p.opts, *p.secondary_opts} for p in options}
        every = {name for each in names.values() for name in each}
        seen |= every
        for name, same in names.items():
            known = same & {
                *typed_words()["alone"],
                *of("needs", path),
                *of("beside", path),
                "--help",
            }
            assert known, f"pco {' '.join(path)} {name}: classify it in cli/options.toml"
        for kind in KINDS:
            for option, other in of(kind, path).items():
                common = option in typed_words()[kind]["*"]
                assert common or {option, other} <= every, (path, option, other)
    assert {*typed_words()["alone"]} <= seen, "an option that no command has any more"
    named = {name for kind in KINDS for name in typed_words()[kind]} - {"*"}
    assert named <= {name for path in LEAVES for name in (" ".join(path), path[-1])}


def test_an_option_that_has_no_effect_is_an_error(tmp_path: Path) -> None:
    checked = 0
    for path, command in LEAVES.items():
        every = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        for kind, word in (("needs", "without"), ("beside", "with")):
            for option, other in of(kind, path).items():
                if {option, other} <= every:
                    more = () if kind == "needs" else (other, "y")
                    found = pco(*path, option, "x", *more, cwd=tmp_path)
                    found.error(2, f"{option} has no effect {word} {other}", f"leave {option} out")
                    checked += 1
    assert checked > 30
    for special in typed_words()["only"]:
        pco(*special.split(), "--lm=x", cwd=tmp_path).error(
            2, *["--lm has no effect"] * (special == "serve status")
        )


@pytest.mark.parametrize(("typed", "parts"), [
    (["train", "--data", "data.jsonl"], ["--data has no effect without --task", "pco init --from"]),
    (["train", "--task", "constraints", "--data", "."], ["--data has no effect on the task"]),
    (["train", "--task", "hotpotqa", "--data", "nowhere"], ["no folder", "nowhere"]),
    (["train", "--set", "task=constraints", "--agent", "x"], ["--agent has no effect with"]),
    (["compare", "a.json", "a.json", "--n", "3"], ["--n has no effect on two saved"]),
    (["compare", "a.json", "a.json", "--set", "x=1"], ["--set has no effect on two saved"]),
    (["prompt", "last", "--row", "concat", "--lm", "x"], ["--lm has no effect on the row concat"]),
    (["explain", "req-1", "--task", "x"], ["--task has no effect on a served request"]),
    (["eval", "last", "--data", "x"], ["--data has no effect without --task"]),
    (["compare", "last", "last", "--prompt", "Be brief."], ["missing argument B or --prompt"]),
    (["train", "--prompt", "Be brief.", "--present", "Be kind."], ["--prompt is given twice"]),
    (["train", "--present=nowhere.txt"], ["--prompt: cannot read 'nowhere.txt'"]),
])  # fmt: skip
def test_so_is_one_that_the_rest_of_what_is_typed_leaves_without(
    trained: Path, typed: list[str], parts: list[str]
) -> None:
    saved = pco("eval", "last", "--json", cwd=trained).out
    (trained / "a.json").write_text(saved, "utf-8")
    pco(*typed, cwd=trained).error(2, *parts)


def first_command(hint: str) -> list[str]:
    """The words behind `pco` of the first command in a hint that can be typed as it is."""
    for piece in re.split(r"[;,] (?=pco |or )| or | (?:makes|writes|shows|lists|is|for) ", hint):
        words = shlex.split(piece[piece.find("pco ") :]) if "pco " in piece else []
        if words and not any(re.fullmatch(r"[A-Z_]+\.{0,3}", word) for word in words):
            return words[1:]
    return []


@pytest.mark.parametrize(
    "typed", [typed for (typed,) in table(__file__, "a_hint_that_is_typed_does_not_lead_back")]
)
def test_a_hint_that_is_typed_does_not_lead_back(folder: Path, typed: list[str]) -> None:
    """Neither a command in it, nor an option to add or a value to give in its place."""
    found = pco(*typed, cwd=folder)
    assert found.code != 0, "it is no mistake"
    message, hint = re.findall(r"pco: error: (.*)\n(?:  next: (.*))?", found.err)[0]
    assert hint, message
    again = first_command(hint)
    if not again and (option := re.match(r"(?:add )?(--[a-z-]+)(?: ([^\s,;]+))?", hint)):
        rest = typed[: typed.index(option[1])] if option[1] in typed else typed
        again = [*rest, *filter(None, option.groups())]
    if meant := re.search(r"did you mean '(.*?)'", message):
        wrong = next(word for word in typed if word in message)
        again = [meant[1] if word == wrong else word for word in typed]
    if again:
        assert message not in pco(*again, cwd=folder).err, (hint, again)
