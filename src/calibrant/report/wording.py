"""The text of a report: how to read its pictures, what to do about each figure, and numbers as sentences have them."""

from collections.abc import Sequence

BY_CHANCE = "a diamond lies outside; of a calibrated model about one in twenty does by chance."
HOW_TO_READ = (
    "Each dot is a bin of equally many predictions: accuracy (vertical) against mean confidence (horizontal). On the dashed line "
    "80 % confidence means 80 % accuracy; below it the model is over-confident. A grey bar covers the accuracy of a calibrated "
    f"model in 95 % of samples of this size; {BY_CHANCE}"
)
HOW_TO_READ_AN_EVENT = (
    "The line is how often the event happened (vertical) at each predicted probability (horizontal), by isotonic regression. "
    "Below the dashed line the probabilities are too high, above it too low. The grey band holds the line of a calibrated model "
    f"in 95 % of samples of this size. Dots are fifteenths of the rows; {BY_CHANCE} Below: rows without and with the event."
)

# What to do beside each metric, by its class; those that grow with miscalibration say so only above their limit.
TO_DO = {
    "Accuracy": "For more of it train a better model: one correction for all hardly changes it.",
    "NLL": "Compare models and calibrators by it: lower is better, and every class and row counts.",
    "Brier": "Compare as by NLL; it forgives confident errors more.",
    "Bias": "Away from 0: events are rarer (+) or more frequent (−) than expected. Opposite labels cancel: see every label.",
    "ECE": "If that is too much, calibrate: a probability is off by it on average.",
    "MCE": "Look up the worst bins below; with few rows it is mostly chance.",
    "ClasswiseECE": "See class by class; a slope and bias per class (auto tries them) corrects it.",
    "DebiasedECE": "Read it as the ECE without what chance adds.",
    "SmoothECE": "Read it as an ECE that depends on no bins.",
    "AURC": "Lower is better if you answer only the most confident rows.",
}
WITHIN_CHANCE = "Nothing: a calibrated model scores as much by chance."
GLOSSARY = (
    "95 % interval: contains the true value in 95 % of samples; left out where no interval is known to cover. If calibrated: the "
    "mean figure of perfectly calibrated models on samples of this size, which is above 0 in a finite sample, and the limit that "
    "97.5 % of them stay below; an error above it is significant."
)


def percent(value: float | None, digits: int = 2) -> str:
    """Return a fraction in percent, "" for None."""
    return "" if value is None else f"{100 * value:.{digits}f} %"


def points(value: float) -> str:
    """Return a fraction as percentage points."""
    # tenths of a point, but for what would then read 0.0
    shown = f"{100 * value:.1f}" if value >= 0.001 else f"{100 * value:.2f}"
    return f"{shown} point{'' if shown == '1.0' else 's'}"


def too_high_or_low(gap: float) -> str:
    """Return the side and the size of a mean gap of probabilities in words."""
    return f"too {'high' if gap > 0 else 'low'} by {points(abs(gap))}"


def signed(value: float, form: str = "+.2f") -> str:
    """Return a number with the sign that a reader expects, which is wider than a hyphen; no sign where it rounds to 0."""
    text = f"{value:{form}}".replace("-", "−")
    return text if text.strip("+−0.") else text.lstrip("+−")


def lower_first(sentence: str) -> str:
    """Return a sentence to follow a colon or semicolon."""
    return sentence[:1].lower() + sentence[1:]


def listed(names: Sequence[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
