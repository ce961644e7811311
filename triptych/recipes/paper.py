"""Recipes of the paper: its base model, its 3B model, and models of any depth with the same aspect ratio."""

from triptych.data.loader import LoaderConfig
from triptych.data.pack import Packed
from triptych.data.paper_totals import BATCH, MEAN_TOKENS, SEQ_LEN, STEPS
from triptych.model.transformer import ModelConfig
from triptych.tokenizers.bundle import PAPER_TOKENIZERS
from triptych.training.config import OptimizerConfig, ParallelConfig, RunConfig
from triptych.transfer.groups import TransferConfig

HEAD_WIDTH = 128
BASE_BATCH, BASE_TOKENS = 256, 13e9
BASE_STEPS = round(BASE_TOKENS / (BASE_BATCH * MEAN_TOKENS))

# The paper used global hyperparameters in all its ablations and scaling runs; its multiplier table (per_module="paper")
# belongs to one experiment. For the 3B run it lists CompleteP, which differs from Complete(d)P in some epsilons only,
# and does not name the batch-size rule, which its scaling runs use.
_SIZE_ONLY = TransferConfig(rule="completed_p", base_width=1024, base_layers=8)
_SIZE_AND_BATCH = TransferConfig(
    rule="completed_p", base_width=1024, base_layers=8, base_batch=BASE_BATCH, base_steps=BASE_STEPS
)


def paper_base() -> RunConfig:
    """8 layers, width 1024, 80M parameters without embeddings, 320M with them: tuned by the paper on 13B tokens."""
    return _run("paper_base", num_layers=8, width=1024, d_ff=1920, transfer=_SIZE_ONLY)


def paper_3b() -> RunConfig:
    """24 layers, width 3072: the paper's largest model, 1M steps of 3,072 sequences."""
    return _run("paper_3b", 24, 3072, d_ff=5632, transfer=_SIZE_ONLY, batch=BATCH, num_steps=STEPS, warmup=2000)


def fixed_aspect(num_layers: int) -> RunConfig:
    """A model of the paper's scaling runs: width 128 x layers, d_ff = 2/3 x 2.75 x width, rounded up to 128s."""
    width = 128 * num_layers
    d_ff = -(-int(width * 2.75 * 2 / 3) // 128) * 128
    return _run(f"aspect_{num_layers}", num_layers, width, d_ff, transfer=_SIZE_AND_BATCH)


def _run(
    name: str,
    num_layers: int,
    width: int,
    d_ff: int,
    transfer: TransferConfig,
    batch: int = BASE_BATCH,
    num_steps: int = BASE_STEPS,
    warmup: int = 1000,
) -> RunConfig:
    return RunConfig(
        recipe=name,
        model=ModelConfig(num_layers=num_layers, width=width, num_heads=width // HEAD_WIDTH, d_ff=d_ff),
        loader=LoaderConfig(seq_len=SEQ_LEN, global_batch=batch, layout=Packed(micro_batch_rows=1)),
        optimizer=OptimizerConfig(lr=9e-4, warmup_steps=warmup),
        transfer=transfer,
        parallel=ParallelConfig(precision="bfloat16", compile=True),  # for GPUs; the paper does not say what it used
        num_steps=num_steps,
        tokenizers=PAPER_TOKENIZERS,
        save_every=1000,
    )
