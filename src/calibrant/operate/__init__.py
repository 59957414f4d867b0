"""Calibration in production: limits on metrics, sample sizes, monitoring, estimates without labels, and decision rules."""

from calibrant.operate.abstain import Abstention, Accepted, abstain
from calibrant.operate.audit import Audit, AuditLine, Sample, audit, sample
from calibrant.operate.check import Check, Line, check
from calibrant.operate.decide import CostRule, NetBenefit, net_benefit, thresholds
from calibrant.operate.deployed import Deployed
from calibrant.operate.estimate import Estimate, Moved, estimate
from calibrant.operate.formats import annotations, to_junit, to_markdown
from calibrant.operate.monitor import Monitor
from calibrant.operate.pages import to_html, to_prometheus
from calibrant.operate.plan import Plan, PlanPoint, plan
from calibrant.operate.policy import Policy
from calibrant.operate.status import Status

__all__ = [
    "Abstention",
    "Accepted",
    "Audit",
    "AuditLine",
    "Check",
    "CostRule",
    "Deployed",
    "Estimate",
    "Line",
    "Monitor",
    "Moved",
    "NetBenefit",
    "Plan",
    "PlanPoint",
    "Policy",
    "Sample",
    "Status",
    "abstain",
    "annotations",
    "audit",
    "check",
    "estimate",
    "net_benefit",
    "plan",
    "sample",
    "thresholds",
    "to_html",
    "to_junit",
    "to_markdown",
    "to_prometheus",
]
