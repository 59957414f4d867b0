"""Files that were added after the readers, without looking at these."""

from benchmarks.tables.cases import Corpus

HELD_OUT = Corpus()
