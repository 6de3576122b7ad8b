"""Plans of tables: steps, times and checkpoints, compared with real runs and with numbers computed by hand."""

import dataclasses
import types
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from runs import FACTS, composed, one_thread, record_of, run_script, trained

from subquad import records
from subquad.config.compositions import Compositions
from subquad.config.task_metadata import about_task
from subquad.measure.inputs import random_batch
from subquad.measure.step_memory import USABLE
from subquad.planning import cost
from subquad.planning.cost import Device, Pace, Paces, family_of, measured_steps, optimizer_states, pace, pace_of_others
from subquad.planning.gpu_memory import fits
from subquad.planning.model_size import parameters_of, spec_of
from subquad.planning.plan_view import checkpoints, show_memory, show_plan, time_left
from subquad.planning.step_time import measure_steps
from subquad.planning.table_plan import Share, Work, checkpoint_bytes, jobs_by_setting, shares
from subquad.results.cells import RunSpec
from subquad.training import memory_plan
from subquad.utils.byte_sizes import readable_bytes
from subquad.utils.errors import UserError

HERE, GPU = Device("this CPU, 1 threads", False), Device("a GPU", True)
COMPOSITIONS = Compositions()
LINE = ("task=digits", "recipe=small_vit", "attention=softmax")


def setting_of(overrides):
    return cost.setting_of(overrides, COMPOSITIONS)


def trainable(setting):
    return parameters_of([setting])[0]


def setting(*overrides: str):
    return setting_of([*LINE, *overrides])


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (("task=lra/listops", "recipe=luna"), 5000),
        (("task=lra/listops", "recipe=luna", "scale=smoke"), 4),
        (("task=uea/japanese_vowels",), 2000),  # 400 epochs of 5 batches: 270 cases by 64
        (("task=uea/japanese_vowels", "protocol=clean"), 1600),  # 216 of them
        (("task=uea/japanese_vowels", "scale=smoke"), 1),
        (("task=cifar/cifar10", "recipe=deit", "recipe.size={side:32,batch:100,lr:0.1,epochs:3}"), 1500),
        (("task=uea/custom", "data.dataset=Mine", "data.folder=/nowhere"), None),
    ],
)
def test_steps_are_those_of_the_recipe(overrides, steps):
    assert setting_of(overrides).steps == steps


@pytest.mark.slow
def test_a_run_of_the_same_family_tells_time_parameters_and_disk(data, outputs):
    """Compares the size of checkpoints with the files of a real run, and the family with that of its record."""
    overrides = [*LINE, "scale=smoke", "trainer=cpu"]
    record = trained(composed(data, outputs, *overrides))
    known = setting_of(overrides)
    assert record.steps == known.steps
    assert family_of(record.config) == known.family
    states = optimizer_states(known.module["optimizer"])
    assert states == 2
    files = sum(path.stat().st_size for path in (record_of(outputs) / "checkpoints").iterdir())
    assert checkpoint_bytes(known, record.parameters, states) == pytest.approx(files, rel=0.25)
    assert checkpoint_bytes(known, 10, 2) == 4 * 10 * (1 + 3)
    paces = Paces([record], {})
    assert paces.parameters(known) == record.parameters == trainable(known)
    found = paces.of(known, None)
    assert found is not None
    assert found.seconds * record.steps == pytest.approx(record.wall_seconds)
    assert (found.whole, found.device.gpu) == (True, False)


def test_a_family_is_what_decides_the_time_of_a_step():
    def family(*overrides: str) -> str:
        return setting_of(["task=uea/japanese_vowels", "attention=softmax", *overrides]).family

    one = family()
    assert one == family("scale=smoke") == family("protocol=clean") == family("trainer=ddp")  # the same steps
    others = ("attention=dba", "backbone.layers=1", "recipe.batch_size=7", "trainer.precision=bf16-mixed")
    assert len({one, *(family(word) for word in others)}) == 5


def test_plans_prefer_this_device_and_whole_runs_and_pass_over_short_ones():
    known = setting()
    step = Pace(0.5, HERE, False, 3, 100)
    run, elsewhere = Pace(0.7, HERE, True, known.steps, 100), Pace(0.1, GPU, True, known.steps, 100)
    short = Pace(9.0, HERE, True, known.steps // 10 - 1, 100)
    kept = dataclasses.replace(elsewhere, steps=10 * known.steps, kept=True)
    for found, best in (
        ([step, run, elsewhere, short], run),
        ([step, elsewhere, kept], step),
        ([kept, elsewhere], elsewhere),
        ([kept, short], kept),
        ([elsewhere, short], elsewhere),
        ([short], None),
        ([], None),
    ):
        assert Paces([], {known.family: found}).of(known, HERE) is best
    assert Paces([], {"other": [run]}).of(known, HERE) is None


def record(**changes) -> records.Record:
    machine = {"gpu": "a GPU", "cpu": "this CPU", "threads": 1}
    return records.Record(**(FACTS | {"machine": machine, "steps": 100, "wall_seconds": 50.0} | changes))


def test_gpu_hours_count_every_gpu_of_a_run():
    known = setting()
    config = {
        "task": {"module": known.module}, "data": known.data, "paths": {},
        "trainer": {"precision": "32-true", "devices": 4, "num_nodes": 2},
    }  # fmt: skip
    family = family_of(config)
    known = dataclasses.replace(known, family=family, steps=100)
    [pace] = Paces([record(config=config)], {}).known[family]
    assert (pace.seconds, pace.device) == (4.0, GPU)  # 50 s / 100 steps on 8 of them
    on_cpu = config | {"trainer": config["trainer"] | {"accelerator": "cpu"}}  # beside a GPU that it does not use
    [pace] = Paces([record(config=on_cpu)], {}).known[family]
    assert (pace.seconds, pace.device.name) == (0.5, "this CPU, 1 thread")
    unknown = config | {"trainer": config["trainer"] | {"devices": "auto"}}
    assert not Paces([record(config=unknown)], {}).known[family]


def job(folder: Path, seed: int, finished: bool = False) -> RunSpec:
    made = RunSpec(("attention=dba", f"seed={seed}"), folder / f"run-s{seed}")
    if finished:
        made.folder.mkdir(parents=True)
        (made.folder / records.RESULT).touch()
    return made


def test_sums_are_over_what_is_left(tmp_path):
    known = dataclasses.replace(setting(), steps=1000)
    jobs = [job(tmp_path, 0, finished=True), job(tmp_path, 1), job(tmp_path, 2)]
    other = dataclasses.replace(known, family="other", task="imagenet", overrides=("other",))
    works = [Work(known, jobs, 10**6, None), Work(other, jobs[1:], None, "ImageNet is missing.")]
    paces = Paces([], {known.family: [Pace(3.6, HERE, True, 1000, 10**6)]})
    tasks, total = shares(works, paces, HERE, {known.overrides: 2, ("other",): 2})
    digits = tasks["digits"]
    assert (digits.runs, digits.finished, digits.left, digits.timed) == (3, 1, 2, 2)
    assert time_left(digits) == "2 CPU-hours"  # 2 runs of 1000 steps of 3.6 s
    assert checkpoints(digits) == "32 MB"  # 2 runs of 4 times a million numbers of 4 bytes
    assert (time_left(tasks["imagenet"]), checkpoints(tasks["imagenet"])) == ("not measured", "unknown")
    assert tasks["imagenet"].needs == {"ImageNet is missing."}
    assert (time_left(total), checkpoints(total)) == ("at least 2 CPU-hours", "at least 32 MB")
    assert not digits.needs


def test_a_run_of_two_tables_counts_once(tmp_path):
    twice = [job(tmp_path, 0), job(tmp_path, 1), job(tmp_path, 0)]
    assert jobs_by_setting(twice) == {("attention=dba",): twice[:2]}


def test_devices_are_not_added_up():
    share = Share(runs=3, left=3, timed=3, whole=3, seconds={HERE: 7200.0, GPU: 36_000.0})
    assert time_left(share) == "2 CPU-hours + 10 GPU-hours"
    sizes = {999: "999 B", 1000: "1 kB", 999_700_000: "1 GB", 1.5e9: "1.5 GB", 2e13: "20 TB", 999.7e12: "1,000 TB"}
    assert {n: readable_bytes(n) for n in sizes} == sizes


def test_what_tasks_say_of_rows_and_downloads():
    assert about_task("imagenet")["train_rows"] == 1_281_167
    assert about_task("vqa_v2")["train_rows"] == 443_757
    assert about_task("uea/basic_motions")["train_rows"] == 40
    assert about_task("mlm/text")["train_rows"] is None
    assert about_task("uea/custom")["train_rows"] is None
    assert about_task("lra/retrieval").get("download") == "8 GB"
    assert about_task("lra/listops").get("download") == "nothing"
    assert about_task("imagenet").get("download") is None


def test_a_step_is_measured_once_and_kept(tmp_path):
    known = setting("trainer=cpu", "data=synthetic", "scale=smoke")
    with one_thread():
        found = measure_steps(known, tmp_path, steps=2)
    assert found.seconds > 0
    assert (found.steps, found.parameters, found.batch_size) == (2, trainable(known), known.data["batch_size"])
    assert list(measured_steps(tmp_path)) == [found]
    assert Paces([], {known.family: [pace(found)]}).of(known, None) == pace(found)
    [path] = (tmp_path / "measured" / "steps").iterdir()
    path.write_text("{")
    with pytest.raises(UserError, match="is no measurement of this version"):
        list(measured_steps(tmp_path))


def test_the_time_of_a_step_is_the_median_of_those_after_two(tmp_path, monkeypatch):
    clock = iter([0.0, 0.0, *(0.0, 1.0), *(0.0, 50.0), *(0.0, 2.0)])  # two warm-up steps and three that count
    monkeypatch.setattr("subquad.planning.step_time.time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    with one_thread():
        found = measure_steps(setting("trainer=cpu", "data=synthetic", "scale=smoke"), tmp_path, steps=3)
    assert (found.steps, found.seconds) == (3, 2.0)


@pytest.mark.slow
def test_too_little_memory_is_said_before_the_step(tmp_path, monkeypatch):
    """Also the module is not built, and its smallest step is named."""
    monkeypatch.setattr(memory_plan, "free_memory", lambda: 1000)
    monkeypatch.setattr("subquad.planning.step_time.instantiate", None)
    refused = r"^A training step of this run needs .* MB by estimate, .* 2 rows at a time, and there are 1 kB"
    with one_thread(), pytest.raises(UserError, match=refused):
        measure_steps(setting("trainer=cpu"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_batch_has_no_more_rows_than_the_training_set():
    assert setting_of(["task=uea/stand_walk_jump"]).batch == 12
    assert setting_of(["task=uea/japanese_vowels"]).batch == 64


@pytest.mark.slow
def test_a_step_is_timed_as_the_run_would_do_it(tmp_path, monkeypatch):
    """With the memory that half a batch needs with recomputed layers, or the whole one where batches are normalised."""
    overrides = [
        "task=uea/japanese_vowels",
        "scale=smoke",
        "recipe.batch_size=4",
        "backbone.layers=3",
        "trainer=cpu",
        "data=synthetic",
    ]
    for norm, rows, how in (("layer", 2, " and 2 microbatches of 2 rows"), ("batch", 4, "")):
        known = setting_of([*overrides, f"backbone.norm={norm}"])
        [fit] = fits([known], 1, {}, "cpu")
        sizes, again = [], []
        free = int(fit.least / USABLE) + 1
        monkeypatch.setattr(memory_plan, "free_memory", lambda free=free: free)
        monkeypatch.setattr("subquad.planning.step_time.recompute_layers", again.append)
        monkeypatch.setattr(
            "subquad.planning.step_time.random_batch",
            lambda network, spec, rows, sizes=sizes: sizes.append(rows) or random_batch(network, spec, rows),
        )
        with one_thread():
            found = measure_steps(known, tmp_path, steps=1)
        assert (set(sizes), len(again)) == ({rows}, 1)
        assert found.memory.startswith(f"recomputes its layers{how} (")


def test_a_plan_shows_the_memory_of_the_largest_step_and_marks_kept_runs(tmp_path, capsys):
    works = [
        Work(dataclasses.replace(setting(), overrides=(name,)), [job(tmp_path / name, 0)], None, None, memory)
        for name, memory in (("a", {"cpu": 10**9, "cuda": 10**8}), ("b", {"cpu": 3 * 10**9}))
    ]
    kept = Pace(3.6, HERE, True, 10**6, 1, kept=True)
    tasks, total = shares(works, Paces([], {works[0].setting.family: [kept]}), HERE, {("a",): 2, ("b",): 2})
    show_plan("a title", tasks, total)
    shown = capsys.readouterr().out
    assert "CPU-hours*  3 GB" in shown.replace("   ", "  ")
    assert "100 MB" in shown
    assert "* estimated from a kept run" in shown


def test_the_time_of_an_own_row_is_the_median_of_kept_runs_that_differ_in_the_attention_only(tmp_path, capsys):
    own = dataclasses.replace(setting(), overrides=("task=t", "attention=m:Mine", "attention.k=3", "optimizer.lr=1"))
    near = ("attention=dba", "task=t", "optimizer.lr=2", "limits.steps=7")
    runs = [(near, 30.0), (near, 10.0), (("attention=luna", "task=t"), 500.0)]
    runs += [((*near, more), 0.1) for more in ("scale=laptop", "backbone.attention=null")]
    trainer = {"devices": 1, "num_nodes": 1, "precision": "32-true"}
    config = FACTS["config"] | {"trainer": trainer}
    kept = [record(steps=10, wall_seconds=seconds, overrides=[*given], config=config) for given, seconds in runs]
    others = pace_of_others(own, kept)
    assert (others.seconds, others.kept) == (3.0, True)
    assert pace_of_others(own, kept[3:]) is None
    tasks, total = shares(
        [Work(own, [job(tmp_path, 0)], None, None, others=others)], Paces([], {}), HERE, {own.overrides: 2}
    )
    show_plan("a title", tasks, total)
    shown = capsys.readouterr().out
    assert "GPU-hours** " in shown
    assert "* estimated from a kept run" not in shown
    assert "1 run by other attentions" in shown


def test_a_model_of_the_archive_is_known_without_its_files(tmp_path):
    known = setting_of(["task=uea/heartbeat", f"paths.data={tmp_path}"])
    assert trainable(known) > 0
    assert spec_of(known.data).channels == 61
    assert spec_of(setting_of(["task=mlm/text", "data.folder=/nowhere"]).data, prepare=True) is None
    own = setting_of(["task=uea/custom", "data.dataset=Mine", "data.folder=/nowhere"])
    assert trainable(own) is None


@pytest.mark.parametrize("task", ["lra/retrieval", "tser/covid3month", "digits", "mlm/text"])
def test_made_up_batches_train(task, data):
    overrides = [f"task={task}", "data=synthetic", "scale=smoke", f"paths.data={data}", "recipe.batch_size=2"]
    known = setting_of(overrides)
    spec = spec_of(known.data, prepare=True)
    module = instantiate(known.module, _convert_="all")(spec=spec)
    batch = random_batch(module.network, spec, 2)
    loss = module.loss(module(batch), module.targets(batch))
    loss.backward()
    assert torch.isfinite(loss)


@pytest.mark.slow
def test_the_script_prints_a_plan(data, outputs):
    overrides = ("table=primal_dual/9", "rows=[BasicMotions,Cricket]", "columns=[Softmax]", "seeds=[0,1]")
    broken = outputs / "runs" / "broken" / "result.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    shown = run_script(data, outputs, "scripts/plan.py", *overrides)
    assert shown.returncode == 0, shown.stderr
    assert f"Left out: {broken} is damaged, or is not a record" in shown.stderr
    assert "4 runs, 0 finished, 4 left." in shown.stdout
    assert "2 runs estimated from kept runs of their kind; 2 not measured (measure" in shown.stdout
    assert "Missing for 2 runs of uea/cricket: Cricket_TRAIN.ts" in shown.stdout
    assert "Missing for 2 runs of uea/basic" not in shown.stdout
    wrong = run_script(data, outputs, "scripts/plan.py", "table=dba/99")
    assert wrong.returncode == 1
    assert 'There is no table "dba/99"' in wrong.stderr
    assert "Traceback" not in wrong.stderr


@pytest.mark.parametrize(
    ("task", "choice"),
    [
        *(
            (task, "attention=dba")
            for task in ("lra/retrieval", "tser/covid3month", "digits", "mlm/text", "vqa_v2", "glue/sst2")
        ),
        *((task, "backbone=s4") for task in ("lra/retrieval", "tser/covid3month", "digits")),
    ],
)
def test_the_network_has_all_parameters_of_a_task(task, choice, data):
    known = setting_of([f"task={task}", choice, "data=synthetic", "scale=smoke", f"paths.data={data}"])
    module = instantiate(known.module, _convert_="all")(spec=spec_of(known.data))
    assert trainable(known) == module.parameter_count


def test_a_model_that_starts_from_published_weights_is_counted_without_them(monkeypatch):
    def refuse(*names):
        raise AssertionError("weights were asked for")

    monkeypatch.setattr("subquad.backbones.pretrained.published", refuse)
    overrides = ("task=cifar/cifar10", "backbone=pvt_v2", "attention=ecoformer", "recipe=ecoformer_scratch")
    asked = setting_of((*overrides, "backbone.pretrained=hub"))
    assert asked.module["backbone"]["pretrained"] == "hub"
    assert trainable(asked) == trainable(setting_of(overrides)) > 1_000_000


def test_no_word_of_a_plan_is_cut_at_eighty_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    share = Share(runs=5, left=5, seconds={HERE: 700.0}, timed=4, whole=4, checkpoint_bytes=61_300_000, sized=5)
    show_plan("a title", {"uea/articulary_word_recognition": share}, share)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "CPU-hours" in shown
    assert "61.3 MB" in shown


@pytest.mark.slow
def test_a_plan_says_what_makes_a_step_fit(data, capsys):
    """What was traced is used again, also for another memory."""
    overrides = ["task=lra/listops", "scale=smoke", "recipe.batch_size=8", f"paths.data={data}"]
    known: dict[str, dict[str, int]] = {}
    small, large = setting_of([*overrides, "attention=softmax"]), setting_of([*overrides, "attention=softmax_explicit"])
    missing = setting_of(["task=uea/custom", "data.dataset=Mine", "data.folder=/nowhere"])
    whole = {fit.setting.attention: fit.whole for fit in fits([small, large, small], 10**12, known)}
    assert whole["softmax"] < whole["softmax_explicit"]
    memory = int(whole["softmax"] / USABLE) + 1
    found = fits([small, large, missing], memory, known)
    assert [fit.way for fit in found] == [(False, 1), (True, 1), None]
    assert found[1].least <= USABLE * memory < found[1].whole
    assert set(known) == {small.family, large.family}
    show_memory(found, memory, 1 - USABLE)
    said = capsys.readouterr().out
    assert "not measured on a GPU; 15% is kept free." in said
    assert "1 of 3 models fit with the whole batch" in said
    assert "attention=softmax_explicit: " in said
    assert "; recomputes its layers (" in said
    assert "data.dataset=Mine data.folder=/nowhere: unknown (the data are missing here)" in said
