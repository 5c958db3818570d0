"""Every block of every page runs as it is printed, or stands among those that are not, and why."""

import csv
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

import promptcodebook as pco
from promptcodebook.lm.spec import parse_spec
from promptcodebook.models.providers.prices import listed_price
from tests.build.blocks import DOCS, NOT_RUN, ROOT, Reader, blocks_of, outside, run_page
from tests.build.cli import pco as typed
from tests.build.cli import served
from tests.build.method import attributed, routed, verdict
from tests.build.registry import HARM, HARMFUL, policy
from tests.build.server import Server, Step, says
from tests.build.topics import learn

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    if blocks_of(path)
)

TASKS = Path(pco.__file__).parent / "paper" / "tasks"

Prepare = Callable[[Path, ExitStack], Mapping[str, str] | None]


@dataclass(frozen=True)
class Known:
    """What a page takes as known: `prepare` writes files and begins servers, and may return further
    swaps. `said` = words of the page, and what must be printed for them to be true. `alone`: the
    folder is empty. The rest is the reader's (see tests/build/blocks.py)."""

    prepare: Prepare = lambda folder, stack: None
    swaps: Mapping[str, str] = field(default_factory=dict)
    drawn: tuple[str, ...] = ()
    acts: Mapping[str, Callable[[Reader], None]] = field(default_factory=dict)
    said: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False
    real: bool = False


def write_tickets(folder: Path, count: int) -> None:
    rows = [
        {"question": f"How do I return order {n}, bought {n} days ago?", "answer": f"form {n % 9}"}
        for n in range(count)
    ]
    (folder / "tickets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def _many(folder: Path, stack: ExitStack) -> None:
    """Few examples pass no gate, and show nothing. A version is in production, another is to be."""
    write_tickets(folder, 800)
    with (folder / "pco.toml").open("a", encoding="utf-8") as file:
        file.write('\n[init]\ninstincts = ["Name the form.", "Answer in one word."]\n')
    promote((folder / "tickets.pco.json").read_text("utf-8"))
    shutil.copy(folder / "tickets.pco.json", folder / "candidate.pco.json")


def promote(text: str) -> None:
    with pco.open_registry() as registry:
        version = registry.freeze(text, "tickets").version
        registry.promote(version, "tickets@production", override="x", despite_verdict=True)


def _questions(folder: Path, stack: ExitStack) -> None:
    """Rows that wait for an answer, elsewhere than where the policy was trained."""
    (folder / "pco.toml").unlink()
    rows = [{"question": f"How do I return order {n}?"} for n in range(6)]
    (folder / "tickets.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")


def _dated(folder: Path, stack: ExitStack) -> None:
    rows = [
        {
            "question": f"How do I return order {n}?",
            "answer": f"form {n}",
            "created_at": f"{1986 + n}-01-09",
        }
        for n in range(40)
    ]
    (folder / "tickets.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")


def _messages(folder: Path, stack: ExitStack) -> None:
    for name in ("mine/tickets.csv", "promptcodebook/messages.csv"):
        (folder / name).parent.mkdir()
        shutil.copy(DOCS / "tutorial" / "messages.csv", folder / name)


def _clone(folder: Path, stack: ExitStack) -> None:
    (folder / "promptcodebook").symlink_to(ROOT)


def _benchmarks(folder: Path, stack: ExitStack) -> None:
    """The few examples of the package."""
    for task in ("ifbench", "hotpotqa"):
        shutil.copytree(TASKS / task / "examples", folder / "data" / task)


def _labels(folder: Path, stack: ExitStack) -> None:
    rows = [f"Where is order {n}?,It is on its way.,{'yes' if n % 3 else 'no'}" for n in range(24)]
    (folder / "labels.csv").write_text("\n".join(["input,answer,label", *rows]), "utf-8")


def _judged(folder: Path, stack: ExitStack) -> None:
    """And a run whose rewards a judge gave."""
    _labels(folder, stack)
    write_tickets(folder, 260)
    settings = (folder / "pco.toml").read_text("utf-8").replace("contains", "judge")
    settings = settings.replace('"judge"', '"judge", rubric = "The answer is polite."')
    (folder / "judged.toml").write_text(settings, "utf-8")
    trained = typed("train", "judged.toml", "--name", "judged", cwd=folder)
    assert trained.code == 0, trained.err


def _label(reader: Reader) -> None:
    """People fill in the last column."""
    with (reader.folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with (reader.folder / "labels.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {"label": ("yes", "no")[n % 2]} for n, row in enumerate(rows))


def _deserving(folder: Path, stack: ExitStack) -> None:
    """A run worth deploying, versions that were in production before, and a model that judges."""
    for word in ("one", "two"):
        promote(policy(word))
    learn(folder / "runs", name_it="worth")
    _served(stack, _judge, "PCO_LM", "#judge")


def _judging(folder: Path, stack: ExitStack) -> None:
    _served(stack, _judge, "JUDGE", "#judge")


def _audited(reader: Reader) -> None:
    """The page names the audit, which it asks for, in its sentences."""
    audit = ("registry", "audit", "shop@latest", "--lm", os.environ["JUDGE"])
    assert typed(*audit, cwd=reader.folder).code == 0


def _served(stack: ExitStack, step: Step, variable: str, more: str = "") -> None:
    """A model behind an address, which the variable names."""
    server = Server()
    server.default, server.extra_routes = step, [("/v1/embeddings", _embedded)]
    stack.enter_context(served(server))
    stack.enter_context(pytest.MonkeyPatch.context()).setenv(variable, server.url + more)


async def _embedded(request: web.Request) -> web.Response:
    texts = (await request.json())["input"]
    data = [{"index": n, "embedding": [len(text), 1]} for n, text in enumerate(texts)]
    return web.json_response({"data": data})


async def answers(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """A reply of the form that is asked for; a whole critique has the fields of two others."""
    shape = json.dumps(body.get("response_format", ""))
    fields = re.findall(
        r"`(\w+)` \(str\)", body["messages"][0]["content"].split("output fields")[-1]
    )
    forms = {
        "selected_indices": routed(0, 1, 2, 3),
        "rendering_errors": attributed("say it plainly"),
        '"score"': verdict(0.5),
        "feedback": json.dumps({"feedback": "look at forms"}),
        "instincts": json.dumps({"instincts": [f"Name form {n}." for n in range(24)]}),
    }
    if all(part in shape for part in ("rendering_errors", '"score"')):
        one = json.loads(verdict(0.5)) | json.loads(attributed("say it plainly"))
        forms = {"score": json.dumps(one)}
    text = next((text for part, text in forms.items() if part in shape), "Say form 7.")
    if fields:
        text = "\n\n".join(f"[[ ## {name} ## ]]\nform 7" for name in fields)
    return await says(text)(request, body)


def _at(variable: str) -> Prepare:
    """A model that answers in every form, behind the address that the variable names."""
    return lambda folder, stack: _served(stack, answers, variable)


def _addressed(folder: Path, stack: ExitStack) -> Mapping[str, str]:
    """Such a model in place of the page's: a client of its own asks it, or no simulated one may."""
    _served(stack, answers, "ADDRESS", "#my-model")
    spec = os.environ["ADDRESS"]
    return {"http://localhost:8000/v1#my-model": spec, "--lm smollm2": f"--lm {spec}"}


async def _judge(request: Any, body: dict[str, Any]) -> Any:
    text = json.loads(body["messages"][-1]["content"].partition("\n")[2])
    found = {"findings": [HARM] if text in HARMFUL else []}
    return await says(json.dumps(found))(request, body)


def _prompts(folder: Path, stack: ExitStack) -> None:
    (folder / "front.json").write_text('["Name the form.", "Answer in one word."]', "utf-8")
    rows = [{"text": f"Return order {n}", "label": f"form {n % 9}"} for n in range(80)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")


def _agent(folder: Path, stack: ExitStack) -> None:
    [agent] = [b for b in blocks_of(DOCS / "how-to/train-an-agent.md") if b.title == "agent.py"]
    (folder / "agent.py").write_text(agent.text, "utf-8")
    fixed = agent.text.replace('row["input"]', '"When did the Roman Empire fall?"')
    (folder / "tutor.py").write_text(fixed, "utf-8")
    (folder / "prompt.txt").write_text("You work for a shop. Answer in one word.", "utf-8")
    rows = [f"Which form returns order {n}?,form {n}" for n in range(20)]
    (folder / "rows.csv").write_text("\n".join(["question,answer", *rows]), "utf-8")


def _priced(reader: Reader) -> None:
    """Callers have keys, and the model has a price."""
    (reader.folder / "keys").write_text("a-key-of-the-test\n", "utf-8")
    with (reader.folder / "pco.toml").open("a", encoding="utf-8") as file:
        file.write(f'[prices."http://127.0.0.1:{reader.ports["model"]}/v1#simulated"]\n')
        file.write("prompt = 1\ncompletion = 1\n")


def _example(name: str, said: Mapping[str, str]) -> Known:
    """The folder of an example."""

    def prepare(folder: Path, stack: ExitStack) -> None:
        shutil.copytree(ROOT / "examples" / name, folder, dirs_exist_ok=True)

    return Known(prepare, said=said, alone=True)


def _begin_anew(reader: Reader) -> None:
    reader.here = reader.folder / "mine"


def _users(reader: Reader) -> None:
    (reader.folder / "examples").mkdir(exist_ok=True)
    text = (ROOT / "examples/users.py").read_text("utf-8")
    (reader.folder / "examples/users.py").write_text(reader.affordable(text), "utf-8")


QUICK = {f"--preset default --seeds {n}": "--preset quick --seeds 1" for n in (10, 5, 1)}
RESULT = Known(_benchmarks, {**QUICK, "--seeds 5": "--seeds 1", "DATA": "data"})
KNOWN: dict[str, Known] = {
    "CONTRIBUTING.md": Known(_clone),
    "README.md": Known(
        _messages,
        {"http://localhost:8000/v1#MODEL": "smollm2", "5000calls": "60calls"},
        acts={"pco init --from": _begin_anew},
        said={"44 test inputs": "test split, n = 44"},
        alone=True,
    ),
    "docs/batch.md": Known(_questions),
    "docs/experiments.md": Known(
        _benchmarks,
        {
            "ablation  ": "ablation --preset quick --lm simulated ",
            "--preset paper": "--preset quick",
            "all --preset quick": "all --preset quick --lm simulated",
            "DIR": "data",
        },
    ),
    "docs/feedback.md": Known(
        _judging,
        swaps={"users.py 20": "users.py 1", "users.py 2": "users.py 1", "2000calls": "1999calls"},
        acts={
            "python examples/users.py": _users,
            "pco registry promote shop@latest shop@production --canary 10%": _audited,
        },
        said={"Do not deploy": "Do not deploy: ", "canary": "canary"},
        alone=True,
    ),
    "docs/how-to/ci-for-prompts.md": Known(_many),
    "docs/how-to/headroom.md": Known(_many),
    "docs/how-to/start-from-a-file.md": Known(_dated),
    "docs/how-to/train-an-agent.md": Known(
        _agent, {"prompt.txt\n": "prompt.txt --budget 9calls\n", 'fall?"': 'fall?" --budget 9calls'}
    ),
    "docs/how-to/write-a-reward.md": Known(_labels),
    "docs/router.md": Known(_prompts, {"REF": "tickets"}),
    "docs/safety.md": Known(swaps={"REF": "tickets"}),
    "docs/serving.md": Known(acts={"pco serve tickets.pco.json --keys": _priced}),
    "docs/smollm2.md": Known(swaps={"temperature=0": "temperature=0 --budget 60calls"}),
    "docs/tutorial/index.md": Known(
        _messages,
        drawn=("Deploy: ", "input\n"),
        said={
            "8 updates, 446 calls and about 21,500 tokens": r"8 updates.*\s446 / .* 21\.5k",
            "49 unseen messages": "test split, n = 49",
            "score with one instinct alone": "score with one instinct alone",
        },
        alone=True,
    ),
    "docs/how-to/providers/gemini.md": Known(_at("GOOGLE_GEMINI_BASE_URL"), real=True),
    "docs/how-to/providers/openai.md": Known(_at("OPENAI_BASE_URL"), real=True),
    "docs/integrations.md": Known(_addressed, real=True),
    "docs/registry.md": Known(_deserving),
    "docs/verdict.md": Known(_judged, {"RUN": "judged"}, acts={"pco judge verdict": _label}),
    "examples/comments/README.md": _example("comments", {"22 test comments": "n = 22"}),
    "examples/orders/README.md": _example(
        "orders", {"24 test orders": "n = 24", "countries": "when the country is Spain"}
    ),
    "examples/recipes/README.md": _example(
        "recipes",
        {
            "verdict": "On the simulated model: ",
            "a prompt of all instincts": "learned - all instincts in one prompt, n = ",
        },
    ),
    **{page: RESULT for page in PAGES if page.startswith("docs/results/")},
    "docs/results/real-roles.md": Known(_addressed, QUICK),
    "docs/results/small-real-model.md": Known(_addressed, QUICK),
}


def reward(example: pco.Example, output: str) -> pco.Score:
    return pco.Score(float((example.target or "") in output), "name the form")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has: data, a reward, a run called tickets and its policy."""
    folder = tmp_path_factory.mktemp("shop")
    write_tickets(folder, 12)
    (folder / "pco.toml").write_text(
        'preset = "quick"\nlm = "simulated"\nreward = { kind = "contains" }\n\n'
        '[data]\npath = "tickets.jsonl"\ninput = "question"\ntarget = "answer"\n',
        "utf-8",
    )
    trained = typed("train", "--set", "update.epochs=2", "--name", "tickets", cwd=folder)
    assert trained.code == 0, trained.err
    shutil.copy(next((folder / "runs").glob("*/policy.json")), folder / "tickets.pco.json")
    bench = tmp_path_factory.mktemp("bench")  # what one page has measured, another finds
    (folder / "runs" / "bench").symlink_to(bench)
    return folder


def follow(
    page: str, shop: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, real: bool = False
) -> str:
    """Runs the page's blocks in a folder with what it takes as known; what they printed."""
    known, names = KNOWN.get(page, Known()), {"pco": pco, "openai": openai}
    if known.alone:
        folder.mkdir()
    else:
        shutil.copytree(shop, folder, symlinks=True)
        monkeypatch.setenv("PCO_PRESET", "quick")
    monkeypatch.chdir(folder)
    if not real:
        monkeypatch.setenv("PCO_LM", "simulated")
    monkeypatch.setenv("PCO_REGISTRY", str(folder / "registry.sqlite"))
    with ExitStack() as stack:
        if not known.alone:
            run = pco.load_run("tickets")
            data = pco.load("tickets.jsonl", input="question", target="answer")
            names |= {"data": data, "run": run, "policy": run.policy, "reward": reward}
        swaps = {**known.swaps, **(known.prepare(folder, stack) or {})}
        reader = Reader(folder, names, swaps, known.drawn, known.acts, known.real or real)
        printed = run_page(ROOT / page, reader)
    text = (ROOT / page).read_text("utf-8")
    for words, meant in known.said.items():
        assert words in " ".join(text.split()), words
        assert re.search(meant, printed, re.S), (words, printed)
    if real:
        [decision, *_] = re.findall("Deploy: the learned policy|Do not deploy", text)
        assert f"\n{decision}" in printed and outside(text, printed) == []
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(
    page: str, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(page, shop, tmp_path / "shop", monkeypatch)


@pytest.mark.local
@pytest.mark.parametrize("page", ["docs/tutorial/index.md", "examples/comments/README.md"])
def test_a_real_model_earns_what_the_page_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within its intervals: another processor gives another draw."""
    pytest.importorskip("openvino_genai")
    follow(page, tmp_path, tmp_path / "shop", monkeypatch, real=True)


def test_a_level_outside_its_interval_is_named() -> None:
    page = (DOCS / "tutorial" / "index.md").read_text("utf-8")
    assert outside(page, page) == []
    assert outside(page.replace("0.296 ", "0.596 "), page) == ["present 0.596", "concat 0.596"]
    readme = (ROOT / "README.md").read_text("utf-8")
    assert outside(readme, page) == ["gain 0.591"]


def test_a_gate_of_the_guide_to_ci_can_fail(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "docs/how-to/ci-for-prompts.md"
    monkeypatch.setitem(KNOWN, page, Known())
    with pytest.raises(AssertionError, match=r"at-least"):  # three examples show nothing
        follow(page, shop, tmp_path / "shop", monkeypatch)


@pytest.mark.parametrize(("block", "why"), [
    ("```python\n1 / 0\n```", "1 / 0"),
    ("```\npco trian\n```", "pco trian"),
    ("```console\n$ pco runs list\nten runs\n```", "ten runs"),
    ("```console\n$ pco runs list\n```\n\n```text\nten runs\n```", "ten runs"),
    ("```\nhelm install pco\n```", "helm install"),
    ("```sh\npco runs list\n```", "pco runs list"),
    ("```\npip install '.[nonesuch]'\n```", "nonesuch"),
    ("```\nmake nonesuch\n```", "make nonesuch"),
    ("  ```\n  pco runs list\n  ```", "a block that is not read"),
    ("```text\n$ pco runs list\n```", "pco runs list"),
    ("~~~\npco runs list\n~~~", "a block that is not read"),
])  # fmt: skip
def test_a_new_block_that_is_not_run_is_named(tmp_path: Path, block: str, why: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{block}\n", "utf-8")
    with pytest.raises(AssertionError, match=re.escape(why)):
        run_page(page, Reader(tmp_path))


def test_a_budget_in_dollars_is_for_a_model_whose_price_is_known() -> None:
    """The simulated model, which answers here, costs nothing."""
    texts = [(ROOT / page).read_text("utf-8") for page in PAGES]
    named = [re.findall(r"--lm (\S+) --budget \d+usd", text) for text in texts]
    specs = [parse_spec(spec) for page in named for spec in page]
    assert len(specs) >= 3 and all(map(listed_price, specs))


def test_every_reason_for_not_running_a_command_is_needed() -> None:
    """A page that no longer has the command takes its reason along."""
    texts = "\n".join((ROOT / page).read_text("utf-8") for page in PAGES).replace('"', "")
    assert [begin for begin in NOT_RUN if begin not in texts] == []
