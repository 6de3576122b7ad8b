"""Messages for wrong or conflicting settings: one sentence with the cause and the remedy."""

import shutil
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from runs import TINY, answer, composed, record_of, trained

from subquad import records
from subquad.config.compose import compose_run
from subquad.config.settings import check_settings
from subquad.config.validate import check_sweep
from subquad.training.summary import show
from subquad.utils.errors import UserError

MOTIONS = ("task=uea/basic_motions", "attention=softmax", "scale=smoke", *TINY)
TEXT = ("task=mlm/text", "data=synthetic", "scale=smoke", "attention=softmax", "trainer=cpu")


def refusal(data, outputs, *overrides) -> str:
    with pytest.raises((Exception, SystemExit)) as caught:
        trained(composed(data, outputs, *overrides))
    error = caught.value
    return str(error if isinstance(error, UserError | SystemExit) else error.__cause__)


@pytest.mark.parametrize(
    ("overrides", "cause"),
    [
        ((*TEXT, "data.split_seed=-1"), "data.split_seed is -1; choose a whole number from 0"),
        ((*TEXT, "+data.sizes=9"), "data of MaskedText has no key sizes; it has batch_size, column"),
        ((*TEXT, "+data.max_length=9"), "has no key max_length; did you mean data.max_len?"),
        (("task=digits", "scale=smoke", f"data.split_seed={2**32}"), "choose a whole number from 0 to 4294967295"),
        (("task=digits", "scale=smoke", "backbone=sequence"), "SequenceEncoder reads sequences and the data of this "),
        ((*TEXT, "backbone=vit"), "ViT reads images and the data of this task are sequences; leave backbone= out"),
        (("task=lra/listops", "scale=smoke", "backbone=mcan"), "MCAN reads questions on images"),
        (
            ("task=lra/listops", "scale=smoke", "recipe=mvts"),
            "mvts reads real-valued series, and these data are",
        ),
        ((*MOTIONS, "seed=x"), "seed is x; choose a whole number from 0 to 4294967295."),
        (("task=uea/custom", "attention=softmax"), "data.dataset has no value; set data.dataset=<value>"),
        ((*MOTIONS, "tags=[[a]]"), "tags is [['a']]; choose a list of (text, a whole number or a number)"),
        ((*MOTIONS, "+backbone.pooling=cls"), "backbone of MVTSEncoder has no key pooling; it has attention, dim"),
        ((*MOTIONS, "+attention.fuse=true"), "attention of Softmax has no key fuse; did you mean attention.fused?"),
    ],
    ids=lambda overrides: overrides[-1] if isinstance(overrides, tuple) else "",
)
def test_what_does_not_go_together_is_named(data, outputs, overrides, cause):
    assert cause in refusal(data, outputs, *overrides)


@pytest.mark.parametrize(
    ("overrides", "cause"),
    [
        (
            ["recipe=luna", "task=digits"],
            "recipe luna does not fit this task (Interpolation key 'sizes.digits' not fou",
        ),
        (["task=digits", "sclae=smoke"], 'There is no setting "sclae"; did you mean scale?'),
        (["task=digits", "scale=smoke", "+sede=1"], 'There is no setting "sede"; did you mean seed?'),
        (["task=lra/listops", "scale=smoke", "data.sizes.train=9"], "The entries of a list have no names"),
        (
            ["task=digits", "attention=softmax", "attention.fusd=true"],
            'There is no setting "fusd" in attention; did you mean fused?',
        ),
        (["-m", "task=digits", "trainer.max_step=1,2"], 'no setting "max_step" in trainer; did you mean max_steps or'),
        (["task=digits", "trainer.zzz=1"], "+trainer.zzz= adds a further argument of its class."),
        (["task=digits", "+trainer.logger=false"], "trainer.logger is there already; leave the + out: trainer.logger="),
        (["-m", "task=digits", "hydra/sweeper=zzz"], 'There is no hydra/sweeper "zzz"; choose from basic, job_list, o'),
        (["task=digits", "scale=smoke", "+trainer.limit_val_batches=1e-9"], "Lightning refuses these settings (You r"),
        (
            ["task=uea/basic_motions", "data.val_fraction=0.3"],
            "has no effect with protocol=paper, which validates on test",
        ),
        (["task=lra/listops", "scale=smoke", "recipe.steps=9"], "at scale=smoke, which sets the length of training it"),
        (["task=lra/listops", "scale=smoke", "limits.cases=9"], "has no effect on task=lra/listops with this recipe; "),
        (["task=lra/listops", "scale=laptop", "scheduler=constant"], "effect beside this recipe and scale; add sched"),
    ],
)
def test_the_command_line_says_it_in_a_sentence(data, outputs, overrides, cause):
    done = answer("train.py", *overrides, f"paths.data={data}", f"paths.outputs={outputs}")
    assert done.returncode != 0
    assert cause in done.stderr
    assert "Traceback" not in done.stderr
    assert "HYDRA_FULL_ERROR" not in done.stderr
    assert "Error executing job" not in done.stderr
    if overrides[0] == "recipe=luna":
        assert "the recipe's sizes, which has listops, text, retrieval, image, pathfinder" in done.stderr


@pytest.mark.parametrize(
    ("word", "meant"),
    [("++optimzer.lr=0.5", "optimizer"), ("+limits.epoch=3", "limits.epochs"), ("++sweep.worker=1", "sweep.workers")],
)
def test_a_misspelt_setting_that_a_plus_would_add_is_refused(word, meant):
    with pytest.raises((UserError, SystemExit), match=rf"There is no setting .*; did you mean {meant}\?"):
        _ = compose_run([*MOTIONS, word]).paths.run
    assert compose_run([*MOTIONS, "+mine.lr=0.5", "++limits.epochs=3"]).paths.run


@pytest.mark.parametrize(
    "word", ["paths.outputs=", "paths.outputs=null", "++paths.data=''", "~paths.run", "data.root="]
)
def test_a_folder_without_a_name_is_refused(word):
    with pytest.raises(UserError, match="names no folder; give a path, or leave the override out for the default"):
        compose_run([*MOTIONS, word])


def test_a_range_needs_a_search_of_any_name():
    lr = "optimizer.lr=interval(0.1,0.9)"
    check_sweep(["-m", "hydra/sweeper=ours", lr])  # a file of the user's that inherits optuna's
    for words in (["-m", lr], ["hydra/sweeper=optuna", lr], ["-m", "hydra/sweeper=basic", lr]):
        with pytest.raises(UserError, match="is a range to search; add -m hydra/sweeper=optuna"):
            check_sweep(words)


def test_a_folder_that_hydra_would_resolve_again_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(tmp_path / "${oc.env:HOME}"))
    with pytest.raises(UserError, match=r"paths.outputs is .*; choose a folder without \$\{ in its name."):
        compose_run(MOTIONS)


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUBQUAD_OUTPUTS", "")
    monkeypatch.setenv("SUBQUAD_DATA", "/else where,x")
    paths = compose_run(MOTIONS).paths
    assert (paths.outputs, paths.data) == (str(tmp_path / "outputs"), "/else where,x")


@pytest.mark.parametrize(("word", "kept"), [("tags=null", []), ("tags=abc", ["abc"]), ("tags=[5,a b]", ["5", "a b"])])
def test_tags_are_words(data, outputs, word, kept):
    trained(composed(data, outputs, *MOTIONS, word))
    assert records.read(record_of(outputs)).tags == kept


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        (
            "figure.py",
            "figure=linformer/1 x=1",
            'There is no setting "x"; the command takes figure, run, output, width, title, source, overrides, '
            "rows, share, seed.",
        ),
        ("figure.py", "figure=linformer/1 width=-1", "width is -1; choose a number above 0."),
        ("bench_refresh.py", "lengh=64", 'There is no setting "lengh"; did you mean length?'),
        ("bench_vision.py", "batch=many", "batch is many; choose a whole number from 1."),
        ("bench_peers.py", "public=maybe", "public is maybe; choose true or false."),
        ("bench.py", "length=[64]", 'There is no setting "length"; did you mean lengths?'),
    ],
)
def test_scripts_know_their_own_settings(program, words, said):
    """Settings that resemble those of runs (batch, batches) are not taken for misspelt ones."""
    done = answer(f"scripts/{program}", *words.split())
    assert (done.returncode, done.stderr.strip()) == (1, said)


@pytest.mark.parametrize("content", [b"# no checkpoint", b""])
def test_a_file_that_is_no_checkpoint_is_named_without_advice_to_load_it(data, outputs, tmp_path, content):
    (tmp_path / "notes.ckpt").write_bytes(content)
    said = refusal(data, outputs, *MOTIONS, f"ckpt_path={tmp_path}/notes.ckpt")
    assert "notes.ckpt has no weights for this model (it is not a checkpoint of this project" in said
    assert "weights_only" not in said


def test_weights_of_another_size_are_named(data, outputs, tmp_path):
    torch.save({"state_dict": {"network.head.weight": torch.zeros(3, 3)}}, tmp_path / "other.ckpt")
    said = refusal(data, outputs, *MOTIONS, f"ckpt_path={tmp_path}/other.ckpt")
    assert "other.ckpt has no weights for this model (Missing key(s) in state_dict" in said


def test_a_run_says_where_its_tokenizer_is_every_time(data, outputs, caplog):
    """The path is also logged when the tokenised text is already in the cache."""
    for seed in (0, 1):
        with caplog.at_level("INFO"):
            trained(composed(data, outputs, *TEXT, *TINY[:-1], f"seed={seed}"))
        [line] = [said for said in caplog.messages if "data.tokenizer" in said]
        place = Path(line.split(" is ")[1].split(";")[0])
        assert (place / "tokenizer.json").exists()
        caplog.clear()


@pytest.mark.slow
def test_the_table_of_made_up_data_says_so(data, outputs, capsys):
    for overrides, said in ((("data=synthetic",), True), ((), False)):
        shutil.rmtree(outputs, ignore_errors=True)
        trained(composed(data, outputs, *MOTIONS, *overrides))
        run = record_of(outputs)
        show(records.read(run), run)
        assert ("synthetic (data=synthetic)" in capsys.readouterr().out) == said


def test_arguments_that_parents_take_are_known():
    """If a class passes its other arguments on, only its named arguments are checked."""
    node = {"_target_": "subquad.data.text.reviews.Reviews", "root": "/x", "batch_size": "many"}
    with pytest.raises(UserError, match=r"data\.batch_size is many"):
        check_settings("data", node)
    model = {"_target_": "subquad.backbones.language.LanguageModel", "dim": 1.5, "order": "anything"}
    with pytest.raises(UserError, match=r"model.dim is 1\.5"):
        check_settings("model", model)
    check_settings("model", model | {"dim": 2})


@pytest.mark.parametrize("trainer", ["ddp", "ddp_cpu", "fsdp"])
def test_arguments_that_lightning_passes_on_are_not_unknown(trainer):
    check_settings(
        "trainer", OmegaConf.to_container(compose_run([f"trainer={trainer}", "paths.run=/x"]).trainer, resolve=True)
    )
