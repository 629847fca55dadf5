"""What the words after a magic mean, and what is said when they mean nothing."""

from __future__ import annotations

import pytest

from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option, parse_arguments, split_words
from monarch_jupyter.magics.spawn_request import parse_spawn
from monarch_jupyter.meshes.selection import parse_selection
from monarch_jupyter.meshes.spawn_requests import SpawnRequest

OPTIONS = (Option("--preload", "", "MODULE", True), Option("--env", "", "KEY=VALUE", True))


def spawn_request(text: str) -> SpawnRequest:
    return parse_spawn(parse_arguments("spawn", split_words(text), OPTIONS))


def test_spawn_takes_a_name_dims_in_order_modules_and_environment() -> None:
    request = spawn_request(
        "workers hosts=2 gpus=4 --preload torch,json --preload=numpy --env 'A=b c' --env E="
    )
    assert request.name == "workers"
    assert list(request.dims.items()) == [("hosts", 2), ("gpus", 4)]
    assert request.ranks == 8
    assert request.preload == ("torch", "json", "numpy")
    assert request.env == {"A": "b c", "E": ""}


def test_spawn_without_dims_asks_for_one_rank() -> None:
    assert spawn_request("solo").dims == {}
    assert spawn_request("solo").ranks == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("on workers  # warm up", ["on", "workers"]),
        ("on workers[gpus=0:2] # it's only two", ["on", "workers[gpus=0:2]"]),
        ("# nothing", []),
        ("spawn w --env A=x#y", ["spawn", "w", "--env", "A=x#y"]),
        ("logs w --grep '# step'  # with a mark", ["logs", "w", "--grep", "# step"]),
        (r"logs w --grep \# # 'a mark'", ["logs", "w", "--grep", "#"]),
        (r'logs w --grep "a \" # b"', ["logs", "w", "--grep", 'a " # b']),
    ],
)
def test_what_stands_behind_a_hash_is_a_comment(line: str, words: list[str]) -> None:
    assert split_words(line) == words


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "spawn needs a name; for example `%monarch spawn workers gpus=8`"),
        ("gpus=8", "spawn needs a name before gpus=8"),
        ("my-mesh gpus=8", "'my-mesh' can't name a mesh"),
        ("class gpus=8", "'class' can't name a mesh"),
        ("print gpus=8", "'print' is a Python builtin, which the mesh would hide; choose another"),
        ("workers gpus", "'gpus' is not a dim; write dim=N, as in `%monarch spawn workers gpus=8`"),
        ("workers gpus=many", "gpus=many: 'many' is not a size; give a whole number, as in gpus=8"),
        ("workers gpus=1.5", "gpus=1.5: '1.5' is not a size"),
        ("workers gpus=", "gpus=: '' is not a size"),
        ("workers gpus=0", "gpus=0 leaves workers without ranks"),
        ("workers gpus=-2", "gpus=-2 leaves workers without ranks"),
        ("workers 2x=2", "'2x' can't be a dim"),
        ("workers gpus=2 gpus=4", "dim gpus is given twice"),
        ("workers --env PATH", "--env PATH sets nothing; write --env KEY=VALUE"),
        ("workers --preload 'a b'", "--preload a b: no module has this name"),
        ("workers --preload", "--preload needs a value; write --preload MODULE"),
        ("workers --prelaod torch", "spawn has no option --prelaod; did you mean 'preload'?"),
        ("workers --loud", "spawn has no option --loud; `%monarch spawn -h` lists its options"),
        ("workers 'gpus=8", "no closing quotation; close the quote"),
    ],
)
def test_a_spawn_line_that_cannot_be_says_so_in_one_line_with_a_remedy(
    text: str, says: str
) -> None:
    with pytest.raises(CommandError) as caught:
        spawn_request(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "dims"),
    [
        ("workers", "workers", {}),
        (" workers ", "workers", {}),
        ("workers[gpus=3]", "workers", {"gpus": 3}),
        ("workers[gpus=0:4]", "workers", {"gpus": slice(0, 4, None)}),
        (
            "workers[ hosts = 1 , gpus = ::2 ]",
            "workers",
            {"hosts": 1, "gpus": slice(None, None, 2)},
        ),
        ("workers[gpus=2:]", "workers", {"gpus": slice(2, None, None)}),
    ],
)
def test_a_selection_is_a_name_and_an_index_or_range_by_dim(
    text: str, name: str, dims: dict[str, int | slice]
) -> None:
    selection = parse_selection(text)
    assert (selection.name, selection.dims) == (name, dims)
    assert parse_selection(str(selection)) == selection


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workers[gpus=3", "'workers[gpus=3' names no ranks"),
        ("a b", "'a b' names no ranks"),
        ("workers[3]", "'3' selects nothing; write dim=3 or dim=0:4, as in workers[gpus=0:4]"),
        ("workers[gpus=x]", "gpus=x is neither an index nor a range"),
        ("workers[gpus=-1]", "gpus=-1: ranks count from 0 up"),
        ("workers[gpus=0:-1]", "gpus=0:-1: ranks count from 0 up"),
        ("workers[gpus=0:4:0]", "in steps of one or more"),
        ("workers[gpus=1, gpus=2]", "dim gpus is given twice"),
    ],
)
def test_a_selection_that_selects_nothing_says_what_to_write(text: str, says: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_selection(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workers[gpu=1]", "workers has no dim 'gpu'; it has hosts, gpus; did you mean 'gpus'?"),
        ("workers[gpus=4]", "gpus=4 is outside workers, whose gpus go from 0 to 3"),
        ("workers[gpus=0:5]", "gpus=0:5 is outside workers"),
        ("workers[gpus=4:]", "gpus=4: is outside workers"),
        ("workers[gpus=3:1]", "gpus=3:1 is outside workers"),
    ],
)
def test_ranks_outside_the_mesh_are_named_with_the_ranks_there_are(text: str, says: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_selection(text).check({"hosts": 2, "gpus": 4})
    assert says in str(caught.value)


def test_ranks_inside_the_mesh_pass() -> None:
    parse_selection("workers[hosts=1, gpus=1:4:2]").check({"hosts": 2, "gpus": 4})
