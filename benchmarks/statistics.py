"""How often the intervals cover and the tests reject: simulations behind docs/uncertainty.md.

    python -m benchmarks.statistics [--simulations 5000]

Prints Markdown tables; every rate with its Monte-Carlo standard error. About five CPU minutes. Confidences come from
softmax outputs of random logits, and their truth from a tempered copy, populations on which no constant was chosen.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from calibrant import BinaryPairs, Predictions
from calibrant.binning import BinTable, EqualWidth
from calibrant.metrics import ECE, NLL, Accuracy, Brier
from calibrant.metrics.debiased import squared_errors
from calibrant.statistics import (
    BinnedEstimate,
    corrected_error,
    interval,
    interval_ends,
    null_band,
    paired_bootstrap,
)

BINS = 15
ATOMS = 1000
SEED = 20261120


@dataclass(frozen=True)
class Population:
    """Equally likely confidences ``p`` (ATOMS,) with their true probability ``truth`` of being right."""

    name: str
    p: torch.Tensor
    truth: torch.Tensor

    @property
    def signed(self) -> torch.Tensor:
        index = EqualWidth(BINS).assign(self.p)
        return torch.zeros(BINS, dtype=torch.float64).index_add_(0, index, (self.p - self.truth) / ATOMS)

    @property
    def error(self) -> float:
        return float(self.signed.abs().sum())


def populations() -> Iterator[Population]:
    """Yield hard and easy problems, from strongly over- to under-confident."""
    generator = torch.Generator().manual_seed(SEED)
    for name, scale in (("hard", 1.0), ("easy", 4.0)):
        true = torch.randn(ATOMS, 10, generator=generator, dtype=torch.float64) * scale
        for temperature in (0.6, 0.8, 0.9, 0.95, 1.0, 1.05, 1.15, 1.4):
            seen = (true / temperature).softmax(dim=1)
            p, chosen = seen.max(dim=1)
            truth = true.softmax(dim=1).gather(1, chosen[:, None])[:, 0]
            yield Population(f"{name}, T = {temperature:g}", p, truth)


def tables(population: Population, *, rows: int, simulations: int, rng: np.random.Generator) -> BinTable:
    """Return ``simulations`` bin tables of samples of ``rows``, from sufficient statistics by atom."""
    counts = rng.multinomial(rows, np.full(ATOMS, 1 / ATOMS), size=simulations)
    wins = rng.binomial(counts, population.truth.numpy())
    hot = torch.nn.functional.one_hot(EqualWidth(BINS).assign(population.p), BINS).double()
    n, y = torch.from_numpy(counts).double(), torch.from_numpy(wins).double()
    return BinTable((n @ hot).round().long(), (n * population.p) @ hot, y @ hot, rows)


def null_gates(table: BinTable, *, draws: int = 1000) -> torch.Tensor:
    """Return the 97.5 % quantile of the null for every table, by normal outcomes with the binomial variance of each bin."""
    mean = table.sum_p / table.count.clamp_min(1)
    spread = (table.weight * mean * (1 - mean) / table.total).sqrt()
    normal = torch.randn(draws, BINS, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED)).abs()
    return torch.cat([torch.quantile(part @ normal.T, 0.975, dim=1) for part in spread.split(500)])


def binned_coverage(simulations: int) -> None:
    print("\n### 95 % interval of ECE-15, and bias\n")
    print(
        "| population | N | true ECE, % | null level, % | coverage, % | mean plug-in, % | mean corrected, % | mean length, pp |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rng = np.random.default_rng(SEED)
    for population in populations():
        for rows in (1000, 10_000):
            table = tables(population, rows=rows, simulations=simulations, rng=rng)
            found, gates = corrected_error(table), null_gates(table)
            low, high = interval_ends(found, gates)
            covered = ((low <= population.error + 1e-12) & (population.error <= high)).double()
            print(
                f"| {population.name} | {rows:,} | {100 * population.error:.2f} | {100 * float(gates.mean()):.2f} | "
                f"{rate(covered)} | {_means(found, population)} | {100 * float((high - low).mean()):.2f} |"
            )


def _means(found: BinnedEstimate, population: Population) -> str:
    return f"{100 * float(found.plug_in.mean()):.2f} | {100 * float(found.centre.mean()):.2f}"


def debiased_bias(simulations: int) -> None:
    print("\n### Debiased squared error and its root\n")
    print("| population | N | true ECE, % | bias of the square | bias of the root, pp |")
    print("| --- | --- | --- | --- | --- |")
    rng = np.random.default_rng(SEED + 1)
    for population in populations():
        if population.error > 0.035:
            continue
        index = EqualWidth(BINS).assign(population.p)
        weight = torch.bincount(index, minlength=BINS).double() / ATOMS
        truth = float((population.signed.square() / weight.clamp_min(1e-300)).sum())
        for rows in (1000, 10_000):
            square = squared_errors(tables(population, rows=rows, simulations=simulations, rng=rng))
            error = float(square.std()) / math.sqrt(simulations)
            root = float(square.clamp_min(0).sqrt().mean()) - math.sqrt(truth)
            bias = f"{float(square.mean()) - truth:+.1e} ± {error:.0e}"
            print(f"| {population.name} | {rows:,} | {100 * population.error:.2f} | {bias} | {100 * root:+.2f} |")


def mean_coverage(simulations: int, *, rows: int = 1000) -> None:
    print(f"\n### 95 % intervals of means, N = {rows:,}\n")
    print("| model | accuracy | NLL | Brier | mean confidence − accuracy |")
    print("| --- | --- | --- | --- | --- |")
    for name, temperature in (("calibrated", 1.0), ("over-confident, T = 0.6", 0.6)):
        generator = torch.Generator().manual_seed(SEED)
        true = torch.randn(200_000, 10, generator=generator, dtype=torch.float64) * 2
        labels = torch.multinomial(true.softmax(dim=1), 1, generator=generator)[:, 0]
        everyone = Predictions.from_logits(true / temperature, labels)
        columns = torch.stack(
            [NLL().rows(everyone), Brier().rows(everyone), everyone.confidence - everyone.correct.double()], dim=1
        )
        truth, accuracy = columns.mean(dim=0), float(everyone.correct.double().mean())
        hits = torch.zeros(simulations, 4)
        for at in range(simulations):
            chosen = torch.randint(len(everyone), (rows,), generator=generator)
            pairs = BinaryPairs(everyone.confidence[chosen], everyone.correct[chosen].double())
            share = interval(Accuracy(), pairs)
            hits[at, 0] = share.low <= accuracy <= share.high
            for column, test in enumerate(paired_bootstrap(columns[chosen], seed=at)):
                hits[at, 1 + column] = test.low <= float(truth[column]) <= test.high
        print(f"| {name} | {' | '.join(rate(hits[:, at].double()) for at in range(4))} |")


def null_coverage(simulations: int) -> None:
    print("\n### Calibrated models within the null band (ECE-15, 1,000 draws)\n")
    print("| confidences | N | within |")
    print("| --- | --- | --- |")
    rng = np.random.default_rng(SEED + 2)
    for population in populations():
        if "T = 1.4" not in population.name and "T = 0.6" not in population.name:
            continue
        for rows in (1000, 10_000):
            p = population.p[torch.from_numpy(rng.integers(ATOMS, size=rows))]
            pairs = BinaryPairs(p, torch.zeros_like(p))
            bands = [null_band(ECE(), pairs, seed=seed) for seed in range(10)]
            index = EqualWidth(BINS).assign(p)
            outcomes = torch.zeros(simulations, BINS, dtype=torch.float64)
            for at in range(simulations):  # row by row: nothing of the code under test
                outcomes[at].index_add_(0, index, torch.from_numpy(rng.random(rows) < p.numpy()).double())
            sums = torch.zeros(BINS, dtype=torch.float64).index_add_(0, index, p)
            error = (sums - outcomes).abs().sum(dim=1) / rows
            within = torch.stack([((b.low <= error) & (error <= b.high)).double() for b in bands]).mean(dim=0)
            print(
                f"| {population.name.split(',')[0]}, {population.name.split(',')[1].strip()} | {rows:,} | {rate(within)} |"
            )


Pair = Callable[[torch.Generator, int], tuple[Predictions, Predictions]]


def two_models(temperature: float, *, alike: bool) -> Pair:
    """Return a maker of two models of a label that depends on two features.

    ``alike``: each sees one feature, so they are exchangeable and equally good, at ``temperature``. Else A sees both and
    B one, both calibrated: their true ECE is 0, though A is better.
    """
    generator = torch.Generator().manual_seed(SEED)
    feature = torch.randn(60, 3, generator=generator, dtype=torch.float64) * 2
    joint = (feature[:, None] + feature[None]).softmax(dim=-1)
    one = joint.mean(dim=1).log() / temperature

    def make(source: torch.Generator, rows: int) -> tuple[Predictions, Predictions]:
        u, v = torch.randint(60, (2, rows), generator=source)
        labels = torch.multinomial(joint[u, v], 1, generator=source)[:, 0]
        first = one[u] if alike else joint[u, v].log()
        return Predictions(first, labels), Predictions(one[v], labels)

    return make


def paired_rejections(simulations: int, *, rows: int = 1000) -> None:
    print(f"\n### Paired tests that reject at 5 % where there is no difference, N = {rows:,}\n")
    print("| models | NLL | Brier | ECE |")
    print("| --- | --- | --- | --- |")
    cases = {
        "exchangeable, calibrated": two_models(1.0, alike=True),
        "exchangeable, T = 0.8": two_models(0.8, alike=True),
        "exchangeable, T = 0.6": two_models(0.6, alike=True),
        "both calibrated, A better": two_models(1.0, alike=False),
    }
    for name, make in cases.items():
        source = torch.Generator().manual_seed(SEED)
        hits = torch.zeros(simulations, 3, dtype=torch.float64)
        for at in range(simulations):
            a, b = make(source, rows)
            found = [(metric.influence(a), metric.influence(b)) for metric in (NLL(), Brier(), ECE())]
            columns = torch.stack([rows_b - rows_a for (_, rows_a), (_, rows_b) in found], dim=1)
            estimates = [value_b - value_a for (value_a, _), (value_b, _) in found]
            tests = paired_bootstrap(columns, estimates=estimates, draws=300, seed=at)
            hits[at] = torch.tensor([float(test.p_value < 0.05) for test in tests])
        shown = ["–" if "better" in name and column < 2 else rate(hits[:, column]) for column in range(3)]
        print(f"| {name} | {' | '.join(shown)} |")


def rate(hits: torch.Tensor) -> str:
    """Return a rate in per cent with its Monte-Carlo standard error."""
    share = float(hits.mean())
    return f"{100 * share:.1f} ± {100 * math.sqrt(share * (1 - share) / hits.shape[0]):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--simulations", type=int, default=5000)
    parser.add_argument("--only", choices=["binned", "debiased", "means", "null", "paired"])
    chosen = parser.parse_args()
    parts = {
        "binned": binned_coverage, "debiased": debiased_bias, "means": mean_coverage,
        "null": null_coverage, "paired": paired_rejections,
    }  # fmt: skip
    for name, part in parts.items():
        if chosen.only in (None, name):
            start = time.process_time()
            part(chosen.simulations)
            print(f"\n({chosen.simulations:,} simulations a rate, {time.process_time() - start:.0f} CPU s)")


if __name__ == "__main__":
    main()
