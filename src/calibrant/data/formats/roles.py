"""The roles that columns have in a table of predictions, and what each is called: every name that a reading goes by.

A name is one part of the evidence, the values are the other (``evidence``): a column may be called as several roles.
"""

import re
from dataclasses import dataclass

from calibrant.data.formats.layout import LABELS, SCORES, stem_and_name

# A log-probability is a logit; ``raw_formula_val`` is CatBoost's.
LOGITS = "logits?|raw_?formula_?val|log_?likelihoods?|log_?prob(?:s|a|abilit(?:y|ies))?"
_PROBS = r"p|pr|probs?|proba|probabilit(?:y|ies)|posterior|conf(?:idence)?|soft_?max|soft_?prob|\.pred"  # the last is tidymodels'
_DECISION = "predict(?:ed|ions?)?|pred"
# What tables call their fields, "tagName" and "class_probability" too; of two the first of these.
CLASS_FIELDS = ("label", "class", "name", "category", "value")
SCORE_FIELDS = ("probability", "prob", "score", "confidence", "p")
# Names of true classes that are also given to other things, in the order of how often they are not.
PERHAPS = (*LABELS, "target", "targets", "true", "y", "label_id", "answer", "accept", "class", "y_train", "y_val")

# role → its plain names (``plain_name``)
_NAMES = {
    "truth": r"y_(true|test|orig)|truth|ground_truth|gold|gt|actual|observed|obs|_from_|"
    r"(true|actual|observed|gold|gt|real|ground_truth|expected|reference|given)_(y|labels?|class(es)?|category|target)",
    "decision": r"(?P<whose>.*_)?(predict(ed|ion|ions)?|pred)|guess|y_hat|_into_|"
    r"(predict(ed|ion)?|pred|top_?1)_?(class|label|labels|name|pred(iction)?)",
    "score": r".*_(scores?|prob|probability|confidence|logits?|classes|labels)",  # of decisions: predicted_label_probability
    "event": "(?:.*_)?(?:prob|proba|probability|probs|probabilities|softmax)|p(_?hat)?",
    "logits": f"(?:.*_)?(?:{LOGITS})",
    "confidence": r"(conf(idence)?|(max|top_?1|top|pred(icted|ictions?)?)_?(prob(ability)?|conf(idence)?|score))",
    "right": "acc|correct|is_correct|right|hit|tp|is_tp|true_positive|matched",
    "key": r"(.*_)?(id|uuid|key)|ids|guid|uid|index|filename|name|[._]?row|row_?(ids|no|number|index)|unnamed:_0",
    "model": r"(.*[_.])?(model|learner|algorithm|method|classifier|estimator|system|config)([_.]?(id|name))?|wflow_id",
    "part": r"(.*_)?(fold|split|cluster|groups?|decision|seed|weights?)|feature(_text)?:.*",  # of the rows, or of a study of them
    "rank": r"top_?\d+_.*",  # of the first few classes, which are no true ones
    "ranked classes": r"(top(_?k|_?\d+)?_)?(classes|labels|(display_)?names|indices|ids)",  # lists of them …
    "ranked scores": rf"(top(_?k|_?\d+)?_)?(probs|probabilities|scores|confidences|{LOGITS})",  # … beside lists of scores
    "class": "class|class_name|category|class_id|_?level|candidate|option",  # of each row of a table with a row a class
    "summary": r"(.*_)?(max|min|margin|gap|entropy|mean|std|sum|top|top1)",  # of the scores of a row
    "bound": r"(.*_)?(lower|upper|low|high|lwr|upr|ll|ul|lcl|ucl|se|sd|std|stderr|error)",  # of a score
    "percentage": r".*(%|(?<![a-z])(pct|percent|percentage)(?![a-z])).*",
}
_PATTERNS = {role: re.compile(names, re.IGNORECASE) for role, names in _NAMES.items()}
MELTED = (("variable", "value"), ("name", "value"))  # what pandas and Polars, and tidyr, call molten columns
# What a column is a decision on: "predicted_species", "species_pred", "$C-churn" of SPSS Modeler, "I_churn" of SAS.
_SUBJECT = re.compile(
    rf"(?:{_DECISION}|most_likely|scored|forecast|estimated|\$[a-z]|[iu])_(?P<of>.+)|(?P<that>.+)_(?:predict(?:ed|ions?)|pred)"
)
# "prob_cat", "P(1)", "pred_proba_cat", "Probability:Class=cat", "p0": words before, the mark of the kind, and the class
_MARKED = re.compile(
    rf"(?P<head>(?:(?:.*[_.\s:-])??|\(')(?:(?P<logits>{LOGITS})|(?:{_PROBS})))(?:[_.\s:(\[=/]+|', '|-(?!\d)|(?=\d))(?P<part>.+)",
    re.IGNORECASE,
)


# "cat_proba", "cat logit", "no_predicted_proba": the class, and the mark of the kind behind it
_BEHIND = re.compile(
    rf"(?P<part>.+?)(?P<tail>(?:[_.\s:-](?:{_DECISION}))?[_.\s:-](?:(?P<logits>{LOGITS})|p|pr|probs?|proba|probabilit(?:y|ies)))",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Mark:
    """What a name says of one of several scores: their kind, the words beside it, which the others share, and the class."""

    kind: str
    head: str
    part: str


def plain_name(name: str) -> str:
    """Return a name in small letters with one sign between its words: "TrueLabel" and "true label" are "true_label"."""
    name = name.strip("()', ") if name[:2] == "('" else name.strip()  # of pandas' two levels
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[\s.()\[\]-]+", "_", parted).rstrip("_" if not parted.startswith("_") else "").casefold()


def called(name: str, *roles: str) -> bool:
    """Say whether a column is called as those of one of the roles are."""
    own = (plain_name(name), name.strip().casefold())
    return any(_PATTERNS[role].fullmatch(one) for role in roles for one in own)


def mark_of(name: str) -> Mark | None:
    """Return what a name says of the score of a class; None where it says nothing."""
    found = _MARKED.fullmatch(name)
    if found is None:
        return None
    return Mark("logits" if found["logits"] else "probs", found["head"].casefold(), found["part"])


def mark_behind(name: str) -> Mark | None:
    """Return what a name says of the score of a class that it begins with; None where it says nothing."""
    found = _BEHIND.fullmatch(name)
    return found and Mark("logits" if found["logits"] else "probs", found["tail"].casefold(), found["part"])


def is_decided(name: str, *, own: bool = False) -> bool:
    """Say whether a column is called as decisions are; with ``own`` as those of the model of the file, and not as ``svm_pred``."""
    plain = plain_name(name).removeprefix("_") if name[:1] == "." else plain_name(name)
    found, head = _PATTERNS["decision"].fullmatch(plain), name.partition(".")[0]
    inner = 0 < len(head) < len(name) and _PATTERNS["decision"].fullmatch(plain_name(head)) is not None
    return (found is not None and not (own and found["whose"])) or (inner and not called(plain, "score"))


def subject_of(name: str) -> str:
    """Return the plain name of what a column is called a decision on: "species" for ``predicted_species``; else nothing."""
    found = _SUBJECT.fullmatch(plain_name(name)) or _SUBJECT.fullmatch(plain_name(name.partition(".")[0]))
    return "" if found is None else found["of"] or found["that"]


def is_decision(name: str) -> bool:
    """Say whether a column is called as decisions are, on something of its own name too: ``predicted_species``."""
    return is_decided(name) or bool(subject_of(name))


def is_no_label(name: str) -> bool:
    """Say whether a column is called as keys, decisions, folds or weights are, and not as true classes."""
    return is_decision(name) or called(name, "key", "part", "rank")


def has_role(name: str) -> bool:
    """Say whether a name says anything of what a column is; a feature's does not."""
    first = plain_name(name).partition("_")[0]  # y_toxic, of several labels a row
    known = stem_and_name(name)[1] in (*SCORES, *LABELS) or {plain_name(name), first} & {*PERHAPS}
    return bool(known or is_no_label(name) or mark_of(name) or called(name, *_NAMES))
