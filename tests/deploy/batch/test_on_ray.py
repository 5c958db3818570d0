"""A batch in tasks of a cluster: how rows are cut, what a task brings back, and a real Ray here."""

import _thread
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.base.paths import cache_folder
from promptcodebook.calls import Usage
from promptcodebook.deploy.batch import on_ray
from promptcodebook.deploy.batch.checkpoint import book_shard
from promptcodebook.deploy.batch.on_ray import answer_shard, forget_batch, shard_jobs
from promptcodebook.deploy.batch.rows import RowResult as Answered
from promptcodebook.deploy.batch.session import BatchJob, BatchSession
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.policy import Policy, deploy
from tests.build.batch import answering, write_rows
from tests.build.cli import pco, served
from tests.build.killed_batch import AT_ONCE, paid_again, prepare, session
from tests.build.server import Server, says


def opened(work: Path, server: Server, size: int, **more: Any) -> tuple[BatchSession, Any]:
    """A batch, and its tasks as they would be handed over: as JSON."""
    file = read_policy_file(work / "p.json")
    config = file.settings(above={"lm": server.spec, "cache": False})
    asked = BatchJob(work / "in.jsonl", work / "out.jsonl", "pco batch", ray=True, **more)
    batch = BatchSession(asked, file, config)
    return batch, (job for _, job in shard_jobs(batch, file, config, work, size))


def test_shards_begin_at_the_same_rows_whatever_is_recorded(work: Path, server: Server) -> None:
    write_rows(work / "in.jsonl", 23)
    batch, jobs = opened(work, server, 10)
    numbers = [(json.loads(j)["number"], len(json.loads(j)["rows"])) for j in jobs]
    assert numbers == [(0, 10), (1, 10), (2, 3)]
    batch.close()
    rows = work / "out.jsonl.part" / "rows.jsonl"
    rows.write_bytes(b'{"answer": "a", "route": [0], "error": null}\n' * 13)
    batch, jobs = opened(work, server, 10)
    told = [json.loads(j) for j in islice(jobs, 9)]
    assert [(t["number"], len(t["rows"])) for t in told] == [(1, 7), (2, 3)]
    assert told[0]["rows"][0][1]["n"] == 13
    batch.close()


def test_a_task_that_is_begun_again_pays_for_nothing_twice(work: Path, server: Server) -> None:
    write_rows(work / "in.jsonl", 5)
    batch, jobs = opened(work, server, 10)
    job = next(jobs)
    first, second = json.loads(answer_shard(job)), json.loads(answer_shard(job))
    journal = work / "out.jsonl.part" / "shards" / "0"
    assert journal.stat().st_mode & 0o777 == 0o700, "what is asked is nobody else's"
    batch.close()
    assert server.calls == 10
    assert first == second, "what it cost is told once more, of all its sessions"
    assert first["paid"]["executor"]["calls"] == 5 and len(first["results"]) == 5


def test_what_stops_a_task_comes_back_as_its_error(work: Path) -> None:
    write_rows(work / "in.jsonl", 20)
    server, _ = answering(fails_on=("How",))
    with served(server):
        batch, jobs = opened(work, server, 20)
        answer = json.loads(answer_shard(next(jobs)))
        batch.close()
    assert answer["error"] == "TooManyFailures" and "RequestRefused" in answer["message"]
    assert answer["paid"]["encoder"]["calls"] == 20
    other = json.dumps({"version": "0.0.1", "machine": "x", "folder": str(work), "number": 0})
    assert "the batch needs 0.0.1" in json.loads(answer_shard(other))["message"]


@pytest.mark.parametrize("at", ["answering", "closing"])
def test_a_cancel_brings_home_what_was_paid_wherever_it_arrives(
    work: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    write_rows(work / "in.jsonl", 3)
    server, _ = answering()
    stopped = threading.Event()

    def deployed(*settings: Any) -> Policy:
        policy = deploy(*settings)
        policy.assembled.models.budget.stop_signal.on_give(stopped.set)
        return policy

    class Interrupting(closing[Any]):
        def __exit__(self, *error: object) -> None:
            _thread.interrupt_main()
            super().__exit__(*error)

    async def cancels(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        _thread.interrupt_main()
        assert await asyncio.to_thread(stopped.wait, 60), "two threads pass it on"
        return await says("0")(request, body)

    with served(server):
        batch, jobs = opened(work, server, 20)
        if at == "closing":
            monkeypatch.setattr(on_ray, "closing", Interrupting)
        else:
            monkeypatch.setattr(on_ray, "deploy", deployed)
            server.script(cancels)
        answer = json.loads(answer_shard(next(jobs)))
        batch.close()
    assert sum(usage["calls"] for usage in answer["paid"].values()) == server.calls > 0
    assert at == "closing" or answer["error"] == "Interrupted"


def test_a_batch_goes_on_the_way_it_was_begun(work: Path, server: Server) -> None:
    """Replies of tasks lie in journals of their own, which a single process does not look at."""
    write_rows(work / "in.jsonl", 5)
    typed = ("batch", "p.json", "in.jsonl", "out.jsonl", "--lm", server.spec)
    args = (*typed, "--set", "cache=false")
    batch, jobs = opened(work, server, 10)
    answer_shard(next(jobs))
    batch.close()
    before = server.calls
    pco(*args, cwd=work).error(2, "started with --ray", "--ray local")
    few = ("--ray", "local", "--budget", "5calls")
    pco(*args, *few, cwd=work).error(2, "a budget cannot be enforced", "--ray")
    assert server.calls == before
    assert pco(*args, "--restart", "--budget", "3calls", cwd=work).code == 3
    pco(*args, "--ray", "local", cwd=work).error(2, "started without --ray", "leave out --ray")


def test_what_tasks_paid_is_booked_once_whether_they_failed_or_not(
    work: Path, server: Server
) -> None:
    write_rows(work / "in.jsonl", 1)
    batch, _ = opened(work, server, 10)
    journal = batch.checkpoint.journal
    try:
        # A task tells the sums of all its sessions; on another machine it begins from nothing.
        book_shard(journal, "0 here", {"executor": Usage(2, 10, 4)}, {})
        book_shard(journal, "0 here", {"executor": Usage(5, 25, 10)}, {"encoder": Usage(1, 3)})
        book_shard(journal, "0 here", {"executor": Usage(5, 25, 10)}, {"encoder": Usage(1, 3)})
        book_shard(journal, "0 there", {"executor": Usage(1, 5, 2)}, {})
        assert journal.paid() == {"executor": Usage(6, 30, 12)}
        assert journal.lost() == {"encoder": Usage(1, 3)}
    finally:
        batch.close()


@pytest.fixture
def elsewhere(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where journals of batches lie on the machines that tasks come to, which are others."""
    monkeypatch.setattr(on_ray, "machine_name", lambda: "worker")
    monkeypatch.setenv("XDG_CACHE_HOME", str(work / "cache"))
    return cache_folder() / "batch"


def told_by(jobs: Iterator[str]) -> dict[str, Any]:
    return {**json.loads(next(jobs)), "machine": "driver"}


def shards_in(folder: Path) -> list[str]:
    return sorted(each.parent.name for each in folder.rglob("journal.sqlite"))


def test_a_batch_elsewhere_begins_with_nothing_of_the_last_one(
    work: Path, elsewhere: Path, server: Server
) -> None:
    for rows in (2, 1):
        write_rows(work / "in.jsonl", rows)
        batch, jobs = opened(work, server, 10, restart=True)
        answer = json.loads(answer_shard(json.dumps(told_by(jobs))))
        batch.close()
        assert answer["paid"]["executor"]["calls"] == rows
        assert shards_in(elsewhere) == ["0"], "of this batch, and the last one's is gone"
    assert server.calls == 6


def test_what_is_recorded_is_removed_elsewhere(work: Path, elsewhere: Path, server: Server) -> None:
    write_rows(work / "in.jsonl", 6)
    batch, jobs = opened(work, server, 2)
    first = told_by(jobs)
    results = json.loads(answer_shard(json.dumps(first)))["results"]
    answer_shard(json.dumps(told_by(jobs)))
    assert shards_in(elsewhere) == ["0", "1"]
    batch.checkpoint.append([Answered.read(line.encode()) for line in results])
    answer_shard(json.dumps(told_by(jobs)))
    assert shards_in(elsewhere) == ["1", "2"], "what is not recorded is kept"
    batch.close()
    forget_batch(first["machine"], first["folder"])
    assert not list(elsewhere.iterdir())


ELSEWHERE = """
import runpy, sys
from promptcodebook.deploy.batch import on_ray
on_ray.machine_name = lambda: "another machine"
sys.argv[0] = "pco"
runpy.run_module("promptcodebook.cli", run_name="__main__")
"""


@pytest.mark.slow
def test_a_cluster_books_what_it_paid_makes_the_bytes_of_one_process_and_leaves_nothing(
    work: Path,
) -> None:
    write_rows(work / "in.jsonl", 300)
    server, answers = answering(fails_on=("How",))
    typed, more = ("batch", "p.json", "in.jsonl"), ("--set", "cache=false", "--json")
    there = work / "cache" / "promptcodebook" / "batch"
    environment = {**os.environ, "HOME": str(work), "XDG_CACHE_HOME": str(work / "cache")}

    def run() -> subprocess.CompletedProcess[str]:
        command = (*typed, "out.jsonl", "--lm", server.spec, *more, "--ray", "local")
        return subprocess.run(
            [sys.executable, "-c", ELSEWHERE, *command],
            cwd=work, env=environment, capture_output=True, text=True, timeout=500,
        )  # fmt: skip

    with served(server):
        stopped = run()
        assert stopped.returncode == 1 and "rows failed, so" in stopped.stderr, stopped.stderr
        # The second may not have begun when the first failed.
        assert shards_in(there) in (["0"], ["0", "1"])
        batch, _ = opened(work, server, 256)
        booked = sum(each.calls for each in batch.checkpoint.journal.paid().values())
        batch.close()
        assert booked == server.calls, "what was paid is booked by the command that stopped"
        answers.fails_on = ("is 5?", "is 277?")
        done = run()
        alone = pco(*typed, "alone.jsonl", "--lm", server.spec, *more, cwd=work)
    assert alone.code == done.returncode == 1, (alone.err, done.stderr)
    assert (work / "alone.jsonl").read_bytes() == (work / "out.jsonl").read_bytes()
    assert json.loads(done.stdout)["failed"] == alone.json["failed"] == 2
    assert not list(there.iterdir()) and not list(work.glob("*.part"))


@pytest.mark.slow
def test_a_task_that_dies_says_why_and_the_command_that_goes_on(work: Path) -> None:
    write_rows(work / "in.jsonl", 1)
    (work / "agent.py").write_text("import os\n\n\nasync def run(*given):\n    os._exit(1)\n")
    typed = ("batch", "p.json", "in.jsonl", "out.jsonl", "--set", "executor=agent.py:run")
    typed += ("--lm", "simulated", "--ray", "local")
    command = [sys.executable, "-m", "promptcodebook.cli", *typed]
    died = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=500)
    assert died.returncode == 1, died.stderr
    assert "a task on the cluster was lost: The worker died unexpectedly" in died.stderr
    assert "continues from here" in died.stderr


@pytest.mark.slow
def test_a_batch_that_was_killed_twice_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    prepare(whole, 2000)
    prepare(killed, 2000)
    assert session(whole) == 0
    assert session(killed, kill_after=500) == -signal.SIGKILL
    assert session(killed, kill_after=1200) == -signal.SIGKILL
    assert (killed / "out.jsonl.part").is_dir() and not (killed / "out.jsonl").exists()
    assert session(killed) == 0
    assert (killed / "out.jsonl").read_bytes() == (whole / "out.jsonl").read_bytes()
    assert paid_again(killed) <= 2 * AT_ONCE, "more than what was in flight"
    assert not list(killed.glob("*.part"))
