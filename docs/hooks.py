"""Writes the reference: one page for each public module of calibrant that exists, from its docstrings."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parent.parent / "src" / "calibrant"


def public_modules() -> list[str]:
    """Return the public modules and packages right under calibrant; adapters are documented one by one."""
    names = {path.stem for path in SOURCE.glob("*.py")} | {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    adapters = {f"adapters.{path.stem}" for path in SOURCE.glob("adapters/*.py") if not path.stem.startswith("_")}
    return sorted(name for name in (names - {"adapters", "cli"}) | adapters if not name.startswith("_"))


def on_config(config: MkDocsConfig) -> None:
    """Add the reference to the end of the navigation."""
    pages = [{"calibrant": "reference/calibrant.md"}]
    pages += [{f"calibrant.{name}": f"reference/{name}.md"} for name in public_modules()]
    config.nav = [*(config.nav or []), {"Reference": pages}]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the reference pages themselves."""
    for name in public_modules():
        text = f"# calibrant.{name}\n\n::: calibrant.{name}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    families = "\n".join(f"- [`calibrant.{name}`]({name}.md)" for name in public_modules())
    top = f"# calibrant\n\nThe package shows the names used most; each family has a page of its own.\n\n{families}\n"
    files.append(File.generated(config, "reference/calibrant.md", content=top))
