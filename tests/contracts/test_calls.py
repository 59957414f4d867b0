"""Every callable that a public ``__all__`` lists: a call that does not fit its signature is told the right one."""

import inspect
from typing import Any
from unittest import mock

import pytest
from tests.contracts import hostile

from calibrant import errors
from calibrant.errors import InputError


def walked() -> dict[str, Any]:
    """Return name → callable of all families; a member that two families list once, and no tuple or message of ours."""
    with mock.patch.dict(hostile.EXCLUDED, clear=True):  # no call reaches what it would do
        found = [(where, member) for family in hostile.FAMILIES for where, member in hostile.members(family)]
    once = {id(member): (where, member) for where, member in found}
    return {
        where: member
        for where, member in once.values()
        if member.__module__ != errors.__name__ and not (isinstance(member, type) and issubclass(member, tuple))
    }


def test_a_call_that_does_not_fit_is_told_the_right_one() -> None:
    found = walked()
    assert len(found) > 200
    for where, member in found.items():
        any_number = any(one.kind is one.VAR_POSITIONAL for one in inspect.signature(member).parameters.values())
        wrong = [((), {"unheard_of": 1}, "the argument unheard_of")]
        wrong += [] if any_number else [((None,) * 40, {}, "40 arguments without a name")]
        for arguments, named, got in wrong:
            with pytest.raises(InputError) as caught:
                member(*arguments, **named)
            assert hostile.SENTENCE.match(str(caught.value)), (where, caught.value)
            assert "\n" not in str(caught.value)
            assert caught.value.expected.startswith(member.__name__ + "("), where
            assert caught.value.got == got, where
