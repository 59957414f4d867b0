"""Calibration in production: a gate, the rows it needs, and an alarm over time."""

from calibrant.operate.check import Check, Line, check
from calibrant.operate.formats import annotations, to_junit, to_markdown
from calibrant.operate.monitor import Monitor, Status
from calibrant.operate.pages import to_html, to_prometheus
from calibrant.operate.plan import Plan, PlanPoint, plan
from calibrant.operate.policy import Policy

__all__ = [
    "Check",
    "Line",
    "Monitor",
    "Plan",
    "PlanPoint",
    "Policy",
    "Status",
    "annotations",
    "check",
    "plan",
    "to_html",
    "to_junit",
    "to_markdown",
    "to_prometheus",
]
