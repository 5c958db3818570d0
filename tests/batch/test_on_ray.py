"""A batch in tasks of a cluster: how rows are cut, what a task brings back, and a real Ray here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.batch import on_ray
from promptcodebook.batch.on_ray import answer_shard
from promptcodebook.batch.session import Batch, Order
from promptcodebook.policy.file import read_policy_file
from tests.batch.rows import answering, write_rows
from tests.cli.invoked import pco, served
from tests.lm.server import Server


def opened(work: Path, server: Server, size: int, again: str = "pco batch") -> tuple[Batch, Any]:
    """A batch, and its tasks as they would be handed over: as JSON."""
    file = read_policy_file(work / "p.json")
    config = file.settings(above={"lm": server.spec, "cache": False})
    batch = Batch.open(Order(work / "in.jsonl", work / "out.jsonl", again), file, config)
    order = on_ray._Order(batch, file, config, work)  # pyright: ignore[reportPrivateUsage]
    shards = on_ray._shards(batch.rows(), batch.part.count, size)  # pyright: ignore[reportPrivateUsage]
    return batch, (order.job(shard) for shard in shards)


def test_shards_begin_at_the_same_rows_whatever_is_recorded(work: Path) -> None:
    write_rows(work / "in.jsonl", 23)
    server, _ = answering()
    with served(server):
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


def test_a_task_that_is_begun_again_pays_for_nothing_twice(work: Path) -> None:
    write_rows(work / "in.jsonl", 5)
    server, _ = answering()
    with served(server):
        batch, jobs = opened(work, server, 10)
        job = next(jobs)
        first, second = json.loads(answer_shard(job)), json.loads(answer_shard(job))
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
    assert "0.0.1 was asked for" in json.loads(answer_shard(other))["message"]


def test_a_budget_is_refused_on_a_cluster(work: Path) -> None:
    write_rows(work / "in.jsonl", 3)
    server, _ = answering()
    with served(server):
        args = ("batch", "p.json", "in.jsonl", "out.jsonl", "--lm", server.spec, "--ray", "local")
        pco(*args, "--budget", "5calls", cwd=work).error(2, "a budget cannot be kept", "--ray")


@pytest.mark.slow
def test_a_cluster_makes_the_bytes_of_one_process(work: Path) -> None:
    write_rows(work / "in.jsonl", 700)
    server, answers = answering(fails_on=("is 5?", "is 555?"))
    with served(server):
        typed = ("batch", "p.json", "in.jsonl")
        spec = ("--lm", server.spec, "--set", "cache=false", "--json")
        alone = pco(*typed, "alone.jsonl", *spec, cwd=work)
        before, cluster = len(answers.asked), ("--ray", "local")
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "promptcodebook.cli",
                *typed,
                "ray.jsonl",
                *spec,
                *cluster,
            ],
            cwd=work,
            env={**os.environ, "HOME": str(work)},
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert alone.code == done.returncode == 1, (alone.err, done.stderr)
    assert (work / "alone.jsonl").read_bytes() == (work / "ray.jsonl").read_bytes()
    one, other = alone.json, json.loads(done.stdout)
    assert {k: one[k] for k in ("rows", "failed", "calls", "tokens")} == {
        k: other[k] for k in ("rows", "failed", "calls", "tokens")
    }
    assert len(answers.asked) == 2 * before
    assert not list(work.glob("*.part"))
