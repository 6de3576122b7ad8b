"""The question and annotation files of VQA v2, and their errors."""

import json
import zipfile
from unittest import mock

import pytest

from subquad.data.vqa import synthetic_vqa, vqa_files
from subquad.utils.errors import UserError


@pytest.fixture
def folder(tmp_path):
    synthetic_vqa._write_texts(tmp_path, "train2014", [7, 12])
    synthetic_vqa._write_texts(tmp_path, "val2014", [8])
    return tmp_path


def changed(path, change):
    """Applies `change` to the list of entries of a JSON file."""
    content = json.loads(path.read_text())
    [key] = {"questions", "annotations"} & content.keys()
    change(content[key])
    path.write_text(json.dumps(content))


def test_questions_meet_their_annotations_in_the_order_of_the_questions(folder):
    path = vqa_files.annotations_file(folder, "train2014")
    changed(path, list.reverse)
    pairs = vqa_files.read_split(folder, "train2014", genuine=False)
    assert [(q.image_id, q.text) for q, _ in pairs[:2]] == [(7, "What color is the dog?"), (7, "Is the dog red?")]
    raw = {entry["question_id"]: entry for entry in json.loads(path.read_text())["annotations"]}
    for question, annotation in pairs:
        entry = raw[question.question_id]
        assert annotation.answers == tuple(answer["answer"] for answer in entry["answers"])
        assert (annotation.chosen, annotation.answer_type, annotation.question_type) == (
            entry["multiple_choice_answer"], entry["answer_type"], entry["question_type"],
        )  # fmt: skip


def drop_an_answer(entries):
    entries[3]["answers"].pop()


WRONG = {
    "annotations of fewer questions": ("annotations", lambda e: e.pop(), "does not annotate the 8 questions"),
    "annotations twice": ("annotations", lambda e: e.append(e[0]), "does not annotate the 8 questions"),
    "annotations of others": ("annotations", lambda e: e[0].update(question_id=5), "does not annotate the 8 questions"),
    "another image": ("annotations", lambda e: e[1].update(image_id=99), "image 7 in one file of train2014 and 99 in"),
    "nine answers": ("annotations", drop_an_answer, "has 9 answers"),
    "a type of its own": ("annotations", lambda e: e[2].update(answer_type="colour"), 'of type "colour"'),
    "a question twice": ("questions", lambda e: e.append(e[0]), "holds a question twice"),
    "a missing key": ("annotations", lambda e: e[0].pop("image_id"), "holds no annotations of VQA v2"),
    "a number for a text": ("questions", lambda e: e[0].update(question=3), "holds no questions of VQA v2"),
    "a text for a number": ("questions", lambda e: e[0].update(image_id="7"), "holds no questions of VQA v2"),
    "a number of 31 digits": ("questions", lambda e: e[0].update(image_id=10**30), "holds no questions of VQA v2"),
    "a number below 0": ("questions", lambda e: e[0].update(question_id=-1), "holds no questions of VQA v2"),
    "an answer that is none": (
        "annotations", lambda e: e[0]["answers"][0].update(answer=None), "holds no annotations of VQA v2"),
    "something else in the list": ("questions", lambda e: e.append({"info": 1}), "holds no questions of VQA v2"),
    "nothing in the list": ("questions", list.clear, "holds no questions of VQA v2"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(folder, case):
    kind, change, cause = WRONG[case]
    changed(getattr(vqa_files, f"{kind}_file")(folder, "train2014"), change)
    with pytest.raises(UserError, match=cause):
        vqa_files.read_split(folder, "train2014", genuine=False)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b'{"questions": [{"image_id": 1, "quest', "is damaged"),
        (b"", "is damaged"),
        (b'{"questions": ["caf\xe9"]}', "is damaged"),
        (b"[1, 2]", "holds no questions"),
        (b'{"annotations": []}', "holds no questions"),
        (b"[" * 100_000, "is damaged"),
    ],
)
def test_files_that_are_no_such_json_are_named(folder, content, cause):
    vqa_files.questions_file(folder, "val2014").write_bytes(content)
    with pytest.raises(UserError, match=cause):
        vqa_files.read_questions(folder, "val2014", genuine=False)


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train2014", "443,757 on 82,783"),
        ("val2014", "214,354 on 40,504"),
        ("test2015", "447,793 on 81,434"),
    ],
)
def test_published_numbers_are_wanted_of_published_files(folder, split, expected):
    if split == "test2015":
        synthetic_vqa._write_texts(folder, split, [7])
    with pytest.raises(UserError, match=rf"questions on \d images where {expected} are expected"):
        vqa_files.read_questions(folder, split)


def test_published_numbers_pass(folder):
    with mock.patch.dict(vqa_files.COUNTS, {"train2014": (8, 2)}):
        assert len(vqa_files.read_split(folder, "train2014")) == 8


def test_missing_files_say_what_to_put_where(folder):
    assert len(vqa_files.files(folder)) == 4
    vqa_files.annotations_file(folder, "val2014").unlink()
    with pytest.raises(
        UserError, match=r"val2014_annotations\.json is missing.*unpack https\S+v2_Annotations_Val_mscoco\.zip in"
    ):
        vqa_files.files(folder)


def packed(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def fetched(folder, archives):
    """Runs `fetch` with these archives in place of downloads."""

    def retrieve(url, known_hash, fname, path, progressbar):
        assert known_hash.startswith("sha256:")
        assert len(known_hash) == 71
        if fname not in archives:
            raise OSError("no network")
        return str(packed(path / fname, archives[fname]))

    with mock.patch("pooch.retrieve", retrieve):
        vqa_files.fetch(folder)


def test_files_that_are_here_are_not_fetched(folder):
    fetched(folder, {})


def test_missing_files_are_fetched_and_unpacked(folder):
    path = vqa_files.questions_file(folder, "val2014")
    content = path.read_text()
    path.unlink()
    fetched(folder, {"v2_Questions_Val_mscoco.zip": {path.name: content}})
    assert path.read_text() == content


@pytest.mark.parametrize("archives", [{}, {"v2_Questions_Val_mscoco.zip": {"something.json": "{}"}}])
def test_what_cannot_be_fetched_says_what_to_put_where(folder, archives):
    vqa_files.questions_file(folder, "val2014").unlink()
    with pytest.raises(UserError, match=rf"could not be fetched .*; download it elsewhere and unpack it in {folder}"):
        fetched(folder, archives)
    assert not vqa_files.questions_file(folder, "val2014").exists()
