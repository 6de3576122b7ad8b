"""Planted bugs of VQA v2 and of MCAN."""

from planted import Bug

SCORING, DATA = "tests/data/test_vqa_scoring.py", "tests/data/test_vqa.py"
MODEL, TASK = "tests/backbones/test_mcan.py", "tests/tasks/test_visual_question_answering.py"

BUGS = [
    Bug("decimals lose their point", "data/vqa_scoring.py", r'r"\.(?!\d)"', r'r"\."', SCORING),
    Bug(
        "a mark is judged where it stands", "data/vqa_scoring.py", 'f"{mark} " in text', 'f"{mark} " in result', SCORING
    ),
    Bug(
        "a third for each annotator",
        "data/vqa_scoring.py",
        "(0.0, 0.3, 0.6, 0.9, 1.0)",
        "(0, 1 / 3, 2 / 3, 1, 1)",
        SCORING,
    ),
    Bug(
        "unanimous answers are normalised too",
        "data/vqa_scoring.py",
        "return Counter(trimmed), False",
        "return Counter(map(normalise, trimmed)), True",
        SCORING,
    ),
    Bug("nine questions are too few", "data/vqa_tables.py", "n >= _AT_LEAST", "n > _AT_LEAST", DATA),
    Bug(
        "official scores as training targets",
        "data/vqa_tables.py",
        "references(annotation.answers, evaluator)[0]",
        "collections.Counter(map(normalise, annotation.answers))",
        DATA,
    ),
    Bug(
        "training keeps the images of validation",
        "data/vqa.py",
        '"train": train.take(np.flatnonzero(~held_out))',
        '"train": train',
        DATA,
    ),
    Bug(
        "code in a feature file is run",
        "data/vqa_features.py",
        "weights_only=True",
        "weights_only=False",
        "tests/data/test_vqa_features.py",
    ),
    Bug(
        "padding of questions is not hidden from ALBERT",
        "data/vqa_text.py",
        "attention_mask=valid.to(device)",
        "attention_mask=None",
        "tests/data/test_vqa_text.py",
    ),
    Bug(
        "images see the padding of questions",
        "backbones/mcan.py",
        "layer(x, text, Masks(image_valid, question_valid), carries)",
        "layer(x, text, Masks(image_valid, None), carries)",
        MODEL,
    ),
    Bug("latents change places", "backbones/mcan.py", ", (own, guided)\n", ", (guided, own)\n", MODEL),
    Bug(
        "the readout weighs padding",
        "backbones/mcan.py",
        "None if valid is None else valid[:, None])",
        "None)",
        MODEL,
    ),
    Bug(
        "the biased deviation",
        "blocks/unbiased_norm.py",
        "torch.std_mean(x, -1, keepdim=True)",
        "torch.std_mean(x, -1, keepdim=True, correction=0)",
        MODEL,
    ),
    Bug(
        "the mean is minimised",
        "tasks/visual_question_answering.py",
        "        return mean * weight",
        "        return mean",
        TASK,
    ),
    Bug(
        "every type counts all questions",
        "tasks/visual_question_answering.py",
        "scores = scores[answer_type == self.answer_type]",
        "scores = scores[answer_type >= 0]",
        TASK,
    ),
    Bug(
        "a drop comes an epoch late",
        "tasks/schedules.py",
        "drop <= epoch",
        "drop < epoch",
        "tests/tasks/test_schedules.py",
    ),
]
