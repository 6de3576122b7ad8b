"""Comparisons of attentions: which task reads the data, how long runs may train, what a killed one resumes."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from PIL import Image, ImageDraw
from pyarrow import parquet
from rich.console import Console
from runs import FACTS, ROOT, answer, program
from runs import sentences as sentences_of
from scipy import stats

from subquad import records
from subquad.data.own_data import task_of
from subquad.planning import comparison as module
from subquad.planning.budget import EpochPace, epochs_within, least_epochs
from subquad.planning.comparison import STEP, ComparedRow, Comparison, ComparisonResult
from subquad.report.comparison import show, verdict
from subquad.results.pairs import Pair, all_pairs, half_widths
from subquad.utils.errors import UserError


def photos(folder: Path) -> Path:
    """60 JPEG photos in three folders: a shape before noise."""
    rng = np.random.default_rng(0)
    for name in ("disc", "square", "cross"):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            picture = Image.fromarray(rng.integers(60, 200, (96, 128, 3)).astype(np.uint8))
            (x, y), r, draw = rng.integers((20, 20), (100, 70)).tolist(), 18, ImageDraw.Draw(picture)
            box, colour = (x - r, y - r, x + r, y + r), tuple(rng.integers(0, 255, 3).tolist())
            if name == "cross":
                draw.line(box, colour, 7)
                draw.line((x - r, y + r, x + r, y - r), colour, 7)
            else:
                (draw.ellipse if name == "disc" else draw.rectangle)(box, colour)
            picture.save(folder / name / f"IMG_{number}.jpg")
    return folder


def sentences(file: Path) -> Path:
    """200 labelled sentences, each with one word that tells its label."""
    rng = np.random.default_rng(0)
    told = {"good": ["lovely", "great", "fine", "warm"], "bad": ["awful", "poor", "dull", "cold"]}
    rest = ["the", "film", "a", "story", "of", "one", "day", "and", "its", "cast", "in", "our", "town"]
    rows = []
    for label in ["good", "bad"] * 100:
        words = [*rng.choice(rest, rng.integers(5, 12)), rng.choice(told[label])]
        rows.append(f"{' '.join(rng.permutation(words))},{label}")
    file.write_text("\n".join(["text,label", *rows, ""]), encoding="utf-8")
    return file


def series(folder: Path) -> Path:
    """60 cases of two noisy waves in each file; the class is their frequency."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for split in ("TRAIN", "TEST"):
        lines = ["@problemName Mine", "@timeStamps false", "@univariate false", "@classLabel true slow fast", "@data"]
        for label in ["slow", "fast"] * 30:
            waves = np.sin(np.outer([1, 1.1], np.arange(60)) * (0.15 if label == "slow" else 0.3) + rng.uniform(0, 6))
            channels = (waves + 0.5 * rng.normal(size=waves.shape)).round(3).tolist()
            lines.append(":".join([*(",".join(map(str, channel)) for channel in channels), label]))
        (folder / f"Mine_{split}.ts").write_text("\n".join([*lines, ""]))
    return folder


def test_the_task_is_found_by_looking(tmp_path):
    pictures = {"task": "images/custom", "data.folder": f"{tmp_path}/photos"}
    assert task_of(photos(tmp_path / "photos"))[0] == pictures
    (tmp_path / "photos" / "app.ts").write_text("a program")
    assert task_of(tmp_path / "photos")[0] == pictures
    table = sentences(tmp_path / "a.csv")
    assert task_of(table)[0] == {"task": "text/custom", "data.train": str(table)}
    (tmp_path / "ids.jsonl").write_text('{"tokens": [1, 2], "label": 0}\n')
    assert task_of(tmp_path / "ids.jsonl")[0]["task"] == "tokens/custom"
    (tmp_path / "ids.json").write_text('[{"tokens": [1, 2], "label": 0}]')
    assert task_of(tmp_path / "ids.json")[0]["task"] == "tokens/custom"
    tagged = pyarrow.table({"text": ["a"], "tags": [["b"]], "label": [0]})
    large = pyarrow.table({"tokens": pyarrow.array([[1, 2]], pyarrow.large_list(pyarrow.int64())), "label": [0]})
    for rows, task in ((tagged, "text/custom"), (large, "tokens/custom")):
        parquet.write_table(rows, tmp_path / "rows.parquet")
        assert task_of(tmp_path / "rows.parquet")[0]["task"] == task
    folder = series(tmp_path / "waves")
    named = {"task": "uea/custom", "data.dataset": "Mine", "data.folder": str(folder)}
    assert task_of(folder)[0] == task_of(folder / "Mine_TEST.ts")[0] == named
    train = folder / "Mine_TRAIN.ts"
    train.write_text(train.read_text().replace("@classLabel true slow fast", "@targetLabel true"))
    assert task_of(folder)[0] == named | {"task": "tser/custom"}
    (folder / "Mine_TEST.ts").unlink()
    with pytest.raises(UserError, match=r"no Mine_TEST.ts; split the cases into Mine_TRAIN.ts and"):
        task_of(folder)
    train.rename(folder / "Mine_train.ts")
    with pytest.raises(UserError, match=r"no Mine_TRAIN.ts and no Mine_TEST.ts; split the cases into Mine_TRAIN.ts"):
        task_of(folder)
    (odd := tmp_path / "odd").mkdir()
    (odd / "a.xyz").touch()
    with pytest.raises(UserError, match=r"has 1 file \(1 with .xyz\); it takes a folder of images"):
        task_of(odd)
    with pytest.raises(UserError, match="does not exist; it takes"):
        task_of(tmp_path / "none")


def test_the_epochs_are_those_that_fit_the_time():
    # Two at a time, from the 5th second to the 35th: 60 s, of which epochs took 5 x 2 + 5 x 4.
    pace = EpochPace.of({"a": {4: 10, 1: 4}, "b": {4: 19, 1: 7}}, elapsed=35, start=5, workers=2)
    assert (pace.unit, pace.between) == ({"a": 2, "b": 4}, (60 - 30) / 4)
    assert EpochPace.of({"a": {4: 10, 1: 12}}, 35, 5, 2).unit == {"a": 10 / 4 / 4}  # noise
    assert EpochPace.of({"a": {4: 10}}, 35, 5, 2).unit == {"a": 2.5}
    assert pace.seconds(10, [3, 3]) == 5 * 2 + 6 * (10 * 6 + 7.5 * 2) / 2
    for seconds in (400, 800, 1600):
        epochs = epochs_within(pace, seconds, [3, 3], 2, 1000, spent=25)
        assert pace.seconds(epochs, [3, 3]) <= 0.9 * (seconds - 25) < pace.seconds(epochs + 1, [3, 3])
    assert epochs_within(pace, 1600, [3, 3], 2, 30, spent=25) == 30
    with pytest.raises(
        UserError, match=r"hours=0.028 is too short: 50 epochs .* take 18 min 6 s or more; say hours=0.31,"
    ):
        epochs_within(pace, 100, [3, 3], 50, 60, spent=25)
    assert [least_epochs(steps, 60) for steps in (3, 40, 1000)] == [34, 3, 2]


def test_pairs_are_tested_over_seeds_and_cases_and_corrected():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 4))
    values = {"a": dict(enumerate(a)), "b": dict(enumerate(b))}
    [pair] = all_pairs(values, None)
    assert pair.p == pytest.approx(stats.ttest_rel(a, b).pvalue)
    cases = {"a": np.array([1.0, 0, 1, 1, 0]), "b": np.array([0.0, 0, 1, 0, 1])}
    [wider] = all_pairs(values, cases)
    d = cases["a"] - cases["b"]
    parts = np.var(a - b, ddof=1) / 4, d.var(ddof=1) / 5
    quantile = stats.t.ppf(0.975, sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 4))
    assert wider.high - wider.difference == pytest.approx(quantile * np.sqrt(sum(parts)))
    error = np.sqrt(np.var(a, ddof=1) / 4)
    assert half_widths(values, None)["a"] == pytest.approx(stats.t.ppf(0.975, 3) * error)
    three = all_pairs({**values, "c": dict(enumerate(0.9 * a + 50))}, None)
    assert three[0].p == pair.p  # another row changes nothing but the correction
    raw = sorted(pair.p for pair in three)
    assert sorted(pair.corrected for pair in three)[0] == pytest.approx(3 * raw[0])
    assert sorted(pair.corrected for pair in three)[2] == pytest.approx(max(raw[2], min(1, 2 * raw[1])))
    assert [pair.differs for pair in three] == [False, True, True]
    small = {name: {seed: 1e-8 * value for seed, value in row.items()} for name, row in values.items()}
    assert all_pairs(small, None)[0].p == pytest.approx(pair.p)  # whatever the unit
    same = {"a": {1: 5.0, 2: 5.0}, "b": {1: 7.0, 2: 7.0}}
    assert [pair.p for pair in all_pairs(same, None)] == [1]  # without variation nothing is known about chance


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["paper", "laptop"])
def test_a_killed_comparison_goes_on_with_the_runs_that_it_planned(scale, tmp_path, monkeypatch, capsys):
    """Runs are written by hand. The second call measures other times, and must not plan anew."""
    jobs, wall, die = [], [0.1], [0]

    def write(runs, *_):
        for run in runs:
            if die[0] and len(jobs) == die[0]:
                raise SystemExit("killed")
            jobs.append(run)
            rate = next((float(o.partition("=")[2]) for o in run.overrides if o.startswith("optimizer.lr=")), 0.0)
            score = 0.5 + 100 * rate * ("attention=dba" in run.overrides) - rate
            fingerprint, _, seed = run.folder.name.partition("-s")
            [steps] = [int(o.partition("=")[2]) for o in run.overrides if "epochs" in o]  # an epoch is a step here
            known = {"metrics": {"val/accuracy": score, "test/accuracy": score + int(seed) / 100}, "steps": steps}
            records.write_json(run.folder / records.RESULT, FACTS | known | {
                "fingerprint": fingerprint, "seed": int(seed), "data_fingerprint": made.data.fingerprint,
                "wall_seconds": wall[0] * steps, "finished": records.now(),
            })  # fmt: skip
        return False

    monkeypatch.setattr(module, "train_all", write)
    cost = {"seconds": 1e-4, "bytes": 1, "parameters": 1, "rows": 1}
    monkeypatch.setattr(module, "step_costs", lambda sides, *_: dict.fromkeys(sides, cost))

    def comparison():
        words = [
            "task=uea/basic_motions",
            "data=synthetic",
            f"scale={scale}",
            "limits.epochs=399",
            f"paths.outputs={tmp_path}",
            f"paths.data={tmp_path}/data",
        ]
        return Comparison(words, ["softmax", "dba"], [1e-3, 3e-3], 2, 0.03, [], named=True)

    made = comparison()
    die[0] = 7
    with pytest.raises(SystemExit, match="killed"):
        made.train(Console())
    pilot, searched = jobs[:4], jobs[4:]
    assert {o for run in pilot for o in run.overrides} > {"protocol=clean", "limits.epochs=40", "limits.epochs=1"}
    assert len(searched) == 3
    epochs = json.loads((made.folder / "plan.json").read_text())["epochs"]
    assert 1 < epochs < 399  # which the user has named as the most
    assert all(f"limits.epochs={epochs}" in run.overrides for run in searched)
    jobs.clear()
    die[0], wall[0] = 0, 99.0
    assert comparison().train(Console())
    assert [run.overrides[-1] for run in jobs] == [
        "seed=0",
        *["seed=1", "seed=2"] * 2,
    ]  # no pilot, the fourth, the tested
    assert all([o for o in run.overrides if "epochs" in o] == [f"limits.epochs={epochs}"] for run in jobs)
    assert made.best_rates() == {"softmax": 0.001, "dba": 0.003}
    assert f"2 rows x (2 rates + 2 seeds) x {epochs} epochs" in capsys.readouterr().out
    jobs.clear()
    assert comparison().train(Console())
    assert jobs == []
    assert made.part == "of 1 of the 19 rows of a batch, which fit the memory"
    made.plan["costs"]["softmax"]["rows"] = 19
    assert made.part == ""


def test_what_the_table_cannot_hold_is_said_below_it(capsys):
    cost = {"seconds": 1, "bytes": 1, "parameters": 1}
    row = ComparedRow(name="dba", rate=1, search={}, values={}, mean=50, half_width=5, cost=cost, run=Path.cwd() / "r")
    bare = {"folder": Path(), "lower_is_better": False, "rows": [row], "pairs": [], "baselines": {}, "left_out": {}}
    show(ComparisonResult(title="t", metric="accuracy", facts={STEP: "of 1 of the 16 rows"}, **bare), Console())
    said = capsys.readouterr().out
    assert "Time and memory of a step: of 1 of the 16 rows" in said
    assert said.endswith("A model of the first row: r\n")


@pytest.mark.parametrize(
    ("lower_is_better", "means", "said"),
    [
        (False, {"dba": 58, "none": 53}, "Not better than the majority class beyond chance: none."),
        (False, {"dba": 54, "none": 30}, "beyond chance: dba, none. Their order means nothing; other rates= or more"),
        (True, {"dba": 42, "none": 46}, "Not better than the majority class beyond chance: none."),
        (False, {"dba": 58, "none": 57}, None),
    ],
)
def test_rows_that_have_learned_nothing_are_named(lower_is_better, means, said):
    rows = [
        ComparedRow(name=name, rate=1, search={}, values={}, mean=mean, half_width=5, cost={}, run=Path())
        for name, mean in means.items()
    ]
    found = verdict(
        ComparisonResult(
            title="t", folder=Path(), metric="accuracy", lower_is_better=lower_is_better, rows=rows,
            pairs=[Pair(*means, difference=-4 if lower_is_better else 4, low=1, high=7, p=0.01, corrected=0.01)],
            baselines={"any": 60 if lower_is_better else 40, "majority class": 50}, facts={}, left_out={},
        )
    )  # fmt: skip
    assert said in found if said else "Not better" not in found
    assert ("dba is better than none." in found) == ("Their order" not in found)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Say either data=<path> or task=<task>"),
        (("data=/nowhere",), "data=/nowhere does not exist; it takes a folder of images"),
        (("task=digits", "attentions=[softmax,lnformer]"), 'no attention "lnformer"; did you mean linformer'),
        (("task=digits", "attentions=['dba optimizer.lr=1',none]"), "optimizer.lr=1 behind dba would train this row"),
        (("task=digits", "attentions=[dba]"), "needs two or more different rows"),
        (("task=digits", "seeds=1"), "say seeds=2 or more"),
        (("task=digits", "hours=0"), "hours is 0; choose a number above 0"),
        (("task=digits", "rates=[0]"), "has to list learning rates above 0"),
        (("task=digits", "atentions=[dba,none]"), "did you mean attentions?"),
        (("task=digits", "attention=dba"), "chosen by this command; say attentions=[softmax,dba]"),
        (("task=digits", "protocol=paper"), "may select on test rows"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused_in_a_sentence(words, said):
    done = answer("scripts/compare.py", *words)
    assert (done.returncode, len(sentences_of(done.stderr))) == (1, 1)
    assert said in done.stderr


README = re.findall(r"`python (scripts/compare\.py data=\S+ [^`]+)`", (ROOT / "README.md").read_text())


@pytest.mark.release
@pytest.mark.parametrize("command", README)
def test_a_new_user_gets_a_page_for_own_data_within_ten_minutes(command, data, outputs, tmp_path):
    script, place, *words = command.split()
    made = {"images": photos, "train.csv": sentences, "folder": series}[Path(place).name](tmp_path / Path(place).name)
    started, settings = program(data, outputs, script, f"data={made}", *words)
    done = subprocess.run(started, timeout=600, check=False, **settings)
    assert done.returncode == 0, done.stderr
    page = Path(done.stdout.split()[-1]).read_text(encoding="utf-8")
    assert all(name in page for name in ("softmax", "dba", "linformer", "Which rows differ", str(made)))
