"""The compiled loops' goals: ECE, log-loss, Brier score, six metrics at once, temperature, histogram and isotonic.

    python -m benchmarks.race kernels --threads 1    # then with as many threads as the machine has cores

The same races as in ``metrics`` and ``fits``, at the sizes that the goals name: a few minutes on an idle machine.
"""

from dataclasses import replace

from benchmarks import fits, metrics
from benchmarks.race import Race

_METRICS = {("ece-width", 10), ("ece-width", 1000), ("nll", 10), ("brier", 10), ("six", 10)}
_FITS = ("histogram", "isotonic")


def _races() -> list[Race]:
    chosen = [race for race in metrics.RACES if (race.name, race.classes) in _METRICS]
    temperature = next(race for race in fits.RACES if race.name == "temperature")
    sizes = [replace(temperature, rows=1_000_000, classes=10), replace(temperature, rows=50_000, classes=100)]
    return [*chosen, *sizes, *(race for race in fits.RACES if race.name in _FITS)]


RACES = _races()
