"""Calibration in production: limits on metrics, sample sizes, monitoring, estimates without labels, and decision rules."""

from calibrant.operate.abstain import abstain
from calibrant.operate.audit import Sample, audit, plan_audit, sample
from calibrant.operate.check import check
from calibrant.operate.decide import net_benefit, thresholds
from calibrant.operate.deployed import Deployed
from calibrant.operate.estimate import estimate
from calibrant.operate.monitor import Monitor
from calibrant.operate.plan import plan

__all__ = [
    "Deployed",
    "Monitor",
    "Sample",
    "abstain",
    "audit",
    "check",
    "estimate",
    "net_benefit",
    "plan",
    "plan_audit",
    "sample",
    "thresholds",
]
