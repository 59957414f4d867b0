"""Options that several commands share: what a file or a log holds, and how its rows become predictions."""

from __future__ import annotations

import ast
import difflib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calibrant._files import check_folder, check_source, check_suffix, shown
from calibrant.cli._application import LABEL, OPTIONS, TYPED, declare_argument, option
from calibrant.cli._io import STREAM, check_outputs, path_or_stdin, working
from calibrant.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from calibrant._files import Array
    from calibrant.data.formats.layout import Layout
    from calibrant.data.formats.reading import Named
    from calibrant.data.multilabel import MultiLabelPredictions
    from calibrant.data.predictions import BinaryPairs, Predictions
    from calibrant.scale import Batches


_EXAMPLES = Path(__file__).parents[1] / "data" / "examples"
PANEL = "What a file holds"
# bytes of logits, above which one Parquet file is streamed: reading it whole takes several times that
STREAMED_BYTES = 256 << 20
LAYOUT = ("logits", "labels", "columns", "label", "kind", "normalize", "on", "missing", "positive", "class_names")
FILES = "Predictions in any format (npz, safetensors, npy, pt, csv, tsv, jsonl, parquet, arrow); - reads stdin."


def among(names: Callable[[], Sequence[str]]) -> Callable[[str], list[str]]:
    """Return the callback of the shell's completion, which returns the names that begin with the typed text."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _example_names() -> list[str]:
    return sorted(path.stem for path in _EXAMPLES.glob("*.npz"))


complete_method = among(lambda: ["auto", *listed("calibrators")])
complete_example = among(_example_names)


of_file = partial(option, rich_help_panel=PANEL)
Example = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", autocompletion=complete_example, help="Predictions that the package carries, instead of a FILE."
    ),
]


AsJson = Annotated[bool, typer.Option("--json", help="One JSON object; values are fractions.")]
MultiLabel = Annotated[
    bool,
    typer.Option("--multilabel", help="Each row has several labels, 1 or 0 (-1: missing), each with its probability."),
]


UNCALIBRATED = "none"  # in the place of a calibrator

# What commands call the files that they read.
_READ = (*("file", "files", "a", "b", "logits", "labels", "class_names", "calibrator", "baseline", "reference"),)
_ANY: tuple[tuple[str, ...], str] = (), ""
# The files that each command writes → the suffixes that they may have (none: any), and what they then hold. What ``apply`` makes
# of a folder is a folder, which it looks at itself.
_WRITTEN: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {
    "fit": {"output": ((".safetensors",), "a calibrator")},
    "apply": {"output": _ANY},
    "report": {"output": _ANY},
    "export": {"output": ((".onnx",), "an ONNX model")},
    "watch": {"state": _ANY},
    "show": {"report": _ANY, "record": ((".json",), "a record")},
    "init": {"file": _ANY},
}  # fmt: skip


def look_at(command: str, given: Mapping[str, Any]) -> None:
    """Refuse what the arguments of a command alone show, by their names: it costs no import of PyTorch.

    Raises:
        FileFormatError: For a file that is missing, or a place that cannot be written.
        InputError: For an input in the place of an output, a name that there is not, or two names for what is read.
    """
    output = given.get("output")
    writes = _WRITTEN.get(command, {})
    named = [*(given.get(name) for name in _READ if name not in writes)]
    read = [
        one
        for some in named
        for one in (some if isinstance(some, list) else [some])
        if one not in (None, STREAM, UNCALIBRATED)
    ]
    for name in read:
        if not os.path.lexists(name):
            check_source(name)
    fitted = given.get("calibrator")
    if fitted not in (None, STREAM, UNCALIBRATED) and Path(fitted).suffix != ".safetensors":
        expected = "a calibrator that `calibrant fit` saved (.safetensors)"
        raise FileFormatError(expected, shown(fitted), "name it first, or after --calibrator, and predictions as FILE")
    in_folder = command == "apply" and any(map(os.path.isdir, read))
    places = {} if in_folder else {**given, "output": output}
    written = {name: place for name in writes if (place := places.get(name)) is not None and str(place) != STREAM}
    check_outputs(written.values(), inputs=[str(name) for name in (*read, given.get("name")) if name is not None])
    for name, place in written.items():
        suffixes, what = writes[name]
        if suffixes:
            check_suffix(place, suffixes, what=what)
    if given.get("figures") is not None:
        check_folder(given["figures"])
    beside = given.get("file") or given.get("files") or given.get("example")
    if given.get("logits") is not None and beside:
        one = beside[0] if isinstance(beside, list) else beside
        raise InputError("--logits or a FILE", f"both: {shown(one)}", "leave one out")
    if given.get("example") is not None:
        choose(given["example"], _example_names(), option="--example", listing="calibrant report --help")
    if given.get("method") not in (None, *(("none",) if command == "report" else ())):
        short = listed("calibrators", "SHORT_NAMES")
        choose(
            short.get(given["method"], given["method"]),
            listed("calibrators"),
            option="--method",
            listing="calibrant methods",
        )


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


@dataclass(frozen=True)
class Source:
    """A file to read: where it is, what messages call it, and the words that name it on a command line."""

    path: str
    shown: str
    argument: str = ""

    @contextmanager
    def opened(self) -> Iterator[Source]:
        """Give the source at a path that can be read: what stands on stdin is in a temporary file."""
        with path_or_stdin(self.path) as path:
            yield replace(self, path=path)


@dataclass(frozen=True)
class Inputs:
    """The options on what the files of a command hold; every command that reads predictions takes them all."""

    logits: str | None = of_file(None, "An array of logits (.npy, .pt), instead of FILE.", metavar="FILE")
    labels: str | None = of_file(None, "Labels in a file of their own: .npy, a table, or one a line.", metavar="FILE")
    columns: str | None = of_file(
        None,
        "A table's class columns: 'p_*' by their numbers, else in the file's order; or names with commas.",
        metavar="NAMES",
    )
    label: str | None = of_file(None, "The column of the labels, if not called label.", metavar="COLUMN")
    kind: Literal["logits", "probs", "one-vs-rest"] | None = of_file(
        None, "What columns, or an array without such a name, hold.", metavar="KIND"
    )
    normalize: bool = of_file(
        False, "Divide rows of rounded probabilities by their sums (0.95 to 1.05).", "--normalize"
    )
    class_names: str | None = of_file(None, "A text file with one class name a line, in order.", metavar="FILE")
    on: str | None = of_file(None, "The column that names each row in both files, FILE and --labels.", metavar="KEY")
    missing: Literal["drop"] | None = of_file(None, "Leave out rows without a label, in FILE or in --labels.")
    positive: str | None = of_file(None, "The label that one score a row is the probability of: yes.", metavar="VALUE")
    class_dim: int = of_file(1, "The class axis of logits with more than two, as in (N, T, K): 2.")
    ignore_index: int | None = of_file(None, "A label that marks rows to leave out, such as -100 or 255.")

    @property
    def sides(self) -> tuple[str, ...]:
        """The names of the two sides of the event that one score a row speaks of; none where ``--positive`` is left out."""
        from calibrant.data.formats.layout import sides_of

        return sides_of(self.positive)

    @property
    def layout(self) -> Layout:
        """What the options say of a file's names."""
        from calibrant.data.formats.layout import Layout

        names = read_names(self.class_names) if self.class_names else None
        said: Any = {name: getattr(self, name) for name in LAYOUT[1:]}
        return Layout.of(**said | {"kind": self._kind, "class_names": names})

    @property
    def _kind(self) -> str | None:
        if self.logits is not None and self.kind not in (None, "logits"):
            raise InputError(f"logits in {shown(self.logits)}", f"--kind {self.kind}", "name the file as FILE")
        return "logits" if self.logits is not None else self.kind

    @property
    def beside(self) -> list[str]:
        """The files that the options name, which no output may overwrite."""
        return [name for name in (self.logits, self.labels, self.class_names) if name is not None]

    @property
    def words(self) -> str:
        """These options as they would be typed."""
        given = []
        for name in (one.name for one in fields(self) if one.name not in ("logits", "normalize")):
            value = self._kind if name == "kind" else getattr(self, name)
            if value != getattr(type(self), name):
                given += [f"--{name.replace('_', '-')}", shlex.quote(shown(str(value)))]
        return " ".join([*given, *(["--normalize"] if self.normalize else [])])

    def sources(self, files: Sequence[str] | str | None, example: str | None = None) -> list[Source]:
        """Return what is to be read: the files, ``--logits`` or ``--example``.

        Args:
            files: The files that are named.
            example: The example that is named.

        Raises:
            InputError: If nothing is named.
        """
        named = [files] if isinstance(files, str) else list(files or [])
        if self.logits is not None:
            named = [self.logits]
        found = [
            Source(name, shown(name), " ".join(filter(None, [shlex.quote(shown(name)), self.words]))) for name in named
        ]
        if example is not None:
            if not named:
                refuse_typed(LAYOUT[:-1], where="an example, whose names say what it holds")
            found.append(Source(str(_EXAMPLES / f"{example}.npz"), f"{example}.npz", f"--example {example}"))
        if not found:
            advice = ", or try --example cifar10" if "--example" in OPTIONS.get() else ""
            raise InputError("a FILE of predictions", "none", f"name one{advice}")
        return found

    def named(self, source: Source, *, names_used: bool = False) -> Named:
        """Return the arrays of a file under the names that say what they hold; what was changed is said on stderr.

        Args:
            source: The file.
            names_used: Whether the class names have a use beside labels that are text.

        Raises:
            InputError: If ``--class-names`` has none.
        """
        from calibrant.data.formats.reading import read_named

        with working(f"reading {source.shown}"):
            found = read_named(source.path, self.layout)
        if self.class_names and not found.matched and not names_used:
            raise InputError("labels that are text beside --class-names", f"numbers in {source.shown}", "leave it out")
        for note in found.notes:
            typer.echo(f"note: {source.shown}: {note}", err=True)
        return found

    def splits_of(self, named: Named, source: Source) -> dict[str, Predictions | BinaryPairs]:
        """Return the splits among arrays that were read."""
        from calibrant.data.splits import splits_of, with_names

        LABEL.set(named.add_label)
        found = splits_of(named.arrays, source.shown, class_dim=self.class_dim, ignore_index=self.ignore_index)
        # by which a calibrator knows its classes again
        return {part: with_names(rows, named.sides) for part, rows in found.items()}

    def parts(self, source: Source, *, several: bool = False, names_used: bool = False) -> dict[str, SplitRows]:
        """Return the rows of each split of a file, or of stdin, with one label or ``several``."""
        from calibrant.data.formats.reading import Named

        with source.opened() as here:
            named = Named({}) if several else self.named(here, names_used=names_used)
            splits: Any = self.several(here) if several else self.splits_of(named, source)
        return {name: SplitRows(data, named, name, name, source, self) for name, data in splits.items()}

    def read(self, source: Source, split: str, *, several: bool = False, names_used: bool = False) -> SplitRows:
        """Return one split of a file, or of stdin, or its one unnamed split."""
        from calibrant.data.splits import pick_name

        found = self.parts(source, several=several, names_used=names_used)
        return replace(found[pick_name(found, split, source.shown)], typed=split)

    def several(self, source: Source) -> dict[str, MultiLabelPredictions]:
        """Return the splits of a file of several labels a row."""
        from calibrant.data.splits import load_multilabel

        return load_multilabel(source.path, **self.of_labels)

    @property
    def of_labels(self) -> dict[str, Any]:
        """What the options say of a file of several labels a row."""
        return {"columns": self.columns, "label": self.label, "kind": self.kind}


@dataclass(frozen=True)
class Files:
    """The files that a command reads, or an example."""

    files: list[str] | None = declare_argument(None, FILES, metavar="FILE...")
    example: Example = None

    def sources(self, inputs: Inputs) -> tuple[Inputs, list[Source]]:
        """Return the options and what is to be read; of two files one of which holds labels alone, the other with ``--labels``.

        Raises:
            InputError: As ``Inputs.sources``.
        """
        if len(self.files or ()) == 2 and inputs.labels is None and inputs.logits is None:
            from calibrant.data.formats.reading import hold_labels_alone

            alone = [name for name in self.files or () if name != STREAM and hold_labels_alone(Path(name))]
            if len(alone) == 1 and (others := [name for name in self.files or () if name != alone[0]]):
                typer.echo(
                    f"note: {shown(alone[0])} holds labels alone, so they are those of {shown(others[0])}", err=True
                )
                inputs = replace(inputs, labels=alone[0])
                return inputs, inputs.sources(others, self.example)
        return inputs, inputs.sources(self.files, self.example)


@dataclass(frozen=True)
class OneFile:
    """The one file that a command reads, or an example."""

    file: str | None = declare_argument(None, FILES)
    example: Example = None

    def source(self, inputs: Inputs, *, purpose: str) -> Source:
        """Return what is to be read.

        Args:
            inputs: The options on what it holds.
            purpose: What it is read for, after "one file to".

        Raises:
            InputError: If a file and an example are named, or as ``Inputs.sources``.
        """
        found = inputs.sources(self.file, self.example)
        if len(found) > 1:
            raise InputError(f"one file to {purpose}", f"{found[0].shown} and --example", "leave one out")
        return found[0]


@dataclass(frozen=True)
class Through:
    """The rows of a file that a command works on: those of a split, after a calibrator."""

    calibrator: str | None = option(None, "Pass the rows through this calibrator first.", "--calibrator", "-c")
    split: str = option("test", "The split of FILE, never one that was fitted on.")


@dataclass(frozen=True)
class OneSplit(Through, OneFile):
    """The file, or the example, whose rows a command works on."""


@dataclass(frozen=True)
class Fitting:
    """Which calibrator a report is on: a saved one, or one fitted on a split of the file; and the split it is evaluated on."""

    method: str | None = option(
        None,
        "auto, a calibrator, or none; auto if left out.",
        "--method",
        "-m",
        autocompletion=complete_method,
        without="calibrator",
    )
    calibrator: str | None = option(None, "A saved one instead.", "--calibrator", "-c")
    split: str = option("test", "The split to evaluate.")
    fit_split: str = option("val", "The split to fit on.")


@dataclass(frozen=True)
class Before:
    """Labelled predictions from before, which a monitor starts from."""

    reference: str | None = option(
        None, "Labelled predictions from before, with which the new ones are compared.", metavar="FILE"
    )
    reference_split: str = option("val", "The split of the reference.", needs="reference")


@dataclass(frozen=True)
class Page:
    """What a report is written as."""

    output: str = option("report.html", "Where to write it; - writes stdout.", "--output", "-o")
    format: Literal["html", "json"] | None = option(None, "By the output's name if left out.")
    title: str = option("Calibration report", "Its heading.")
    margin: float = option(
        0.02, "ECE above which a miscalibration is large; 0.02 is 2 points.", min=0.0001, max=0.9999
    )  # calibrant.report.MARGIN


@dataclass(frozen=True)
class SplitRows:
    """The rows of one split, in memory, and what else their file holds.

    Args:
        data: The rows.
        named: The arrays of the file; none of several labels a row.
        split: Name of the split in the file.
        typed: Its name on the command line.
        source: The file.
        inputs: The options that it was read with.
    """

    data: Any
    named: Named
    split: str
    typed: str
    source: Source
    inputs: Inputs

    @property
    def scores(self) -> Any:
        """The rows, which must hold logits or probabilities of all classes."""
        from calibrant.data.pairs import BinaryPairs

        if not isinstance(self.data, BinaryPairs):
            return self.data
        expected, place = "logits or probabilities of all classes", f"{self.source.shown}, split {self.typed!r}"
        raise InputError(expected, "top-label confidences only", "save the model's logits", place=place)

    def through(self, calibrator: Any) -> Any:
        """Return the rows through a fitted calibrator, or the one saved at a path; as they are if it is None."""
        import calibrant

        if calibrator is None:
            return self.data
        fitted = calibrant.load(calibrator) if isinstance(calibrator, str) else calibrator
        return self.with_features(feature_names(fitted)).data.calibrated_by(fitted)

    def beside(self, names: Sequence[str]) -> dict[str, Array]:
        """Return arrays of the file that are called so, of this split."""
        from calibrant.data.formats.reading import read_columns

        return read_columns(self.named, names, split=self.split, file=self.source.shown)

    def with_features(self, names: Sequence[str]) -> SplitRows:
        """Return the rows with these columns of the file among their features; what is nowhere, the calibrator refuses."""
        own, held = dict(self.data.features or {}), self.named.beside(self.split)
        found = [name for name in names if name not in own and name in held]
        return replace(self, data=replace(self.data, features=own | self.beside(found))) if found else self

    def column(self, name: str) -> Array:
        """Return a column (N,) beside the rows that are measured: a feature of theirs, or an array of the file.

        Raises:
            InputError: If it is missing, or does not lie beside the rows.
        """
        import numpy as np

        if name in (self.data.features or {}):
            return np.asarray((self.data.features or {})[name])
        values, arrays = np.asarray(self.beside([name])[name]), self.named.arrays
        known = [prefix + label for prefix in (f"{self.split}_", "") for label in ("labels", "label")]
        labels = next((arrays[one] for one in known if one in arrays), None)
        # rows that --ignore-index took out of the data still stand in the file's other columns
        if self.inputs.ignore_index is not None and labels is not None and labels.shape == values.shape:
            values = values[labels != self.inputs.ignore_index]
        if values.shape != (len(self.data),):
            expected = f"one value of {name!r} a row ({len(self.data):,})"
            raise InputError(expected, f"shape {values.shape}", "name a column of the rows")
        return values


def feature_names(calibrator: Any) -> list[str]:
    """Return the names of the features that a calibrator, or one of its parts, goes by."""
    from calibrant.calibrators.base import calibrator as of_calibrators  # loads PyTorch

    return of_calibrators.feature_names(calibrator)


def typed_columns(texts: Sequence[str] | None, *, option: str = "--by") -> list[str] | None:
    """Return the names that an option gives, with commas or repeated; None where it is left out.

    Raises:
        InputError: If a name is empty or repeated.
    """
    if texts is None:
        return None
    names = [name.strip() for text in texts for name in text.split(",")]
    if "" in names:
        raise InputError(f"names of columns for {option}", f"{', '.join(texts)!r}", f"write {option} age,region")
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise InputError(f"each column once for {option}", f"{twice[0]!r} twice", "name it once")
    return names


def read_names(path: str) -> list[str]:
    """Return the lines of a text file.

    Raises:
        FileFormatError: If it cannot be read as text.
    """
    from calibrant._files import read_text

    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def typed(names: Sequence[str]) -> list[str]:
    """Return which of the parameters ``names`` were typed, in the spelling of the command line: ``--class-dim``."""
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
        remedy = remedy or ("leave it out" if len(found) == 1 else "leave them out")
        raise InputError("only options that have an effect", f"{' and '.join(found)} for {where}", remedy)


def refuse_for_several(*names: str) -> None:
    """Refuse ``names``, and every option on what a file holds that has no effect on several labels a row."""
    reading = [one.name for one in fields(Inputs) if one.name not in STREAMED]
    refuse_typed([*reading, "example", "on_ray", *names], where="--multilabel")


ExecutorName = Literal["local", "ray"]


OnRay = Annotated[
    bool,
    typer.Option(
        "--ray", help="Share streamed rows out over the Ray cluster at RAY_ADDRESS, or over this machine's cores."
    ),
]
# what a table's columns may be called where it is streamed; what else the reading options say needs the whole file
STREAMED = ("columns", "label", "kind")


def streams(file: str, *refused: str) -> bool:
    """Return whether ``file`` is streamed: a folder of Parquet files, or a Parquet file of much data.

    Args:
        file: What is read.
        refused: Parameters of the command that have no effect on such a file.

    Raises:
        InputError: For an option that has no effect on it.
    """
    if is_streamed(file):
        reading = [one.name for one in fields(Inputs) if one.name not in STREAMED]
        refuse_typed([*reading, *refused], where=f"{shown(file)}, which is streamed")
        return True
    refuse_typed(["on_ray"], where=f"{shown(file)}, which is read whole")
    return False


def source_of(path: Path, inputs: Inputs, *, on_ray: bool) -> Batches:
    """Return streamed rows as the options say that they are read."""
    from calibrant import scale

    of = scale.on_ray if on_ray else scale.batches
    return of(path, **{name: getattr(inputs, name) for name in STREAMED})


def is_streamed(file: str) -> bool:
    """Return whether ``file`` is a data set that is streamed: a folder of Parquet files, or one large Parquet file."""
    from calibrant.data.formats.reading import is_array_folder
    from calibrant.scale import logits_bytes

    return (Path(file).is_dir() and not is_array_folder(file)) or logits_bytes(file) > STREAMED_BYTES


def parts_of(file: str, split: str | None, *, option: str = "split") -> dict[str, Path]:
    """Return split name → where its rows are: the folders in a folder, or all of a file or folder that has no splits.

    Args:
        file: A folder or a Parquet file.
        split: The requested one, or None for all.
        option: The parameter that names it.

    Raises:
        InputError: If a split is named and a folder has none, or it has both files and folders of them.
        FileFormatError: If there is no such split.
    """
    from calibrant.data.splits import canonical_split, pick_name

    home = Path(file)
    if not home.is_dir():
        return {split or "all": home}
    folders = split_places(home)
    flat = any(home.glob("*.parquet")) and not any(place.is_file() for place in folders.values())
    if folders and flat:
        raise InputError(f"Parquet files or folders of them in {shown(file)}", "both", "name the folder that is meant")
    if not folders:
        refuse_typed([option], where=f"{shown(file)}, a folder without folders of splits")
        return {"all": home}
    names = [canonical_split(name) for name in folders]
    if len(set(names)) < len(names):
        raise InputError(f"one folder a split in {shown(file)}", f"{sorted(folders)}", "keep one spelling of each")
    if split is None:
        return folders
    return {split: folders[pick_name(folders, split, file)]}


def split_places(home: Path) -> dict[str, Path]:
    """Return split name → folder of Parquet files, or file, where all files of a folder are called as splits are."""
    from calibrant.data.formats.layout import SPLITS

    folders = {path.parent.name: path.parent for path in sorted(home.glob("*/*.parquet"))}
    files = sorted(home.glob("*.parquet"))
    # a single test.parquet is a data set of that name, not a folder of splits
    if not folders and len(files) > 1 and all(file.stem.casefold() in SPLITS for file in files):
        return {file.stem: file for file in files}
    return folders
