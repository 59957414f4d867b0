"""Options that several commands share, and how the files that they describe are read and written."""

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
NONE = "none"  # in the place of a calibrator
AUTO, OF_LABELS = "auto", "PlattScaling"  # the methods if none is named: of one class, and of each of several labels
STREAMED_BYTES = (
    256 << 20
)  # of logits, above which a Parquet file is streamed: reading it whole takes several times that

_FILES = "Predictions (.csv, .tsv, .jsonl, .parquet, .feather, .npz, .safetensors, .pt, .npy)."
Files: TypeAlias = Annotated[list[str] | None, typer.Argument(metavar="FILE...", help=_FILES)]
File: TypeAlias = Annotated[str | None, typer.Argument(metavar="FILE", help=_FILES)]
Example: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="A bundled example instead of a FILE: cifar10, sst or 20news.")
]
Columns: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAMES", help="The scores, one column per class: 'p_*', or cat,dog,fox.")
]
Label: TypeAlias = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The column of the labels; of several labels per row 'y_*'.")
]
Kind: TypeAlias = Annotated[Literal["probs", "logits"] | None, typer.Option(help="What the scores are.")]
Weights: TypeAlias = Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of weights.")]
Groups: TypeAlias = Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of groups, such as patient.")]
LabelsFile: TypeAlias = Annotated[
    str | None, typer.Option(metavar="FILE", help="A file of the labels, in the same order or joined by --on.")
]
On: TypeAlias = Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of both files that joins them.")]
SeveralLabels: TypeAlias = Annotated[
    bool,
    typer.Option("--multilabel", help="Each row has several labels, 1, 0 or -1 (missing), each with its probability."),
]
Saved: TypeAlias = Annotated[
    str | None, typer.Option("--calibrator", "-c", help="A calibrator that `calibrant fit` saved, applied to the rows.")
]
Split: TypeAlias = Annotated[str, typer.Option(help="The split of FILE, never one that was fitted on.")]
By: TypeAlias = Annotated[list[str] | None, typer.Option(metavar="COLUMN,…", help="The groups of these columns.")]
Method: TypeAlias = Annotated[
    str | None, typer.Option("--method", "-m", help="auto, or a name of `calibrant methods`.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object; values are fractions.")]


@dataclass(frozen=True)
class Source:
    """A file to read: where it is, what messages call it, and the options that read it."""

    path: str
    shown: str
    options: Mapping[str, str]


class Reading(Mapped):
    """What the options say of a file, and how it is read so."""

    def sources(self, files: str | Sequence[str] | None, example: str | None = None) -> list[Source]:
        """Return what is to be read: the files, or an example.

        Raises:
            InputError: If nothing is named, or an example that there is not.
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
        """Return the one file, or the example, that is to be read."""
        found = self.sources(file, example)
        if len(found) > 1:
            raise InputError(f"{found[0].shown} and --example are two inputs; leave one out")
        return found[0]

    def contents(self, source: Source, *, features: Sequence[str] = (), several: bool = False) -> Contents:
        """Return the labelled rows of every split of a file; notes on how they were read go to stderr."""
        from calibrant.data.io import read_contents

        mapped = replace(self, features=list(dict.fromkeys(features)), multilabel=several)
        with working(f"reading {source.shown}"):
            found = read_contents(source.path, mapped, labelled=True)
        for note in found.notes:
            say("note", f"{source.shown}: {note}")
        return found

    def rows(self, source: Source, split: str, *, features: Sequence[str] = (), several: bool = False) -> Any:
        """Return the predictions of one split of a file, or of its one unnamed split."""
        found = self.contents(source, features=features, several=several)
        return found.splits[found.find(split)]

    def batches(self, source: Source) -> Batches:
        """Return streamed rows.

        Raises:
            InputError: For an option that needs the whole file in memory.
        """
        from calibrant import scale

        refuse_streamed(source, groups=self.groups, labels=self.labels)
        said = {name: getattr(self, name) for name in ("columns", "label", "kind", "weights")}
        return scale.batches(source.path, **said)


def refuse_streamed(source: Source, **options: Any) -> None:
    """Refuse options that have no effect on rows that are streamed."""
    for name, value in options.items():
        if value:
            raise InputError(f"--{name} has no effect on {source.shown}, which is streamed; leave it out")


def is_streamed(source: Source) -> bool:
    """Say whether a file is read in batches: a folder of Parquet files, or a large one."""
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
    """Return the names that an option gives, with commas or repeated."""
    return list(dict.fromkeys(name.strip() for text in texts or () for name in text.split(",")))


def load_calibrator(path: str | None, *, several: bool = False) -> Any:
    """Return the saved calibrator of rows with one class, or several labels, each; None without a path."""
    import calibrant

    if path is None:
        return None
    loaded = calibrant.load(path)
    if loaded.multi_label != several:
        of, remedy = ("one class", "leave --multilabel out") if several else ("several labels", "add --multilabel")
        raise InputError(f"{path} holds a {type(loaded).__name__}, which is for {of} per row; {remedy}")
    return loaded


def make_calibrator(name: str, *, features: Sequence[str] = ()) -> Calibrator:
    """Return the calibrator of class ``name`` with its defaults; ``auto``, ``temperature``, … are short names.

    Args:
        name: Of the class, or one of ``calibrators.SHORT_NAMES``.
        features: Columns it goes by, or ``["all"]``.

    Raises:
        InputError: If there is none, it needs arguments, or it goes by no features.
    """
    from calibrant import calibrators

    method = choose(calibrators.SHORT_NAMES.get(name, name), calibrators.__all__, option="--method")
    if features and method not in ("FeatureScaling", "GroupScaling"):
        raise InputError(f"--features has no effect with {method}; name --method GroupScaling or FeatureScaling")
    make: Any = getattr(calibrators, method)
    try:
        return make(None if features == ["all"] else features) if features else make()  # type: ignore[no-any-return]
    except (TypeError, InputError) as error:  # of an argument without a default, which no option gives
        raise InputError(f"{method} needs arguments ({error}); construct and save it in Python") from error


def feature_names(calibrator: Any) -> list[str]:
    """Return the names of the features that a calibrator, or one of its parts, goes by; none of None."""
    if calibrator is None:
        return []
    from calibrant.calibrators.groups import feature_names

    return feature_names(calibrator)


def check_output(
    path: str | Path, *, inputs: Sequence[str | None] = (), suffixes: Sequence[str] = (), what: str = ""
) -> None:
    """Refuse a place that cannot be written, before any work is done.

    Args:
        path: Where to write.
        inputs: Files that the command reads.
        suffixes: What its name may end in; empty allows any.
        what: What it then holds.

    Raises:
        InputError: For an input, or another suffix.
        FileFormatError: For a place without its folder, or without the permission to write there.
    """
    from calibrant._files import check_suffix, check_target

    check_target(path, inputs=[name for name in inputs if name is not None])
    if suffixes:
        check_suffix(path, suffixes, what=what)
