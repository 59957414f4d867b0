"""An audit with a label budget: which rows people label, and what may be said from the labels."""

from calibrant.operate.audit.planning import AuditPlan, AuditPlanPoint, plan_audit
from calibrant.operate.audit.sample import Sample, sample
from calibrant.operate.audit.verdict import Audit, AuditLine, audit

__all__ = ["Audit", "AuditLine", "AuditPlan", "AuditPlanPoint", "Sample", "audit", "plan_audit", "sample"]
