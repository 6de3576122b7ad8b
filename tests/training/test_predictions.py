"""What a run says of rows without labels, for each kind of the user's own data: the rows of the test give its score."""

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from runs import TINY, composed, one_thread, record_of, run_script, trained

from subquad import records
from subquad.data.images.own_folder import write_synthetic
from subquad.data.text.own_texts import OwnTexts
from subquad.data.text.own_tokens import OwnTokens
from subquad.data.time_series.time_series import TimeSeries
from subquad.data.time_series.ts_files import write_synthetic as write_series
from subquad.training.bundle import pack
from subquad.training.evaluation import predict
from subquad.utils.errors import UserError

SMALL = ("scale=smoke", "attention=softmax", *TINY)


def texts(folder: Path) -> tuple[list[str], Path, list[str]]:
    OwnTexts.write_synthetic(folder)
    header, *lines = (folder / "train.csv").read_text().splitlines()
    for name, rows in (("train", lines[:40]), ("test", lines[40:])):
        (folder / f"{name}.csv").write_text("\n".join([header, *rows, ""]))
    new = [line.rpartition(",")[0] for line in lines[40:]]
    (folder / "new.csv").write_text("\n".join(["text", *new, ""]))
    settings = [f"data.{name}={folder}/{name}.csv" for name in ("train", "test")]
    return ["task=text/custom", *settings], folder / "new.csv", [line.rpartition(",")[2] for line in lines[40:]]


def tokens(folder: Path) -> tuple[list[str], Path, list[str]]:
    for name in ("train", "test", "new"):
        (folder / name).mkdir()
    OwnTokens.write_synthetic(folder)
    arrays = {name: np.load(folder / f"{name}.npy") for name in ("tokens", "lengths", "labels")}
    for name, rows in (("train", slice(40)), ("test", slice(40, 60)), ("new", slice(40, 60))):
        for array in arrays if name != "new" else ("tokens", "lengths"):
            np.save(folder / name / f"{array}.npy", arrays[array][rows])
    settings = [f"data.{name}={folder}/{name}" for name in ("train", "test")]
    return ["task=tokens/custom", *settings], folder / "new", [*map(str, arrays["labels"][40:])]


def images(folder: Path) -> tuple[list[str], Path, list[str]]:
    write_synthetic(folder / "train")
    for number, image in enumerate(sorted(folder.glob("train/*/1*.png"))):
        place = folder / "test" / image.parent.name
        place.mkdir(parents=True, exist_ok=True)
        image.rename(place / f"{number}.png")
    test = sorted((folder / "test").glob("*/*.png"))
    return ["task=images/custom", f"data.folder={folder}"], folder / "test", [image.parent.name for image in test]


def series(folder: Path) -> tuple[list[str], Path, list[str]]:
    write_series(folder, "Mine", "classification")
    lines = (folder / "Mine_TEST.ts").read_text().splitlines()
    start = lines.index("@data") + 1
    header = [re.sub("@classLabel true.*", "@classLabel false", line) for line in lines[:start]]
    cases, labels = zip(*(line.rsplit(":", 1) for line in lines[start:]), strict=True)
    (folder / "new.ts").write_text("\n".join([*header, *cases, ""]))
    return ["task=uea/custom", "data.dataset=Mine", f"data.folder={folder}"], folder / "new.ts", [*labels]


def predicted(run: Path, place: Path, changes=None):
    with one_thread():
        return predict(run, place, changes)


@pytest.mark.slow
@pytest.mark.parametrize("made", [texts, tokens, images, series])
def test_the_rows_of_the_test_without_labels_give_its_score(made, data, outputs, tmp_path):
    words, new, labels = made(tmp_path)
    words = [*words, "scale=smoke", "trainer=cpu"] if made is images else [*words, *SMALL]
    trained(composed(data, outputs, *words))
    run = record_of(outputs)
    pack(run, bundle := tmp_path / "packed.safetensors")
    if made is texts:
        moved = (tmp_path / "train.csv").rename(tmp_path / "moved.csv")
        with pytest.raises(UserError, match=r"data.train=.*train.csv does not exist"):
            predicted(run, new)
        found = predicted(run, new, {"train": str(moved)})
        (tmp_path / "wide.csv").write_text(new.read_text(), encoding="utf-16")
        reading = {"encoding": "utf-16"}  # of the new file only
        for source, changes in ((run, {"train": str(moved)} | reading), (bundle, reading)):
            np.testing.assert_array_equal(predicted(source, tmp_path / "wide.csv", changes).values, found.values)
        with pytest.raises(UserError, match=r"holds no training data, so that data.train changes nothing; .*encoding"):
            predicted(bundle, new, {"train": str(moved)})
    else:
        found = predicted(run, new)
    np.testing.assert_allclose(found.values.sum(1), 1, rtol=1e-5)
    for place in (data, *(tmp_path / name for name in ("train", "moved.csv", "Mine_TRAIN.ts"))):
        if place.exists():
            place.rename(f"{place}-gone")
    try:
        packed = predicted(bundle, new)
    finally:
        Path(f"{data}-gone").rename(data)
    assert (packed.names, packed.classes) == (found.names, found.classes)
    np.testing.assert_array_equal(packed.values, found.values)
    chosen = [found.classes[i] for i in found.values.argmax(1)]
    right = np.mean([one == label for one, label in zip(chosen, labels, strict=True)])
    assert right == pytest.approx(records.read(run).metrics["test/accuracy"])
    assert len({tuple(row) for row in found.values.round(7)}) > 1


@pytest.fixture(scope="module")
def run(tmp_path_factory, data):
    """A run on series with numbers."""
    outputs = tmp_path_factory.mktemp("numbers") / "outputs"
    trained(composed(data, outputs, "task=tser/custom", "data.dataset=X", "data=synthetic", *SMALL))
    return record_of(outputs)


@pytest.mark.slow
def test_the_command_writes_numbers(run, data, tmp_path):
    new = data / "synthetic/regression/X/X_TEST.ts"
    done = run_script(data, tmp_path, "scripts/predict.py", f"run={run}", f"data={new}", f"output={tmp_path}/y.csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path}/y.csv: 24 rows\n"
    header, *lines = csv.reader((tmp_path / "y.csv").read_text().splitlines())
    assert header == ["row", "prediction"]
    values = predicted(run, new).values[:, 0]
    assert lines == [[str(number), f"{value:.6g}"] for number, value in enumerate(values, 1)]


def opened(data_class, words: list[str], root: Path):
    settings = {word.partition("=")[0].removeprefix("data."): word.partition("=")[2] for word in words[1:]}
    data = data_class(root=str(root), batch_size=4, seed=0, **settings)
    data.prepare_data()
    return data


def test_rows_that_a_model_does_not_know_are_named(tmp_path):
    for kind in ("ids", "words"):
        (tmp_path / kind).mkdir()
    words, new, _ = tokens(tmp_path / "ids")
    data = opened(OwnTokens, words, tmp_path)
    np.save(new / "tokens.npy", np.load(new / "tokens.npy") + 50)
    with pytest.raises(UserError, match=r"new, row 1 has the id 5\d, and the model knows ids below 9 \(data.vocab\)"):
        data.unlabelled(new)
    words, new, _ = texts(tmp_path / "words")
    data = opened(OwnTexts, words, tmp_path)
    (tmp_path / "words" / "bare.csv").write_text("a film\na plot\n")
    with pytest.raises(UserError, match="has the columns 'a film' and the training files 'text', 'label'; rename one"):
        data.unlabelled(tmp_path / "words" / "bare.csv")
    with pytest.raises(UserError, match=r"words has 4 tables, such as bare.csv; name one of them"):
        data.unlabelled(tmp_path / "words")
    shutil.rmtree(tmp_path / "tokenizers")
    with pytest.raises(UserError, match="the tokenizer of the training texts, is missing"):
        data.unlabelled(new)


def test_further_rows_are_read_from_the_column_of_the_training_texts(tmp_path):
    words, new, _ = texts(tmp_path)
    data = opened(OwnTexts, words, tmp_path)
    expected, _ = data.unlabelled(new)
    _, *lines = new.read_text().splitlines()
    new.write_text("\n".join(["message,text", *(f"nothing,{line}" for line in lines), ""]))
    assert data.unlabelled(new)[0].values.tolist() == expected.values.tolist()


def test_an_empty_cell_of_the_only_column_keeps_its_number_and_lines_at_the_end_are_no_rows(tmp_path):
    """A spreadsheet writes such a cell as a blank line."""
    words, new, _ = texts(tmp_path)
    data = opened(OwnTexts, words, tmp_path)
    new.write_text("text\na film\n\na plot\n")
    with pytest.raises(UserError, match=f"{new.name}, row 2 has no text in the column text"):
        data.unlabelled(new)
    new.write_text("text\na film\na plot\n\n\n")
    assert data.unlabelled(new)[1] == ["1", "2"]


def test_texts_that_are_longer_than_those_of_the_run_are_said(tmp_path, caplog):
    words, new, _ = texts(tmp_path)
    data = opened(OwnTexts, words, tmp_path)
    data.unlabelled(new)
    assert "Longer than" not in caplog.text
    new.write_text("text\n" + "word " * 400 + "\n")
    data.unlabelled(new)
    assert f"Longer than the {data.spec.max_len} tokens of any row of the run: 1 row." in caplog.text


def test_series_that_are_longer_than_those_of_the_model_are_cut_with_a_warning(tmp_path, caplog):
    words, new, _ = series(tmp_path)
    data = opened(TimeSeries, [*words, "kind=classification"], tmp_path)
    lines = new.read_text().splitlines()
    lines[-1] = ":".join(["1" + ",1" * 40] * 3)
    new.write_text("\n".join([*lines, ""]))
    rows, names = data.unlabelled(new)
    assert (rows.lengths.max(), len(names)) == (13, 12)
    assert "Longer than the 13 steps of the model, and cut: 1 case." in caplog.text


@pytest.mark.slow
def test_what_cannot_be_predicted_is_named(run, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        predicted(run, tmp_path / "nothing.ts")
    write_series(tmp_path, "Other", "regression", channels=2)
    with pytest.raises(UserError, match="has 2 channels and the model 3"):
        predicted(run, tmp_path / "Other_TEST.ts")
    text = (tmp_path / "Other_TEST.ts").read_text()
    (tmp_path / "Other_TEST.ts").write_text(text[: text.index("@data")])
    with pytest.raises(UserError, match="no line @data"):
        predicted(run, tmp_path / "Other_TEST.ts")
