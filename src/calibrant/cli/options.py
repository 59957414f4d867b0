"""Options that several commands share, and functions that read and write the files that they describe."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from calibrant.cli.show import say, working
from calibrant.data.mapping import Mapped
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.calibrators import Calibrator
    from calibrant.data.io import Contents
    from calibrant.scale import Batches

EXAMPLES = Path(__file__).parents[1] / "data" / "examples"
NONE = "none"  # given instead of a calibrator
AUTO, OF_LABELS = "auto", "PlattScaling"  # default methods for rows with one class, and for rows with several labels
STREAMED_BYTES = (
    256 << 20
)  # size of logits above which a Parquet file is streamed; reading it whole takes several times this memory

_FILES = "Predictions (.csv, .tsv, .jsonl, .parquet, .feather, .npz, .safetensors, .pt, .npy)."
Files: TypeAlias = Annotated[list[str] | None, typer.Argument(metavar="FILE...", help=_FILES)]
File: TypeAlias = Annotated[str | None, typer.Argument(metavar="FILE", help=_FILES)]
Example: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="A bundled example instead of a FILE: cifar10, sst or 20news.")
]
Columns: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Columns of the scores, one per class: 'p_*' or cat,dog,fox.")
]
Label: TypeAlias = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column of the labels, or 'y_*' for several labels per row.")
]
Kind: TypeAlias = Annotated[
    Literal["probs", "logits"] | None, typer.Option(help="Whether scores are probabilities or logits.")
]
Weights: TypeAlias = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of row weights.")]
Groups: TypeAlias = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column of groups of dependent rows, such as patient.")
]
LabelsFile: TypeAlias = Annotated[
    str | None, typer.Option(metavar="FILE", help="A file with the labels, in the same order or matched by --on.")
]
On: TypeAlias = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column of both files by which rows are matched.")
]
SeveralLabels: TypeAlias = Annotated[
    bool,
    typer.Option("--multilabel", help="Each row has several labels (1, 0 or -1 if missing), each with its own score."),
]
Saved: TypeAlias = Annotated[
    str | None, typer.Option("--calibrator", "-c", help="Apply this calibrator, saved by `calibrant fit`.")
]
Split: TypeAlias = Annotated[str, typer.Option(help="The split to use; never one that was fitted on.")]
By: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN,…", help="Also evaluate the groups that these columns define.")
]
Method: TypeAlias = Annotated[
    str | None, typer.Option("--method", "-m", help="auto, or a calibrator listed by `calibrant methods`.")
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object, in which values are fractions.")
]


@dataclass(frozen=True)
class Source:
    """A file to read: its path, its name in messages, and the options for reading it."""

    path: str
    shown: str
    options: Mapping[str, str]


class Reading(Mapped):
    """The options that describe files, and methods that read files accordingly."""

    def sources(self, files: str | Sequence[str] | None, example: str | None = None) -> list[Source]:
        """Return the files or the example to read.

        Raises:
            InputError: If nothing is named, or the example does not exist.
            FileFormatError: If a file is missing.
        """
        from calibrant._files import check_source, shown

        named = [files] if isinstance(files, str) else list(files or [])
        for name in [*named, *([str(self.labels)] if self.labels else [])]:
            if not Path(name).is_dir():
                check_source(name)
        options = {name: str(value) for name, value in asdict(self).items() if value}
        found = [Source(name, shown(name), options) for name in named]
        if example is not None:
            name = f"{choose(example, sorted(path.stem for path in EXAMPLES.glob('*.npz')), option='--example')}.npz"
            found.append(Source(str(EXAMPLES / name), name, {"example": example}))
        if not found:
            raise InputError("name a FILE of predictions, or an example: --example cifar10")
        return found

    def source(self, file: str | None, example: str | None = None) -> Source:
        """Return the single file or example to read."""
        found = self.sources(file, example)
        if len(found) > 1:
            raise InputError(f"{found[0].shown} and --example are two inputs; leave one out")
        return found[0]

    def contents(self, source: Source, *, features: Sequence[str] = (), several: bool = False) -> Contents:
        """Return the labelled rows of every split of a file, and print notes on how they were read to stderr."""
        from calibrant.data.io import read_contents

        mapped = replace(self, features=list(dict.fromkeys(features)), multilabel=several)
        with working(f"reading {source.shown}"):
            found = read_contents(source.path, mapped, labelled=True)
        for note in found.notes:
            say("note", f"{source.shown}: {note}")
        return found

    def rows(self, source: Source, split: str, *, features: Sequence[str] = (), several: bool = False) -> Any:
        """Return the predictions of one split of a file, or all predictions if the file has no splits."""
        found = self.contents(source, features=features, several=several)
        return found.splits[found.find(split)]

    def batches(self, source: Source) -> Batches:
        """Return the rows of a file as a stream of batches.

        Raises:
            InputError: For an option that needs the whole file in memory.
        """
        from calibrant import scale

        refuse_streamed(source, groups=self.groups, labels=self.labels)
        said = {name: getattr(self, name) for name in ("columns", "label", "kind", "weights")}
        return scale.batches(source.path, **said)


def refuse_streamed(source: Source, **options: Any) -> None:
    """Raise an error for options that have no effect on streamed rows."""
    for name, value in options.items():
        if value:
            raise InputError(f"--{name} has no effect on {source.shown}, which is streamed; leave it out")


def is_streamed(source: Source) -> bool:
    """Return whether a file is streamed: a folder of Parquet files, or a large Parquet file."""
    if Path(source.path).is_dir():
        return True
    if Path(source.path).suffix != ".parquet":
        return False
    from calibrant.scale import logits_bytes

    return logits_bytes(source.path) > STREAMED_BYTES


def choose(name: str, known: Sequence[str], *, option: str) -> str:
    """Return ``name`` if it is one of ``known``, else raise with the nearest name."""
    if name in known:
        return name
    lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean {lower[close[0]]}?" if close else f"it must be one of {', '.join(known)}"
    raise InputError(f"{option} {name!r} is unknown; {hint}")


def names_in(texts: Sequence[str] | None) -> list[str]:
    """Return the names in an option that is repeated or contains commas."""
    return list(dict.fromkeys(name.strip() for text in texts or () for name in text.split(",")))


def read_calibrator(path: str | None, *, several: bool = False) -> Any:
    """Return the saved calibrator, for rows with one class or (``several``) several labels; None without a path."""
    import calibrant

    if path is None:
        return None
    loaded = calibrant.load(path)
    if loaded.multi_label != several:
        of, remedy = ("one class", "leave --multilabel out") if several else ("several labels", "add --multilabel")
        raise InputError(f"{path} holds a {type(loaded).__name__}, which is for {of} per row; {remedy}")
    return loaded


def make_calibrator(name: str, *, features: Sequence[str] = ()) -> Calibrator:
    """Return the calibrator of class ``name`` with its defaults; ``auto``, ``temperature`` … are short names.

    Args:
        name: Name of the class, or one of ``calibrators.SHORT_NAMES``.
        features: Columns that it uses, or ``["all"]``.

    Raises:
        InputError: If there is no such calibrator, it needs other arguments, or it does not use features.
    """
    from calibrant import calibrators

    method = choose(calibrators.SHORT_NAMES.get(name, name), calibrators.__all__, option="--method")
    if features and method not in ("FeatureScaling", "GroupScaling"):
        raise InputError(f"--features has no effect with {method}; name --method GroupScaling or FeatureScaling")
    make: Any = getattr(calibrators, method)
    try:
        return make(None if features == ["all"] else features) if features else make()  # type: ignore[no-any-return]
    except (TypeError, InputError) as error:  # an argument without a default, which no option sets
        raise InputError(f"{method} needs arguments ({error}); construct and save it in Python") from error


def features_of(calibrator: Any) -> list[str]:
    """Return the names of the features that a calibrator uses; empty for None. Calibrators are imported by the first call."""
    from calibrant.calibrators.groups import feature_names

    return feature_names(calibrator)


def check_output(
    path: str | Path, *, inputs: Sequence[str | None] = (), suffixes: Sequence[str] = (), what: str = ""
) -> None:
    """Check, before any work is done, that an output can be written.

    Args:
        path: The output.
        inputs: Files that the command reads.
        suffixes: Allowed suffixes of the output; empty allows any.
        what: The content of the output, for the error.

    Raises:
        InputError: If the output is one of the inputs, or has another suffix.
        FileFormatError: If its folder does not exist or is not writable.
    """
    from calibrant._files import check_suffix, check_target

    check_target(path, inputs=[name for name in inputs if name is not None])
    if suffixes:
        check_suffix(path, suffixes, what=what)
