"""Linear attention in a vision transformer of timm: swap, train, save, load, larger images. Takes 10 s on one core.

The made-up task: is a spot somewhere in a noisy image bright or dark?
"""

import torch

from subquad import swap  # isort: split

import timm


def images(count: int, side: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    x, labels = torch.randn(count, 3, side, side), torch.arange(count) % 2
    for image, label, place in zip(x, labels, torch.randint(side - 8, (count,)), strict=True):
        image[:, place : place + 8, -place - 8 : -place or None] += 4 * label - 2
    return x, labels


def model() -> torch.nn.Module:
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 2}
    vit = timm.create_model("vit_tiny_patch16_224", **sizes, dynamic_img_size=True)  # or pretrained=True
    swap(vit, "linear")
    return vit


(x, labels), vit = images(256, 32, 0), model()
optimizer = torch.optim.AdamW(vit.parameters(), lr=2e-3)
for rows in torch.randint(256, (60, 32)):
    torch.nn.functional.cross_entropy(vit(x[rows]), labels[rows]).backward()
    optimizer.step()
    vit.zero_grad()
torch.save(vit.state_dict(), "vit.pth")
loaded = model().eval()
timm.models.load_checkpoint(loaded, "vit.pth")
for side in (32, 48):
    x, labels = images(100, side, 1)
    print(f"{side} x {side} pixels: accuracy {(loaded(x).argmax(1) == labels).double().mean():.2f}")
