"""What a card offers, and the traps in its three sizes."""

from __future__ import annotations

import pytest

from calc.gpus import get, known
from calc.units import InputError


def test_every_record_has_a_source_and_a_confidence() -> None:
    assert len(known()) == 39
    for gpu in known().values():
        assert gpu.sources, gpu.name
        assert {"smi", "framework", "speeds"} <= gpu.confidence.keys(), gpu.name


def test_h100_has_three_sizes() -> None:
    h100 = get("H100 SXM5 80GB")
    assert h100.label_bytes == 80_000_000_000
    assert h100.driver_bytes == 81_559 * 2**20
    assert h100.visible_bytes == 85_028_896_768


def test_mi250x_is_two_devices() -> None:
    card = get("instinct-mi250x")
    assert (card.devices_per_card, card.visible_bytes, card.node_gpus) == (2, 68_702_699_520, 8)
    assert card.label_bytes == 64_000_000_000


def test_bytes_known_in_gib_only_are_rounded_to_the_byte() -> None:
    assert get("h200-sxm5").visible_bytes == round(139.8 * 2**30)
    assert not get("h200-sxm5").visible_exact


@pytest.mark.parametrize("name", ["b100-sxm", "gaudi-3", "nvidia-vera-rubin"])
def test_a_card_without_a_public_reading_has_none(name: str) -> None:
    assert get(name).visible_bytes is None


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("h100-sxm5-80gb", (1, 2, 4, 8, 16, 32, 64)),
        ("h100-pcie-80gb", (1, 2, 4, 8)),
        ("geforce-rtx-4090", (1, 2, 4)),
        ("gb200-nvl72", (16, 32, 64)),
        ("tpu-v5p", ()),
        ("amd-mi455x", ()),
    ],
)
def test_counts_follow_the_topology(name: str, counts: tuple[int, ...]) -> None:
    assert get(name).counts() == counts


@pytest.mark.parametrize("slug", list(known()))
def test_a_gpu_is_found_by_its_name_and_its_slug(slug: str) -> None:
    gpu = known()[slug]
    assert get(slug) is get(gpu.name) is get(gpu.name.upper())


def test_an_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'h100-sxm5-80gb'"):
        get("h100-sxm-80gb")
