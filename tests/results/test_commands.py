"""Lines to paste are read back as what they say."""

import shlex

import pytest
from omegaconf import OmegaConf

from subquad.cli.command import script_settings
from subquad.config.choices import options
from subquad.results.cells import load_table
from subquad.results.commands import cell_command, command_line, table_command
from subquad.results.table import load
from subquad.utils.errors import UserError

KEYS = {"table": "???", "rows": [], "columns": []}


def read(line):
    """What scripts/reproduce.py makes of a line."""
    program, script, *words = shlex.split(line)
    assert (program, script) == ("python", "scripts/reproduce.py")
    config = script_settings(OmegaConf.create(KEYS), words)
    return config.table, [str(row) for row in config.rows], [str(column) for column in config.columns]


@pytest.mark.parametrize("name", options("table"))
def test_the_command_of_a_cell_selects_it(name):
    table = load_table(name)
    shown = {column.name for column in table.columns}
    cells = list(table)
    rare = [cell for cell in cells if cell.mean or cell.column not in shown]
    for cell in {id(cell): cell for cell in [*cells[::11], *rare[::5]]}.values():
        asked, rows, columns = read(cell_command(table, cell))
        assert asked == name
        selected = table.select(rows, columns).cells
        assert (cell.row, cell.column) in selected
        if cell.mean:
            assert set(cell.mean) <= selected.keys()
        elif cell.column in shown:
            assert list(selected) == [(cell.row, cell.column)]
        else:
            assert columns
            assert set(columns) <= shown
    assert read(table_command(table)) == (name, [], [])


def test_odd_names_survive_the_shell_and_yaml(tmp_path):
    names = ["a, b", 'c "d"', "e's", "no", "1.0", "null", "[x]", "y: z", "50%_#1", "$HOME `id`", "ö²"]
    path = tmp_path / "t.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(
        {"title": "t", "source": "s", "seeds": 1, "columns": {"C": []}, "rows": {name: ["seed=0"] for name in names}}
    )))  # fmt: skip
    table = load(path, "t/1")
    for name in names:
        assert read(cell_command(table, table.cells[name, "C"])) == ("t/1", [name], ["C"])


def test_a_pattern_that_yaml_takes_for_a_reference_is_told_how_to_be_quoted():
    with pytest.raises(UserError, match=r"needs quotation marks of its own, as in columns=\['\*memory'\]"):
        script_settings(OmegaConf.create(KEYS), ["columns=[Mul,*memory]"])
    assert script_settings(OmegaConf.create(KEYS), ["columns=[Mul,'*memory']"]).columns == ["Mul", "*memory"]


def test_words_with_spaces_are_quoted():
    assert command_line("python train.py", ["a=1", "tags=[a b]"]) == "python train.py a=1 'tags=[a b]'"
