"""The papers' claims as data, and the verdict of committed figures on each, corrected for the number of tests."""

from calibrant.study.claims._index import (
    DECIDED,
    ClaimLine,
    Faithful,
    Gain,
    PaperClaim,
    Place,
    Threshold,
    claim_index,
    faithfulness,
    focal_gains,
    focal_threshold,
    paper_claims,
    places,
    read_records,
)
from calibrant.study.claims._inference import benjamini_hochberg, detectable, equivalence_p, paired_p, sign_change_p

__all__ = [
    "DECIDED",
    "ClaimLine",
    "Faithful",
    "Gain",
    "PaperClaim",
    "Place",
    "Threshold",
    "benjamini_hochberg",
    "claim_index",
    "detectable",
    "equivalence_p",
    "faithfulness",
    "focal_gains",
    "focal_threshold",
    "paired_p",
    "paper_claims",
    "places",
    "read_records",
    "sign_change_p",
]
