"""Draw rows to be labelled, in one batch or several, and keep what an audit has to know of the draw."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import as_tensor, check_count, check_kind, check_text, refuse, shown
from calibrant._core.config import json_data
from calibrant._core.constraints import Count, PublicCalls, Seed, Text, checked
from calibrant._core.files import hash_arrays, read_text
from calibrant._core.paths import shown as place_shown
from calibrant._core.paths import write_whole
from calibrant.data.predictions import BinaryPairs, Predictions
from calibrant.errors import FileFormatError, InputError, Remedy
from calibrant.operate.audit.design import draw, inclusion_probabilities, order_of, scores_of
from calibrant.operate.audit.figures import AIMS, InShards, Pool, figure_of
from calibrant.operate.rows import WINDOW
from calibrant.statistics.labelled import Drawn, Floats, Integers

UNLABELLED = -1
LEARN = 30  # labels from which on the next batch is designed, and figures are expected, at a temperature fitted to them
_FORMAT = "calibrant sample 1"
_LEAST = 1e-12  # inclusion probability: the floor draws every one of 10¹⁰ rows with more, and 1 / p² must not overflow


@dataclass(frozen=True, eq=False)
class Sample(metaclass=PublicCalls):
    """Rows of a pool that were drawn to be labelled.

    Args:
        rows: (n,) int64 numbers of the rows in the pool, from 0, batch after batch.
        inclusion: (n,) the probability with which each was drawn in its batch, given the batches before.
        batch: (n,) int64 number of its batch, from 0.
        labels: (n,) int64 labels that are known, −1 elsewhere.
        aim: What the draw is for.
        seed: Of the draw.
        pool_rows: Rows of the pool.
        digest: Of the pool's scores; empty if it is not known.
        by: The feature whose groups "worst group" compares, or None.
        costs: costs[label][action] of the draw, or None.
        paired: Whether the scores of a second model were drawn from as well.
        pool: The pool in memory, for ``extend``; not saved.

    Examples:
        >>> import torch
        >>> from calibrant import Predictions
        >>> pool = Predictions.from_binary_probs(torch.linspace(0.01, 0.99, 500))
        >>> drawn = sample(pool, 40, seed=1)
        >>> len(drawn.rows), bool((drawn.inclusion <= 1).all())
        (40, True)
    """

    rows: Integers
    inclusion: Floats
    batch: Integers
    labels: Integers
    aim: str
    seed: int
    pool_rows: int
    digest: str = ""
    by: str | None = None
    costs: list[list[float]] | None = None
    paired: bool = False
    pool: Pool | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        known = int((self.labels >= 0).sum())
        return f"Sample({len(self.rows)} of {self.pool_rows:,} rows for {self.aim}, {known} labelled)"

    @property
    def batches(self) -> int:
        """Number of batches drawn."""
        return int(self.batch.max()) + 1 if len(self.batch) else 0

    def labelled(self, labels: Any) -> "Sample":
        """Return the sample with labels.

        Args:
            labels: (n,) in the order of ``rows``, −1 for those not labelled or withdrawn; or a mapping row → label, which
                adds to those known.

        Raises:
            InputError: If a label is of a row that was not drawn, or their number is another.
        """
        known, given = self.labels.copy(), labels
        at: slice | Integers = slice(None)
        if isinstance(labels, Mapping):
            place = {row: at for at, row in enumerate(self.rows.tolist())}
            if lost := [row for row in labels if row not in place]:
                remedy = Remedy("label the rows of the sample only, for others have no inclusion probability",
                                command="label rows of the tables only, and keep the .sample.json of each beside it")  # fmt: skip
                raise InputError("labels of rows that were drawn", f"one of row {shown(lost[0])}", remedy)
            at, given = np.array([place[row] for row in labels], np.int64), list(labels.values())
        found = as_tensor(given, name="class indices").detach().cpu().double()
        if found.shape != known[at].shape:
            expected = f"labels ({len(self.rows)},), one for each row of the sample"
            raise refuse(expected, shown(tuple(found.shape)), "pass -1 for rows without a label, or a dict row → label")
        classes = None if self.pool is None else self.pool.classes
        wrong = found[
            ~(found.round() == found) | (found < UNLABELLED) | (found >= (1 << 53 if classes is None else classes))
        ]
        if len(wrong):
            among = "as whole numbers" if classes is None else f"from 0 to {classes - 1}"
            raise refuse(f"labels {among}, or -1 for none", f"{wrong[0]:g}", "number the classes from 0")
        known[at] = found.long().numpy()
        return replace(self, labels=known)

    def extend(self, count: int, *, labels: Any = None, pool: Any = None) -> "Sample":
        """Return the sample with a further batch, drawn from the rows that were not drawn before.

        From 30 labels on the draw learns from them: the temperature that fits them replaces the probabilities' own.

        Args:
            count: Rows to draw, at most those left.
            labels: As in ``labelled``; None takes those known.
            pool: As in ``sample``, for a sample that was loaded.

        Raises:
            InputError: If there is no pool, it is another one, or too few rows are left.
        """
        known = self.within(self.pool if pool is None else self.pool_with(pool), labels)
        left = np.ones(self.pool_rows, bool)
        left[self.rows] = False
        check_count(count, name="count", high=int(left.sum()))
        seen = known.labels >= 0
        learned = None
        if seen.sum() >= LEARN:
            learned = known.source.fitted_temperature(self.rows[seen], known.labels[seen])
        rows, inclusion = _drawn(known.source, left, count, known, learned)
        return replace(
            known,
            rows=np.concatenate([self.rows, rows]),
            inclusion=np.concatenate([self.inclusion, inclusion]),
            batch=np.concatenate([self.batch, np.full(len(rows), self.batches)]),
            labels=np.concatenate([known.labels, np.full(len(rows), UNLABELLED)]),
        )

    @property
    def source(self) -> Pool:
        """The pool.

        Raises:
            InputError: If the sample was loaded without it.
        """
        if self.pool is None:
            raise InputError("the pool of a sample that was loaded", "none", "pass pool=")
        return self.pool

    def within(self, pool: Pool | None, labels: Any = None) -> "Sample":
        """Return the sample with the pool that it was drawn from, and with labels; None takes those known.

        Raises:
            InputError: If there is no pool, it has other rows or scores, a label is not of its classes, or what is known of the
                draw does not belong together.
        """
        known = replace(self, pool=pool)
        pool = known.source
        if len(self.rows):  # none yet where the first batch is drawn
            self.check()
        if len(pool) != self.pool_rows:
            raise InputError(
                f"the pool of {self.pool_rows:,} rows that the sample was drawn from", f"{len(pool):,}", "pass that one"
            )
        # a draw for one model tells of its difference to any other
        pools = list(pool.compared.values()) if self.paired else [replace(pool, other=None)]
        if self.paired and pools[0].other is None:
            raise InputError(
                "the scores of both models that the sample was drawn from",
                "those of one",
                Remedy(
                    "load it with Sample.load(path, pool=, other=)", command="add --other with the second model's file"
                ),
            )
        if self.digest and self.digest not in (one.digest() for one in pools):
            raise InputError(
                "the scores that the sample was drawn from",
                "others (their digests differ)",
                "pass the pool as it was then, for inclusion probabilities come from its scores",
            )
        return known.labelled(self.labels if labels is None else labels)

    def merge(self, other: "Sample") -> "Sample":
        """Return the sample with the labels of both, as two people gave them to parts of the same rows.

        Raises:
            InputError: If the rows differ, or a row has different labels.
        """
        check_kind(other, Sample, name="other", remedy="load it with Sample.load")
        same = np.array_equal(self.rows, other.rows) and (self.digest, self.seed) == (other.digest, other.seed)
        if not same:
            raise InputError("two samples of the same draw", "different rows", "merge labels of one draw only")
        both = (self.labels >= 0) & (other.labels >= 0)
        if (unequal := np.flatnonzero(both & (self.labels != other.labels))).size:
            at = int(unequal[0])
            raise contradiction(self.rows[at], self.labels[at], other.labels[at])
        return replace(self, labels=np.where(self.labels >= 0, self.labels, other.labels))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sample and its labels as one JSON file, whole or not at all; the pool is not in it."""
        known = {name: value for name, value in vars(self).items() if name != "pool"}
        content = {"format": _FORMAT, **json_data(known)}
        write_whole(path, json.dumps({**content, "seal": _seal_of(content)}))

    def pool_with(self, pool: Any, *, costs: Any = None) -> Pool:
        """Return ``pool`` with what the sample knows of the draw: the costs, and in memory the second model.

        Args:
            pool: As in ``sample``.
            costs: As in ``sample``; None takes those of the draw.

        Raises:
            InputError: If they are no predictions of the same rows.
        """
        other = None if self.pool is None else self.pool.others or self.pool.other
        return need_pool(pool, other=other, costs=self.costs if costs is None else costs)

    @property
    def weights(self) -> Floats:
        """(n labelled,) how many rows of the pool each labelled row stands for."""
        return self.drawn().weights

    def drawn(self, members: NDArray[np.bool_] | None = None, *, pool: int | None = None) -> Drawn:
        """Return how the labelled rows were drawn, for estimates; batches without any are left out.

        Args:
            members: (n labelled,) which of them; None takes all.
            pool: Rows of the pool that they stand for; None takes all.
        """
        seen = self.labels >= 0
        answered = np.bincount(self.batch[seen], minlength=self.batches) / np.bincount(self.batch)
        chosen = np.ones(int(seen.sum()), bool) if members is None else members
        batches = self.batch[seen][chosen]
        _, dense = np.unique(batches, return_inverse=True)
        return Drawn(dense, self.inclusion[seen][chosen], self.pool_rows if pool is None else pool, answered[batches])

    def predictions(self, pool: Any = None) -> Predictions | BinaryPairs:
        """Return the labelled rows with their labels, weighted by how many rows of the pool each stands for.

        Calibrators, metrics, ``compare`` and the report take the weights whole.

        Args:
            pool: As in ``sample``; None takes the one in memory.

        Raises:
            InputError: If there is no pool, it is another one, or no row is labelled.
        """
        source = self.within(self.pool if pool is None else self.pool_with(pool)).source
        seen = self.labels >= 0
        if not seen.any():
            raise refuse("labelled rows", "none", "pass labels with .labelled(labels)")
        rows, labels = source.select(self.rows[seen]).held, torch.from_numpy(self.labels[seen])
        weights = torch.from_numpy(self.weights)
        if isinstance(rows, BinaryPairs):
            hits = labels if rows.predicted is None else (rows.predicted.cpu() == labels).long()
            known = None if rows.predicted is None else labels
            return replace(rows, y=hits.double(), labels=known, weights=weights)
        return replace(rows, labels=labels, weights=weights)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, pool: Any = None, other: Any = None) -> "Sample":
        """Return a saved sample.

        Args:
            path: What ``save`` wrote.
            pool: As in ``sample``; None if it is passed later. A sample for two models needs it here.
            other: As in ``sample``; or name → predictions of several models, each of which an audit compares with.

        Raises:
            FileFormatError: If it is none.
            InputError: If the scores are not those that it was drawn from.
        """
        if pool is None and other is not None:
            raise refuse("pool beside other, as in sample", "other alone", "pass both", argument="other")
        text = read_text(path)
        try:
            content = json.loads(text)
            seal = content.pop("seal", None)  # files of before version 1.0 have none
            if content["format"] != _FORMAT or seal not in (None, _seal_of(content)):
                raise ValueError
            del content["format"]
            columns: dict[str, Any] = {
                name: np.asarray(content.pop(name)) for name in ("rows", "inclusion", "batch", "labels")
            }
            if any(one.dtype.kind not in ("iuf" if name == "inclusion" else "iu") for name, one in columns.items()):
                raise ValueError
            made = cls(**columns, digest=content.pop("digest"), **content)
            made.check()
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, InputError) as error:
            raise FileFormatError(
                "a saved sample", f"another file, or part of one: {place_shown(path)}",
                Remedy("write it with Sample.save", command="move it away, and audit takes the draw from the table itself")
            ) from error  # fmt: skip
        if pool is None:
            return made
        return made.within(need_pool(pool, other=other, costs=made.costs))

    def check(self) -> None:
        """Raise unless rows, probabilities, batches and labels belong together.

        Raises:
            InputError: If they do not.
        """
        count = len(self.rows)
        columns = (self.rows, self.inclusion, self.batch, self.labels)
        rules = {
            "columns of equal length": lambda: count > 0 and all(one.shape == (count,) for one in columns),
            f"inclusion probabilities from {_LEAST:g} to 1": lambda: bool(
                ((self.inclusion >= _LEAST) & (self.inclusion <= 1)).all()
            ),
            "each row of the pool at most once": lambda: (
                0 <= self.rows.min() <= self.rows.max() < self.pool_rows and len(np.unique(self.rows)) == count
            ),
            "batches from 0 on": lambda: sorted(set(self.batch.tolist())) == list(range(self.batches)),
            "paired as true or false": lambda: isinstance(self.paired, bool),
            "a digest as text": lambda: isinstance(self.digest, str),
            "a seed as a whole number from 0 on": lambda: type(self.seed) is int and self.seed >= 0,
            "costs as a list for each label": lambda: self.costs is None or np.ndim(self.costs) == 2,
        }
        for expected, holds in rules.items():
            if not holds():
                raise refuse(expected, "others", "keep the columns as they were written, or draw the sample again")
        figure_of(self.aim, argument="aim", choices=AIMS)


def _seal_of(content: dict[str, Any]) -> str:
    return hash_arrays(json.dumps(content, sort_keys=True), {})


@checked
def sample(
    pool: Any, budget: Count = 300, *, aim: str = "accuracy", seed: Seed = 0, by: Text | None = None, other: Any = None,
    costs: Any = None,
) -> Sample:  # fmt: skip
    """Choose the rows of ``pool`` whose labels say most about a figure of all of it.

    A row is drawn with a probability that grows with the standard deviation of its value under its own probabilities, which
    should be calibrated; every variance is taken as larger by a part of the mean, so that wrong confidences cost little.

    Args:
        pool: Predictions, pairs of top-label confidences, or ``scale.rows.ParquetRows``, which are streamed; labels are not read.
        budget: Rows to draw, at most those of the pool.
        aim: A figure of ``audit``, or "worst group", which draws as much from each group of ``by``.
        seed: Same seed, same rows.
        by: A feature of the pool, for "worst group".
        other: A second model's predictions of the same rows: the aim is the difference.
        costs: costs[label][action], for "cost"; None counts errors.

    Raises:
        InputError: If the pool has fewer rows than the budget, or an argument does not fit the aim.
    """
    aim = figure_of(aim, argument="aim", choices=AIMS)
    source = need_pool(pool, other=other, costs=costs)
    check_count(budget, name="budget", high=len(source))
    if source.others:
        raise refuse(
            "one second model to draw for", f"{len(source.others)}", "draw without, and compare all in the audit"
        )
    if (by is None) == (aim == "worst group"):
        raise refuse(
            "by with the aim 'worst group' and only there",
            shown(by),
            Remedy(
                "pass by= with aim='worst group', or neither", command="give --by with --aim 'worst group', or neither"
            ),
            argument="by",
        )
    none = np.empty(0, np.int64)
    kept = None if source.costs is None else source.costs.tolist()
    digest, paired = source.digest(), source.other is not None
    empty = Sample(none, np.empty(0), none, none, aim, seed, len(source), digest, by, kept, paired, source)
    return empty.extend(budget)


def need_pool(pool: Any, *, other: Any = None, costs: Any = None) -> Pool:
    """Return checked rows, and a second model's with them.

    Raises:
        InputError: If they are no predictions of the same rows.
    """
    if isinstance(pool, Pool):
        return pool
    if isinstance(pool, InShards):
        if other is not None or pool.weighted:
            what = "a second model" if other is not None else "weights"
            raise refuse("a streamed pool of one model, without weights", what, "read the rows into memory")
        return Pool(pool, None, None if costs is None else _costs(costs, pool.classes))
    WINDOW.check(pool, "pool", "a pool")
    several = dict(other) if isinstance(other, Mapping) else {}
    for one in several.values() if several else () if other is None else (other,):
        WINDOW.check(one, "other", "a pool")
        alike = type(one) is type(pool) and len(one) == len(pool)
        if not alike or isinstance(pool, BinaryPairs) or one.classes != pool.classes:
            raise refuse(
                "a second model's predictions of the same rows and classes", shown(one), "pass both over all classes"
            )
    table = None if costs is None else _costs(costs, pool.classes if isinstance(pool, Predictions) else None)
    return Pool(pool, None if several else other, table, several)


def contradiction(row: int, one: int, two: int) -> InputError:
    """Return the error of two labels of one row."""
    remedy = Remedy("decide which is right, or set both to -1", command="decide which is right, or leave both empty")
    return InputError("one label a row", f"{one} and {two} for row {row}", remedy)


def feature_groups(pool: Pool, by: str) -> tuple[list[str], Integers]:
    """Return the names of the groups of a feature, and the group of each row.

    Raises:
        InputError: If the pool has no such feature.
    """
    column = pool.feature(check_text(by, name="by"))
    if column is None:
        raise refuse(
            f"a feature of the pool ({', '.join(pool.feature_names) or 'it has none'})",
            shown(by),
            Remedy("pass features= to Predictions", command="name a column feature:NAME of the file"),
            argument="by",
        )
    names, code = np.unique(column, return_inverse=True)
    return [str(name) for name in names], np.asarray(code, np.int64)


def _drawn(
    pool: Pool, left: NDArray[np.bool_], count: int, known: Sample, learned: float | None
) -> tuple[Integers, Floats]:
    """Return a batch of rows among those ``left``, and their probabilities; ``learned`` is the temperature of the labels, if any."""
    figure = "accuracy" if known.aim in ("worst group", "classwise-ece") else pool.means(known.aim)[0]
    source = pool.ranked() if figure == "aurc" else pool
    outlook = source.outlook(figure, temperature=1.0 if learned is None else learned, design=True)
    code = None if known.by is None else feature_groups(pool, known.by)[1]
    score = scores_of(outlook, code, taught=learned is not None)
    if code is not None:
        outlook = replace(outlook, decided=code.astype(np.int32))  # groups are the strata, each of its number of labels
    order = order_of(outlook, count)
    del outlook
    free = None if left.all() else np.flatnonzero(left)
    if free is not None:
        order, score = order[free], score[free]
    inclusion = inclusion_probabilities(score, count)
    del score
    picked = draw(inclusion, order, np.random.default_rng([known.seed, known.batches]))
    return picked if free is None else free[picked], inclusion[picked]


def _costs(costs: Any, classes: int | None) -> torch.Tensor:
    table = as_tensor(costs, name="costs").double().cpu()
    if table.dim() != 2 or len(table) != classes or not table.isfinite().all():
        raise refuse(
            f"finite costs[label][action] with {classes or 2} rows",
            shown(tuple(table.shape)),
            "write one row for each class",
        )
    return table
