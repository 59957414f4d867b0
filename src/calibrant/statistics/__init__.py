"""Uncertainty of metrics: intervals, null distributions under calibration, and paired tests of two models.

Functions here take a metric as an object with the methods they need (``HasRows``, ``HasInterval``, ``HasNull``) and import no
metric.
"""

from calibrant.statistics.binned import (
    BinnedEstimate,
    chance_decides,
    consistency_bars,
    corrected_error,
    error_interval,
    interval_ends,
    table_error,
)
from calibrant.statistics.clusters import centred_sums, cluster_error, cluster_sums, clustered_gaps, sampled_errors
from calibrant.statistics.hall import skewed_ends
from calibrant.statistics.interval import (
    HasInterval,
    HasRows,
    Interval,
    bootstrap,
    interval,
    normal_quantile,
    share_interval,
    wilson,
)
from calibrant.statistics.means import (
    mean_error,
    mean_interval,
    mean_of,
    need_errors,
    need_groups,
    need_independent,
    paired_test,
)
from calibrant.statistics.null import HasNull, null_band, null_draws, null_outcomes, redraw
from calibrant.statistics.paired import PairedTest, holm, paired_bootstrap, two_sample_test
from calibrant.statistics.paired_squares import paired_square_test
from calibrant.statistics.squares import BinnedRows, left_over, squared_error, squared_gaps

__all__ = [
    "BinnedEstimate",
    "BinnedRows",
    "HasInterval",
    "HasNull",
    "HasRows",
    "Interval",
    "PairedTest",
    "bootstrap",
    "centred_sums",
    "chance_decides",
    "cluster_error",
    "cluster_sums",
    "clustered_gaps",
    "consistency_bars",
    "corrected_error",
    "error_interval",
    "holm",
    "interval",
    "interval_ends",
    "left_over",
    "mean_error",
    "mean_interval",
    "mean_of",
    "need_errors",
    "need_groups",
    "need_independent",
    "normal_quantile",
    "null_band",
    "null_draws",
    "null_outcomes",
    "paired_bootstrap",
    "paired_square_test",
    "paired_test",
    "redraw",
    "sampled_errors",
    "share_interval",
    "skewed_ends",
    "squared_error",
    "squared_gaps",
    "table_error",
    "two_sample_test",
    "wilson",
]
