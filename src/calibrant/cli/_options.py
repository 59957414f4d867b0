"""Options that several commands share: what a file or a log holds, and how its rows become predictions."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calibrant._core.paths import check_source, shown
from calibrant.cli._application import LABEL
from calibrant.cli._io import STREAM, readable
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant._core.files import Array
    from calibrant.data.formats import Layout, Named
    from calibrant.data.multilabel import MultiLabelPredictions
    from calibrant.data.predictions import BinaryPairs, Predictions
    from calibrant.language import Log
    from calibrant.operate.decide import Costs


PANEL = "What a file holds"
STREAMING = ("executor", "workers", "address")
LAYOUT = ("logits", "labels", "columns", "label", "kind", "normalize", "on", "missing", "positive", "class_names")
FILES = "Predictions in any format (npz, safetensors, npy, pt, csv, tsv, jsonl, parquet, arrow); - reads stdin."


def among(names: Callable[[], Sequence[str]]) -> Callable[[str], list[str]]:
    """Return the callback of the shell's completion, which returns the names that begin with the typed text."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _method_names() -> list[str]:
    from calibrant import calibrators

    return ["auto", *calibrators.__all__]


def _example_names() -> list[str]:
    from calibrant.data.examples import examples

    return examples()


complete_method = among(_method_names)
complete_example = among(_example_names)


def _option(help: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=PANEL, **settings)


ClassDim = Annotated[int, _option("The class axis of logits with more than two, as in (N, T, K): 2.")]
IgnoreIndex = Annotated[int | None, _option("A label that marks rows to leave out, such as -100 or 255.")]
Example = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", autocompletion=complete_example, help="Predictions that the package carries, instead of a FILE."
    ),
]


MultiLabel = Annotated[
    bool,
    typer.Option("--multilabel", help="Each row has several labels, 1 or 0 (-1: missing), each with its probability."),
]


def need_there(files: Sequence[str]) -> None:
    """Refuse files that are missing before PyTorch, or anything else, is loaded for them.

    Raises:
        FileFormatError: If one is.
    """
    for name in files:
        if name != STREAM and not os.path.lexists(name):
            check_source(name)


@dataclass(frozen=True)
class Source:
    """A file to read: where it is, what messages call it, and the words that name it on a command line."""

    path: str
    shown: str
    argument: str = ""


@dataclass(frozen=True)
class Inputs:
    """The options on what the files of a command hold; every command that reads predictions takes them all."""

    logits: Annotated[str | None, _option("An array of logits (.npy, .pt), instead of FILE.", metavar="FILE")] = None
    labels: Annotated[
        str | None, _option("Labels in a file of their own: .npy, a table, or one a line.", metavar="FILE")
    ] = None
    columns: Annotated[
        str | None,
        _option("A table's class columns: 'p_*' in the file's order, or names with commas.", metavar="NAMES"),
    ] = None
    label: Annotated[str | None, _option("The column of the labels, if not called label.", metavar="COLUMN")] = None
    kind: Annotated[
        str | None, _option("probs or logits: what columns, or an array without such a name, hold.", metavar="KIND")
    ] = None
    normalize: Annotated[
        bool, _option("Divide rows of rounded probabilities by their sums (0.95 to 1.05).", "--normalize")
    ] = False
    class_names: Annotated[str | None, _option("A text file with one class name a line, in order.", metavar="FILE")] = (
        None
    )
    on: Annotated[
        str | None, _option("The column that names each row in both files, FILE and --labels.", metavar="KEY")
    ] = None
    missing: Annotated[str | None, _option("drop: leave out rows that have no label in --labels.", metavar="drop")] = (
        None
    )
    positive: Annotated[
        str | None, _option("The label that one score a row is the probability of: yes.", metavar="VALUE")
    ] = None
    class_dim: ClassDim = 1
    ignore_index: IgnoreIndex = None

    @property
    def layout(self) -> Layout:
        """What the options say of a file's names."""
        from calibrant.data.formats import Layout

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
        """These options as they would be typed, files by their last names."""
        given = []
        for name in (
            "labels",
            "columns",
            "label",
            "kind",
            "class_names",
            "on",
            "missing",
            "positive",
            "class_dim",
            "ignore_index",
        ):
            value = self._kind if name == "kind" else getattr(self, name)
            if value != getattr(type(self), name):
                shown_value = Path(str(value)).name if name in ("labels", "class_names") else str(value)
                given += [f"--{name.replace('_', '-')}", shlex.quote(shown_value)]
        return " ".join([*given, *(["--normalize"] if self.normalize else [])])

    def sources(
        self, files: Sequence[str] | str | None, example: str | None = None, *, examples: bool = False
    ) -> list[Source]:
        """Return what is to be read: the files, ``--logits`` or ``--example``.

        Args:
            files: The files that are named.
            example: The example that is named.
            examples: Whether the command has ``--example``, so that the remedy may name it.

        Raises:
            InputError: If nothing is named, or ``--logits`` stands beside files.
        """
        named = [files] if isinstance(files, str) else list(files or [])
        if self.logits is not None:
            if named or example:
                raise InputError(
                    "--logits or a FILE", f"both: {shown(named[0] if named else str(example))}", "leave one out"
                )
            named = [self.logits]
        need_there([*named, *self.beside])
        found = [
            Source(name, shown(name), " ".join(filter(None, [shlex.quote(Path(shown(name)).name), self.words])))
            for name in named
        ]
        if example is not None:
            for name in LAYOUT[:-1]:
                if not named and getattr(self, name) != getattr(type(self), name):
                    option = f"--{name.replace('_', '-')}"
                    raise InputError(
                        f"no {option} beside an example, whose names say what it holds", "it", "leave it out"
                    )
            from calibrant.data.examples import example_path

            found.append(Source(str(example_path(example)), f"{example}.npz", f"--example {example}"))
        if not found:
            advice = ", or try --example cifar10" if examples else ""
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
        from calibrant.data.formats import read_named

        found = read_named(source.path, self.layout)
        if self.class_names and not found.matched and not names_used:
            raise InputError("labels that are text beside --class-names", f"numbers in {source.shown}", "leave it out")
        for note in found.notes:
            typer.echo(f"note: {source.shown}: {note}", err=True)
        return found

    def splits(self, source: Source, *, names_used: bool = False) -> dict[str, Predictions | BinaryPairs]:
        """Return the splits of a file."""
        return self.splits_of(self.named(source, names_used=names_used), source)

    def splits_of(self, named: Named, source: Source) -> dict[str, Predictions | BinaryPairs]:
        """Return the splits among arrays that were read."""
        from calibrant.data.splits import splits_of

        found = splits_of(named.arrays, source.shown, class_dim=self.class_dim, ignore_index=self.ignore_index)
        LABEL.set(named.unnamed_label)
        return found

    def pick(self, source: Source, split: str) -> Predictions | BinaryPairs:
        """Return one split of a file, or its one unnamed split."""
        from calibrant.data.splits import pick_split

        return pick_split(self.splits(source), split, source.shown)

    def several(self, source: Source) -> dict[str, MultiLabelPredictions]:
        """Return the splits of a file of several labels a row."""
        from calibrant.data.splits import load_multilabel

        said: Any = {"columns": self.columns, "label": self.label, "kind": self.kind}
        return load_multilabel(source.path, **said)


@dataclass(frozen=True)
class Files:
    """The files that a command reads, or an example."""

    files: Annotated[list[str] | None, typer.Argument(metavar="FILE...", help=FILES)] = None
    example: Example = None

    def __post_init__(self) -> None:
        need_there(self.files or [])

    def sources(self, inputs: Inputs) -> list[Source]:
        """Return what is to be read.

        Raises:
            InputError: As ``Inputs.sources``.
        """
        return inputs.sources(self.files, self.example, examples=True)


@dataclass(frozen=True)
class OneFile:
    """The one file that a command reads, or an example."""

    file: Annotated[str | None, typer.Argument(help=FILES)] = None
    example: Example = None

    def __post_init__(self) -> None:
        need_there([] if self.file is None else [self.file])

    def source(self, inputs: Inputs, *, purpose: str) -> Source:
        """Return what is to be read.

        Args:
            inputs: The options on what it holds.
            purpose: What it is read for, after "one file to".

        Raises:
            InputError: If a file and an example are named, or as ``Inputs.sources``.
        """
        found = inputs.sources(self.file, self.example, examples=True)
        if len(found) > 1:
            raise InputError(f"one file to {purpose}", f"{found[0].shown} and --example", "leave one out")
        return found[0]


@dataclass(frozen=True)
class Fitting:
    """Which calibrator a report is on: a saved one, or one fitted on a split of the file; and the split it is evaluated on."""

    method: Annotated[
        str | None,
        typer.Option(
            "--method", "-m", autocompletion=complete_method, help="auto, a calibrator, or none; auto if left out."
        ),
    ] = None
    calibrator: Annotated[str | None, typer.Option("--calibrator", "-c", help="A saved one instead.")] = None
    split: Annotated[str, typer.Option(help="The split to evaluate.")] = "test"
    fit_split: Annotated[str, typer.Option(help="The split to fit on.")] = "val"


@dataclass(frozen=True)
class Before:
    """Labelled predictions from before, which an estimate rests on and a monitor starts from."""

    reference: Annotated[
        str | None, typer.Option(metavar="FILE", help="Labelled predictions from before: what the answer rests on.")
    ] = None
    reference_split: Annotated[str, typer.Option(help="The split of the reference.")] = "val"


@dataclass(frozen=True)
class Page:
    """What a report is written as."""

    output: Annotated[str, typer.Option("--output", "-o", help="Where to write it; - writes stdout.")] = "report.html"
    format: Annotated[str | None, typer.Option(help="html, md or json; by the output's name if left out.")] = None
    title: Annotated[str, typer.Option(help="Its heading.")] = "Calibration report"
    margin: Annotated[
        float, typer.Option(min=0.0001, max=0.9999, help="ECE above which a miscalibration is large; 0.02 is 2 points.")
    ] = 0.02  # calibrant.report.MARGIN


def at_path(source: Source, path: str) -> Source:
    """Return ``source`` read from another place: what stood on stdin, in a temporary file."""
    return replace(source, path=path)


def column_of(
    named: Named, column: str, *, split: str, data: Predictions | BinaryPairs, inputs: Inputs, file: str
) -> Array:
    """Return the values (N,) of ``column`` beside the rows that are measured: a feature of theirs, or an array of the file.

    Raises:
        InputError: If the column is missing, or does not lie beside the rows.
    """
    import numpy as np

    from calibrant.data.formats import read_columns

    features = data.features
    if features is not None and column in features:
        return np.asarray(features[column])
    values = np.asarray(read_columns(named, [column], split=split, file=file)[column])
    names = [prefix + name for prefix in (f"{split}_", "") for name in ("labels", "label")]
    labels = next((named.arrays[name] for name in names if name in named.arrays), None)
    if inputs.ignore_index is not None and labels is not None and labels.shape == values.shape:
        values = values[labels != inputs.ignore_index]
    if values.shape != (len(data),):
        raise InputError(
            f"one value of {column!r} a row ({len(data):,})", f"shape {values.shape}", "name a column of the rows"
        )
    return values


def column_names(by: Sequence[str] | None) -> list[str] | None:
    """Return the names that ``--by`` gives, with commas or repeated; None where it is left out.

    Raises:
        InputError: If a name is empty or repeated.
    """
    if by is None:
        return None
    names = [name.strip() for text in by for name in text.split(",")]
    if "" in names:
        raise InputError("names of columns for --by", f"{', '.join(by)!r}", "write --by age,region")
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise InputError("each column once for --by", f"{twice[0]!r} twice", "name it once")
    return names


def costs_in(file: str) -> Costs:
    """Return the costs in a CSV file, or on stdin.

    Raises:
        FileFormatError: As ``read_costs``.
    """
    from calibrant.operate.decide import read_costs

    with readable(file) as path:
        return read_costs(path, file=file)


def read_names(path: str) -> list[str]:
    """Return the lines of a text file.

    Raises:
        FileFormatError: If it cannot be read as text.
    """
    from calibrant._core.files import read_text

    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def typed(context: typer.Context, names: Sequence[str]) -> list[str]:
    """Return which of the parameters ``names`` were typed, in the spelling of the command line: ``--class-dim``."""
    flags = {parameter.name: max(parameter.opts, key=len) for parameter in context.command.params}
    found = []
    for name in names:
        source = context.get_parameter_source(name) if name in flags else None
        if source is not None and source.name == "COMMANDLINE":
            found.append(flags[name])
    return found


def refuse_typed(context: typer.Context, names: Sequence[str], *, where: str, remedy: str = "") -> None:
    """Refuse options that would have no effect.

    Args:
        context: Of the command.
        names: The parameters that have none.
        where: Why, after "for": "the folder x, which is streamed".
        remedy: What to do instead; empty to leave them out.

    Raises:
        InputError: If one of them was typed.
    """
    if found := typed(context, names):
        raise InputError(
            "only options that have an effect", f"{' and '.join(found)} for {where}", remedy or _leave_out(found)
        )


def refuse_for_several(context: typer.Context, *names: str) -> None:
    """Refuse ``names``, and every option on what a file holds that has no effect on several labels a row."""
    reading = [one.name for one in fields(Inputs) if one.name not in ("columns", "label", "kind")]
    refuse_typed(context, [*reading, "example", *STREAMING, *names], where="--multilabel")


def _leave_out(options: Sequence[str]) -> str:
    return "leave it out" if len(options) == 1 else "leave them out"


# the options that have an effect, by the program that wrote the log and by what its answers are read as
OF_FORMAT = {
    "openai": ("skip_failed",),
    "vllm": ("skip_failed",),
    "lm-eval": ("filter_name", "model"),
    "inspect": ("scorer", "least"),
    "uqlm": ("scorer",),
    "lm-polygraph": ("scorer",),
}
OF_KIND = {
    "choices": ("options", "normalize", "missing"),
    "sequences": ("score",),
    "yes-no": ("missing",),
    "rating": ("low", "high", "missing"),
    "pairwise": ("options", "swapped", "missing"),
    "verbalized": ("scale",),
    "sampled": (),
    "scored": (),
}
Format = Literal["openai", "vllm", "lm-eval", "inspect", "uqlm", "lm-polygraph"]
Kind = Literal["choices", "sequences", "yes-no", "rating", "pairwise", "verbalized", "sampled", "scored"]


@dataclass(frozen=True)
class Program:
    """The program that wrote the log, and which of what it holds is read."""

    source: Annotated[Format | None, typer.Option("--from", help="The program that wrote the log.")] = None
    skip_failed: Annotated[bool, typer.Option("--skip-failed", help="Leave out failed requests of a batch.")] = False
    filter_name: Annotated[
        str | None, typer.Option("--filter", help="The harness's filter whose answers are read.")
    ] = None
    model: Annotated[str | None, typer.Option(help="The model's name, which the harness's log does not hold.")] = None
    scorer: Annotated[
        str | None, typer.Option(help="Inspect's scorer that says what is right, or whose score is taken.")
    ] = None
    least: Annotated[float | None, typer.Option(help="Inspect's score from which on an answer is right.")] = None

    def read(self, path: str | os.PathLike[str]) -> Log:
        """Return the log in a file of this format."""
        from calibrant import language

        if self.source == "lm-eval":
            return language.read_lm_eval(path, filter=self.filter_name, model=self.model or "unknown")
        if self.source == "inspect":
            return language.read_inspect(path, scorer=self.scorer, least=self.least)
        if self.source == "uqlm":
            return language.read_uqlm(path)
        if self.source == "lm-polygraph":
            return language.read_lm_polygraph(path)
        return language.read_openai(path, skip_failed=self.skip_failed)


@dataclass(frozen=True)
class Answers:
    """What the answers are, and how they become predictions."""

    kind: Annotated[Kind, typer.Option("--as", help="What its answers are.")] = "choices"
    options: Annotated[
        str | None, typer.Option(metavar="NAMES", help="A,B,C or 'positive=positive|pos,negative=negative|neg'.")
    ] = None
    normalize: Annotated[
        Literal["none", "characters", "bytes"], typer.Option(help="Divide scored options by their length.")
    ] = "none"
    missing: Annotated[
        Literal["refuse", "bound", "drop"], typer.Option(help="For options not among the top tokens.")
    ] = "refuse"
    score: Annotated[Literal["mean", "sum"], typer.Option(help="Of a sequence's log-probabilities.")] = "mean"
    low: Annotated[int, typer.Option(help="A rating's lowest level.")] = 1
    high: Annotated[int, typer.Option(help="A rating's highest level.")] = 5
    swapped: Annotated[str | None, typer.Option(metavar="LOG", help="The judge's answers in the other order.")] = None
    scale: Annotated[int | None, typer.Option(help="What stated whole numbers are out of, such as 100.")] = None


def refuse_without_effect(context: typer.Context, source: str | None, kind: str) -> None:
    """Refuse options that another format or another kind of answer has, and a log of no format.

    Raises:
        InputError: If there are such.
    """
    if source is None:
        raise InputError("the program that wrote the log", "none", f"add --from {', '.join(OF_FORMAT)}: one of them")
    for chosen, owners, what in ((source, OF_FORMAT, "--from"), (kind, OF_KIND, "--as")):
        others = {name for names in owners.values() for name in names} - set(owners[chosen])
        refuse_typed(context, sorted(others), where=f"{what} {chosen}")


def maker_of(program: Program, answers: Answers, labels: Any) -> Callable[[Log], Predictions]:
    """Return what makes predictions of a log."""
    from calibrant import language

    kind = answers.kind
    settings = asdict(answers) | {
        "options": None if answers.options is None else _spellings(answers.options),
        "swapped": None if answers.swapped is None else program.read(answers.swapped),
    }
    own = {name: settings[name] for name in OF_KIND[kind]} | ({"scorer": program.scorer} if kind == "scored" else {})
    if kind == "pairwise":
        own = {name: value for name, value in own.items() if value is not None}
        other = own.pop("swapped", None)
        return lambda log: language.pairwise(
            log, None if other is None else _same_ids(other, log), labels=labels, **own
        )
    make: Callable[..., Predictions] = getattr(language, kind.replace("-", "_"))
    return lambda log: make(log, labels=labels, **own)


def _same_ids(other: Log, log: Log) -> Log:
    """Return the answers of ``other`` that ``log`` has too, so that a split has both orders of its questions."""
    wanted = set(log.ids)
    return other[[row for row, name in enumerate(other.ids) if name in wanted]] if len(log) < len(other) else other


def _spellings(text: str) -> dict[str, list[str]]:
    """Return option → spellings of "A,B" or "positive=positive|pos,negative=neg"."""
    made: dict[str, list[str]] = {}
    for part in text.split(","):
        name, _, spelled = part.partition("=")
        if not name.strip() or name.strip() in made:
            raise InputError("distinct names with commas between them for --options", f"{text!r}", "write A,B,C,D")
        made[name.strip()] = spelled.split("|") if spelled else [name]
    return made
