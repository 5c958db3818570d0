"""What may be different when a run is resumed, and what a longer training does to what was done;
templates in a folder of one's own."""

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.assemble import Plan, Sources, plan_run
from promptcodebook.calls import ROLES
from promptcodebook.config import load_config, merge
from promptcodebook.errors import RunChanged
from promptcodebook.method.templates import copy_templates
from promptcodebook.run.opening import code_files, models_then, resume_with
from promptcodebook.store.events import Amended, RunState
from promptcodebook.store.header import Header, digest
from promptcodebook.store.run import RunStore
from tests.build.cases import table
from tests.build.cli import pco as typed
from tests.build.optimize import Flaky, data, reward, train
from tests.build.project import PROJECT
from tests.build.project import QUICK as TYPED
from tests.build.store import judged_in, steps_of

# A course of ε of its own, and the last state: what is longer begins like what is shorter.
COURSE = {"explore": {"gamma": 0.9}, "keep": "last"}


def epochs(count: int, **more: Any) -> dict[str, Any]:
    return {**COURSE, "update": {"epochs": count, "batch_size": 6}, **more}


def test_a_finished_run_made_longer_is_the_longer_run(tmp_path: Path) -> None:
    """The same steps, policy and rows, byte by byte; what was done stays as it was. Only its
    verdict is of a second look at the same test split."""
    short = train(tmp_path, "short", config=epochs(2))
    done = steps_of(short.path)
    longer = train(tmp_path, "short", config=epochs(4), resume=short.id)
    whole = train(tmp_path, "whole", config=epochs(4))
    assert longer.id == short.id and longer.ended == "finished"
    assert steps_of(longer.path)[: len(done)] == done
    assert [replace(s, traces=()) for s in steps_of(longer.path)] == [
        replace(s, traces=()) for s in steps_of(whole.path)
    ]
    assert (longer.path / "policy.json").read_bytes() == (whole.path / "policy.json").read_bytes()
    assert "This is look 2 at the same test split" in longer.verdict
    assert longer.conclusion is not None and longer.conclusion.looks == 2
    head = longer.conclusion.headline()
    assert head.title.endswith(", judged the 2nd time on these test rows")
    assert "but a wider one decides" in head.lines["gain"]
    assert "look" not in whole.verdict and "look" not in short.verdict
    figures = [
        [(r.name, r.score, r.gain, r.over) for r in x.rows.values()] for x in (longer, whole)
    ]
    assert figures[0] == figures[1]
    assert judged_in(longer.path) == judged_in(whole.path)
    with closing(RunStore.open(longer.path)) as store:
        [amended] = [event for event in store.events() if isinstance(event, Amended)]
        assert amended.extended and amended.changes[0].startswith("update.epochs: 2 → 4")
        assert store.ours and store.header.config["update"]["epochs"] == 4


def test_a_run_that_began_when_default_was_the_whole_method_stays_that(tmp_path: Path) -> None:
    shutil.copytree(PROJECT, tmp_path, dirs_exist_ok=True)
    began = ("--preset", "full", "--set", "update.epochs=4", "--set", "validation.every=2")
    assert typed("train", *began, "--budget", "60calls", cwd=tmp_path).code == 3
    [path] = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    with closing(RunStore.open(path, write=True)) as store:
        then = {**store.header.config, "preset": "default"}
        store.amend(replace(store.header, config=then), Amended((), "", False))
    resumed = typed("train", "--resume", "last", "--budget", "120calls", cwd=tmp_path)
    assert resumed.code == 3, resumed.err
    with closing(RunStore.open(path)) as store:
        made = store.header.configuration
        assert (made.preset, made.compose, made.critic.stages) == ("default", "generator", 2)
        assert all(store.usage()[role].calls for role in ("generator", "attribution"))


def test_a_run_of_the_version_before_keeps_its_prompts(tmp_path: Path) -> None:
    short = train(tmp_path, config=epochs(2))
    with closing(RunStore.open(short.path, write=True)) as store:
        header = store.header
        assert header.templates is not None
        texts = {n: f"{text}\nEarlier words." for n, text in header.templates.sources.items()}
        begun = replace(header, templates=replace(header.templates, sources=texts))
        store.amend(begun, Amended((), "", False))
    longer = train(tmp_path, config=epochs(3), resume=short.id)
    assert longer.ended == "finished"
    assert "Earlier words." in longer.policy.file.templates.encoder


def test_patience_begins_anew_where_a_run_is_made_longer(tmp_path: Path) -> None:
    """Its last validations brought no gain, and more was asked for all the same."""
    idle = {"validation": {"every": 1, "subset": 3, "finalists": 1, "patience": 2}}

    def run(count: int, resume: str = "") -> pco.Run:
        lm, config = Flaky(10**6), {"preset": "quick", **epochs(count), **idle}
        return pco.optimize(data(), reward, lm, config=config, runs_dir=tmp_path, resume=resume)

    short = run(2)
    assert (short.ended, len(steps_of(short.path))) == ("finished", 2)
    longer = run(6, resume=short.id)
    assert (longer.ended, len(steps_of(longer.path))) == ("early_stop", 4)


def test_a_run_that_gained_nothing_ends_and_goes_on_where_asked_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`update.stop_when_flat` makes no call; continued, it is the run that never ended."""

    def run(name: str, flat: int | None, resume: str = "") -> pco.Run:
        update = {"update": {"epochs": 8, "batch_size": 6, "stop_when_flat": flat}}
        config = {"preset": "quick", **COURSE, **update, "validation": {"every": 0}}
        path, lm = tmp_path / name, Flaky(10**6)
        return pco.optimize(data(), reward, lm, config=config, runs_dir=path, resume=resume)

    whole, short = run("whole", None), run("short", 2)
    assert (short.ended, len(steps_of(short.path))) == ("early_stop", 4)
    assert f"pco train --resume {short.id} --set update.stop_when_flat=none" in caplog.text
    assert steps_of(short.path) == steps_of(whole.path)[:4]
    more = run("short", 3, resume=short.id)
    assert (more.ended, len(steps_of(more.path))) == ("early_stop", 7), "three more at least"
    again = run("short", None, resume=short.id)
    assert (again.ended, steps_of(again.path)) == ("finished", steps_of(whole.path))


@pytest.fixture
def plan() -> Plan:
    return plan_of("http://a:1/v1#m")


def plan_of(lm: str, **settings: Any) -> Plan:
    config = load_config({"lm": lm, "reward": "exact", **settings})
    return plan_run(config, Sources(data=data(), reward=reward))


def header_of(plan: Plan, **more: Any) -> Header:
    tree = plan.config.model_dump(mode="json")
    return Header(
        "r1",
        "2026-01-31T15:45:02+00:00",
        "0.2.0",
        config=tree,
        config_digest=digest(tree),
        fingerprints=plan.dataset.fingerprint(),
        templates=plan.templates,
        **more,
    )


def test_the_same_model_at_another_address_goes_on_and_its_replies_are_found(plan: Plan) -> None:
    elsewhere = plan_of("http://b:2/v1#m")
    resumed = resume_with(header_of(plan), RunState(), elsewhere, "r1", edited=False)
    assert resumed.changes == ("the model http://a:1/v1#m is now called at http://b:2/v1#m",)
    assert not resumed.extended
    assert resumed.header.config["lm"] == "http://b:2/v1#m"
    assert models_then(resumed.header, elsewhere.config) == {
        (role, "http://b:2/v1#m"): "http://a:1/v1#m" for role in ROLES
    }
    third = plan_of("http://c:3/v1#m")
    again = resume_with(resumed.header, RunState(), third, "r1", edited=False)
    assert again.changes == ("the model http://b:2/v1#m is now called at http://c:3/v1#m",)
    assert set(models_then(again.header, third.config).values()) == {"http://a:1/v1#m"}
    home = resume_with(again.header, RunState(), plan, "r1", edited=False)
    assert models_then(home.header, plan.config) == {}


def test_headers_of_the_old_address_are_not_kept_for_the_new(plan: Plan) -> None:
    roles = {"critic": {"headers": {"X-Token": "$PCO_TOKEN"}}}
    with_token = plan_of("http://a:1/v1#m", roles=roles)
    resumed = resume_with(
        header_of(with_token), RunState(), plan_of("http://b:2/v1#m"), "r1", edited=False
    )
    assert resumed.header.config["roles"]["critic"]["headers"] == {}


@pytest.mark.parametrize(("old", "new"), table(__file__, "other_models"))
def test_another_model_is_another_run(old: str, new: str) -> None:
    with pytest.raises(RunChanged, match="lm: "):
        resume_with(header_of(plan_of(old)), RunState(), plan_of(new), "r1", edited=False)


def test_one_role_may_move_alone() -> None:
    old = plan_of("http://a:1/v1#m", roles={"critic": {"model": "http://c:1/v1#big"}})
    new = plan_of("http://a:1/v1#m", roles={"critic": {"model": "http://d:1/v1#big"}})
    resumed = resume_with(header_of(old), RunState(), new, "r1", edited=False)
    assert models_then(resumed.header, new.config) == {
        ("critic", "http://d:1/v1#big"): "http://c:1/v1#big"
    }


@pytest.mark.parametrize(("ended", "key", "value"), table(__file__, "ends"))
def test_what_ended_a_run_is_what_must_be_raised(
    ended: Any, key: str, value: dict[str, Any]
) -> None:
    flat = 8 if key == "update.stop_when_flat" else None
    settings = {"validation": {"target_score": 0.5}, "update": {"stop_when_flat": flat}}
    old = plan_of("simulated", **settings)
    header, state = header_of(old), RunState(step=3, epoch=3, epsilon=0.15, ended=ended)
    longer = plan_of("simulated", **merge(settings, value))
    assert resume_with(header, state, longer, "r1", edited=False).extended
    other: dict[str, Any] = {"update": {"epochs": 80}}
    if key == "update.epochs":
        other = {"validation": {**settings["validation"], "patience": 99}}
    for unmoved in (old, plan_of("simulated", **merge(settings, other))):
        with pytest.raises(RunChanged, match="nothing to resume") as caught:
            resume_with(header, state, unmoved, "r1", edited=False)
        assert f"pco train --resume r1 --set {key}=MORE" in caught.value.hint


def test_what_a_longer_training_does_to_exploring_is_said() -> None:
    old, new = plan_of("simulated"), plan_of("simulated", update={"epochs": 60})
    state = RunState(step=29, epoch=29, epsilon=0.15, ended="finished")
    [change] = resume_with(header_of(old), state, new, "r1", edited=False).changes
    assert change.startswith("update.epochs: 30 → 60 (ε now falls over 60 epochs and changes from ")
    assert "from 0.15 to 0.3" in change
    fixed = {"explore": {"gamma": 0.5}}
    old, new = plan_of("simulated", **fixed), plan_of("simulated", update={"epochs": 60}, **fixed)
    [change] = resume_with(header_of(old), state, new, "r1", edited=False).changes
    assert change == "update.epochs: 30 → 60"


def test_a_helper_that_the_code_imports_is_recognised_too(tmp_path: Path) -> None:
    """From beside it, from a package there, within a function, and what those import."""
    lines = "import checks, json\nfrom parts.words import count\n"
    files = {
        "my code/reward.py": f"{lines}def reward(example, output):\n    import late\n",
        "my code/checks.py": "from parts import other\nimport reward\n",
        "my code/parts/__init__.py": "", "my code/parts/other.py": "broken (",
        "my code/parts/words.py": "from . import deeper\nfrom .... import beyond\n",
        "my code/parts/deeper.py": "x = 1\n", "my code/late.py": "", "my code/unused.py": "",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    config = load_config({"lm": "simulated", "reward": "my code/reward.py:reward"})
    plan = Plan(config, *_parts(), Sources(tmp_path))
    marks = code_files(plan)
    assert set(marks) == set(files) - {"my code/unused.py"}
    (tmp_path / "my code/parts/deeper.py").write_text("x = 2\n")
    assert [name for name, mark in code_files(plan).items() if marks[name] != mark] == [
        "my code/parts/deeper.py"
    ]
    with pytest.raises(RunChanged, match=r"parts/deeper\.py changed since the run r1 started"):
        resume_with(
            header_of(plan, files=marks), RunState(ended="budget"), plan, "r1", edited=False
        )
    before = {"my code/reward.py": marks["my code/reward.py"]}  # of a version that knew no helpers
    resume_with(header_of(plan, files=before), RunState(ended="budget"), plan, "r1", edited=False)


def test_code_that_made_a_run_fail_is_expected_to_be_edited(tmp_path: Path) -> None:
    """The message of the failure asks for it."""
    (tmp_path / "a.py").write_text("def reward(example, output): return 1.0\n")
    config = plan_of("simulated", reward="a.py:reward").config
    plan = Plan(config, *_parts(), Sources(tmp_path))
    header = replace(header_of(plan), files={"a.py": "another"})
    with pytest.raises(RunChanged, match=r"a\.py changed since the run r1 started"):
        resume_with(header, RunState(ended="budget"), plan, "r1", edited=False)
    resumed = resume_with(header, RunState(ended="failed"), plan, "r1", edited=False)
    assert resumed.changes == ("a.py was edited",)
    assert resumed.header.files == code_files(plan)


def _parts() -> Any:
    made = plan_of("simulated")
    return made.task, made.templates


def test_edited_code_settings_and_data_are_told_by_their_files(tmp_path: Path) -> None:
    """Of a run of the folder's own reward that a budget stopped."""

    def go_on(*more: str) -> Any:
        return typed("train", "--resume", "last", "--budget", "90calls", *more, cwd=tmp_path)

    shutil.copytree(PROJECT, tmp_path, dirs_exist_ok=True)
    assert typed("train", *TYPED, "--budget", "60calls", cwd=tmp_path).code == 3
    source = tmp_path / "reward.py"
    text = source.read_text()
    source.write_text(text + "\n# another thought\n")
    go_on().error(2, "reward.py changed since the run", "restore it", "--edited")
    went_on = go_on("--edited")
    assert went_on.code == 3 and "reward.py was edited" in went_on.err
    assert "changed  reward.py was edited" in typed("runs", "show", "last", cwd=tmp_path).out
    assert go_on("--set", "budget.calls=95").code == 3  # told once
    source.write_text(text)
    go_on().error(2, "reward.py changed since the run")
    again = go_on("--edited", "--set", "budget.calls=97")
    assert "pco.toml changed since" not in again.err
    toml = tmp_path / "pco.toml"
    toml.write_text("seed = 77\n" + toml.read_text())
    told = go_on("--set", "budget.calls=99")
    assert told.code == 3
    assert "pco.toml changed since the run started; the run ignores this and" in told.err
    assert "pco train " in told.err and "--resume last" in told.err
    refused = typed("train", "pco.toml", "--resume", "last", *TYPED, cwd=tmp_path)
    refused.error(2, "seed: 0 → 77")
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(file.read_text().splitlines()[1:]) + "\n")
    go_on().error(2, "the data of the run", "data.jsonl")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small project with templates of its own beside its pco.toml."""
    made = Path(shutil.copytree(PROJECT, tmp_path / "mytask"))
    copy_templates(made / "my-prompts")
    (made / "my-prompts" / "theta.md").write_text("Choose what fits this shop.")
    toml = (made / "pco.toml").read_text("utf-8")
    (made / "pco.toml").write_text(f'templates = "./my-prompts"\n{toml}', "utf-8")
    return made


def edit(folder: Path, name: str, old: str, new: str) -> None:
    file = folder / "my-prompts" / name
    assert old in file.read_text("utf-8")
    file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")


def test_the_folder_is_found_from_the_configuration_and_its_texts_are_used(
    folder: Path, tmp_path: Path
) -> None:
    """Not from where the command was typed."""
    result = typed("train", "mytask", *TYPED, "--set", "encoder.mode=static", cwd=tmp_path)
    assert result.code == 0, result.err
    [run] = (tmp_path / "runs").iterdir()
    assert '"encoder": "Choose what fits this shop."' in (run / "policy.json").read_text("utf-8")


@pytest.mark.parametrize("command", ["train", "estimate"])
def test_a_faulty_template_is_refused_before_anything_is_paid_for(
    folder: Path, tmp_path: Path, command: str
) -> None:
    edit(folder, "attribution.md", "{verdict}", "{verdct}")
    line = (folder / "my-prompts" / "attribution.md").read_text().count("\n")
    result = typed(command, "mytask", cwd=tmp_path)
    where = f"mytask/my-prompts/attribution.md:{line}: unknown placeholder {{verdct}}"
    result.error(2, where, "did you mean 'verdict'?")
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_a_run_with_templates_is_resumed_with_the_same_and_read_without_them(
    folder: Path, tmp_path: Path
) -> None:
    assert typed("train", *TYPED, "--budget", "200calls", cwd=folder).code == 3
    kept = shutil.copytree(folder / "my-prompts", tmp_path / "kept")
    edit(folder, "updater.md", "the smallest rewrite", "a small rewrite")
    edit(folder, "set.toml", "(untried)", "(new)")
    result = typed("train", "--resume", "last", "--budget", "90000calls", cwd=folder)
    printed = result.error(2, "different settings: templates/set.toml:", "; templates/updater.md: ")
    assert "theta.md" not in printed
    shutil.rmtree(folder / "my-prompts")
    result = typed("train", "--resume", "last", "--budget", "90000calls", cwd=folder)
    result.error(2, "there is no folder", "my-prompts")
    for command in (
        ("report", "last", "-o", "report.html"),
        ("explain", "last", "How long is delivery?"),
        ("eval", "last", "--split", "val", "--n", "2"),
    ):
        result = typed(*command, cwd=folder)
        assert result.code == 0, (command, result.err)
    shutil.copytree(kept, folder / "my-prompts")
    [run] = (folder / "runs").iterdir()
    result = typed("train", "--resume", str(run), "--budget", "90000calls", cwd=tmp_path)
    assert result.code == 0, result.err
