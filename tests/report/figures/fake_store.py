"""A store of made-up runs with known contents, so that tests can compute a figure's numbers again."""

from types import SimpleNamespace

import torch

from subquad.config.compose import load_factory
from subquad.specs import SequenceBatch
from subquad.utils.errors import UserError


class FakeStore:
    """`metrics` and `history` by the joined overrides of a run; `networks` and `data` likewise, or one for all runs.

    longer: data by `multiply`; only networks with `any_length` fit them.
    """

    def __init__(self, metrics=None, history=None, networks=None, data=None, longer=None):
        self.longer = longer or {}
        self.known_metrics, self.known_history = metrics or {}, history or {}
        self.networks, self.made_data = networks or {}, data

    def attention(self, name, overrides=()):
        return load_factory(name if "=" in name else f"attention={name}", overrides)

    def metrics(self, overrides, seed=0):
        return self.known_metrics.get((*overrides, seed))

    def scores(self, overrides, seed=0):
        return {}

    def history(self, overrides, seed=0):
        return self.known_history.get((*overrides, seed))

    def data(self, overrides, seed=0, changes=None):
        return self.longer[changes["multiply"]] if changes else self.made_data

    def network(self, overrides, seed=0, trained=True, changes=None):
        found = self.networks.get((*overrides, seed, trained))
        if found and changes and not hasattr(found, "any_length"):
            raise UserError("These weights do not fit.")
        return found

    def command(self, overrides, seed=0):
        return " ".join([*overrides, f"seed={seed}"])


class Rows:
    """A test split of given sequences."""

    def __init__(self, inputs, lengths, targets):
        self.inputs, self.lengths, self.targets = inputs, torch.tensor(lengths), torch.tensor(targets)

    def __len__(self):
        return len(self.inputs)

    def __getitems__(self, places):
        valid = torch.arange(self.inputs.shape[1]) < self.lengths[places][:, None]
        return SequenceBatch(self.inputs[places], None if valid.all() else valid, self.targets[places])


def data_of(rows, batch=2):
    """A data module of one split."""
    places = [list(range(i, min(i + batch, len(rows)))) for i in range(0, len(rows), batch)]
    return SimpleNamespace(
        batched=lambda split: rows, test_dataloader=lambda: [rows.__getitems__(each) for each in places]
    )
