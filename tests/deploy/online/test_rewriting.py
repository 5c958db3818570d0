"""`pco learn --rewrite`: new texts from logged requests that were kept with their answers."""

import json
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.base.paths import reply_cache_path, unfinished_folder
from promptcodebook.deploy.online.learning import learn as learn_all
from promptcodebook.deploy.online.learning import refit
from promptcodebook.deploy.online.log import Logged, Served
from promptcodebook.deploy.registry.log import version_of
from promptcodebook.policy.file import read_policy_file
from promptcodebook.routing.ranking import buckets_of
from tests.build.cli import Result, served
from tests.build.cli import pco as command
from tests.build.learning import LONG, OLD, World, keep, message, places, world
from tests.build.server import Server, says

__all__ = ["places", "world"]  # fixtures
SECRET = "my grandmother Hildegard lives beside the old mill in Tann"


def logs(world: World, count: int = 40, *, texts: bool = True) -> list[Logged]:
    """Requests on the route of their rule. Prices are answered with C, and users want a D."""
    draw, found = random.Random(5), list[Logged]()
    for n in range(count):
        letter = "C" if n % 2 else draw.choice(OLD)
        text = f"{message(letter, draw)}, {SECRET}"
        rest: Any = 200, 0.1, None, (world.rule(letter),), 1.0, buckets_of(text)
        request = Served(f"req-{n:024x}", float(n), "tickets", "v", "", "", *rest)
        if texts:
            request = replace(request, input=text, output=letter)
        feedback = "It should say D." if letter == "C" else ""
        if n == 7:
            feedback += " Wiltrud, 4711."
        found.append(Logged(request, float(letter != "C"), feedback))
    return found


def teacher(rewrite: str) -> Server:
    """A critic that blames the route's instinct, and an updater that says `rewrite`."""
    server = Server()
    blame = {"score": 0.0, "feedback": "It must say D.", "routing_errors": ""}
    blame |= {"rendering_errors": "", "instinct_errors": {"missing": "It must say D."}}

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        judges = "response_format" in body
        return await says(json.dumps(blame) if judges else rewrite)(request, body)

    server.default = answer
    return server


Learn = Callable[..., Awaitable[Result]]


@pytest.fixture
def learn(world: World, places: Path) -> Iterator[Learn]:
    """Logs requests to tickets.pco.json, and has its texts rewritten into next.pco.json."""
    world.file.with_about(run=world.run.id).save(places / "tickets.pco.json")
    version = version_of((places / "tickets.pco.json").read_bytes())

    async def run(server: Server, *words: str, texts: bool = True) -> Result:
        await keep(places, logs(world, texts=texts), "tickets", version)
        asked = "learn", "tickets.pco.json", "--config", str(world.folder), "--rewrite"
        return command(*asked, "--lm", f"{server.url}#m", "-o", "next.pco.json", *words, cwd=places)

    yield run


async def test_a_blamed_instinct_is_rewritten_and_what_was_logged_before_still_teaches(
    world: World, places: Path, learn: Learn
) -> None:
    rule = world.rule("C")
    with served(teacher("If it is about a price, say D.")) as server:
        done = await learn(server, "--requests", "10")
        assert f"c{rule}\n  If it is about a price, say [-C-]{{+D+}}." in done.out
        assert "the critic read 10 logged requests (0 failed): " in done.out
        assert "cost unknown" in done.out
        assert "1 text is new, which no request was served" in done.out
        assert "by the routes alone, with the old texts: not enough logged" in done.out
        assert 10 <= len(server.bodies) <= 21, "10 critiques and their blame, and the rewrite"
        made = read_policy_file(places / "next.pco.json")
        old, new = (each.parameters.codebook.texts for each in (world.file, made))
        assert [k for k, text in enumerate(old) if text != new[k]] == [rule]
        assert made.router != world.file.router

        # The next version learns from requests before and after the rewrite.
        version = version_of((places / "next.pco.json").read_bytes())
        late = [
            replace(each, reward=1.0, served=replace(each.served, id=f"req-{n:024x}", time=n * 1.0))
            for n, each in enumerate(logs(world), start=100)
        ]
        await keep(places, late[:30], "next", version)
        await keep(places, late[30:], "next", made_of(world, places))
        asked = "learn", "next.pco.json", "--config", str(world.folder), "-o", "third.pco.json"
        again = command(*asked, "--json", cwd=places).json
    assert (again["logged"], again["left_out"], "rewrites" in again) == (40, {}, False)
    third = read_policy_file(places / "third.pco.json")
    assert third.parameters.codebook.texts == new
    learned: Any = third.about["learned"]
    assert learned["rewritten"] == [{str(rule): old[rule]}]
    assert learned["versions"][version] == 1


def made_of(world: World, places: Path) -> str:
    """The version that was served before the rewrite."""
    return version_of((places / "tickets.pco.json").read_bytes())


def test_requests_of_older_texts_count_less_and_judge_nothing(world: World) -> None:
    rule, rows = world.rule("C"), logs(world, 90)
    learned: Any = {"rewritten": [{str(rule): world.file.codebook[rule].text}]}
    entries = [*world.file.codebook]
    entries[rule] = entries[rule].model_copy(update={"text": "If it is about a price, say D."})
    made = world.file.model_copy(update={"codebook": tuple(entries)}).with_about(learned=learned)
    assert learn_all(made, world.trained, rows, {"v": 1}, LONG).worth.requests == 30
    assert learn_all(made, world.trained, rows, {"v": 0}, LONG).worth.requests == 15
    composed = made.with_about(learned={"rewritten": [{"generator": "Compose."}]})
    unknown = learn_all(composed, world.trained, rows, {"v": 0}, LONG)
    assert "not enough logged" in unknown.text() and unknown.as_json()["worth"]["gain"] is None
    # Its users gave nothing for the old text: that says less of the new one.
    new, old = (refit(made, world.trained, rows, LONG, {"v": n})[0].bias for n in (1, 0))
    assert new[1 + rule] < old[1 + rule] - 0.02
    assert min(old[1 + world.rule(letter)] for letter in OLD) > old[1 + rule]


async def test_a_budget_holds_and_what_was_paid_for_is_found_again(
    world: World, places: Path, learn: Learn
) -> None:
    with served(teacher("If it is about a price, say D.")) as server:
        (await learn(server, "--budget", "8calls")).error(3, "budget", "what was paid for")
        assert len(server.bodies) == 8 and not (places / "next.pco.json").exists()
        failed = await learn(server, "-o", "missing/next.pco.json")
        failed.error(2, "cannot write the policy")
        paid = len(server.bodies)
        (places / "missing").mkdir()
        done = (await learn(server, "-o", "missing/next.pco.json", "--json")).json
        assert len(server.bodies) == paid == 35, "17 different critiques, their blame, a rewrite"
    assert not reply_cache_path().exists() and not [*unfinished_folder().glob("*")]
    assert done["spent"]["calls"] == 0 and done["requests_read"] == 20
    [made] = done["rewrites"]
    assert (made["kept"], made["after"]) == (True, "If it is about a price, say D.")


async def test_a_rewrite_that_copies_what_a_user_wrote_is_refused_and_not_shown(
    world: World, places: Path, learn: Learn
) -> None:
    with served(teacher(f"Remember: {SECRET}.")) as server:
        done = await learn(server)
        tree = await learn(server, "--json")
    assert f"c{world.rule('C')} stays: it copies eight words in a row from a logged" in done.out
    assert "no text was rewritten" in done.out and not tree.json["rewrites"][0]["after"]
    assert "Hildegard" not in done.out + done.err + tree.out
    made = (places / "next.pco.json").read_text()
    assert "Hildegard" not in made and read_policy_file(places / "next.pco.json").router


@pytest.mark.parametrize("text", ["Ask for the code 4711.", "Greet wiltrud. Say D."])
async def test_a_name_or_a_code_of_one_request_is_refused_though_it_is_short(
    learn: Learn, text: str
) -> None:
    with served(teacher(text)) as server:
        done = await learn(server)
    assert "stays: it has a name, number or code that one logged request alone has" in done.out
    assert "4711" not in done.out and "iltrud" not in done.out


async def test_without_kept_texts_or_a_model_it_says_what_to_type(
    world: World, places: Path, learn: Learn
) -> None:
    with served(teacher("Say D.")) as server:
        done = await learn(server, texts=False)
        done.error(2, "kept with its texts", "--feedback --log-inputs")
        assert not server.bodies
    asked = "learn", "tickets.pco.json", "--config", str(world.folder), "--rewrite"
    command(*asked, "-o", "x.pco.json", cwd=places).error(2, "was made with an LM object", "--lm")
    with served(Server()) as server:  # it answers, but no question
        server.default = says("what?")
        await keep(places, logs(world, 80)[40:], "tickets", made_of(world, places))
        failed = command(*asked, "--lm", f"{server.url}#m", "-o", "x.pco.json", cwd=places)
    failed.error(1, "reading logged requests: 20 of 20")


async def test_a_frozen_instinct_stays(world: World, places: Path, learn: Learn) -> None:
    entries = [each.model_copy(update={"frozen": True}) for each in world.file.codebook]
    frozen = world.file.model_copy(update={"codebook": tuple(entries)})
    frozen.with_about(run=world.run.id).save(places / "tickets.pco.json")
    with served(teacher("Say D.")) as server:
        await keep(places, logs(world), "tickets", made_of(world, places))
        asked = "learn", "tickets.pco.json", "--config", str(world.folder), "--rewrite"
        asked += "--lm", f"{server.url}#m", "-o", "next.pco.json", "--json"
        assert command(*asked, cwd=places).json["rewrites"] == []
    made = read_policy_file(places / "next.pco.json")
    assert made.parameters.codebook.texts == frozen.parameters.codebook.texts
