"""A run of a class of the user's is one of its code, which is never mixed with what was read before."""

import sys

import pytest
from runs import TINY, composed, record_of, trained

from subquad import records
from subquad.config import own_code as module
from subquad.config.compose import compose_run, from_choices, load_own_attention
from subquad.config.compositions import Compositions
from subquad.config.fingerprint import identity
from subquad.config.own_code import own_code
from subquad.config.validate import checked_overrides
from subquad.planning.comparison import Comparison
from subquad.planning.cost import family_of
from subquad.sweep.workers import import_for
from subquad.training.resume import read_best
from subquad.utils.errors import UserError

MINE = "from subquad.attention.softmax import Softmax\n\n\nclass Mine(Softmax): ...\n"
CELL = ("task=uea/basic_motions", "attention=mine:Mine", "scale=smoke", "data=synthetic")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with mine.py."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(tmp_path / "outputs"))
    monkeypatch.setattr(module, "_FIRST", {})
    yield tmp_path
    sys.modules.pop("mine", None)


def new_process():
    module._FIRST.clear()


def test_a_sweep_over_classes_composes_each(folder):
    """Hydra writes a job of a sweep with a backslash before the colon, and so jobs of Slurm and Ray."""
    assert checked_overrides(["attention=dba,mine:Mine"]) == ["attention=dba,mine:Mine"]
    of_sweep, typed = (compose_run([CELL[0], f"attention={name}"]) for name in ("mine\\:Mine", "mine:Mine"))
    assert of_sweep.attention == typed.attention
    assert of_sweep.paths.run == typed.paths.run


@pytest.mark.parametrize(
    ("where", "edited", "counts"),
    [
        ("", "own/mine.py", True),
        ("", "own/__init__.py", True),
        ("", "own/near.py", True),  # from . import near
        ("", "own/deep/far.py", True),  # which near imports
        ("", "sizes.py", True),  # import sizes as s
        ("", "own/other.py", False),
        ("site-packages", "own/deep/far.py", True),
        ("site-packages", "sizes.py", False),  # another package
    ],
)
def test_code_is_what_the_class_imports_of_its_folder(folder, monkeypatch, where, edited, counts):
    texts = {
        "own/__init__.py": "", "own/mine.py": f"import sizes as s\nfrom . import near\n{MINE}",
        "own/near.py": "def late():\n    from .deep.far import size", "own/deep/far.py": "size = 1", "own/other.py": "",
        "sizes.py": "",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / where / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / where / name).write_text(text)
    monkeypatch.syspath_prepend(str(folder / where))
    before = own_code({"a": [{"_target_": "own.mine.Mine"}, {"_target_": "torch.optim.AdamW"}]})
    assert before.keys() == {"own.mine.Mine"}
    new_process()
    (folder / where / edited).write_text(f"{texts[edited]}\n# edited")
    assert (own_code({"_target_": "own.mine.Mine"}) != before) == counts


def test_a_run_has_the_code_of_the_users_classes_and_of_no_others(folder):
    assert identity(compose_run(CELL))["code"].keys() == {"mine.Mine"}
    assert "code" not in identity(compose_run([*CELL, "attention=dba"]))
    nobodys = ("nowhere.Mine", "functools.partial", "builtins.dict")
    assert not any(own_code([{"_target_": name} for name in nobodys]).values())
    (folder / "this.py").write_text(MINE)  # a name that Python has too
    assert own_code({"_target_": "this.Mine"})["this.Mine"]


@pytest.mark.parametrize("plus", ["", "+", "++"])
@pytest.mark.parametrize("node", ["attention", "exact"])
def test_a_class_takes_settings_as_a_shipped_choice_does(folder, plus, node):
    chosen = {"attention": CELL[1], "exact": "attention@exact=mine:Mine"}[node]
    overrides = [CELL[0], chosen, f"{plus}{node}.scale=0.5"]
    assert compose_run(overrides)[node].scale == compose_run(overrides, from_choices)[node].scale == 0.5
    with pytest.raises(UserError, match='There is no setting "sizes" in backbone'):
        compose_run([*overrides, "backbone.sizes=1"])


@pytest.mark.parametrize("overrides", [CELL, (*CELL[::2], "attention=dba", "attention._target_=mine.Mine")])
def test_other_code_is_another_run_and_is_refused_while_a_command_runs(folder, overrides):
    index = Compositions()
    before = index[overrides]
    index.save()
    assert Compositions()[overrides] == before
    (folder / "mine.py").write_text(f"{MINE}# edited")
    for known in (index, Compositions()):
        with pytest.raises((UserError, SystemExit), match=r"The code of mine\.Mine has changed while"):
            known[overrides]
    new_process()
    index = Compositions()
    after = index[overrides]
    assert after.folder != before.folder
    assert family_of(after.identity) != family_of(before.identity)
    index.save()
    assert Compositions()._cache.compositions.popitem()[1] == after


@pytest.mark.slow
@pytest.mark.parametrize(
    "load", [lambda: load_own_attention("mine:Mine"), lambda: import_for([{"_target_": "mine.Mine"}])]
)
def test_code_that_was_imported_stays_what_it_was_then(folder, load):
    load()
    (folder / "mine.py").write_text(f"{MINE}# edited")
    with pytest.raises(SystemExit, match="start the command again"):
        compose_run(CELL).paths.run  # noqa: B018  # it is resolved at this moment


@pytest.mark.slow
def test_weights_are_not_read_into_other_code(data, folder):
    trained(composed(data, folder / "outputs", *CELL, *TINY))
    run = record_of(folder / "outputs")
    record = records.read(run)
    assert record.config["code"].keys() == {"mine.Mine"}
    read_best(run, record)
    new_process()
    (folder / "mine.py").write_text(f"{MINE}# edited")
    with pytest.raises(UserError, match=r"was trained with other code of mine\.Mine; restore"):
        read_best(run, record)


@pytest.mark.slow
def test_a_comparison_is_one_of_the_code(data, folder):
    def place():
        new_process()
        given = [CELL[0], *CELL[2:], f"paths.data={data}"]
        return Comparison(given, ["dba", "mine:Mine"], None, 2, 1.0, [], named=True).folder

    before = place()
    assert place() == before
    (folder / "mine.py").write_text(f"{MINE}# edited")
    assert place() != before
