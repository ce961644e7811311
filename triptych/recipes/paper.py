"""Recipes of the paper: its base model, its 3B model, and models of any depth with the same aspect ratio."""

from triptych.data.loader import LoaderConfig
from triptych.data.pack import Packed
from triptych.model.transformer import ModelConfig
from triptych.tokenizers.bundle import PAPER_TOKENIZERS
from triptych.training.config import OptimizerConfig, ParallelConfig, RunConfig
from triptych.transfer.groups import TransferConfig

HEAD_WIDTH = 128
SEQ_LEN = 3256  # 30 s of audio in 4 codebooks at 25 frames/s, and 256 positions of text
BASE_BATCH, BASE_TOKENS = 256, 13e9

# The paper lists CompleteP for its 3B run, which differs from Complete(d)P in some epsilons only, and names neither the
# batch-size rule nor multipliers for it. Its scaling runs use all three.
_SIZE_ONLY = TransferConfig(rule="completed_p", base_width=1024, base_layers=8)
_SIZE_BATCH_AND_MODULES = TransferConfig(
    rule="completed_p",
    base_width=1024,
    base_layers=8,
    base_batch=BASE_BATCH,
    base_steps=round(BASE_TOKENS / (BASE_BATCH * SEQ_LEN)),
    per_module="paper",
)


def paper_base() -> RunConfig:
    """8 layers, width 1024, 80M parameters without embeddings, 320M with them: tuned by the paper on 13B tokens."""
    return _run("paper_base", num_layers=8, width=1024, d_ff=1920, transfer=_SIZE_ONLY)


def paper_3b() -> RunConfig:
    """24 layers, width 3072: the paper's largest model, 1M steps of 3,072 sequences."""
    tokens = 1e6 * 3072 * SEQ_LEN
    return _run("paper_3b", 24, 3072, d_ff=5632, transfer=_SIZE_ONLY, batch=3072, tokens=tokens, warmup=2000)


def fixed_aspect(num_layers: int) -> RunConfig:
    """A model of the paper's scaling runs: width 128 x layers, d_ff = 2/3 x 2.75 x width, rounded up to 128s."""
    width = 128 * num_layers
    d_ff = -(-int(width * 2.75 * 2 / 3) // 128) * 128
    return _run(f"aspect_{num_layers}", num_layers, width, d_ff, transfer=_SIZE_BATCH_AND_MODULES)


def _run(
    name: str,
    num_layers: int,
    width: int,
    d_ff: int,
    transfer: TransferConfig,
    batch: int = BASE_BATCH,
    tokens: float = BASE_TOKENS,
    warmup: int = 1000,
) -> RunConfig:
    return RunConfig(
        recipe=name,
        model=ModelConfig(num_layers=num_layers, width=width, num_heads=width // HEAD_WIDTH, d_ff=d_ff),
        loader=LoaderConfig(seq_len=SEQ_LEN, global_batch=batch, layout=Packed(micro_batch_rows=1)),
        optimizer=OptimizerConfig(lr=9e-4, warmup_steps=warmup),
        transfer=transfer,
        parallel=ParallelConfig(precision="bfloat16", compile=True),  # for GPUs; the paper does not say what it used
        num_steps=round(tokens / (batch * SEQ_LEN)),
        tokenizers=PAPER_TOKENIZERS,
        save_every=1000,
    )
