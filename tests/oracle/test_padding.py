"""FSDP2 where a tensor has fewer rows than there are ranks: each still stores one, as with experts on many GPUs."""

from __future__ import annotations

import pytest

from calc.models import Tensor
from calc.precision import get_recipe
from calc.stacks.fsdp2 import FSDP2
from calc.stacks.shards import rows

pytestmark = [pytest.mark.oracle, pytest.mark.quick]


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("shape", [(2, 6, 5), (4, 3), (5, 3), (10, 5), (3,)])
def test_every_rank_stores_the_largest_chunk(shape: tuple[int, ...], rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)  # real storages, no one to talk to
    try:
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(torch.zeros(shape))
        fully_shard(module, mesh=init_device_mesh("cpu", (4,)))
        cut = FSDP2(ranks=4).cut([Tensor(name="weight", shape=shape)], 4, get_recipe("fp32"))
        local = module.weight.to_local()
        assert tuple(local.shape) == rows(shape, 4, rank)
        assert local.untyped_storage().nbytes() == 4 * cut
    finally:
        dist.destroy_process_group()
