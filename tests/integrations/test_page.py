"""The examples of docs/integrations.md run as they stand, against a server that answers in form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.cli.invoked import served
from tests.lm.server import Server, says
from tests.method.build import attributed, routed, verdict

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
ADDRESS = "http://localhost:8000/v1#my-model"


async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """A reply of the form that is asked for."""
    shape = json.dumps(body.get("response_format", ""))
    fields = re.findall(
        r"`(\w+)` \(str\)", body["messages"][0]["content"].split("output fields")[-1]
    )
    forms = {
        "selected_indices": routed(0, 1, 2, 3),
        "rendering_errors": attributed("say it plainly"),
        '"score"': verdict(0.5),
        "feedback": json.dumps({"feedback": "look at forms"}),
    }
    text = next((text for part, text in forms.items() if part in shape), "Say form 7.")
    if fields:
        text = "\n\n".join(f"[[ ## {name} ## ]]\nform 7" for name in fields)
    return await says(text)(request, body)


@pytest.mark.slow
def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    assert len(blocks) == 4 and sum(ADDRESS in block for block in blocks) == 1
    server = Server()
    server.default = answer
    names: dict[str, Any] = {}
    with served(server):
        for block in blocks:
            exec(block.replace(ADDRESS, server.spec), names)
    assert capsys.readouterr().out.count("form 7") >= 2, "two answers were printed"
    assert {"support.json", "found.pco.json"} <= {path.name for path in tmp_path.iterdir()}
    assert names["found"].num_candidates >= 1
