"""What of Windows can be tried here: its code page, its ends of lines, and paths as it writes them.
No letter that is printed may end a command."""

from pathlib import Path

import pytest

from tests.build.cases import table
from tests.build.cli import pco
from tests.build.project import PROJECT, QUICK

HERE = r"C:\Users\Zoë & Co\my task"  # one folder, whose name has a drive, blanks and backslashes
TEXT = "请先数一数字数 😀 – naïve"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a finished run; each of its files has the line ends of Windows."""
    home = tmp_path_factory.mktemp("disk") / HERE
    home.mkdir()
    for file in PROJECT.iterdir():
        if file.is_file():
            text = file.read_text("utf-8").replace("How many mugs", f"{TEXT}: how many mugs")
            (home / file.name).write_text(text, "utf-8", newline="\r\n")
    with (home / "pco.toml").open("a", encoding="utf-8", newline="\r\n") as file:
        file.write(f'[init]\nkind = "expert"\ninstincts = ["{TEXT}", "Be\u2011brief."]\n')
    (home / "reward.py").write_text(
        f"import helper\n\ndef reward(example, output):\n    print({TEXT!r})\n"
        "    return (helper.half, '缺少步骤 😀')\n", "utf-8", newline="\r\n"
    )  # fmt: skip
    (home / "helper.py").write_text("half = 0.5\n", "utf-8", newline="\r\n")
    trained = pco("train", *QUICK, cwd=home, codepage="cp1252")
    assert trained.code == 0, trained.err
    return home


@pytest.mark.parametrize("codepage", ["cp1252", "ascii"])
@pytest.mark.parametrize("command", table(__file__, "commands"))
def test_a_command_prints_what_the_code_page_has_and_escapes_the_rest(
    folder: Path, command: str, codepage: str
) -> None:
    words = [TEXT if word == "ROW" else word for word in command.split()]
    told = pco(*words, cwd=folder, codepage=codepage)
    whole = pco(*words, cwd=folder)
    assert (told.code, whole.code) == (0, 0), told.err + whole.err
    if "--json" in words:
        assert told.json == whole.json
    if words[:2] == ["registry", "show"]:
        assert TEXT in whole.out and TEXT not in told.out
