"""A small `pco train` with every role on a served model: killed, resumed, gone through again."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jsonschema

from promptcodebook.lm.cache import unpack_reply
from promptcodebook.method.policy import route_fault, route_schema
from promptcodebook.paper.tasks.houserules.task import load_houserules, topics_of
from promptcodebook.report.page import write_report
from promptcodebook.store.lock import FILE
from promptcodebook.store.run import RunStore
from tests.build.local_server import Ours

INSTINCTS, SELECT = 6, 2
_SETTLE_S = 0.5
_TOPICS = {"damaged", "login", "privacy"}
_ROW = re.compile(r"<tr[^>]*><td[^>]*>all roles</td>(.*?)</tr>", re.DOTALL)
_PROJECT = """
reward = "reward.py:reward"
size = {size}
select = {select}
cache = false
timeout = 600
keep = "last"
concurrency = {concurrency}
data = {{ path = "rows.jsonl", input = "message", target = "", split = "split" }}
init.instincts = {instincts}
explore = {{ epsilon = 0.0, epsilon_min = 0.0 }}
update = {{ epochs = {steps}, batch_size = {batch} }}
validation.every = 0
critic.skip_solved = false
[roles]
encoder = {{ temperature = 0.7, max_tokens = 640 }}
generator = {{ max_tokens = 24 }}
executor = {{ max_tokens = 16 }}
critic = {{ temperature = 0.0, max_tokens = 1024 }}
attribution = {{ temperature = 1.5, max_tokens = 1024 }}
updater = {{ max_tokens = 128 }}
"""


@dataclass(frozen=True, slots=True)
class Size:
    """Training and test examples, steps with their batch, and calls at once."""

    train: int
    test: int
    steps: int
    batch: int
    concurrency: int


class Counts(NamedTuple):
    """Completions and their tokens, as one side counts them."""

    calls: int
    prompt_tokens: int
    completion_tokens: int

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


class Routes(NamedTuple):
    """Replies of the encoder, and how many of them are a route as they stand."""

    valid: int
    asked: int


@dataclass(frozen=True, slots=True)
class Killed:
    """A run that was killed once and resumed, in the folder `run`. `before` = replies on disk at
    the kill, `after` = at the end; `unbooked` = what was answered as the kill fell, and never read;
    `blamed` = some reply blamed a part. `again` = calls made when a copy of the killed run was
    given the finished run's replies and resumed; `equal` = that ended at the same policy."""

    before: int
    after: int
    served: Counts
    reported: Counts
    unbooked: Counts
    routes: Routes
    roles: Mapping[str, int]
    blamed: bool
    rewritten: int
    again: int
    equal: bool
    run: Path


def killed_and_resumed(server: Ours, folder: Path, size: Size, kill_at: int) -> Killed:
    """Trains in the folder, which must not be there yet; the server must not have served before."""
    first, copy = folder / "first", folder / "copy"
    write_project(first, size)
    killed = train(first, server.spec, kill_at=kill_at)
    time.sleep(_SETTLE_S)
    unbooked = seen_by(server) - reported(killed)
    before = journaled(first)
    shutil.copytree(first, copy)
    run = train(first, server.spec)
    served = seen_by(server)
    with_journal_of(run, copy)
    again = train(copy, server.spec)
    policies = [(each / "policy.json").read_bytes() for each in (run, again)]
    return Killed(
        before,
        journaled(first),
        served,
        reported(run),
        unbooked,
        routes(run),
        *told_by(run),
        seen_by(server).calls - served.calls,
        policies[0] == policies[1],
        run,
    )


def write_project(folder: Path, size: Size) -> None:
    """Some messages of `houserules` as data of one's own: a task's whole test split takes long."""
    folder.mkdir(parents=True)
    task, rows = load_houserules(), list[str]()
    for split, count in (("train", size.train), ("val", 1), ("test", size.test)):
        fitting = [e for e in task.dataset.split(split) if set(topics_of(e)) & _TOPICS]
        for each in fitting[:count]:
            row = {"message": each.input, "topics": topics_of(each), "split": split}
            rows.append(json.dumps(row))
    (folder / "rows.jsonl").write_text("\n".join(rows), "utf-8")
    code = "from promptcodebook.paper.tasks.houserules.task import reward\n\n__all__ = ['reward']\n"
    (folder / "reward.py").write_text(code, "utf-8")
    settings = _PROJECT.format(
        size=INSTINCTS,
        select=SELECT,
        instincts=json.dumps(task.seeds[2 : 2 + INSTINCTS]),
        concurrency=size.concurrency,
        steps=size.steps,
        batch=size.batch,
    )
    (folder / "pco.toml").write_text(settings, "utf-8")


def train(folder: Path, spec: str, *, kill_at: int | None = None) -> Path:
    """The run of the project in the folder, begun or gone on with; its own folder.

    `kill_at` = kill -9 once so many replies are on disk, which must happen before it ends.
    """
    resumes = (folder / "runs").exists()
    given = ["--resume", "last"] if resumes else [str(folder / "pco.toml"), "--lm", spec]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PCO_RUNS": str(folder / "runs")}
    with (folder / "said.txt").open("a") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "promptcodebook.cli", "train", *given, "--plain"],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
    try:
        while kill_at is not None and process.poll() is None and journaled(folder) < kill_at:
            time.sleep(0.01)
        if kill_at is not None:
            assert process.poll() is None, "it was over before it was killed"
            process.kill()
        assert (process.wait() == 0) == (kill_at is None), (folder / "said.txt").read_text("utf-8")
    finally:
        process.kill()
        process.wait()
    return next((folder / "runs").iterdir())


def with_journal_of(run: Path, folder: Path) -> None:
    """Gives the run in the folder every reply that the other has."""
    (copy,) = (folder / "runs").glob(f"*/{FILE}")
    with closing(sqlite3.connect(copy)) as db:
        db.execute("ATTACH ? AS other", (str(run / FILE),))
        db.execute(
            "INSERT OR IGNORE INTO journal (key, role, reply)"
            " SELECT key, role, reply FROM other.journal"
        )
        db.commit()


def journaled(folder: Path) -> int:
    """Replies on disk, read from outside while another process writes."""
    files = list((folder / "runs").glob(f"*/{FILE}"))
    try:
        return len(journal(files[0])) if files else 0
    except sqlite3.Error:  # its tables are just being made
        return 0


def journal(file: Path) -> list[tuple[str, bytes]]:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        return list(db.execute("SELECT role, reply FROM journal"))


def seen_by(server: Ours) -> Counts:
    """What the server has answered since it began, by its own count."""
    prompt, completion = (
        server.metric(f'pco_tokens_total{{kind="{kind}"}}') for kind in ("prompt", "completion")
    )
    return Counts(server.answered, int(prompt), int(completion))


def reported(run: Path) -> Counts:
    """The line of the run's report that adds up all roles."""
    with closing(RunStore.open(run)) as store:
        write_report(store, run / "report.html")
    page = (run / "report.html").read_text("utf-8")
    found = _ROW.search(page)
    assert found is not None, "the report has no line of totals"
    cells = re.findall(r"<td[^>]*>([\d,]+)</td>", found[1])
    calls, prompt, _, completion = (int(cell.replace(",", "")) for cell in cells[:4])
    return Counts(calls, prompt, completion)


def told_by(run: Path) -> tuple[Mapping[str, int], bool, int]:
    """Calls paid for, by role; whether any trace has a gradient for a text; and how many texts were
    rewritten and kept."""
    with closing(RunStore.open(run)) as store:
        calls = {role: usage.calls for role, usage in store.usage().items()}
        steps = list(store.steps(traces=True))
    found = [trace.gradients for step in steps for trace in step.traces]
    blamed = any(g.encoder or g.generator or g.critic or g.codebook for g in found)
    return calls, blamed, sum(each.kept for step in steps for each in step.rewrites)


def routes(run: Path) -> Routes:
    """The encoder's replies, each held against the schema that it was asked by."""
    schema = dict(route_schema(SELECT, INSTINCTS).body)
    replies = [unpack_reply(reply) for role, reply in journal(run / FILE) if role == "encoder"]
    return Routes(sum(_is_route(each.text, schema) for each in replies), len(replies))


def _is_route(text: str, schema: Mapping[str, object]) -> bool:
    try:
        value = json.loads(text)
        jsonschema.validate(value, schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return route_fault(value["selected_indices"], INSTINCTS, SELECT) is None
