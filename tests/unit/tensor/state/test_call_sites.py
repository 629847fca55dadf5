"""Places in the program as numbers."""

from __future__ import annotations

import sys

from monarch._src.tensor.state import call_sites
from monarch._src.tensor.state.call_sites import CallSites


def issue(sites: CallSites) -> int:
    """As an operation does."""
    return sites.number(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]


def test_a_place_has_one_number_and_tells_its_line() -> None:
    sites = CallSites(("<internal>",))
    numbers = [issue(sites) for _ in range(3)]
    other = issue(sites)
    assert len(set(numbers)) == 1
    assert other != numbers[0]
    site = sites.site(other)
    assert site.filename == __file__
    assert site.text == "other = issue(sites)"
    assert site.function == "test_a_place_has_one_number_and_tells_its_line"
    assert sites.site(numbers[0]).text.startswith("numbers = [issue(sites)")


def test_frames_of_the_runtime_are_passed_over() -> None:
    sites = CallSites(("<internal>",))
    names: dict[str, object] = {"issue": issue, "sites": sites}
    exec(compile("def through():\n    return issue(sites)", "<internal>", "exec"), names)
    through = names["through"]
    number = through()  # type: ignore[operator]
    assert sites.site(number).text.startswith("number = through()")


def test_equal_code_of_two_files_is_two_places() -> None:
    sites = CallSites(("<internal>",))
    names: dict[str, object] = {"issue": issue, "sites": sites}
    numbers = [eval(compile("issue(sites)", name, "eval"), names) for name in ("one", "other")]
    assert [sites.site(number).filename for number in numbers] == ["one", "other"]
    assert eval(compile("issue(sites)", "<internal>", "eval"), names) not in numbers


def test_no_place_of_the_program_is_number_0() -> None:
    assert CallSites(("",)).number(sys._getframe()) == 0  # pyright: ignore[reportPrivateUsage]
    assert CallSites(("",)).site(0).filename == ""


def test_very_many_places_do_not_keep_their_code_alive(monkeypatch: object) -> None:
    sites = CallSites(("<internal>",))
    most, call_sites.MOST_SITES = call_sites.MOST_SITES, 4
    try:
        numbers = [
            sites.number(eval(f"getframe({' ' * n})", {"getframe": sys._getframe}))  # pyright: ignore[reportPrivateUsage]
            for n in range(10)
        ]
    finally:
        call_sites.MOST_SITES = most
    assert [sites.site(n).filename for n in set(numbers)] == ["<string>"] * len(set(numbers))


def test_the_place_of_an_error_is_the_innermost_of_the_program() -> None:
    sites = CallSites(("/no/such/place",))

    def fails() -> None:
        raise KeyError

    try:
        fails()
    except KeyError as error:
        found = sites.site_of_error(error.__traceback__)
        assert (found.function, found.text) == ("fails", "raise KeyError")
        own = CallSites((__file__,)).site_of_error(error.__traceback__)
        assert own.filename == ""
