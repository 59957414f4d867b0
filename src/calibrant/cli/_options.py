"""Options that several commands share: which files they read, what these hold, and which rows are meant."""

from __future__ import annotations

import ast
import difflib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calibrant._files import check_source, shown
from calibrant.cli._application import TYPED, declare_argument, option
from calibrant.cli._io import STREAM, path_or_stdin, working
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant._files import Array
    from calibrant.data.io import Contents, Mapped

_EXAMPLES = Path(__file__).parents[1] / "data" / "examples"
UNCALIBRATED = "none"  # in the place of a calibrator
FILES = "Predictions (.csv, .tsv, .jsonl, .parquet, .feather, .npz, .safetensors, .pt, .npy); - reads stdin."
of_file = partial(option, rich_help_panel="What a file holds")


def among(names: Callable[[], Sequence[str]]) -> Callable[[str], list[str]]:
    """Return the callback of the shell's completion, which returns the names that begin with the typed text."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def example_names() -> list[str]:
    """Return the names of the examples that the package carries."""
    return sorted(path.stem for path in _EXAMPLES.glob("*.npz"))


def listed(family: str, name: str = "__all__") -> Any:
    """Return a literal in the file of a family, which is read and not imported: that would load PyTorch."""
    place = Path(__file__).parents[1] / family
    tree = ast.parse(
        (place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text(encoding="utf-8")
    )
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name]
    return ast.literal_eval(assigned[0].value)


def choose(name: str, known: Sequence[str], *, option: str, listing: str) -> str:
    """Return ``name`` if it is one of ``known``, else raise with the nearest name, or the command that lists them."""
    if name in known:
        return name
    lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean {lower[close[0]]}?" if close else f"`{listing}` describes them"
    raise InputError(f"{option} to be one of {', '.join(known)}", f"{name!r}", hint)


def choose_method(name: str | None) -> None:
    """Refuse a method that there is not, before PyTorch is loaded."""
    if name is not None:
        short = listed("calibrators", "SHORT_NAMES")
        choose(short.get(name, name), listed("calibrators"), option="--method", listing="calibrant methods")


def check_calibrator(path: str | None) -> None:
    """Refuse what is no file that ``calibrant fit`` saved by its name, before PyTorch is loaded; None is none."""
    if path not in (None, UNCALIBRATED) and check_source(path).suffix != ".safetensors":
        raise InputError(
            f"{shown(path)} is no calibrator, which ends in .safetensors; name a calibrator first, then FILE"
        )


complete_method = among(lambda: ["auto", *listed("calibrators")])
Example = Annotated[
    str | None,
    typer.Option(metavar="NAME", autocompletion=among(example_names), help="A bundled example instead of a FILE."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object; values are fractions.")]
SeveralLabels = Annotated[
    bool,
    typer.Option("--multilabel", help="Each row has several labels, 1, 0 or -1 (missing), each with its probability."),
]


@dataclass(frozen=True)
class Source:
    """A file to read: where it is, what messages call it, and the words that name it on a command line."""

    path: str
    shown: str
    argument: str = ""


@dataclass(frozen=True)
class Inputs:
    """The options on what a file holds, which have the names of the arguments of ``calibrant.read``."""

    columns: str | None = of_file(None, "The scores, one column a class: 'p_*', or cat,dog,fox.", metavar="NAMES")
    label: str | None = of_file(None, "The column of the labels; of several labels a row 'y_*'.", metavar="COLUMN")
    kind: Literal["probs", "logits"] | None = of_file(None, "What the scores are.")
    weights: str | None = of_file(None, "The column of weights.", metavar="COLUMN")
    groups: str | None = of_file(None, "The column of groups, such as patient.", metavar="COLUMN")
    labels: str | None = of_file(None, "A file of the labels, in the same order or joined by --on.", metavar="FILE")
    on: str | None = of_file(None, "The column of both files that joins --labels.", metavar="COLUMN")

    def mapped(self, **more: Any) -> Mapped:
        """Return what the options, and ``more``, say of a file."""
        from calibrant.data.io import Mapped

        return Mapped(**{one.name: getattr(self, one.name) for one in fields(self)}, **more)

    @property
    def words(self) -> str:
        """These options as they would be typed."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return " ".join(f"--{name} {shlex.quote(value)}" for name, value in given.items() if value is not None)

    def sources(self, files: Sequence[str] | str | None, example: str | None = None) -> list[Source]:
        """Return what is to be read: the files, or an example.

        Raises:
            InputError: If nothing is named, or an example that there is not.
            FileFormatError: If a file is missing.
        """
        named = [files] if isinstance(files, str) else list(files or [])
        for name in (*named, *filter(None, [self.labels])):
            if name != STREAM and not Path(name).is_dir():
                check_source(name)
        found = [Source(name, shown(name), f"{shlex.quote(shown(name))} {self.words}".strip()) for name in named]
        if example is not None:
            choose(example, example_names(), option="--example", listing="calibrant report --help")
            found.append(Source(str(_EXAMPLES / f"{example}.npz"), f"{example}.npz", f"--example {example}"))
        if not found:
            raise InputError("name a FILE of predictions, or an example: --example cifar10")
        return found

    def contents(
        self, source: Source, *, features: Sequence[str] = (), several: bool = False, labelled: bool | None = True
    ) -> Contents:
        """Return what a file, or stdin, holds; how it was read is said on stderr.

        Args:
            source: The file.
            features: Further columns to keep beside the rows.
            several: Whether rows have several labels.
            labelled: As in ``data.io.read_contents``.
        """
        from calibrant.data.io import read_contents

        mapped = self.mapped(features=tuple(dict.fromkeys(features)), multilabel=several)
        with path_or_stdin(source.path) as path, working(f"reading {source.shown}"):
            found = read_contents(path, mapped, labelled=labelled)
        for note in found.notes:
            typer.echo(f"note: {source.shown}: {note}", err=True)
        return found

    def parts(self, source: Source, **how: Any) -> dict[str, SplitRows]:
        """Return the rows of each split of a file; ``how`` as in ``contents``."""
        return {name: SplitRows(data, name, source) for name, data in self.contents(source, **how).splits.items()}

    def read(self, source: Source, split: str, **how: Any) -> SplitRows:
        """Return one split of a file, or its one unnamed split; ``how`` as in ``contents``."""
        found = self.contents(source, **how)
        name = found.find(split)
        return SplitRows(found.splits[name], name, source)


@dataclass(frozen=True)
class SplitRows:
    """The rows of one split: the predictions, the split's name in the file, and the file."""

    data: Any
    split: str
    source: Source

    def through(self, calibrator: Any) -> Any:
        """Return the rows through a fitted calibrator, or the one saved at a path; as they are if it is None."""
        import calibrant

        fitted = calibrant.load(calibrator) if isinstance(calibrator, str) else calibrator
        return self.data if fitted is None else self.data.calibrated_by(fitted)

    def column(self, name: str) -> Array:
        """Return a column beside the rows, which was read as a feature.

        Raises:
            InputError: If this split has none.
        """
        import numpy as np

        if name not in (self.data.features or {}):
            raise InputError(f"{self.source.shown}, split {self.split!r} has no column {name!r}")
        return np.asarray(self.data.features[name])


@dataclass(frozen=True)
class Files:
    """The files that a command reads, or an example."""

    files: list[str] | None = declare_argument(FILES, metavar="FILE...")
    example: Example = None

    def sources(self, inputs: Inputs) -> list[Source]:
        """Return what is to be read, as ``Inputs.sources``."""
        return inputs.sources(self.files, self.example)


@dataclass(frozen=True)
class OneFile:
    """The one file that a command reads, or an example."""

    file: str | None = declare_argument(FILES)
    example: Example = None

    def source(self, inputs: Inputs) -> Source:
        """Return what is to be read.

        Raises:
            InputError: If a file and an example are named, or as ``Inputs.sources``.
        """
        if self.file is not None and self.example is not None:
            raise InputError(f"{shown(self.file)} and --example are two inputs; leave one out")
        return inputs.sources(self.file, self.example)[0]


@dataclass(frozen=True)
class Through:
    """The rows of a file that a command works on: those of a split, after a calibrator."""

    calibrator: str | None = option(None, "Pass the rows through this calibrator first.", "--calibrator", "-c")
    split: str = option("test", "The split of FILE, never one that was fitted on.")


@dataclass(frozen=True)
class OneSplit(Through, OneFile):
    """The file, or the example, whose rows a command works on."""


def feature_names(calibrator: Any) -> list[str]:
    """Return the names of the features that a calibrator, or one of its parts, goes by; none of None."""
    from calibrant.calibrators import base as of_calibrators  # loads PyTorch

    return [] if calibrator is None else of_calibrators.feature_names(calibrator)


def typed_columns(texts: Sequence[str] | None, *, option: str = "--by") -> list[str] | None:
    """Return the names that an option gives, with commas or repeated; None where it is left out.

    Raises:
        InputError: If a name is empty or repeated.
    """
    if texts is None:
        return None
    names = [name.strip() for text in texts for name in text.split(",")]
    if "" in names or len(set(names)) < len(names):
        raise InputError(f"{option} names columns once each, as in {option} age,region; got {', '.join(texts)!r}")
    return names


def typed(names: Sequence[str]) -> list[str]:
    """Return which of the parameters ``names`` were typed, in the spelling of the command line: ``--fit-split``."""
    return [TYPED.get()[name] for name in names if name in TYPED.get()]


def refuse_typed(names: Sequence[str], *, where: str, remedy: str = "") -> None:
    """Refuse options that would have no effect.

    Args:
        names: The parameters that have none.
        where: Why, after "for": "the folder x, which is streamed".
        remedy: What to do instead; empty to leave them out.

    Raises:
        InputError: If one of them was typed.
    """
    if found := typed(names):
        remedy = remedy or f"leave {'it' if len(found) == 1 else 'them'} out"
        raise InputError("only options that have an effect", f"{' and '.join(found)} for {where}", remedy)


def refuse_for_several(*names: str) -> None:
    """Refuse options that have no effect on several labels a row."""
    refuse_typed(["labels", "on", "example", "on_ray", *names], where="--multilabel")
