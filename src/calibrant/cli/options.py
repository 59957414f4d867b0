"""Options that several commands share, and functions that read and write the files that the options describe."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import option
from click.core import ParameterSource

from calibrant.cli.terminal import say, working
from calibrant.data.mapping import Mapped
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.calibrators import Calibrator
    from calibrant.data.io import Contents
    from calibrant.scale import Batches

EXAMPLES = Path(__file__).parents[1] / "data" / "examples"
NONE = "none"  # stands for no calibrator
# Calibrators that need arguments without a default, or a step after the fit, so that no command can fit them.
IN_PYTHON = "Chain", "ConfidenceBinning", "FocalCalibration", "KeepDecision", "MultiLabelCalibrator", "PriorShift"
AUTO, OF_LABELS = "auto", "PlattScaling"  # default methods for one class per row, and for several labels per row
# Size of the logits above which a Parquet file is streamed; reading it whole takes several times as much memory.
STREAMED_BYTES = 256 << 20

command = functools.partial(
    click.command,
    epilog="FILE holds predictions: .csv, .tsv, .jsonl, .parquet, .feather, .npz, .safetensors, .pt or .npy.",
)


def names_in(_: object, __: object, texts: Sequence[str]) -> list[str]:
    """Return the names in an option that is repeated or contains commas; the callback of such options."""
    return list(dict.fromkeys(name.strip() for text in texts for name in text.split(",")))


def column_names(name: str, help: str) -> Callable[[Any], Any]:
    """Return an option that names columns."""
    return option(name, multiple=True, callback=names_in, metavar="COLUMN,…", help=help)


def repeated(name: str, help: str, metavar: str = "NAME") -> Callable[[Any], Any]:
    """Return an option that may be repeated."""
    return option(name, multiple=True, metavar=metavar, help=f"{help}; may be repeated.")


def count(name: str, least: int, default: int | None, help: str) -> Callable[[Any], Any]:
    """Return an option for a whole number."""
    return option(name, type=click.IntRange(least), default=default, show_default=True, help=help)


def choice(name: str, known: Sequence[str], help: str, *, default: str | None = None) -> Callable[[Any], Any]:
    """Return an option for one of several words."""
    return option(name, type=click.Choice(known), default=default, show_default=True, help=help)


saved = option("--calibrator", "-c", metavar="C", help="Apply this calibrator, saved by `calibrant fit`.")
split = option(
    "--split", default="test", show_default=True, help="The split to use, which must not have been used for fitting."
)
by = column_names("--by", "Also evaluate the groups that these columns define.")
method = option(
    "--method",
    "-m",
    metavar="NAME",
    help="Calibrator: auto, or a name in `calibrant methods`; its settings are the defaults.",
)
as_json = option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, with fractions instead of percentages."
)
_SEVERAL = "Each row has several labels (1, 0 or -1 if missing), each with its own score."
_READING = {
    "files": click.argument("files", nargs=-1, metavar="[FILE]..."),
    "file": click.argument("file", required=False),
    "example": choice("--example", ["cifar10", "sst", "20news"], "A bundled example instead of a FILE."),
    "columns": option(
        "--columns",
        multiple=True,
        callback=lambda _, __, texts: ",".join(texts) if texts else None,
        metavar="NAMES",
        help="Score columns, one per class: 'p_*' or cat,dog,fox.",
    ),
    "label": option("--label", metavar="COLUMN", help="Label column, or 'y_*' for several labels per row."),
    "kind": choice("--kind", ["probs", "logits"], "Whether scores are probabilities or logits."),
    "weights": option("--weights", metavar="COLUMN", help="Column of row weights."),
    "groups": option(
        "--groups", metavar="COLUMN", help="Column of group names, for dependent rows such as those of a patient."
    ),
    "labels": option("--labels", metavar="FILE", help="File with the labels, in the same order or matched by --on."),
    "on": option("--on", metavar="COLUMN", help="Column, present in both files, by which rows are matched."),
    "multilabel": option("--multilabel", is_flag=True, help=_SEVERAL),
}
MAPPING = ("columns", "label", "kind")
ROWS = ("example", *MAPPING, "weights", "groups")


def reading(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the named arguments and options, and passes their values as one ``Reading``."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(**given: Any) -> Any:
            return function(Reading(**{name: given.pop(name) for name in names}), **given)

        for name in reversed(names):
            _READING[name](call)
        return call

    return add


@dataclass(frozen=True)
class Source:
    """A file to read: its path, its name in messages, and the options for reading it."""

    path: str
    shown: str
    options: dict[str, str]


@dataclass(frozen=True)
class Reading(Mapped):
    """The files of a command and the options that describe them, with methods that read the files."""

    files: Sequence[str] = ()
    file: str | None = None
    example: str | None = None

    def sources(self, *others: str) -> list[Source]:
        """Return the files or the example to read, or ``others``, which the options describe as well.

        Raises:
            InputError: If neither a file nor an example is named.
            FileFormatError: If a file is missing.
        """
        from calibrant._files import check_source, shown

        if not others:
            self.require_file_to_match()
        files = others or self.files or (() if self.file is None else (self.file,))
        for name in [*files, *([str(self.labels)] if self.labels else [])]:
            if not Path(name).is_dir():
                check_source(name)
        given = {name: str(getattr(self, name)) for name in (*MAPPING, "weights", "groups", "labels", "on")}
        options = {name: value for name, value in given.items() if value != "None"}
        found = [Source(name, shown(name), options) for name in files]
        if self.example is not None and not others:
            name = f"{self.example}.npz"
            found.append(Source(str(EXAMPLES / name), name, {"example": self.example}))
        if not found:
            raise InputError("name a FILE of predictions, or an example: --example cifar10")
        return found

    def source(self, *others: str) -> Source:
        """Return the single file or example to read."""
        found = self.sources(*others)
        if len(found) > 1:
            raise InputError(f"{found[0].shown} and --example are two inputs; leave one out")
        return found[0]

    def contents(self, source: Source, *features: str, fitted: Sequence[Any] = ()) -> Contents:
        """Return the labelled rows of every split of a file, and print notes on how they were read on stderr.

        Args:
            source: The file.
            features: Further columns to read.
            fitted: Calibrators that will be applied to the rows (None is skipped); the columns that they use are read.
        """
        from calibrant.data.io import read_contents

        for calibrator in fitted:
            if calibrator is not None:
                from calibrant.calibrators.groups import feature_names  # not before, because it imports all calibrators

                features += tuple(feature_names(calibrator))
        with working(f"reading {source.shown}"):
            mapped = replace(self, features=() if self.multilabel else tuple(dict.fromkeys(features)))
            found = read_contents(source.path, mapped, labelled=True)
        for note in found.notes:
            say("note", f"{source.shown}: {note}")
        return found

    def rows(self, source: Source, split: str, *features: str, fitted: Sequence[Any] = ()) -> Any:
        """Return the predictions of one split of a file, or all predictions if the file has no splits."""
        found = self.contents(source, *features, fitted=fitted)
        return found.splits[find_split(found, split)]

    def is_streamed(self, source: Source) -> bool:
        """Return whether a file is streamed: a folder of Parquet files, or a large Parquet file."""
        if self.multilabel or Path(source.path).is_dir() or not source.path.endswith(".parquet"):
            return not self.multilabel and Path(source.path).is_dir()
        from calibrant.scale import logits_bytes

        return logits_bytes(source.path) > STREAMED_BYTES

    def batches(self, source: Source, *, split: str | None = None, **options: Any) -> Batches:
        """Return the rows of a file as a stream of batches.

        Raises:
            InputError: If an option, of this object or in ``options``, needs the whole file in memory.
        """
        from calibrant import scale

        for name, value in {**options, "groups": self.groups, "labels": self.labels}.items():
            if value:
                raise InputError(f"--{name} has no effect on {source.shown}, which is streamed; leave it out")
        mapped = {name: getattr(self, name) for name in (*MAPPING, "weights")}
        return scale.batches(source.path, split=split, **mapped)


def find_split(contents: Contents, split: str) -> str:
    """Return the key of the split that --split names; its default value means all rows of a file without splits."""
    context = click.get_current_context()
    default = context.get_parameter_source("split") is ParameterSource.DEFAULT or split != context.params["split"]
    return contents.find(None if default and list(contents.splits) == ["all"] else split)


def choose(name: str, known: Sequence[str], *, option: str) -> str:
    """Return ``name`` if it is one of ``known``; otherwise raise an error that suggests the most similar name."""
    if name in known:
        return name
    lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean {lower[close[0]]}?" if close else f"it must be one of {', '.join(known)}"
    raise InputError(f"{option} {name!r} is unknown; {hint}")


def read_calibrator(path: str | None, *, several: bool = False) -> Any:
    """Return a saved calibrator for one class or (``several``) several labels per row; None if ``path`` is None."""
    import calibrant

    if path is None:
        return None
    loaded = calibrant.load(path)
    if loaded.multi_label != several:
        of, remedy = ("one class", "leave --multilabel out") if several else ("several labels", "add --multilabel")
        raise InputError(f"{path} holds a {type(loaded).__name__}, which is for {of} per row; {remedy}")
    return loaded


def make_calibrator(name: str, *, features: Sequence[str] = ()) -> Calibrator:
    """Return a calibrator with default settings by its class name or short name (``auto``, ``temperature`` …).

    Args:
        name: Name of the class, or one of ``calibrators.SHORT_NAMES``.
        features: The columns that the calibrator uses, or ``["all"]``.

    Raises:
        InputError: If there is no such calibrator, it can be fitted only in Python, or it does not use features.
    """
    from calibrant import calibrators

    method = calibrators.SHORT_NAMES.get(name, name)
    if method in IN_PYTHON:
        remedy = "use --multilabel" if method == "MultiLabelCalibrator" else "fit and save it in Python"
        raise InputError(f"--method {method} needs arguments or steps that the command line does not have; {remedy}")
    choose(method, [one for one in calibrators.__all__ if one not in IN_PYTHON], option="--method")
    if features and method not in ("FeatureScaling", "GroupScaling"):
        raise InputError(f"--features has no effect with {method}; name --method GroupScaling or FeatureScaling")
    make: Any = getattr(calibrators, method)
    return make(None if features == ["all"] else features) if features else make()  # type: ignore[no-any-return]


def check_output(path: str | Path, *, inputs: Sequence[Any] = (), suffixes: Sequence[str] = (), what: str = "") -> None:
    """Check, before any work is done, that an output can be written.

    Args:
        path: The output.
        inputs: Files that the command reads; None for no file.
        suffixes: Allowed suffixes of the output; empty allows any.
        what: The content of the output, for the error message.

    Raises:
        InputError: If the output is one of the inputs, or does not have one of the suffixes.
        FileFormatError: If its folder does not exist or is not writable.
    """
    from calibrant._files import check_suffix, check_target

    check_target(path, inputs=[name for name in inputs if name is not None])
    if suffixes:
        check_suffix(path, suffixes, what=what)
