"""Runs on the command line, and what a process does at signals, full disks and closed pipes."""

import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.base.intervals import Interval
from promptcodebook.calls import Reply
from promptcodebook.cli.command import headline_text
from promptcodebook.deploy.viewer.lists import RunFilter, RunsList
from promptcodebook.lm.cache import ReplyCache
from promptcodebook.run.verdict import Headline
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import COLUMNS
from tests.build.cases import table
from tests.build.cli import Terminal, pco, running, served
from tests.build.clock import until
from tests.build.policy import file_of
from tests.build.project import QUICK
from tests.build.server import Server, says

""""""


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_has_a_line_per_run_with_its_verdict(
    trained: Path, run_id: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    none = pco("runs", "list", cwd=trained / "runs")
    assert none.code == 0 and "no run" in none.out and "pco train" in none.out
    headline = pco("runs", "show", run_id, "--json", cwd=trained).json["headline"]
    for _ in range(2):  # as it is read, and as its summary was kept
        [run] = pco("runs", "list", "--json", cwd=trained).json
        assert run["id"] == run_id and run["ended"] == "finished" and not run["resumable"]
        assert run["simulated"] and run["step"] == 3
        assert run["decision"] == headline["decision"] == "Undecided"
        gain = Interval(**run["gain"])
        assert f"{gain.mean:.3f} more" in headline["lines"]["gain"] and gain.n == 6
        lines = pco("runs", "list", cwd=trained).out.splitlines()
        ends = gain.text(signed=True, level="", between="..")
        after = run["score"]["mean"]
        levels = f"{after - run['gain']['mean']:.2f}→{after:.2f}"
        told = ["Undecided*", *ends.split(), levels]
        assert lines[0].split()[:5] == ["run", "verdict", "gain", "test", "score"]
        assert lines[1].split()[:5] == [run_id, *told]
        assert all(len(line) <= width for line in lines)
        shown = [line for line in lines if line.startswith(f"{run_id}  ")]
        assert len(shown) == (2 if width == 80 else 1)
        assert "  finished" in shown[0]
        assert lines[-1].startswith("* on the simulated model")


def test_every_column_of_the_one_list_is_on_the_terminal_and_in_the_viewer(
    trained: Path, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    head = pco("runs", "list", cwd=trained).out.splitlines()[0]
    assert head.split("  ")[0] == "run" and "name" not in head, "no run has a name"
    for column in COLUMNS:
        assert column.brief in head or column.brief == "name"
        for by in filter(None, (column.heading, f"-{column.heading}" * bool(column.heading))):
            body = RunsList(trained / "runs").screen(RunFilter(by=by)).body
            assert f">{column.heading}</a>" in body and run_id in body


def test_show_has_the_settings_the_spend_and_the_verdict(trained: Path, run_id: str) -> None:
    shown = pco("runs", "show", run_id[:15], "--json", cwd=trained).json
    assert shown["run"] == run_id and shown["config"]["preset"] == "quick"
    assert shown["usage"]["executor"]["calls"] > 0
    rows = ["present", "learned", "concat", "best_fixed", "untrained"]
    assert [m["name"] for m in shown["judged"]] == rows
    text = " ".join(pco("runs", "show", run_id, cwd=trained).out.split())
    assert shown["verdict"] in text and "executor" in text


def test_a_yes_removes(trained: Path, run_id: str) -> None:
    pco("runs", "rm", run_id, cwd=trained).error(2, run_id, "add --yes")
    assert (trained / "runs" / run_id).is_dir()
    result = pco("runs", "rm", "last", "--yes", cwd=trained)
    assert result.code == 0 and run_id in result.out
    assert list((trained / "runs").iterdir()) == []


@pytest.mark.parametrize(("answer", "left"), [("n", 1), ("", 1), ("y", 0)])
def test_a_person_is_asked(trained: Path, run_id: str, answer: str, left: int) -> None:
    result = pco("runs", "rm", run_id, "--json", cwd=trained, stdin=Terminal(f"{answer}\n"))
    assert result.code == (2 if left else 0)
    assert f"Remove {run_id} for good? [y/N]" in result.err
    assert len(list((trained / "runs").iterdir())) == left
    assert ("removed" if not left else "error") in result.json  # and no question on stdout


def test_report_is_written_where_it_is_asked_for(trained: Path, run_id: str) -> None:
    result = pco("report", "last", "-o", "r.html", cwd=trained)
    assert result.code == 0 and result.out.strip() == "r.html"
    html = (trained / "r.html").read_text()
    rows = map(json.loads, (trained / "data.jsonl").read_text().splitlines())
    assert any(row["input"] in html for row in rows)  # the run's store holds ids alone
    assert pco("report", run_id, cwd=trained).out.strip() == f"runs/{run_id}/report.html"


# --- What `pco train` prints at its end ---


def test_what_to_type_names_a_run_by_its_name_and_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = pco("train", *QUICK, "--name", "shop", cwd=folder)
    assert result.out.endswith("\n  type  pco report shop\n"), result.err
    head = Headline("Deploy", "it", {"type": "pco lm serve smollm2 & pco serve shop"})
    assert headline_text(head).endswith("\n  type  pco lm serve smollm2 & pco serve shop")
    for module in ("prometheus_client", "fastapi"):
        monkeypatch.setitem(sys.modules, module, None)
    first, then = headline_text(head).splitlines()[1:]
    assert first == "  type  pip install 'promptcodebook[local-server,serve]'"
    assert then == "        pco lm serve smollm2 & pco serve shop"


def test_the_verdict_has_a_row_for_each_prompt_and_fits_80_columns(folder: Path) -> None:
    result = pco("train", *QUICK, cwd=folder)
    assert result.code == 0, result.err
    assert "\x1b" not in result.out + result.err and "\r" not in result.err  # it is no terminal
    [path] = (folder / "runs").iterdir()
    with closing(RunStore.open(path)) as store:
        conclusion = store.outline().conclusion
    assert conclusion is not None
    title = "Undecided: the learned policy (simulated)\n"
    tables, found, closing_block = result.out.partition(title)
    assert found and conclusion.text in " ".join(tables.split())
    names = [line[2:6] for line in closing_block.splitlines() if line[2:3].strip()]
    assert names == ["gain", "cost", "next", "run ", "file", "type"]
    assert "Add test inputs: a verdict needs" in closing_block
    assert f"  file  runs/{path.name}/policy.json\n" in closing_block
    assert closing_block.endswith(f"\n  type  pco report {path.name}\n")
    assert len(re.findall(r"\bpco [a-z]", result.out)) == 1, "one next step"
    shown = pco("runs", "show", path.name, cwd=folder).out
    assert closing_block.partition("  run ")[0] in shown
    told = pco("runs", "show", path.name, "--json", cwd=folder).json["headline"]
    assert told["decision"] == "Undecided" and told["lines"]["type"] == f"pco report {path.name}"
    assert tables.startswith("test split, n = ")
    scores, _, below = tables.partition("per query:")
    prices, _, _ = below.strip().partition("\n\n")
    for row in conclusion.rows:
        [score] = [line for line in scores.splitlines() if line.split()[:1] == [row["name"]]]
        [price] = [line for line in prices.splitlines() if line.split()[:1] == [row["name"]]]
        assert f"{row['score']['mean']:.3f}" in score and f"{row['calls_per_query']:.1f}" in price
    assert all(len(line) <= 80 for line in (scores + prices).splitlines())
    assert "gain 95 %" in scores


def test_a_budget_that_is_reached_says_how_to_go_on(folder: Path) -> None:
    result = pco("train", *QUICK, "--budget", "40calls", cwd=folder)
    assert result.code == 3
    assert "pco: stopped: " in result.err and "pco train --resume" in result.err
    assert "No verdict: the budget is reached" in result.out
    assert "  file  runs/" in result.out and "  type " not in result.out  # of the best state so far


def test_a_run_that_fails_says_what_is_missing_and_keeps_its_policy(folder: Path) -> None:
    # The critic's server is not there: nothing can be learned from any rollout.
    down = ("--set", "roles.critic.model=http://127.0.0.1:9/v1#m", "--set", "retries=0")
    down = (*down, "--set", "critic.skip_solved=false")
    result = pco("train", *QUICK, *down, cwd=folder)
    assert result.code == 1, result.err
    assert "pco train --resume" in result.err
    assert "  type " not in result.out and "pco " not in result.out  # the error has the next step
    out = " ".join(result.out.split())
    assert "No verdict: the run failed after 0 updates (TooManyFailures)." in out
    [path] = (folder / "runs").iterdir()
    assert f"file runs/{path.name}/policy.json" in out and (path / "policy.json").is_file()
    again = pco("train", *QUICK, *down, "--json", cwd=folder)
    assert again.code == 1 and again.json["error"] == "TooManyFailures", "one document"
    assert again.json["hint"] and again.json["ended"] == "failed" and again.json["policy"]


def test_a_run_goes_by_its_name_in_every_command(folder: Path) -> None:
    result = pco("train", *QUICK, "--name", "tickets", "--json", cwd=folder)
    assert result.code == 0 and result.json["name"] == "tickets"
    run = result.json["run"]
    head, line, *_ = pco("runs", "list", cwd=folder).out.splitlines()
    assert head.split()[:2] == ["run", "name"] and line.split()[:2] == [run, "tickets"]
    assert "name     tickets" in pco("runs", "show", "tickets", cwd=folder).out
    assert pco("registry", "show", "tickets", "--json", cwd=folder).json["ref"] == run
    pco("train", "--name", "last", cwd=folder).error(2, "cannot be called 'last'")


# `pco cache`


def test_stats_and_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.sqlite"
    monkeypatch.setenv("PCO_CACHE", str(path))
    unused = pco("cache", "stats", "--json", cwd=tmp_path).json
    assert unused == {"path": str(path), "replies": 0, "bytes": 0} and not path.exists()
    assert pco("cache", "clear", cwd=tmp_path).code == 0
    cache = ReplyCache(path)
    cache.put(b"k" * 32, Reply("hello"))
    cache.close()
    stopped = tmp_path / "mine.unfinished" / "an-evaluation"
    stopped.mkdir(parents=True)
    stats = pco("cache", "stats", "--json", cwd=tmp_path).json
    assert stats["replies"] == 1 and stats["bytes"] > 0
    assert ": 1 reply, " in pco("cache", "stats", cwd=tmp_path).out
    pco("cache", "clear", cwd=tmp_path).error(2, "no reply was removed", "add --yes")
    refused = pco("cache", "clear", cwd=tmp_path, stdin=Terminal("n\n"))
    assert refused.code == 2 and f"Remove every reply from {path}? [y/N]" in refused.err
    assert pco("cache", "stats", "--json", cwd=tmp_path).json["replies"] == 1
    assert stopped.exists()
    assert pco("cache", "clear", "--yes", "--json", cwd=tmp_path).json["removed"] == 1
    assert not stopped.exists()
    assert pco("cache", "stats", "--json", cwd=tmp_path).json["replies"] == 0


# What only a process of its own can show: signals, pipes, exit codes, a served model.

PCO = [sys.executable, "-m", "promptcodebook.cli"]
TRAIN = ("train", "--lm", "simulated?latency=0.02", *QUICK)


def started(*words: str, folder: Path | None = None, **more: Any) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=folder, stdout=pipe, stderr=pipe, text=True, **more)


@pytest.mark.slow
def test_a_served_model_says_its_spec_answers_counts_and_ends_on_sigterm(tmp_path: Path) -> None:
    words = ("lm", "serve", "simulated", "--task", "constraints", "--port", "0")
    with running(*words) as process:
        assert process.stdout is not None
        spec = process.stdout.readline().strip()
        assert spec.startswith("http://127.0.0.1:") and spec.endswith("/v1#simulated")
        file_of(column="input").save(tmp_path / "p.json")
        args = ("--task", "constraints", "--lm", spec, "--n", "3", "--json")
        result = pco("eval", "p.json", *args, cwd=tmp_path)
        assert result.code == 0, result.err
        assert result.json["simulated"] is True  # served, and still simulated
        stats = spec.replace("/v1#simulated", "/stats")
        with urllib.request.urlopen(stats, timeout=30) as response:
            assert json.load(response)["requests"] >= 9
        port = spec.split(":")[2].split("/")[0]
        taken = pco("lm", "serve", "simulated", "--port", port, cwd=tmp_path)
        taken.error(2, "cannot listen on 127.0.0.1", "--port 0")
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0


@pytest.mark.parametrize(
    ("args", "error"), table(__file__, "what_cannot_be_served_is_refused_before_anything_is_loaded")
)
def test_what_cannot_be_served_is_refused_before_anything_is_loaded(
    args: tuple[str, ...], error: str, tmp_path: Path
) -> None:
    result = pco("lm", "serve", *args, cwd=tmp_path)
    assert result.code == 2
    assert error in " ".join(result.err.split())


# As a script's shell starts `pco ... &`: deaf to Ctrl-C.
DEAF = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")


def interrupted(
    folder: Path, *args: str, until: str, by: int = signal.SIGINT, background: bool = False
) -> tuple[int, str]:
    """The command, sent Ctrl-C (or another signal) once its stderr has said `until`."""
    process = started(*(DEAF if background else ()), *PCO, *args, folder=folder)
    assert process.stderr is not None
    stderr = ""
    for line in process.stderr:
        stderr += line
        if until in line:
            process.send_signal(by)
            break
    stderr += process.communicate(timeout=300)[1]
    return process.returncode, stderr


@pytest.mark.parametrize(
    ("by", "background"),
    [pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow), (signal.SIGINT, True)],
)
def test_a_stopped_run_keeps_what_it_has_and_can_be_resumed(
    folder: Path, by: int, background: bool
) -> None:
    code, stderr = interrupted(folder, *TRAIN, until="step 1 of ", by=by, background=background)
    assert code == 130, stderr
    assert "waiting for calls in flight" in stderr
    assert "interrupted by the user" in stderr and "pco train --resume" in stderr
    assert "Traceback" not in stderr
    (run,) = pco("runs", "list", "--json", cwd=folder).json
    assert run["ended"] == "interrupted" and run["resumable"]
    if by == signal.SIGTERM:
        assert pco("train", "--resume", "last", cwd=folder).code == 0


IMPORTING = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, *more):
        if name == {at!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.{by})

sys.meta_path.insert(0, CtrlC())
sys.argv = ["pco", "data", "check", "gone.jsonl"]
from promptcodebook.cli import main
main()
"""


@pytest.mark.parametrize(
    ("at", "by", "background"),
    table(__file__, "ctrl_c_while_modules_are_imported_leaves_no_traceback"),
)
def test_ctrl_c_while_modules_are_imported_leaves_no_traceback(
    at: str, by: str, background: bool, tmp_path: Path
) -> None:
    command = (sys.executable, "-c", IMPORTING.format(at=at, by=by))
    process = started(*(DEAF if background else ()), *command, folder=tmp_path)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, "") and err in ("", "pco: interrupted\n")


def test_ctrl_c_ends_an_evaluation_in_order(trained: Path) -> None:
    server, heard = Server(), threading.Event()
    reply = '{"selected_indices": [0, 1, 2, 3]}'

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.to_thread(heard.wait, 300)  # under way until the interrupt is heard
        return await says(reply)(request, body)

    server.default = answer
    with served(server):
        process = started(*PCO, "eval", "last", "--lm", server.spec, folder=trained)
        assert process.stderr is not None
        asyncio.run(until(lambda: server.calls == 6))  # the routes
        process.send_signal(signal.SIGINT)
        stderr = ""
        while "waiting for calls in flight" not in stderr:
            stderr += (line := process.stderr.readline())
            assert line, stderr
        heard.set()
        stderr += process.communicate(timeout=300)[1]
    assert process.returncode == 130, stderr
    assert "interrupted by the user" in stderr
    assert "Traceback" not in stderr
    assert len(server.bodies) == 6, "no answer was asked for any more"


def test_a_reader_that_leaves_is_no_error(trained: Path) -> None:
    show = " ".join([*PCO, "registry", "show", "last"])
    process = started("/bin/sh", "-c", f"{show} | head -1", folder=trained)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and "rror" not in err and "K = 16" in out


def test_a_disk_without_room_is_one_message_before_anything_is_paid_for(folder: Path) -> None:
    """The system refuses to let a file grow past a limit, as a full disk does. A disk that fills up
    on the way is in `tests/proof/test_kill.py`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, before[1]))
    try:
        result = pco("train", *QUICK, cwd=folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert result.code == 1, result.err
    assert result.err.count("pco: error") == 1 and "Traceback" not in result.err
    assert "free space" in result.err and "step 1" not in result.err
    assert pco("train", *QUICK, cwd=folder).code == 0
    assert pco("runs", "list", cwd=folder).code == 0


def test_a_short_output_whose_reader_is_gone_ends_without_a_word(tmp_path: Path) -> None:
    # It is still in the buffer when the command is done: only the end of the process writes it.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = started(*PCO, "runs", "list", folder=tmp_path, env=env)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert process.communicate(timeout=300)[1] == "" and process.returncode == 1


# A terminal that closes, and a run that nohup shields from it
