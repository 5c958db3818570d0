"""Benchmarks from their public homes: against a stand-in on loopback, never the real hosts."""

import contextlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from promptcodebook.data.files import jsonl_records
from promptcodebook.errors import TaskError
from promptcodebook.paper.tasks.ifbench import task as ifbench
from promptcodebook.paper.tasks.public_sources import SOURCES, Remote, source_of
from promptcodebook.tasks.home import default_data_cache, home_of
from tests.build.cli import pco

Files = dict[str, bytes]
IFBENCH = Path(ifbench.__file__).parent


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """The stand-in's files by path; both hosts point at it."""
    files: Files = {}

    class Answer(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            body = files.get(self.path)
            self.send_response(200 if body is not None else 404)
            if body is not None and body.startswith(b"\x1f\x8b"):
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            with contextlib.suppress(OSError):  # who does not want the rest hangs up
                self.wfile.write(body or b"")

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        base = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("HF_ENDPOINT", base)
        monkeypatch.setenv("PCO_GITHUB_RAW", f"{base}/raw/")
        yield files
        server.shutdown()
        thread.join()


def rows_of(path: Path) -> list[dict[str, object]]:
    return [dict(row.values) for row in jsonl_records(path)]


def jsonl(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows: Sequence[Mapping[str, object]]) -> bytes:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink)
    return sink.getvalue()


def ifeval_row(key: int | str) -> dict[str, object]:
    return {
        "key": key,
        "prompt": f"Write about {key} without commas.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{"n": None}],
    }


def serve(files: Files, name: str, bodies: list[bytes]) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("thing/data.txt", "ours")
        made.writestr("../../escaped.txt", "no")
    rows = iter(bodies)
    for remote in SOURCES[name].files:
        path = "/" + remote.url.split("/", 3)[3]
        files[path] = archive.getvalue() if remote.unpack else next(rows)


def serve_ifbench(files: Files) -> None:
    pool = [ifeval_row(key) for key in range(500, 0, -1)]
    serve(files, "ifbench", [jsonl(pool), jsonl([ifeval_row(str(k)) for k in range(300)])])


def test_addresses_of_both_hosts() -> None:
    hub = Remote("hub", "a/b", "c/train/0000.parquet", "refs%2Fconvert%2Fparquet")
    assert hub.url == (
        "https://huggingface.co/datasets/a/b/resolve/refs%2Fconvert%2Fparquet/c/train/0000.parquet"
    )
    github = Remote("github", "a/b", "x.csv", "0af3")
    assert github.url == "https://raw.githubusercontent.com/a/b/0af3/x.csv"


def test_ifbench_in_the_papers_sizes(hub: Files, tmp_path: Path) -> None:
    serve_ifbench(hub)
    got = source_of("ifbench").fetch(tmp_path)
    assert got.counts == {"train": 150, "val": 300, "test": 300}
    train = rows_of(got.folder / "train.jsonl")
    assert train[0]["kwargs"] == [{}]
    keys = {r["key"] for s in ("train", "val") for r in rows_of(got.folder / f"{s}.jsonl")}
    assert len(keys) == 450
    assert (got.folder / "nltk_data/corpora/thing/data.txt").read_text() == "ours"
    assert all(got.folder in path.parents for path in tmp_path.parent.rglob("escaped.txt"))
    assert [p.name for p in tmp_path.iterdir()] == ["ifbench"]


def test_the_copy_is_used_and_recognised_and_a_change_at_home_is_reported(hub: Files) -> None:
    serve_ifbench(hub)
    cache = default_data_cache()
    got = source_of("ifbench").fetch(cache)
    home = home_of(IFBENCH)
    assert (home.folder, home.origin) == (got.folder, "the public copy that was fetched")
    before = (got.folder / "test.jsonl").read_bytes()
    assert source_of("ifbench").fetch(cache) == got
    path = next(path for path in hub if path.endswith("IFBench_test.jsonl"))
    hub[path] = jsonl([ifeval_row("new")])
    with pytest.raises(TaskError, match=r"changed at its public source.*IFBench_test") as caught:
        source_of("ifbench").fetch(cache)
    assert "--accept" in caught.value.hint
    assert (got.folder / "test.jsonl").read_bytes() == before
    assert source_of("ifbench").fetch(cache, accept=True).counts["test"] == 1
    assert source_of("ifbench").fetch(cache).counts["test"] == 1
    with (got.folder / "val.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(TaskError, match=r"val.jsonl has changed since it was fetched") as caught:
        home_of(IFBENCH)
    assert "pco data fetch ifbench" in caught.value.hint


def test_offline_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PCO_GITHUB_RAW", "http://127.0.0.1:9")
    with pytest.raises(TaskError, match=r"http://127.0.0.1:9/.*cannot be reached") as caught:
        source_of("pupa").fetch(tmp_path)
    assert "--data DIR" in caught.value.hint
    assert "PCO_GITHUB_RAW" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_missing_or_strange_file_is_an_error_that_names_it(hub: Files, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"PUPA_New.csv: the server answered 404"):
        source_of("pupa").fetch(tmp_path)
    serve(hub, "pupa", [b"a,b\n1,2\n"])
    with pytest.raises(TaskError, match="not in the expected form"):
        source_of("pupa").fetch(tmp_path)
    serve(hub, "livebench_math", [b"{}\n", b"<html>", b"{}\n"])
    with pytest.raises(TaskError, match=r"http.*AMPS_Hard/question.jsonl:1: not valid JSON"):
        source_of("livebench_math").fetch(tmp_path)
    serve_ifbench(hub)
    hub |= {path: b"PK" for path in hub if path.endswith(".zip")}
    with pytest.raises(TaskError, match="is not a readable zip file"):
        source_of("ifbench").fetch(tmp_path)
    assert not list(tmp_path.iterdir())


def test_aime_halves(hub: Files, tmp_path: Path) -> None:
    older = [{"id": n, "problem": f"p{n}", "solution": "s", "answer": "7"} for n in range(90)]
    newest = [{"problem_idx": n, "problem": f"q{n}", "answer": n} for n in range(30)]
    serve(hub, "aime", [parquet(older), parquet(newest)])
    got = source_of("aime").fetch(tmp_path)
    assert got.counts == {"train": 45, "val": 45, "test": 30}
    assert rows_of(got.folder / "test.jsonl")[3]["answer"] == "3"


def test_hotpotqa_with_its_corpus() -> None:
    pool: list[dict[str, object]] = [
        {
            **{"id": str(n), "question": f"q{n}", "answer": "a", "type": "bridge", "level": "hard"},
            "supporting_facts": {"title": [f"T{n}", f"T{n}"], "sent_id": [0, 1]},
            "context": {"title": [f"T{n}", "Both"], "sentences": [["x", "y"], ["z"]]},
        }
        for n in range(1000)
    ]
    made = source_of("hotpotqa").arrange([pool[:500], pool[500:]])
    assert [len(rows) for rows in made.values()] == [150, 300, 300, 751]
    row = made["test"][0]
    assert row["id"] == "68", "the first that Python's generator draws"
    assert row["gold_titles"] == [f"T{row['id']}"]
    assert row["supporting_facts"] == [[f"T{row['id']}", 0], [f"T{row['id']}", 1]]


def test_pupa_and_livebench_sizes() -> None:
    names = ("conversation_hash", "category", "user_query", "target_response", "pii_units")
    row: dict[str, object] = {name: "x" for name in (*names, "redacted_query")}
    made = source_of("pupa").arrange([[row] * 664])
    assert [len(rows) for rows in made.values()] == [111, 111, 221]
    files: list[list[dict[str, object]]] = [
        [{"question_id": f"{part}{n}", "turns": ["q?"], "task": part} for n in range(count)]
        for part, count in (("math_comp", 146), ("AMPS_Hard", 150), ("olympiad", 72))
    ]
    made = source_of("livebench_math").arrange(files)
    assert [len(rows) for rows in made.values()] == [123, 123, 122]
    assert made["train"][0]["question"] == "q?"


def test_the_command(hub: Files, tmp_path: Path) -> None:
    serve_ifbench(hub)
    done = pco("data", "fetch", "ifbench", "--cache", str(tmp_path / "kept"), cwd=tmp_path)
    assert done.code == 0
    assert "test.jsonl" in done.out
    assert "next: pco train --task ifbench --data" in done.out
    as_json = pco("data", "fetch", "ifbench", "--json", cwd=tmp_path)
    told = json.loads(as_json.out)
    assert told["rows"] == {"train": 150, "val": 300, "test": 300}
    assert Path(told["folder"]).parent == default_data_cache()
    unknown = pco("data", "fetch", "ifbnch", cwd=tmp_path)
    assert unknown.code == 2 and "did you mean 'ifbench'" in unknown.err
    missing = pco("data", "fetch", "hover", cwd=tmp_path)
    assert missing.code == 2
    assert "hover-nlp/hover" in missing.err
    assert "404" in missing.err
