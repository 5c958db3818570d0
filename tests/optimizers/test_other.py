"""An optimizer of somebody else: named in the configuration, judged and metered like ours."""

from __future__ import annotations

from pathlib import Path

import pytest

import promptcodebook as pco
from promptcodebook.errors import ConfigError
from promptcodebook.optimizers.base import make_optimizer, optimizer_names
from promptcodebook.store.run import RunStore
from tests.run.test_optimize import train

MODULE = '''
from promptcodebook.calls import Message, Request
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.optimizers.base import Result


class Asks:
    """Asks the updater for one prompt and uses it for everything."""

    async def optimize(self, problem):
        request = Request("updater", (Message("user", "Write a system prompt."),))
        reply = await problem.assembled.models.lm(request)
        return Result("asked", "the prompt that was asked for", FixedPrompt(reply.text))
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site"
    info = folder / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "theirs_optimizer.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[promptcodebook.optimizers]\nasks = theirs_optimizer:Asks\n"
    )
    monkeypatch.syspath_prepend(folder)


@pytest.mark.usefixtures("installed")
def test_it_runs_through_the_same_models_store_and_verdict(tmp_path: Path) -> None:
    run = train(tmp_path, config={"optimizer": "asks"})
    assert run.ended == "finished"
    assert run.conclusion is not None
    assert [row.name for row in run.conclusion.rows] == ["present", "asked"]
    assert run.usage["updater"].calls == 1 and run.usage["executor"].calls > 0
    with pytest.raises(pco.PcoError, match="leaves no policy"):
        _ = run.policy
    store = RunStore.open(run.path)
    assert store.outline().ended == "finished"
    assert {e.name for e in store.test_evaluations()} == {"present", "asked"}
    store.close()


@pytest.mark.usefixtures("installed")
def test_it_is_listed_beside_ours_and_a_wrong_name_says_so() -> None:
    assert {"asks", "pco"} <= set(optimizer_names())
    with pytest.raises(ConfigError, match=r"unknown optimizer 'pcoo'.*did you mean 'pco'"):
        make_optimizer("pcoo")
