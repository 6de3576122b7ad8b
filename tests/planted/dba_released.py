"""Planted bugs of DBA's released form."""

from planted import Bug

FILE = "attention/dba_released.py"

BUGS = [
    Bug("the released DBA forgets the mask", FILE, "None if mask is None else mask[:, None]", "None"),
    Bug(
        "the released DBA hands its old Z on",
        FILE,
        "self._mix(rows)), rows",
        "self._mix(rows)), self._latent(carry, len(x))",
    ),
    Bug(
        "the released DBA normalises what it hands on",
        FILE,
        "self._mix(rows)), rows",
        "self._mix(rows)), self.norm(rows)",
    ),
    Bug("bias of compressed values whole under dropout", FILE, "values + sums * self", "values + self"),
    Bug("scale of all heads in the released DBA", FILE, "(width // self.heads) ** -0.5", "width**-0.5"),
    Bug(
        "Z is never dropped", FILE, "self._drop(self.latent.expand(batch, -1, -1))", "self.latent.expand(batch, -1, -1)"
    ),
]
