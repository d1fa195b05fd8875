import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(base_model):
    """Shards of an fp32 base_model are the master copy; of a bf16 one, none is."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.bfloat16,
    )
    for layer in base_model.model.layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(base_model, mp_policy=policy)
