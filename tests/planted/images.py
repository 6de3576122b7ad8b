"""Planted bugs of images: how they are split, changed and read, and what models make of them."""

from planted import Bug

IMAGES, IMAGENET, TASK = (
    "tests/data/test_images.py",
    "tests/data/test_imagenet.py",
    "tests/tasks/test_image_classification.py",
)
BUGS = [
    Bug(
        "changes of images do not follow the place of the batch",
        "data/images.py",
        "drawn_from([self.seed, indices.place])",
        "drawn_from([self.seed])",
        IMAGES,
    ),
    Bug("changes of images disturb the process", "data/augment.py", "random.setstate(python)", "pass", IMAGES),
    Bug(
        "validation is not taken from training",
        "data/images.py",
        '(("train", fit), ("val", val))',
        '(("train", self._chosen(train, 0)), ("val", val))',
        IMAGES,
    ),
    Bug("repeated pictures make a pass longer", "data/images.py", "[: len(self.lengths)]", "", IMAGES),
    Bug(
        "the last of an odd batch is mixed away",
        "data/augment.py",
        "weights[:even] = mixing(",
        "weights[even:] = mixing(",
        IMAGES,
    ),
    Bug("evaluation sees the whole picture", "data/augment.py", "224 / 256 if size > 32", "1.0 if size > 32", IMAGES),
    Bug("columns of CIFAR are its rows", "data/cifar.py", "32, 32, 3)", "32, 32, 3).swapaxes(1, 2)", IMAGES),
    Bug(
        "any number of images is ImageNet",
        "data/imagenet_files.py",
        "if genuine and rows != ROWS[split]:",
        "if False:",
        IMAGENET,
    ),
    Bug("labels beyond the classes pass", "data/imagenet_files.py", "self.labels.max() >= CLASSES", "False", IMAGENET),
    Bug(
        "a damaged image ends in a traceback",
        "data/imagenet_files.py",
        "(OSError, SyntaxError, ValueError,",
        "(SyntaxError, KeyError,",
        IMAGENET,
    ),
    Bug("evaluation smooths labels", "tasks/image_classification.py", "if self.training else 0.0", "", TASK),
    Bug(
        "positions are decayed",
        "tasks/image_classification.py",
        "no_weight_decay_list=named",
        "no_weight_decay_list=()",
        TASK,
    ),
    Bug(
        "the warm-up is no part of the cosine",
        "tasks/schedules.py",
        "math.pi * epoch / epochs",
        "math.pi * (epoch - warmup_epochs) / epochs",
        TASK,
    ),
    Bug(
        "the carry is dropped between blocks",
        "backbones/vision.py",
        "self.thread.carry if site.layer else None",
        "None",
    ),
    Bug(
        "the carry outlives its pass", "backbones/vision.py", "carry if site.layer < site.layers - 1 else None", "carry"
    ),
    Bug(
        "a class token counts as a place of the grid",
        "backbones/vision.py",
        "(height, width) if height * width == tokens else None",
        "(height, width)",
    ),
    Bug(
        "exact stages get the attention under study",
        "backbones/vision.py",
        "attention if stage in stages else exact",
        "attention",
    ),
]
