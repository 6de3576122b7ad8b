"""DBA in a BERT of transformers: swap, train with that library's Trainer, save, load. Takes 10 s on one core.

The made-up task: does a text of 10 to 64 words have word 5?
"""

import torch
import transformers

from subquad import load_swapped, swap


def rows(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(6, 100, (count, 64), generator=draw)
    ids[::2, 3] = 5
    mask = (torch.arange(64) < torch.randint(10, 65, (count, 1), generator=draw)).long()
    labels = (torch.arange(count) + 1) % 2
    return [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in zip(ids, mask, labels, strict=True)]


def main() -> None:
    transformers.set_seed(0)
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=100
    )
    model = transformers.BertForSequenceClassification(config)  # or from_pretrained("bert-base-uncased")
    print(*swap(model, "dba", d_p=8), sep="\n")
    settings = transformers.TrainingArguments(
        "outputs/bert", max_steps=100, per_device_train_batch_size=32, learning_rate=2e-3, report_to=[], use_cpu=True
    )
    trainer = transformers.Trainer(model, settings, train_dataset=rows(2000, 0), eval_dataset=rows(200, 1))
    trainer.train()
    print(f"loss on other texts: {trainer.evaluate()['eval_loss']:.3f}")
    trainer.save_model("outputs/bert/model")
    print("loaded:", type(load_swapped("outputs/bert/model").bert.encoder.layer[0].attention.self.attention).__name__)


if __name__ == "__main__":
    main()
