"""Checks of a study's values, beyond the type of each."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from calibrant._core.arguments import check_mapping, check_text
from calibrant._core.check import check_choice, check_number, refuse, shown
from calibrant.errors import InputError

MOST_SEED = 2**63 - 1  # largest seed that both NumPy's and torch's generators accept
PRECISIONS = ("32-true", "64-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true")  # of Lightning Fabric
_NOT_IN_NAMES = set('/\\:*?"<>|\0\n\r\t')


def check_optimizer(plan: Any) -> None:
    """Raise unless the options of a training's optimiser go together.

    Args:
        plan: A ``Training``, whose single values have been checked.

    Raises:
        InputError: If an option has no effect, or torch would refuse it.
    """
    check_choice(plan.precision, name="precision", choices=PRECISIONS)
    check_number(plan.momentum, name="momentum", low=0, high=1, open_high=True)
    for prefix, rate in check_mapping(plan.rates, name="rates", example="{'embedding': 0.1}").items():
        check_number(rate, name=f"the rate of {prefix!r}", low=0)
    if plan.optimizer != "sgd" and (plan.momentum or plan.nesterov):
        raise refuse("momentum and nesterov with the optimizer 'sgd' alone", repr(plan.optimizer), "leave them out")
    if plan.nesterov and not plan.momentum:
        raise refuse("momentum > 0 with nesterov", "0", "set momentum, or leave nesterov out")


def check_seed_of_study(seed: Any) -> None:
    """Raise unless ``seed`` is an integer that every random generator accepts."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MOST_SEED:
        raise InputError("seeds in 0 … 2⁶³ − 1", f"{shown(seed)}", "choose another")


def check_file_name(value: Any, *, name: str) -> None:
    """Raise unless ``value`` is a valid file name on any system.

    Args:
        value: The argument.
        name: Its name, for the message.

    Raises:
        InputError: If it is not a string, is empty, begins with a dot, or contains a separator or a control character.

    Examples:
        >>> check_file_name("reliability", name="the figure's name")
    """
    check_text(value, name=name)
    if (
        not value.strip()
        or value.startswith(".")
        or _NOT_IN_NAMES & set(value)
        or len(value.encode("utf-8", "replace")) > 200
    ):
        raise refuse(f"{name} as the name of a file", shown(value), "use letters, digits, spaces and hyphens")


def check_falls(falls: Sequence[str], *, text: str) -> None:
    """Raise unless a claim orders at least two different objectives.

    Raises:
        InputError: If it names fewer than two, or one twice.
    """
    if len(falls) < 2 or len(set(falls)) < len(falls):
        raise refuse(
            f"two or more different objectives in falls of the claim {text!r}", shown(list(falls)), "name them"
        )


def check_value(value: float, *, name: str, percent: bool) -> None:
    """Raise unless a published figure is finite, and a fraction where it is one.

    Raises:
        InputError: If it is NaN or infinite, or a percentage where a fraction is expected.
    """
    check_number(value, name=name)
    if percent and not 0 <= value <= 1:
        raise refuse(f"{name} as a fraction in [0, 1]", f"{value:g}", "divide percentages by 100, or use [[printed]]")


def check_key(value: Any, *, name: str, known: Collection[str]) -> None:
    """Raise unless ``value`` is among ``known``, of which there are too many to list.

    Raises:
        InputError: If it is not; the message suggests the closest one, or lists some.

    Examples:
        >>> check_key("ece", name="measure", known=["ece", "nll"])
    """
    if not isinstance(value, str) or value not in known:
        close = difflib.get_close_matches(value, known, n=1) if isinstance(value, str) else []
        remedy = f"did you mean {close[0]!r}?" if close else "choose one of these"
        raise refuse(f"{name} to be one of {', '.join(list(known)[:12])} …", shown(value), remedy)


def check_figure(figure: Any, *, settings: Sequence[Any]) -> None:
    """Raise if a figure of a study would always be empty.

    Args:
        figure: A ``FigureSpec``.
        settings: The study's settings.

    Raises:
        InputError: With what it needs.
    """
    drawn = [setting for setting in settings if figure.setting in ("", setting.label)]
    if figure.kind == "ood" and drawn and not any(setting.data.get("ood") for setting in drawn):
        raise refuse(
            f"data with ood sets for the figure {figure.name!r}", "none", 'write ood = ["gaussian-noise"] under data'
        )
    if figure.kind == "sweep" and not figure.sweep:
        raise refuse(f"sweep of the figure {figure.name!r}", "none", 'write sweep = [["FocalLoss", "gamma"]]')


def check_once(values: Sequence[Any], *, name: str) -> None:
    """Raise if one of ``values`` occurs twice.

    Raises:
        InputError: With the first such value.

    Examples:
        >>> check_once([0, 1], name="seeds")
    """
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise InputError(f"each of {name} once", f"{twice!r} twice", "leave one out or rename it")


def check_sizes_of_data(model: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
    """Raise if a recipe gives its network another number of classes or inputs than the data have.

    Raises:
        InputError: With the option and the number that the data have.
    """
    for key in ("classes", "inputs"):
        if key in model and key in sizes and model[key] != sizes[key]:
            raise refuse(f"{key} = {sizes[key]}, as the data have", shown(model[key]), f"leave {key} out of the model")
