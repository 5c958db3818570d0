"""A run folder from somebody else: its code is not run, its address not called, no key sent."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.policy.references import first_policy
from tests.cli.invoked import Result, pco, served
from tests.lm.server import Server
from tests.store.edit import edit_header

SECRETS = {"PCO_API_KEY": "sk-victim", "PCO_LOOT": "loot-victim", "HUSH": "hush-victim"}
EVIL = """
from pathlib import Path

Path({marker!r}).write_text("run")

def reward(example, output):
    return 1.0

async def run(prompt, example, lm):
    return "x"
"""
USES: dict[str, tuple[str, ...]] = {
    "explain": ("explain", "{run}", "an input"),
    "eval": ("eval", "{run}"),
    "eval by own model": ("eval", "{run}", "--lm", "simulated"),
    "compare": ("compare", "{run}", "{run}"),
    "resume": ("train", "--resume", "{run}"),
    "resume with more": ("train", "--resume", "{run}", "--budget", "9999calls"),
}
LOOKS: dict[str, tuple[str, ...]] = {
    "list": ("runs", "list"),
    "show": ("runs", "show", "{run}"),
    "show as JSON": ("runs", "show", "{run}", "--json"),
    "report": ("report", "{run}"),
    "codebook": ("codebook", "show", "{run}"),
    "log": ("codebook", "log", "{run}"),
    "diff": ("codebook", "diff", "{run}"),
}


@dataclass
class Gift:
    """The folder as the victim has it, and what would show that it was believed."""

    folder: Path
    run: str
    marker: Path
    server: Server

    @property
    def file(self) -> Path:
        return self.folder / "runs" / self.run / "run.sqlite"

    def open(self, arguments: tuple[str, ...], *more: str) -> Result:
        return pco(*(a.format(run=self.run) for a in arguments), *more, cwd=self.folder)

    @property
    def untouched(self) -> bool:
        return not self.marker.exists() and not self.server.bodies and not self.server.listed


def _poison(text: str, folder: Path, spec: str) -> str:
    tree: dict[str, Any] = json.loads(text)
    config = tree["config"]
    tree["base"] = str(folder)
    config |= {"lm": spec, "reward": "evil.py:reward", "executor": "evil.py:run"}
    config["roles"]["encoder"]["headers"] = {"X-Loot": "$PCO_LOOT", "X-Hush": "$HUSH"}
    return json.dumps(tree)


@pytest.fixture(scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the attacker trained."""
    folder = tmp_path_factory.mktemp("attacker")
    assert pco("init", cwd=folder).code == 0
    stopped = pco("train", "--preset", "quick", "--budget", "300calls", cwd=folder)
    assert stopped.code == 3, stopped.err
    return folder


@pytest.fixture
def gift(_made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gift]:
    """The attacker's folder, unpacked by the victim, whose environment holds keys."""
    folder = Path(shutil.copytree(_made, tmp_path / "gift"))
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    marker = tmp_path / "marker"
    (folder / "evil.py").write_text(EVIL.format(marker=str(marker)))
    with served(Server()) as server:
        [run] = (folder / "runs").iterdir()
        made = Gift(folder, run.name, marker, server)
        edit_header(made.file, lambda text: _poison(text, folder, server.spec), sealed=False)
        yield made


@pytest.mark.parametrize("use", USES)
def test_a_run_that_bears_no_mark_runs_nothing_and_calls_nobody(gift: Gift, use: str) -> None:
    result = gift.open(USES[use])
    said = result.error(2, "does not bear your mark", "evil.py:reward", "--trust")
    assert gift.untouched
    assert not any(secret in said for secret in SECRETS.values())


@pytest.mark.parametrize("look", LOOKS)
def test_looking_at_it_is_open_to_all_and_harmless(gift: Gift, look: str) -> None:
    result = gift.open(LOOKS[look])
    assert result.code == 0, result.err
    assert gift.untouched
    assert not any(secret in result.out + result.err for secret in SECRETS.values())


@pytest.mark.parametrize("use", ["eval", "resume with more"])
def test_trust_is_what_lets_it_run(gift: Gift, use: str) -> None:
    """Else the tests above would prove nothing."""
    gift.open(USES[use], "--trust")
    assert gift.marker.exists()
    assert gift.server.bodies or gift.server.listed
    # Even then no variable goes out that no setting may name.
    assert "hush-victim" not in repr(gift.server.headers)


def test_a_mark_made_by_somebody_elses_secret_is_none(
    gift: Gift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_DATA_HOME", str(tmp_path / "attacker-data"))
        edit_header(gift.file, lambda text: text)  # sealed, with the attacker's own secret
    gift.open(USES["eval"]).error(2, "does not bear your mark")
    assert gift.untouched


def test_the_mark_of_one_run_does_not_fit_another(gift: Gift) -> None:
    """The victim's own run was public, and its mark was put onto the poisoned header."""
    assert pco("train", "--preset", "quick", "--budget", "9calls", cwd=gift.folder).code in (0, 3)
    [own] = [r for r in (gift.folder / "runs").iterdir() if r.name != gift.run]
    marks: list[str] = []
    edit_header(own / "run.sqlite", lambda text: marks.append(json.loads(text)["seal"]) or text)
    edit_header(
        gift.file, lambda text: json.dumps({**json.loads(text), "seal": marks[0]}), sealed=False
    )
    gift.open(USES["eval"]).error(2, "does not bear your mark")
    assert gift.untouched


def test_an_own_run_that_came_back_with_another_address_is_refused(gift: Gift) -> None:
    assert pco("train", "--preset", "quick", "--budget", "9calls", cwd=gift.folder).code in (0, 3)
    [own] = [r for r in (gift.folder / "runs").iterdir() if r.name != gift.run]
    spec = gift.server.spec

    def lent(text: str) -> str:
        tree = json.loads(text)
        tree["config"]["lm"] = spec
        return json.dumps(tree)

    edit_header(own / "run.sqlite", lent, sealed=False)
    result = pco("explain", own.name, "an input", cwd=gift.folder)
    result.error(2, "does not bear your mark", spec)
    assert gift.untouched


def test_a_moved_copied_or_packed_run_of_ones_own_keeps_its_mark(
    _made: Path, tmp_path: Path
) -> None:
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", _made)
    shutil.unpack_archive(packed, tmp_path / "unpacked")
    moved = Path(shutil.move(tmp_path / "unpacked", tmp_path / "moved"))
    [run] = (moved / "runs").iterdir()
    result = pco("explain", run.name, "an input", cwd=moved)
    assert result.code == 0, result.err


def test_keys_go_only_to_the_address_that_they_were_given_for(gift: Gift, tmp_path: Path) -> None:
    """A pco.toml of one's own with a header for one address, and another address typed."""
    (tmp_path / "pco.toml").write_text(
        'task = "constraints"\nlm = "http://127.0.0.1:9/v1#m"\n'
        '[roles.encoder.headers]\nX-Loot = "$PCO_LOOT"\n'
    )
    with contextlib.chdir(tmp_path):
        pco("doctor", "--lm", gift.server.spec, cwd=tmp_path)
    assert gift.server.headers
    assert "loot-victim" not in repr(gift.server.headers)


def test_a_policy_file_can_hold_neither_code_nor_address(gift: Gift, tmp_path: Path) -> None:
    whole = json.loads(first_policy(gift.folder / "runs", gift.run).text())
    spec = gift.server.spec
    faults: list[dict[str, Any]] = [
        {"lm": spec},
        {"executor": "evil.py:run"},
        {"reward": "evil.py:reward"},
        {"roles": {"encoder": {"model": spec}}},
        {"sampling": {"encoder": {"model": spec}}},
        {"sampling": {"encoder": {"headers": {"X-Loot": "$PCO_LOOT"}}}},
        {"sampling": {"encoder": {"extra": {"model": "theirs"}}}},
    ]
    target = tmp_path / "policy.json"
    for fault in faults:
        target.write_text(json.dumps({**whole, **fault}))
        gift.open(("explain", str(target), "x", "--lm", "simulated")).error(2)
    target.write_text(json.dumps({**whole, "program": "evil.py:run"}))
    assert gift.open(("codebook", "show", str(target))).code == 0
    gift.open(("explain", str(target), "x", "--task", "constraints", "--lm", "simulated"))
    assert gift.untouched
