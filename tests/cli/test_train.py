"""What `pco train` prints at its end."""

from __future__ import annotations

from pathlib import Path

from promptcodebook.store.run import RunStore
from tests.cli.conftest import QUICK
from tests.cli.invoked import pco


def test_the_verdict_has_a_row_for_each_prompt_and_fits_80_columns(folder: Path) -> None:
    result = pco("train", *QUICK, cwd=folder)
    assert result.code == 0, result.err
    [path] = (folder / "runs").iterdir()
    store = RunStore.open(path)
    conclusion = store.outline().conclusion
    store.close()
    assert conclusion is not None
    scores, prices, rest = result.out.split("per query:")[0], *_halves(result.out)
    for row in conclusion.rows:
        [score] = [line for line in scores.splitlines() if line.split()[:1] == [row["name"]]]
        [price] = [line for line in prices.splitlines() if line.split()[:1] == [row["name"]]]
        assert f"{row['score']['mean']:.3f}" in score and f"{row['calls_per_query']:.1f}" in price
    assert all(len(line) <= 80 for line in (scores + prices).splitlines())
    assert conclusion.text in " ".join(rest.split())
    assert f"policy: runs/{path.name}/policy.json" in rest
    assert f"pco report {path.name}" in rest


def _halves(out: str) -> tuple[str, str]:
    """The table of prices, and what comes after it."""
    table, _, rest = out.partition("per query:")[2].strip().partition("\n\n")
    return table, rest


def test_a_budget_that_is_reached_says_how_to_go_on(folder: Path) -> None:
    result = pco("train", *QUICK, "--budget", "40calls", cwd=folder)
    assert result.code == 3
    assert "pco: stopped: " in result.err and "pco train --resume" in result.err
    assert "No verdict: the budget is reached" in result.out
    assert "policy:" in result.out  # of the best state so far


def test_a_run_that_fails_says_what_is_missing_and_keeps_its_policy(folder: Path) -> None:
    # The critic's server is not there: nothing can be learned from any rollout.
    down = ("--set", "roles.critic.model=http://127.0.0.1:9/v1#m", "--set", "retries=0")
    result = pco("train", *QUICK, *down, cwd=folder)
    assert result.code == 1, result.err
    assert "pco train --resume" in result.err
    assert "pco explain" not in result.out  # it would ask the same models
    assert "next: pco report" in result.out
    out = " ".join(result.out.split())
    assert "No verdict: the run failed after 0 updates (TooManyFailures)." in out
    [path] = (folder / "runs").iterdir()
    assert f"policy: runs/{path.name}/policy.json" in out and (path / "policy.json").is_file()
    again = pco("train", *QUICK, *down, "--json", cwd=folder)
    assert again.code == 1 and again.json["error"] == "TooManyFailures", "one document"
    assert again.json["hint"] and again.json["ended"] == "failed" and again.json["policy"]


def test_a_run_goes_by_its_name_in_every_command(folder: Path) -> None:
    result = pco("train", *QUICK, "--name", "tickets", "--json", cwd=folder)
    assert result.code == 0 and result.json["name"] == "tickets"
    run = result.json["run"]
    head, line, _ = pco("runs", "list", cwd=folder).out.splitlines()
    assert head.split()[:2] == ["run", "name"] and line.split()[:2] == [run, "tickets"]
    assert "name     tickets" in pco("runs", "show", "tickets", cwd=folder).out
    assert pco("codebook", "show", "tickets", "--json", cwd=folder).json["ref"] == run
    pco("train", "--name", "last", cwd=folder).error(2, "cannot be called 'last'")
