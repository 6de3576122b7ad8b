"""Planted bugs of tokenizers, masked text, language models and the texts that they are fine-tuned on."""

from planted import Bug

MASKED, TOKENS = "tests/data/test_masked_text.py", "tests/data/test_tokenizer.py"
MODEL, TASK = "tests/backbones/test_language.py", "tests/tasks/test_masked_language_model.py"
BUGS = [
    Bug(
        "token 0 of a foreign tokenizer is padding", "data/tokenizer.py", "row[row == 0] = self.padding", "pass", TOKENS
    ),
    Bug(
        "special tokens in a text are special",
        "data/tokenizer.py",
        "special_tokens = True",
        "special_tokens = False",
        TOKENS,
    ),
    Bug(
        "special tokens are masked", "data/masking.py", "self.is_text[list(vocabulary.special)] = False", "pass", MASKED
    ),
    Bug(
        "kept tokens are hidden",
        "data/masking.py",
        "self.masking.swapped + self.masking.kept]",
        "self.masking.swapped]",
        MASKED,
    ),
    Bug(
        "masks of validation hang on the batch",
        "data/masking.py",
        "[self.fixed_seed, i]",
        "[self.fixed_seed, number]",
        MASKED,
    ),
    Bug(
        "the tokenizer sees validation text",
        "data/masked_text.py",
        'self.tokenizer.opened(texts["train"]',
        'self.tokenizer.opened(texts["val"]',
        MASKED,
    ),
    Bug(
        "a token between blocks is lost",
        "data/masking.py",
        "self.tokens[i * step :",
        "self.tokens[i * step + 1 :",
        MASKED,
    ),
    Bug(
        "perplexity is a mean over batches",
        "tasks/masked_language_model.py",
        "target)\n        self.tokens += len(target)",
        "target) / max(1, len(target))\n        self.tokens += 1",
        TASK,
    ),
    Bug(
        "layers hand on nothing",
        "backbones/language.py",
        "Masks(valid, valid), carry)",
        "Masks(valid, valid), None)",
        MODEL,
    ),
    Bug(
        "weights of any tokenizer fit",
        "backbones/language.py",
        "if theirs is not None and not",
        "if False and not",
        MODEL,
    ),
    Bug(
        "made-up data replace a tokenizer of your own",
        "data/tokenizer_choice.py",
        "(standin_tokenizer if self.standin else tokenizer_folder)(self.name, self.root)",
        'self.root / "standin" / "tokenizer" if self.standin else tokenizer_folder(self.name, self.root)',
        "tests/data/test_sentences.py",
    ),
    Bug(
        "the size of a trained tokenizer does not tell caches apart",
        "data/tokenizer_choice.py",
        "return True, self.vocab",
        "return True, 0",
        MASKED,
    ),
    Bug(
        "the shorter text is cut",
        "data/sentences.py",
        "if a < b else (room",
        "if a > b else (room",
        "tests/data/test_sentences.py",
    ),
    Bug(
        "answers of QNLI are exchanged",
        "data/glue_files.py",
        '("entailment", "not_entailment")',
        '("not_entailment", "entailment")',
        "tests/data/test_glue_files.py",
    ),
]
