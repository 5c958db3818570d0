"""What mkdocs does beyond mkdocs.yml: pages of the repository's root, formulas, nothing foreign.

Formulas are written as GitHub shows them, `$...$` and `$$...$$` alone on its lines; here they
become MathML, which a browser draws by itself: no script, no font, no request.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {
    "project/changelog.md": "CHANGELOG.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/security.md": "SECURITY.md",
}
_CODE = re.compile(r"^(```.*?^```|~~~.*?^~~~)|(`+[^`]+`+)", re.M | re.S)
_BLOCK = re.compile(r"^\$\$\n?(.+?)\n?\$\$$", re.M | re.S)
_INLINE = re.compile(r"(?<![\\$\w])\$(?![\s$])([^$\n]+?)(?<!\s)\$(?![\w$])")
_LINK = re.compile(r"\]\((?:docs/)?([^)\s:#]+\.(?:md|svg))(#[^)]*)?\)")
_FOLDER = re.compile(r"\]\(([\w-]+)/\)")
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b(?![^>]*\brel=["']?(?:canonical|prev|next|edit)\b)[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|@import\s+(?:url\()?["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)


def on_files(files: Files, config: Any) -> Files:
    """CHANGELOG.md and its like, and the examples, with links that fit the site."""
    for target, source in ROOT_PAGES.items():
        text = _LINK.sub(_moved, (ROOT / source).read_text("utf-8"))
        files.append(File.generated(config, target, content=text))
    for source in sorted((ROOT / "examples").glob("**/README.md")):
        text = source.read_text("utf-8").replace("../docs/", "../")
        text = _FOLDER.sub(r"](\1/README.md)", text)
        target = source.relative_to(ROOT).as_posix()
        files.append(File.generated(config, target, content=text))
    for source in sorted((*ROOT.glob("examples/*.ipynb"), *ROOT.glob("examples/*.py"))):
        target = source.relative_to(ROOT).as_posix()
        files.append(File.generated(config, target, abs_src_path=str(source)))
    return files


def _moved(link: re.Match[str]) -> str:
    path, anchor = link[1], link[2] or ""
    inside = {source: target for target, source in ROOT_PAGES.items()}
    return f"](../{inside.get(path, path)}{anchor})"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Formulas as MathML, wherever they are not code; links out of docs/ to where that is here."""
    depth = page.file.src_uri.count("/")
    out, here = "](" + "../" * (depth + 1), "](" + "../" * depth
    for target, source in ROOT_PAGES.items():
        markdown = markdown.replace(f"{out}{source}", f"{here}{target}")
    markdown = markdown.replace(f"{out}examples/", f"{here}examples/")
    parts: list[str] = []
    end = 0
    for code in _CODE.finditer(markdown):
        parts += [_formulas(markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _formulas(markdown[end:])])


def _formulas(text: str) -> str:
    text = _BLOCK.sub(lambda found: f"\n{convert(found[1].strip(), display='block')}\n", text)
    return _INLINE.sub(lambda found: convert(found[1]), text)


def on_post_build(config: Any) -> None:
    """Raises PluginError where a page would fetch something from another host."""
    site = Path(config["site_dir"])
    for file in sorted((*site.rglob("*.html"), *site.rglob("*.css"))):
        if found := _FETCHED.search(file.read_text("utf-8")):
            raise PluginError(f"{file.relative_to(site)} fetches from elsewhere: {found[0]}")
