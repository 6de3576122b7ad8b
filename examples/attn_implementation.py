"""Mechanisms in models of transformers without a change to the model, by `attn_implementation`. Takes 5 s on one core.

Prints how far outputs are from those of `sdpa` with the same weights. A model of the hub is loaded in the same way:
`AutoModel.from_pretrained("bert-base-uncased", attn_implementation="subquad_nystromformer")`.
"""

import torch
import transformers

from subquad import UserError, register_with_transformers

names = register_with_transformers(nystromformer={"landmarks": 64})
print(f"{len(names)} names, such as {names[0]}")
torch.manual_seed(0)
config = transformers.BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=100)
model = transformers.AutoModel.from_config(config, attn_implementation="sdpa").eval()
ids, mask = torch.randint(100, (2, 400)), torch.arange(400) < torch.tensor([[300], [400]])


@torch.no_grad()
def outputs(name: str) -> torch.Tensor:
    model.set_attn_implementation(name)
    return model(ids, attention_mask=mask.long()).last_hidden_state[mask]


expected = outputs("sdpa")
for name in ("softmax", "nystromformer", "performer", "local", "dba"):
    try:
        print(f"subquad_{name} differs by {(outputs(f'subquad_{name}') - expected).abs().max():.0e}")
    except UserError as error:
        print(error)
