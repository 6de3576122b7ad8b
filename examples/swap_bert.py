"""Another attention in a BERT of transformers, which goes on to learn with the weights that it had.

Trains a small random BERT on synthetic SST-2 (96 sentences, 32 for testing), replaces the attentions of a copy by
softmax attention, which changes nothing, and its own by DBA, and trains on. Prints accuracies. Takes 6 s on one core.
"""

import copy
from pathlib import Path

import pandas
import torch
import transformers

from subquad import swap
from subquad.data.text import glue_files  # only for its data


def read(path: Path, vocabulary: dict[str, int]) -> dict[str, torch.Tensor]:
    """The inputs of BERT: words as numbers, 0 is padding."""
    table = pandas.read_csv(path, sep="\t")
    words = table["sentence"].str.split(expand=True).fillna("")
    ids = torch.tensor(words.map(lambda word: vocabulary.setdefault(word, len(vocabulary))).to_numpy())
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor(table["label"])}


def fit(model: torch.nn.Module, rows: dict[str, torch.Tensor]) -> None:
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-3)
    for _ in range(20):
        model(**rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    torch.manual_seed(0)
    folder, vocabulary = glue_files.write_synthetic(Path("data/example"), "sst2"), {"": 0}
    train, test = (read(folder / f"SST-2/{split}.tsv", vocabulary) for split in ("train", "dev"))
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, vocab_size=len(vocabulary)))

    @torch.no_grad()
    def tested(when: str, model: torch.nn.Module = model) -> torch.Tensor:
        logits = model.eval()(**test).logits
        print(f"{when}: accuracy {(logits.argmax(1) == test['labels']).double().mean():.2f}")
        return logits

    tested("untrained")
    fit(model, train)
    before, other = tested("trained"), copy.deepcopy(model)
    swap(other, "softmax")
    print(f"logits differ by {(tested('softmax for softmax', other) - before).abs().max():.0e}")
    print(*swap(model, "dba", d_p=8), sep="\n")
    tested("DBA for softmax")
    fit(model, train)
    tested("trained on")


if __name__ == "__main__":
    main()
