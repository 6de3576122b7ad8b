"""VQA v2 as batches: requirements on every data set, and answers, scores and splits as published."""

import dataclasses
import json
from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch
from runs import data_root

from subquad.data.vqa import vqa_files
from subquad.data.vqa.scoring import accuracy, normalise, soft_score
from subquad.data.vqa.vqa import VQAv2
from subquad.data.vqa.vqa_tables import frequent_answers
from subquad.utils.errors import UserError

TEXTS = ("words", "albert", "albert_tuned")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return data_root(tmp_path_factory.getbasetemp())


def made(root, **settings):
    data = VQAv2(root=str(root), **{"batch_size": 8, "seed": 0, "synthetic": True} | settings)
    data.prepare_data()
    return data


def fields(batch):
    return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}


def same(a, b):
    return all(
        (x is None and y is None) or torch.equal(x, y)
        for x, y in zip(fields(a).values(), fields(b).values(), strict=True)
    )


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("protocol", ["paper", "clean"])
def test_batches_are_what_the_spec_says(root, text, protocol):
    data = made(root, text=text, text_len=6, protocol=protocol)
    spec = data.spec
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        for batch in loader:
            assert batch.image.dtype == torch.float32
            assert batch.image.shape[2] == spec.image_dim
            assert batch.image.shape[1] <= spec.image_len
            assert batch.question.shape[1] <= spec.text_len
            if spec.vocab is None:
                assert batch.question.dtype == torch.float32
                assert batch.question.shape[2] == spec.text_dim
            else:
                assert batch.question.dtype == torch.int64
                assert 0 <= batch.question.min() <= batch.question.max() < spec.vocab
            for tokens, valid in ((batch.image, batch.image_valid), (batch.question, batch.question_valid)):
                if valid is not None:
                    assert valid.any(1).all()
                    assert not valid.all()
                    assert not tokens[~valid].any()
            assert batch.target.shape == batch.scores.shape == (len(batch), spec.classes)
            assert {*batch.target.unique().tolist()} <= {torch.tensor(s).item() for s in (0.0, 0.3, 0.6, 0.9, 1.0)}
            assert {*batch.answer_type.tolist()} <= {0, 1, 2}
    assert (spec.albert is not None) == (text == "albert_tuned")


def test_grids_of_mixed_sizes_share_a_batch(root):
    data = made(root)
    batch = data.batched("train").__getitems__(list(range(0, 32, 4)))
    lengths = batch.image_valid.sum(1)
    assert sorted(set(lengths.tolist())) == [10, 12, 16]
    for i, tokens in enumerate(batch.image):
        image = data.splits["train"].rows[4 * i, 0]
        raw = torch.load(data.features / "train2014" / f"{image}.pth", weights_only=True)
        assert torch.equal(tokens[: lengths[i]], raw[0].flatten(1).T)


def test_an_image_is_read_once_for_all_its_questions(root):
    data = made(root)
    with mock.patch("torch.load", wraps=torch.load) as load:
        data.batched("val").__getitems__([0, 1, 2, 3, 4])
    assert load.call_count == 2


def raw(data, split):
    return vqa_files.read_split(data.folder, split, genuine=False)


@pytest.mark.parametrize("evaluator", ["official", "openvqa"])
def test_targets_and_scores_are_those_of_the_ten_answers(root, evaluator):
    """For every question and every answer of the list, the batch has the evaluator's score of that answer."""
    data = made(root, evaluator=evaluator)
    answers = data._cache.facts["answers"]
    pairs = raw(data, "val2014")
    batch = data.batched("val").__getitems__(list(range(len(pairs))))
    for i, (_, annotation) in enumerate(pairs):
        given = Counter(map(normalise, annotation.answers))
        assert batch.target[i].tolist() == torch.tensor([soft_score(given[a]) for a in answers]).tolist()
        expected = [accuracy(answer, annotation.answers, evaluator) for answer in answers]
        assert batch.scores[i].tolist() == torch.tensor(expected).tolist()
        assert ("yes/no", "number", "other")[batch.answer_type[i]] == annotation.answer_type


def test_training_targets_and_official_scores_differ_where_all_ten_agree(root):
    data = made(root)
    pairs = raw(data, "train2014")
    batch = data.batched("train").__getitems__(list(range(len(pairs))))
    agreed = [
        i
        for i, (_, annotation) in enumerate(pairs)
        if len(set(annotation.answers)) == 1
        and annotation.chosen != normalise(annotation.chosen) in data._cache.facts["answers"]
    ]
    assert agreed, "the synthetic data must have such a question"
    for i in agreed:
        assert batch.target[i].max() == 1
        assert batch.scores[i].max() == 0


def test_answers_are_those_chosen_for_nine_questions():
    chosen = ["Two"] * 5 + ["2"] * 4 + ["red"] * 8 + ["no."] * 6 + ["no"] * 6
    assert frequent_answers(chosen) == ["no", "2"]


def test_answers_and_words_come_from_train_alone_under_clean(tmp_path):
    def facts(protocol):
        return made(tmp_path, protocol=protocol)._cache.facts

    folder = made(tmp_path).folder
    for path, key in ((vqa_files.annotations_file, "annotations"), (vqa_files.questions_file, "questions")):
        content = json.loads(path(folder, "val2014").read_text())
        for entry in content[key][:20]:
            entry |= {"multiple_choice_answer": "purple"} if key == "annotations" else {"question": "Which hue?"}
        path(folder, "val2014").write_text(json.dumps(content))
    assert "purple" in facts("paper")["answers"]
    assert "purple" not in facts("clean")["answers"]
    assert {"which", "hue"} <= {*facts("paper")["words"]}
    assert not {"which", "hue"} & {*facts("clean")["words"]}
    clean = made(tmp_path, protocol="clean")
    unknown = clean.batched("test").__getitems__([0]).question
    assert unknown.tolist() == [[1, 1]]


def test_no_image_is_in_two_splits_under_clean(root):
    data, paper = made(root, protocol="clean"), made(root)
    images = {name: {*split.images.tolist()} for name, split in data.splits.items()}
    assert not images["train"] & images["val"]
    assert not images["test"] & (images["train"] | images["val"])
    assert len(images["val"]) == 3
    assert images["train"] | images["val"] == {*paper.splits["train"].images.tolist()}
    assert len(data.splits["train"]) + len(data.splits["val"]) == len(paper.splits["train"]) == 120
    assert np.array_equal(paper.splits["val"].rows, paper.splits["test"].rows)
    assert np.array_equal(data.splits["test"].rows, paper.splits["test"].rows)
    other = made(root, protocol="clean", split_seed=1)
    assert {*other.splits["val"].images.tolist()} != images["val"]


def test_rows_keep_their_scores_in_a_subset(root):
    whole, cut = made(root), made(root, cases=10)
    for name in ("train", "test"):
        rows = [tuple(row) for row in whole.splits[name].rows.tolist()]
        chosen = [rows.index(tuple(row)) for row in cut.splits[name].rows.tolist()]
        assert len(chosen) == 10
        assert chosen == sorted(chosen)
        assert len({rows[i][0] for i in chosen}) == 3  # complete images first: 4 + 4 + 2
        few = cut.batched(name).__getitems__(list(range(10)))
        assert same(few, whole.batched(name).__getitems__(chosen))


def test_one_seed_gives_one_order_and_any_epoch_can_come_first(root):
    def epoch(seed, *numbers):
        loader = made(root, seed=seed, steps_per_epoch=3).train_dataloader()
        for number in numbers:
            loader.batch_sampler.set_epoch(number)
            batches = list(loader)
        return batches

    def equal(a, b):
        return all(same(x, y) for x, y in zip(a, b, strict=True))

    assert equal(epoch(0, 2), epoch(0, 0, 1, 2))
    assert not equal(epoch(0, 1), epoch(1, 1))
    assert not equal(epoch(0, 1), epoch(0, 0))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")
@pytest.mark.parametrize("text", ["words", "albert"])
def test_workers_change_nothing(root, text):
    one, two = (list(made(root, text=text, num_workers=n).val_dataloader()) for n in (0, 2))
    assert len(one) == 6
    assert all(same(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("protocol", ["paper", "clean"])
def test_validation_and_test_see_every_question_once_in_the_order_of_the_file(root, protocol):
    data = made(root, protocol=protocol)
    for name in ("val", "test"):
        targets = torch.cat([batch.target for batch in getattr(data, f"{name}_dataloader")()])
        everything = data.batched(name).__getitems__(list(range(len(data.splits[name]))))
        assert torch.equal(targets, everything.target)


def test_the_seed_of_training_does_not_change_the_splits(root):
    one, other = (made(root, protocol="clean", seed=seed) for seed in (0, 1))
    assert one.fingerprint == other.fingerprint
    assert all(np.array_equal(one.splits[name].rows, other.splits[name].rows) for name in one.splits)


def test_baselines_are_scores_of_one_answer_for_all_and_for_each_question_type(root):
    data = made(root)
    train, pairs = raw(data, "train2014"), raw(data, "val2014")
    answers = data._cache.facts["answers"]

    def best(annotations):
        worth = {a: sum(soft_score(Counter(map(normalise, x.answers))[a]) for x in annotations) for a in answers}
        return max(answers, key=worth.get)

    def score(guess):
        return np.mean([accuracy(guess(annotation), annotation.answers) for _, annotation in pairs])

    common = best([annotation for _, annotation in train])
    kinds = {annotation.question_type for _, annotation in train}
    of_kind = {kind: best([a for _, a in train if a.question_type == kind]) for kind in kinds}
    expected = {
        f'always "{common}"': score(lambda _: common),
        "most common of the question type": score(lambda annotation: of_kind[annotation.question_type]),
    }
    assert data.baselines() == pytest.approx(expected)


def test_word_vectors_reach_the_spec(root, tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("dog " + " ".join(["0.5"] * 300) + "\n")
    data = made(root, glove=str(path))
    place = data._cache.facts["words"].index("dog") + 2
    vectors = data.spec.word_vectors
    assert vectors.shape == (data.spec.vocab, 300)
    assert vectors[place].eq(0.5).all()
    assert vectors.count_nonzero() == 300


def test_the_published_number_of_answers_is_wanted(root, tmp_path):
    folder = made(root).folder
    with (
        mock.patch.dict(vqa_files.COUNTS, {"train2014": (120, 30), "val2014": (48, 12)}),
        pytest.raises(UserError, match="answers more than 8 times where 3129 are expected"),
    ):
        made(tmp_path, folder=str(folder), synthetic=False)
    with pytest.raises(UserError, match="120 questions on 30 images where 443,757"):
        made(tmp_path, folder=str(folder), synthetic=False)
    assert not list(tmp_path.rglob("meta.json"))


def test_missing_sources_say_what_to_put_where(tmp_path, root):
    with pytest.raises(UserError, match=r"train2014_questions\.json is missing; run `python scripts/prepare.py"):
        made(tmp_path, synthetic=False)
    with pytest.raises(UserError, match=r"glove\.txt is missing"):
        made(root, glove=str(tmp_path / "glove.txt"))
    data = made(tmp_path)
    path = sorted((data.features / "val2014").iterdir())[0]
    path.unlink()
    with pytest.raises(UserError, match=rf"1 of 12 images have no features in .*image {path.stem}"):
        made(tmp_path).splits  # noqa: B018
    with pytest.raises(UserError, match="holds no ALBERT; put"):
        made(tmp_path, synthetic=False, folder=str(data.folder), text="albert")


def test_damaged_features_stop_the_batch_that_needs_them(tmp_path):
    data = made(tmp_path)
    image = data.splits["train"].images[0]
    (data.features / "train2014" / f"{image}.pth").write_bytes(b"PK")
    with pytest.raises(UserError, match=rf"{image}\.pth holds no features that can be read"):
        data.batched("train").__getitems__([0])


def test_the_fingerprint_follows_features_text_and_answers(tmp_path):
    before = made(tmp_path).fingerprint
    assert made(tmp_path, text="albert").fingerprint != before
    data = made(tmp_path)
    path = vqa_files.annotations_file(data.folder, "val2014")
    path.write_text(path.read_text().replace('"maybe"', '"green"'))
    changed = made(tmp_path).fingerprint
    assert changed != before
    torch.save(torch.zeros(1, 2048, 1, 1), sorted((data.features / "val2014").iterdir())[0])
    assert made(tmp_path).fingerprint != changed


def test_too_short_questions_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"data\.text_len is 2; a question has at least 3"):
        made(tmp_path, text_len=2)


def test_settings_without_effect_are_refused(tmp_path):
    with pytest.raises(UserError, match="no effect on ALBERT's tokens"):
        made(tmp_path, text="albert", glove="x")


def test_a_split_for_validation_leaves_something_to_train_on(root):
    with pytest.raises(UserError, match="no image left to train on"):
        made(root, protocol="clean", cases=2).splits  # noqa: B018
