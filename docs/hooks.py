"""Writes the reference, a page for each public module, class and function, from the docstrings.

It also links the names in tables to the reference, and keeps options and names with a hyphen whole.
"""

import ast
import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from types import ModuleType

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
    """Add the reference to the end of the navigation, a line for each module; the pages of its names are linked there."""
    pages = [{"All modules": "reference/calibrant.md"}]
    pages += [{name: f"reference/{name}.md"} for name in public_modules()]
    config.nav = [*(config.nav or []), {"Reference": [*pages, {"What stays": "api-stability.md"}]}]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add a page for each public module and one for each class and function that it exports."""
    guides = {file.src_uri: file.content_string for file in files.documentation_pages()}
    lines = ["# Reference", "", "Every public class and function has a page, made from its docstring.", ""]
    lines += ["| module | holds |", "| --- | --- |"]
    for name in public_modules():
        module = importlib.import_module(f"calibrant.{name}")
        lines.append(f"| [`calibrant.{name}`]({name}.md) | {first_sentence(module)} |")
        for uri, text in module_pages(name, module, guides).items():
            files.append(File.generated(config, uri, content=text))
    members = "    options:\n      members: [load_example, example_path]\n"
    lines += ["", "## Examples in the package", "", f"::: calibrant.data.examples\n{members}"]
    files.append(File.generated(config, "reference/calibrant.md", content="\n".join(lines)))


def module_pages(name: str, module: ModuleType, guides: dict[str, str]) -> dict[str, str]:
    """Return the pages of one module by their paths: its own, with a table of its names, and a page for each of them."""
    exported = {one: getattr(module, one) for one in getattr(module, "__all__", [])}
    rest = [one for one, value in exported.items() if not inspect.isclass(value) and not inspect.isroutine(value)]
    top = f"# calibrant.{name}\n\n::: calibrant.{name}\n    options:\n      members: {rest}\n      summary: false\n"
    pages = {}
    for title, kind in (("Classes", inspect.isclass), ("Functions", inspect.isroutine)):
        chosen = {one: value for one, value in exported.items() if kind(value)}
        if chosen:
            top += f"\n## {title}\n\n| name | what it is |\n| --- | --- |\n"
        for one, value in chosen.items():
            top += f"| [`{one}`]({name}/{one}.md) | {first_sentence(value)} |\n"
            siblings = [other for other in chosen if other != one and same_file(chosen[other], value)][:6]
            pages[f"reference/{name}/{one}.md"] = name_page(name, one, value, siblings, guides)
    return {f"reference/{name}.md": top, **pages}


def name_page(module: str, name: str, value: object, siblings: list[str], guides: dict[str, str]) -> str:
    """Return the page of one class or function: its docstring, and where to read on."""
    links = [f"[`{other}`]({other}.md)" for other in siblings]
    shown = re.compile(rf"`(?:\w+\.)*{name}\b|^.*\b{name}\(", re.MULTILINE)
    pages = [uri for uri, text in guides.items() if shown.search(text) and uri not in ("papers.md", "api-stability.md")]
    links += [f"[{guides[uri].split(chr(10), 1)[0].lstrip('# ')}](../../{uri})" for uri in pages[:8]]
    more = f"\n## See also\n\n{' · '.join([*links, f'[all of calibrant.{module}](../{module}.md)'])}\n"
    options = "      heading_level: 1\n      show_root_heading: true\n      show_root_full_path: false\n      show_bases: true\n"
    if inspect.isclass(value):
        options += f"      members: {own_members(value)}\n"
    return f"::: calibrant.{module}.{name}\n    options:\n{options}{more}"


def own_members(cls: type) -> list[str]:
    """Return the public methods and properties that a class adds to its bases; the others stand on the bases' pages."""
    bases = {name for base in cls.__mro__[1:] for name in vars(base)}
    kinds: tuple[type, ...] = (property, classmethod, staticmethod)
    found = {one for one, value in vars(cls).items() if inspect.isroutine(value) or isinstance(value, kinds)}
    return [name for name in vars(cls) if name in found - bases and not name.startswith("_")]


def first_sentence(documented: object) -> str:
    """Return the first sentence of a docstring as one cell of a table."""
    text = " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())
    sentence = re.match(r"(.+?[.:])(?= [A-Z`]|$)", text)
    return re.sub(r"``(.+?)``", r"`\1`", sentence[1] if sentence else text).replace("|", "\\|")


def same_file(one: object, other: object) -> bool:
    """Return whether two objects are defined in one module."""
    return getattr(one, "__module__", None) == getattr(other, "__module__", "")


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
    found: dict[str, str] = {}
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
