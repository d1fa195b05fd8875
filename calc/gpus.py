"""What a card offers: its label, what the driver reports, what one process can see.

The three differ by up to 9 %, and a verdict is only right against the last one.
A record with two devices per card (MI250X) is stated per device: one process sees one device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from calc.units import UNITS, records, unknown

#: GPU counts that text B's calculator climbs through.
CLIMB = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator as a training process meets it; see `calc/data/gpus.json` for its sources.

    `label_bytes` is the product label read as decimal GB; `driver_bytes` what nvidia-smi and its
    like print as total; `visible_bytes` what `torch.cuda.mem_get_info` calls total, None where no
    reading is public. `visible_exact` is False where only a GiB figure with two decimals is known.
    `topology` is `single-node`, `multi-node`, `rack-scale`, `pod` (TPU) or `announced`.
    """

    name: str
    vendor: str
    architecture: str | None
    form_factor: str
    topology: str
    devices_per_card: int
    label_gb: int
    memory_type: str
    driver_mib: int | None
    visible_bytes: int | None
    visible_exact: bool
    node_gpus: int | None
    scale_up_domain: int | None
    link: str | None
    link_gb_s_each_way: float | None
    pcie_gb_s_each_way: float | None
    inter_node: str | None
    bf16_dense_tflops: float | None
    note: str
    confidence: Mapping[str, str]
    sources: tuple[str, ...]

    @property
    def slug(self) -> str:
        """The name in lower case with hyphens, what stands in brackets left out."""
        return _slug(re.sub(r"\(.*?\)", "", self.name))

    @property
    def label_bytes(self) -> int:
        """Bytes of the label per device, read as decimal GB.

        >>> get("h100-sxm5-80gb").label_bytes
        80000000000
        """
        return self.label_gb * UNITS["GB"]

    @property
    def driver_bytes(self) -> int | None:
        """Bytes that the driver's tool reports as total, None where no reading is public."""
        return None if self.driver_mib is None else self.driver_mib * UNITS["MiB"]

    def counts(self) -> tuple[int, ...]:
        """The GPU counts that the climb tries on this card.

        Cards on PCIe stop at one node (the record's own size wins over the usual eight),
        rack-scale systems start above eight, and what cannot be bought or is no GPU has none.

        >>> get("geforce-rtx-4090").counts()
        (1, 2, 4)
        >>> get("gb200-nvl72").counts()
        (16, 32, 64)
        """
        if self.node_gpus is None or self.topology == "pod":
            return ()
        if self.topology == "single-node":
            return tuple(count for count in CLIMB if count <= self.node_gpus)
        return tuple(count for count in CLIMB if self.topology != "rack-scale" or count > 8)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@cache
def known() -> Mapping[str, Gpu]:
    """Every known accelerator by its slug, in the order of the data file."""
    found = {}
    for record in records("gpus"):
        record |= {
            "confidence": MappingProxyType(record["confidence"]),
            "sources": tuple(record["sources"]),
        }
        gpu = Gpu(**record)
        found[gpu.slug] = gpu
    return MappingProxyType(found)


@cache
def get(name: str) -> Gpu:
    """The GPU of that name, as in the facts or in lower case with hyphens.

    Raises `InputError` with the nearest known name.

    >>> get("H100 SXM5 80GB").visible_bytes
    85028896768
    >>> get("instinct-mi250x").visible_bytes
    68702699520
    """
    for slug, gpu in known().items():
        if _slug(name) in (slug, _slug(gpu.name)):
            return gpu
    raise unknown("gpu", name, known())
