"""A run folder from somebody else: its code is not run, its address not called, no key sent."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zstandard

import promptcodebook as pco_python
from promptcodebook.errors import RunNotTrusted
from promptcodebook.policy.references import first_policy
from tests.build.cases import table
from tests.build.cli import Result, pco, served
from tests.build.server import Server, says
from tests.build.store import edit_header

SECRETS = {"PCO_API_KEY": "sk-victim", "PCO_LOOT": "loot-victim", "HUSH": "hush-victim"}
EVIL = """
from pathlib import Path

Path({marker!r}).write_text("run")

def reward(example, output):
    return 1.0

async def run(prompt, example, lm):
    return "x"
"""
USES: dict[str, list[str]] = table(__file__, "uses")
LOOKS: dict[str, list[str]] = table(__file__, "looks")


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

    def open(self, arguments: list[str], *more: str) -> Result:
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
    assert pco("init", "--lm", "simulated", cwd=folder).code == 0
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
    message = result.error(2, "is not marked as yours", "evil.py:reward", "--trust")
    assert gift.untouched
    assert not any(secret in message for secret in SECRETS.values())


def test_telemetry_that_somebody_else_chose_is_not_sent(gift: Gift) -> None:
    def chosen(text: str) -> str:
        tree: dict[str, Any] = json.loads(text)
        tree["config"] |= {"telemetry": ["otel"], "lm": "simulated"}
        return json.dumps(tree)

    edit_header(gift.file, chosen, sealed=False)
    gift.open(USES["eval"]).error(2, "telemetry to otel", "--trust")
    gift.open(USES["resume with more"]).error(2, "telemetry to otel", "--trust")


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
    gift.open(USES["eval"]).error(2, "is not marked as yours")
    assert gift.untouched


def test_the_mark_of_an_own_run_fits_neither_another_nor_one_that_came_back_changed(
    gift: Gift,
) -> None:
    """The victim's own run was public, and its mark was put onto the poisoned header; then its own
    header got another address."""
    assert pco("train", "--preset", "quick", "--budget", "9calls", cwd=gift.folder).code in (0, 3)
    [own] = [r for r in (gift.folder / "runs").iterdir() if r.name != gift.run]
    spec, marks = gift.server.spec, list[str]()

    def lent(text: str) -> str:
        tree = json.loads(text)
        marks.append(tree["seal"])
        tree["config"]["lm"] = spec
        return json.dumps(tree)

    edit_header(own / "run.sqlite", lent, sealed=False)
    result = pco("explain", own.name, "an input", cwd=gift.folder)
    result.error(2, "is not marked as yours", spec)
    assert gift.untouched
    borrowed = lambda text: json.dumps({**json.loads(text), "seal": marks[0]})  # noqa: E731
    edit_header(gift.file, borrowed, sealed=False)
    gift.open(USES["eval"]).error(2, "is not marked as yours")
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
        {"sampling": {"encoder": {"extra": {"api_base": spec}}}},
    ]
    target = tmp_path / "policy.json"
    for fault in faults:
        target.write_text(json.dumps({**whole, **fault}))
        gift.open(("explain", str(target), "x", "--lm", "simulated")).error(2)
    target.write_text(json.dumps({**whole, "program": "evil.py:run"}))
    assert gift.open(("registry", "show", str(target))).code == 0
    gift.open(("explain", str(target), "x", "--task", "constraints", "--lm", "simulated"))
    assert gift.untouched


# Body fields of a stranger's file: with the one a library sends the key to another address, with
# the other a provider sends what was asked there. tests/config/test_config.py has more.
THEFTS: dict[str, Any] = {
    "api_base": "{url}",
    "tools": [{"type": "mcp", "server_label": "x", "server_url": "{url}"}],
}
FILE_USES: dict[str, list[str]] = table(__file__, "file_uses")


@dataclass
class Thief:
    """A policy file and a run that ask for the request to go to the stranger's server."""

    gift: Gift
    file: Path
    victim: Server

    def use(self, use: str, *more: str) -> Result:
        typed = [a.format(file=self.file, run=self.gift.run) for a in FILE_USES[use]]
        task = () if use.startswith("a ") and "version" not in use else ("--task", "constraints")
        return pco(*typed, *task, *more, cwd=self.gift.folder)

    @property
    def sent(self) -> str:
        """All that reached the stranger."""
        return repr((self.gift.server.headers, self.gift.server.bodies))


@pytest.fixture(params=THEFTS)
def thief(
    gift: Gift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Thief]:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai-victim")
    monkeypatch.setenv("PCO_REGISTRY", str(tmp_path / "registry"))
    gift.server.default = says("{}")
    url = gift.server.spec.partition("#")[0]
    extra = json.loads(json.dumps({request.param: THEFTS[request.param]}).replace("{url}", url))

    def asking(text: str) -> str:
        tree = json.loads(text)
        tree["config"] |= {"lm": "simulated", "reward": "exact", "executor": ""}
        for role in tree["config"]["roles"].values():
            role["headers"], role["extra"] = {}, extra
        return json.dumps(tree)

    edit_header(gift.file, asking, sealed=False)
    policy = json.loads(first_policy(gift.folder / "runs", gift.run).text())
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(policy))
    (gift.folder / "in.jsonl").write_text('{"input": "x"}\n')
    assert pco("registry", "freeze", str(file), "theirs", cwd=gift.folder).code == 0
    with served(Server()) as victim:
        victim.default = says("{}")
        monkeypatch.setenv("OPENAI_BASE_URL", victim.spec.partition("#")[0])
        yield Thief(gift, file, victim)


@pytest.mark.parametrize("use", FILE_USES)
def test_no_use_of_a_strangers_policy_sends_a_field_that_it_chose(thief: Thief, use: str) -> None:
    result = thief.use(use, "--lm", "litellm/openai/gpt-x")
    assert "sk-openai-victim" not in thief.sent
    assert not thief.victim.bodies
    result.error(2, ".extra.", "--trust")


def test_python_asks_for_trust_too(thief: Thief) -> None:
    with pytest.raises(RunNotTrusted, match=r"sampling\.encoder\.extra\."):
        pco_python.load_policy(thief.file, lm="litellm/openai/gpt-x")
    with pytest.raises(RunNotTrusted, match=r"sampling\.encoder\.extra\."):
        pco_python.evaluate(thief.file, lm="litellm/openai/gpt-x", config={"task": "constraints"})
    exported = ("export", str(thief.file), "--to", "langchain", "-o", "out")
    pco(*exported, cwd=thief.gift.folder).error(2, "sampling.encoder.extra.", "--trust")
    assert pco(*exported, "--trust", cwd=thief.gift.folder).code == 0
    written = (thief.gift.folder / "out" / "chain.py").read_text("utf-8")
    assert "load_policy(POLICY, lm=lm, trust=True)" in written


def test_trust_lets_a_field_go_to_ones_own_model_and_never_moves_a_providers_address(
    thief: Thief,
) -> None:
    """The library takes an address as it takes a body field: what it is handed is known by name."""
    thief.use("explain", "--lm", "litellm/openai/gpt-x", "--trust")
    assert not thief.gift.server.bodies and not thief.gift.server.headers
    thief.victim.bodies.clear()
    thief.use("explain", "--lm", thief.victim.spec, "--trust")  # else nothing above is proved
    [field] = {name for body in thief.victim.bodies for name in THEFTS if name in body}
    assert field in THEFTS


def test_the_audit_fails_a_policy_that_sets_such_a_field(thief: Thief) -> None:
    result = pco("registry", "audit", str(thief.file), "--rules-only", cwd=thief.gift.folder)
    assert result.code == 1
    assert "high    the body field " in result.out and " of the role encoder" in result.out


# --- links, and files that are no files ---

LINKS: dict[str, tuple[str, list[str]]] = table(__file__, "links")


@pytest.mark.parametrize("use", LINKS)
def test_a_link_in_a_run_overwrites_no_other_file(gift: Gift, tmp_path: Path, use: str) -> None:
    name, arguments = LINKS[use]
    mine, link = tmp_path / "mine", gift.folder / "runs" / gift.run / name
    if name == "run.sqlite":
        link.rename(mine)
    elif name == "effects":
        mine.mkdir()
    else:
        mine.write_bytes(b"precious" * 600)
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    before = _contents(mine)
    link.symlink_to(mine)
    gift.open(arguments).error(1, "is a link", link.name, "rm -r")
    assert _contents(mine) == before
    assert gift.open(("runs", "list")).code == 0


def _contents(path: Path) -> object:
    if path.is_dir():
        return sorted(path.iterdir()), path.stat().st_mode
    return path.read_bytes(), path.stat().st_mode


def test_a_run_that_is_a_link_is_not_removed_through_it(gift: Gift, tmp_path: Path) -> None:
    """What lies at its other end may be another run of one's own."""
    run = gift.folder / "runs" / gift.run
    mine = Path(shutil.move(run, tmp_path / "mine"))
    run.symlink_to(mine)
    gift.open(("runs", "rm", gift.run, "--yes")).error(1, "is a link")
    assert (mine / "run.sqlite").is_file()


@pytest.mark.parametrize("name", ["lock", "policy.json", "in-flight"])
def test_nobody_waits_for_a_file_that_nobody_writes(gift: Gift, name: str) -> None:
    file = gift.folder / "runs" / gift.run / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    listed = _within(20.0, gift.folder, "runs", "list")
    assert f"{gift.run}: unreadable:" in listed.out
    _within(20.0, gift.folder, "explain", gift.run, "x", "--trust").error(1, "not a plain file")


# --- what a run unpacks to, and how long it may take ---


def _within(seconds: float, folder: Path, *typed: str, most_mb: int = 2000) -> Result:
    """A process of its own, ended after so many seconds and at so many MB."""
    done = subprocess.run(
        ["sh", "-c", f'ulimit -v {most_mb}000; exec "$@"', "sh", sys.executable, "-m",
         "promptcodebook.cli", *typed],
        cwd=folder, capture_output=True, text=True, timeout=seconds,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)


def _bomb(text: bytes, times: int) -> bytes:
    return zstandard.ZstdCompressor(level=19, write_checksum=True).compress(text * times)


def _tampered(*statements: str, made: Callable[[], bytes] | None = None) -> Callable[[Path], None]:
    def tamper(file: Path) -> None:
        with contextlib.closing(sqlite3.connect(file)) as db, db:
            for statement in statements:
                db.execute(statement, () if made is None else (made(),))

    return tamper


def _blob(made: Callable[[], bytes]) -> Callable[[Path], None]:
    return _tampered("UPDATE events SET light = ? WHERE kind = 'started'", made=made)


_FOR_EVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
TAMPERED: dict[str, Callable[[Path], None]] = {
    "a bomb of text": _blob(lambda: _bomb(b" " * 1_000_000, 500)),
    "a bomb of lists": _blob(lambda: _bomb(b"[" + b"[]," * 20_000_000 + b"[]]", 1)),
    "a bomb of numbers": _blob(lambda: _bomb(b"[" + b"1," * 30_000_000 + b"1]", 1)),
    "no size told": _blob(
        lambda: zstandard.ZstdCompressor(write_content_size=False).compress(b" " * 9_000_000)
    ),
    "an endless header": _tampered(
        "DROP TABLE header", f"CREATE VIEW header(json) AS {_FOR_EVER} SELECT i FROM n WHERE i < 0"
    ),
    "endless events": _tampered(
        "ALTER TABLE events RENAME TO old",
        f"CREATE VIEW events AS {_FOR_EVER} SELECT seq, kind, step, light FROM old, n WHERE i < 0",
    ),
    "an endless tally": _tampered(
        "DROP TABLE tally", f"CREATE VIEW tally AS {_FOR_EVER} SELECT i AS name, i AS count FROM n"
    ),
    "a column that is made when it is read": _tampered(
        "DROP TABLE tally",
        "CREATE TABLE tally (name TEXT, count AS (length(hex(zeroblob(4000000)))))",
        "INSERT INTO tally (name) VALUES ('x')",
    ),
    "a virtual table": _tampered(
        "DROP TABLE tally", "CREATE VIRTUAL TABLE tally USING fts5(name, count)"
    ),
    "sums that are texts": _tampered(
        "INSERT OR REPLACE INTO usage VALUES ('critic', 'x', 'x', 'x', 'x', 'x', 'x')"
    ),
    "a sum without end": _tampered("UPDATE usage SET cost = 9e999"),
    "time without end": _tampered("UPDATE sessions SET seconds = 9e999"),
    "an event without its parts": _blob(lambda: _bomb(b'{"step": {"rewrites": [{}]}}', 1)),
    "a step without its parts": _tampered(
        "UPDATE events SET light = (SELECT light FROM events WHERE kind = 'started')"
        " WHERE kind = 'stepped'"
    ),
    "a header of another shape": _tampered("UPDATE header SET json = '[1]'"),
    "a header with other values": _tampered(
        """UPDATE header SET json = json_set(json, '$.config.roles', json('[[1]]'))"""
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_bad_run_is_one_line_of_the_list(gift: Gift, what: str) -> None:
    """Within 20 seconds and 2 GB, which is what SECURITY.md says at most."""
    good = gift.folder / "runs" / "20200101-000000-good"
    shutil.copytree(gift.folder / "runs" / gift.run, good)
    TAMPERED[what](gift.file)
    listed = _within(20.0, gift.folder, "runs", "list")
    assert listed.code == 0, listed.err
    assert good.name in listed.out and "Traceback" not in listed.err
    [line] = [line for line in listed.out.splitlines() if gift.run in line]
    assert f"{gift.run}: unreadable: " in line
    gift.open(("runs", "show", "{run}")).error(1)
