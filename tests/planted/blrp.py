"""Planted bugs of BLRP and TLB."""

from planted import Bug

BUGS = [
    Bug(
        "the backward pass starts at the batch's last segment",
        "backbones/segments.py",
        "(some if pad_aware else torch.ones_like(some)).long()",
        "torch.ones_like(some).long()",
    ),
    Bug(
        "a segment of padding changes the latents",
        "backbones/segments.py",
        "latent = torch.where(some[:, i, None, None], new, latent)",
        "latent = new",
    ),
    Bug(
        "a segment of padding adds positions",
        "backbones/segments.py",
        "torch.where(some[:, i, None, None], new, latent)",
        "torch.where(some[:, i, None, None], new, asking)",
    ),
    Bug(
        "L_INIT is among the keys of the first step",
        "backbones/segments.py",
        "keys.append(begun[..., None].expand(-1, -1, initial.shape[1]))",
        "keys.append(torch.ones_like(begun)[..., None].expand(-1, -1, initial.shape[1]))",
    ),
    Bug(
        "the backward pass reads LF_T, not L_INIT",
        "backbones/segments.py",
        "read = latent if start is initial else torch.where(begun[:, i, None, None], latent, initial)",
        "read = latent",
    ),
    Bug(
        "padding is among the keys of the latents",
        "backbones/segments.py",
        "new = self.latent(asking, self.latent.queries(asking), torch.cat(keys_of, 1), mask[:, i])",
        "new = self.latent(asking, self.latent.queries(asking), torch.cat(keys_of, 1), None)",
    ),
    Bug(
        "segments forget their padding",
        "backbones/segments.py",
        "    if segments.full:\n        return None\n    seen",
        "    return None\n    seen",
    ),
    Bug("the backward pass goes forwards", "backbones/segments.py", "reversed(order) if backward else order", "order"),
    Bug(
        "the backward pass does not see X̃F",
        "backbones/blrp.py",
        "start=swept.latent, initial=initial, earlier=memories)",
        "start=swept.latent, initial=initial)",
    ),
    Bug(
        "the backward pass starts anew",
        "backbones/blrp.py",
        "start=swept.latent, initial=initial",
        "start=initial, initial=initial",
    ),
    Bug("Φ is shared between the passes", "backbones/blrp.py", 'if phi_share != "separate" and', "if"),
    Bug(
        "siamese Φ reads the same order twice",
        "backbones/blrp.py",
        "steps_before(source, way.backward, self.pad_aware)",
        "steps_before(source, False, self.pad_aware)",
    ),
    Bug(
        "Θ_L of the second pass is its own",
        "backbones/blrp.py",
        "second = Pass(within(), cross(), first.latent)",
        "second = Pass(within(), cross(), cross())",
    ),
    Bug("positions on Φ's input", "backbones/blrp.py", 'placed if self.phi_input == "with_pos" else raw', "placed"),
    Bug("TLB adds positions once", "backbones/tlb.py", ", each_step=self.latent_position)", ")"),
    Bug("Φ sees padding", "blocks/dynamic_projection.py", "attn_mask=keys, ", ""),
    Bug(
        "Φ in low precision",
        "blocks/dynamic_projection.py",
        "torch.autocast(x.device.type, enabled=False)",
        "torch.autocast(x.device.type, enabled=torch.is_autocast_enabled(x.device.type))",
    ),
    Bug(
        "queries take the norm of the memory",
        "blocks/multihead.py",
        "self.attention.query(self.query_norm(x))",
        "self.attention.query(self.memory_norm(x))",
    ),
    Bug("the scale of the whole width", "blocks/multihead.py", 'head_dim if scale == "d_head" else dim', "dim"),
]
