"""Settings that change the fingerprint of a run, and settings that do not."""

import re
from pathlib import Path

import pytest
from runs import FACTS

from subquad import records
from subquad.config.compose import compose_run
from subquad.config.fingerprint import finished, identity
from subquad.records import fingerprint
from subquad.utils.errors import UserError

BASE = ("task=uea/japanese_vowels", "attention=dba")


def name(*overrides: str) -> str:
    return fingerprint(identity(compose_run([*BASE, *overrides])))


@pytest.fixture(scope="module")
def base() -> str:
    return name()


@pytest.mark.parametrize(
    "overrides",
    [
        ("trainer=cpu",),
        ("logger=wandb",),
        ("paths.data=/elsewhere", "paths.outputs=/other"),
        ("data.root=/elsewhere",),
        ("data.num_workers=3",),
        ("seed=5",),
        ("tags=[mine]",),
        ("attention.d_p=16",),
        ("trainer.devices=2",),
        ("trainer=ddp",),
        ("trainer=ddp_cpu", "trainer.devices=4", "trainer.num_nodes=2"),
        ("trainer=fsdp",),
        ("trainer.accumulate_grad_batches=4",),
        ("compile_model=true", "checkpoint_activations=true"),
        ("compile_model=reduce-overhead", "runtime.channels_last=true", "runtime.pad_lengths=64"),
        ("runtime.deterministic=true", "runtime.cudnn_attention=true", "runtime.float32_precision=auto"),
        ("+recipe.float32_precision=high",),
        ("+trainer.profiler=simple",),
        ("recipe.sizes.face_detection.layers=7",),
        ("recipe.sizes.classification.dim=64",),
        ("attention@exact=linear",),
        ("+callbacks.progress.lines=3",),
        ("recipe=mvts", "protocol=paper", "scale=paper"),
    ],
    ids=" ".join,
)
def test_place_device_display_and_seed_do_not_change_a_run(base, overrides):
    assert name(*overrides) == base


@pytest.mark.parametrize(
    "overrides",
    [
        ("attention.d_p=17",),
        ("attention=softmax",),
        ("optimizer.lr=0.002",),
        ("optimizer=adamw",),
        ("scheduler=warmup_cosine",),
        ("recipe=nystromformer", "+recipe.sizes.japanese_vowels={steps:5,warmup:2,batch:4,every:1}"),
        ("recipe.sizes.japanese_vowels.dim=64",),
        ("recipe.batch_size=8",),
        ("protocol=clean",),
        ("scale=laptop",),
        ("trainer.max_epochs=3",),
        ("trainer.precision=bf16-mixed",),
        ("runtime.float32_precision=high",),
        ("data.normalization=minmax",),
        ("backbone.norm=layer",),
        ("callbacks.seed.seed=9",),
        ("~callbacks.refresh",),
        ("callbacks.ends=null",),
        ("callbacks.refresh._target_=pytorch_lightning.Callback",),
        ("ckpt_path=weights.ckpt",),
        ("ckpt_path=/",),
    ],
    ids=" ".join,
)
def test_what_decides_the_numbers_changes_a_run(base, overrides):
    assert name(*overrides) != base


def test_other_weights_in_a_file_are_another_run_wherever_it_lies(tmp_path):
    files = [tmp_path / name for name in "ab"]
    files[0].write_bytes(b"weights")
    overrides = ("task=cifar/cifar10", "backbone=vit")
    first = name(*overrides, f"backbone.pretrained={files[0]}")
    files[1].write_bytes(b"weights")
    assert first == name(*overrides, f"backbone.pretrained={files[1]}") != name(*overrides)
    files[0].write_bytes(b"other weights")
    assert first != name(*overrides, f"backbone.pretrained={files[0]}")


def test_workers_of_a_generator_do_not_change_a_run():
    overrides = ("task=lra/listops", "attention=dba", "scale=smoke")
    assert name(*overrides) == name(*overrides, "+data.workers=2") != name(*overrides, "data.data_seed=1")


def test_listops_with_the_test_rows_of_the_release_is_another_run():
    kept = ["experiment=dba/lra", "task=lra/listops", "trainer.precision=bf16-mixed"]  # in docs/results
    config = compose_run(kept)
    assert config.data.sizes[2] == 20_000
    assert fingerprint(identity(config)) != "b7fff7aa44c1" == fingerprint(identity(compose_run([*kept, "~data.sizes"])))


def test_a_key_of_an_attention_that_is_not_used_changes_nothing(base):
    assert name("exact.fused=false") == base
    without = "backbone.attention=null"
    assert name(without) == name(without, "attention.d_p=99") != base


def test_a_backbone_without_attention_counts_what_it_reads_and_no_attention():
    overrides = ("backbone=blrp", "task=uea/japanese_vowels")
    own = name(*overrides)
    assert own == name(*overrides, "recipe.sizes.japanese_vowels.layers=9") == name(*overrides, "attention=luna")
    assert own not in {name(), name(*overrides, "backbone=tlb")}
    for change in (
        "backbone.dim=64",
        "recipe.sizes.japanese_vowels.heads=4",
        "backbone.segment=10",
        "backbone.phi=single",
    ):
        assert name(*overrides, change) != own


def test_every_task_has_its_own_fingerprint():
    names = {name(f"task={task}") for task in ("uea/japanese_vowels", "uea/basic_motions", "tser/tecator")}
    assert len(names) == 3


def test_the_run_folder_names_task_attention_fingerprint_and_seed(base):
    config = compose_run([*BASE, "seed=3", "paths.outputs=/out"])
    assert Path(config.paths.run) == Path(f"/out/runs/uea/japanese_vowels/dba/{base}-s3")
    assert re.fullmatch("[0-9a-f]{12}", base)


def test_a_folder_of_ones_own_shows_its_own_run_only(tmp_path, base):
    config = compose_run([*BASE, f"paths.run={tmp_path}/mine"])
    assert finished(config) is None
    records.write(records.Record(**FACTS | {"fingerprint": base, "seed": 0}), tmp_path / "mine")
    assert finished(config).name == f"{base}-s0"
    records.write(records.Record(**FACTS | {"fingerprint": base, "seed": 1}), tmp_path / "mine")
    with pytest.raises(UserError, match=rf"belongs to another run .*not {base}-s0\); leave paths.run out"):
        finished(config)


def test_the_fingerprint_is_taken_before_anything_is_resolved(base):
    config = compose_run(BASE)
    first = str(config.paths.run)
    assert str(config.paths.run) == first
    assert fingerprint(identity(config)) == base


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["attention=dbaa"], "There is no attention.*dbaa.*dba"),
        (["task=uea/nothing"], "There is no task"),
        (["attention=glob(zz*)"], "selects nothing"),
        (["trainer.max_epoch=3"], "max_epoch"),
        (["callbacks=defualt"], "default"),
    ],
    ids=str,
)
def test_misspelt_words_are_refused_with_the_choices(overrides, message):
    with pytest.raises(UserError, match=message):
        compose_run([*overrides])


def test_the_protocol_counts_even_where_the_data_do_not_ask_for_it():
    assert name("task=lra/listops", "protocol=clean") != name("task=lra/listops", "protocol=paper")


def test_a_run_without_attention_has_a_name_of_its_own():
    with_it, without = (compose_run([*BASE, *own]).paths.run for own in ((), ("backbone.attention=null",)))
    assert [Path(run).parent.name for run in (with_it, without)] == ["dba", "none"]
    assert Path(with_it).name != Path(without).name
