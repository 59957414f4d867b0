"""Writes the reference, one page for each public module from its docstrings, links the names in tables to it, and keeps
names with a hyphen and options whole."""

import ast
import re
from functools import cache
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

SOURCE = Path(__file__).parent.parent / "src" / "calibrant"
METHODS = ("losses", "calibrators", "metrics")  # families whose names are linked wherever a table shows them
# `Name` or `Name(…)`, unless it is a link's text already
INLINE = re.compile(r"(?<!</span>)<code>([^<]*)</code>")  # of a sentence; blocks of code have an empty span before them
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*|'(?:\.|calibrant)\[[\w,]+\]'")  # --label, '.[sklearn]'
CELL = re.compile(r"(<td[^>]*>)(.*?)(?=</td>)", re.DOTALL)
HYPHENED = re.compile(r"(?<![\w.&;-])[\w.]+(?:-[\w.]+)+(?![^<]*>)")  # CIFAR-10, 1D-CNN; not inside a tag
NAME = re.compile(r"(?<!\[)`(?P<name>\w+)(?P<call>\([^`]*\))?`")


def public_modules() -> list[str]:
    """Return the public modules and packages right under calibrant; adapters are documented one by one."""
    names = {path.stem for path in SOURCE.glob("*.py")} | {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    adapters = {f"adapters.{path.stem}" for path in SOURCE.glob("adapters/*.py") if not path.stem.startswith("_")}
    return sorted(name for name in (names - {"adapters", "cli"}) | adapters if not name.startswith("_"))


def on_config(config: MkDocsConfig) -> None:
    """Add the reference to the end of the navigation."""
    pages = [{"What stays": "api-stability.md"}, {"calibrant": "reference/calibrant.md"}]
    pages += [{name: f"reference/{name}.md"} for name in public_modules()]
    config.nav = [*(config.nav or []), {"Reference": pages}]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the reference pages themselves."""
    for name in public_modules():
        text = f"# calibrant.{name}\n\n::: calibrant.{name}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    families = "\n".join(f"- [`calibrant.{name}`]({name}.md)" for name in public_modules())
    top = f"# calibrant\n\nThe package shows the names used most; each family has a page of its own.\n\n{families}\n"
    members = "    options:\n      members: [load_example, example_path]\n"
    top += f"\n## Examples in the package\n\n::: calibrant.data.examples\n{members}"
    files.append(File.generated(config, "reference/calibrant.md", content=top))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the methods named in a page's tables."""
    return markdown if page.file.src_uri.startswith("reference/") else linked(markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark options in sentences, and short names with a hyphen in tables, which must not break at the end of a line."""
    return whole(html)


def whole(html: str) -> str:
    """Return ``html`` with options in inline code and hyphened names in cells of tables in a span of class "whole"."""
    html = INLINE.sub(lambda found: f"<code>{OPTION.sub(_span, found[1])}</code>", html)
    return CELL.sub(lambda found: found[1] + HYPHENED.sub(_span, found[2]), html)


def _span(found: re.Match[str]) -> str:
    return found[0] if len(found[0]) > 20 else f'<span class="whole">{found[0]}</span>'


def linked(markdown: str) -> str:
    """Return ``markdown`` with every loss, calibrator and metric that a table names linked to its reference."""
    inside, lines = False, []
    for line in markdown.split("\n"):
        inside ^= line.lstrip().startswith("```")
        lines.append(NAME.sub(_link, line) if line.startswith("|") and not inside else line)
    return "\n".join(lines)


def _link(match: re.Match[str]) -> str:
    target = homes().get(match["name"])
    return match[0] if target is None else f"[{match[0]}][{target}]"


@cache
def homes() -> dict[str, str]:
    """Return each method's name with the identifier of its entry in the reference."""
    found = {}
    for family in METHODS:
        tree = ast.parse((SOURCE / family / "__init__.py").read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                found |= {
                    name: f"calibrant.{family}.{name}"
                    for name in ast.literal_eval(node.value)
                    if name[0].isupper() or family == "metrics"
                }
    return found
