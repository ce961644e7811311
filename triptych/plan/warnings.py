"""Problems that an estimate shows before the run starts, each with a remedy."""

from collections.abc import Iterator
from dataclasses import replace

from triptych.data.pack import Grouped, Packed, Padded
from triptych.model.memory_advice import memory_advice
from triptych.plan.estimate import RunEstimate, estimate
from triptych.plan.step_layout import lay_out_step
from triptych.utils.config import override

# studies/batch-size: kappa at which exp(loss) had risen by 1 % and by 10 %. Those were batches of 29 and 49 sequences;
# divided by the proxy's 16, times 2^-0.44 for twice its tokens.
KAPPA_1_PERCENT, KAPPA_10_PERCENT = 1.3, 2.3
_USABLE = 0.9  # share of a GPU's memory; contexts, communication buffers and fragmentation need the rest
_NOTABLE = 0.02  # share of empty or saved positions that is worth a warning


def warnings_for(run: RunEstimate, optimal_tokens: float | None = None) -> list[str]:
    """One line per problem. `optimal_tokens` is the compute-optimal number for the model, if a scaling law is known."""
    return [*_batch(run), *_tokens(run, optimal_tokens), *_memory(run), *_rows(run)]


def _batch(run: RunEstimate) -> Iterator[str]:
    sde, batch = run.config.resolved.sde, run.config.masked_copies
    if sde is not None and sde.kappa > 1 + 1e-6:
        copies = " masked copies" if run.config.complementary_masks else ""
        yield (
            f"kappa is {sde.kappa:.3g}: at this number of tokens the tuned hyperparameters are for batches of "
            f"{sde.virtual_batch:,.1f} sequences, not {batch:,}{copies}. The critical batch size is not known here "
            f"(the paper gives no number); in studies/batch-size, exp(loss) had risen by 1 % at kappa "
            f"{KAPPA_1_PERCENT} and by 10 % at {KAPPA_10_PERCENT}."
        )


def _tokens(run: RunEstimate, optimal_tokens: float | None) -> Iterator[str]:
    if optimal_tokens is not None and run.tokens < optimal_tokens:
        yield (
            f"{run.tokens:.3g} tokens are fewer than the {optimal_tokens:.3g} that are compute-optimal for "
            f"{run.count.blocks:.3g} non-embedding parameters (the paper's law): a smaller model would reach a lower "
            "loss with the same compute."
        )


def _memory(run: RunEstimate) -> Iterator[str]:
    if run.machine.is_gpu and run.config.parallel.precision != "bfloat16":
        precision = run.config.parallel.precision
        yield (
            f"the peak is that of bfloat16, but the run computes in {precision}, which is several times slower: set "
            "parallel.precision=bfloat16."
        )
    available = f"{run.machine.memory / 1e9:,.1f} GB"
    if run.fits and (not run.machine.is_gpu or run.needed <= _USABLE * run.machine.memory):
        return
    if run.fits:
        yield (
            f"memory is tight, {run.needed / 1e9:,.1f} of {available} per rank: contexts, communication buffers and "
            f"fragmentation need some, too. {_remedy(run)}"
        )
    else:
        yield f"does not fit in the {available} of a rank: it needs {memory_advice(run.memory)} {_remedy(run)}"


def _remedy(run: RunEstimate) -> str:
    """The first of the changes, cheapest first, that makes the run fit."""
    for changes in _memory_changes(run):
        changed = _with_changes(run, changes)
        if changed.needed <= _USABLE * changed.machine.memory:
            return f"It fits with {' '.join(changes)} ({changed.needed / 1e9:,.1f} GB)."
    return "No setting makes it fit: use more ranks to shard over, a larger GPU or a smaller model."


def _memory_changes(run: RunEstimate) -> Iterator[list[str]]:
    """Settings that need less memory: first those that cost no time, then recomputation, then shorter rows."""
    parallel, layout, step_layout = run.config.parallel, run.config.loader.layout, run.step_layout
    free = []
    if run.machine.is_gpu and parallel.precision != "bfloat16":
        free.append("parallel.precision=bfloat16")
    if not parallel.reshard_after_forward:
        free.append("parallel.reshard_after_forward=true")
    if parallel.shard is not None and parallel.shard < run.ranks:
        free.append("parallel.shard=none")
    row_options: list[list[str]] = [[]]
    rows = step_layout.micro_batch_rows
    while rows > 1:
        rows //= 2
        max_tokens = f"max_tokens={rows * step_layout.row_length}"
        setting = max_tokens if isinstance(layout, Grouped) else f"micro_batch_rows={rows}"
        row_options.append([f"loader.layout.{setting}"])
    recompute = [] if parallel.checkpoint_activations else ["parallel.checkpoint_activations=true"]
    for extra in ([], recompute) if recompute else ([],):
        for fewer_rows in row_options:
            if free or extra or fewer_rows:
                yield [*free, *extra, *fewer_rows]
    if isinstance(layout, Packed) and step_layout.row_length > run.config.loader.seq_len:
        shorter = [f"loader.layout.row_length={run.config.loader.seq_len}", "loader.layout.micro_batch_rows=1"]
        yield [*free, *shorter]
        yield [*free, *recompute, *shorter]


def _with_changes(run: RunEstimate, changes: list[str]) -> RunEstimate:
    return estimate(
        override(run.config, changes),
        run.vocabulary,
        run.machine,
        run.ranks,
        mfu=None if run.step_seconds else run.mfu,
        price=run.price,
        batches=run.batches,
    )


def _rows(run: RunEstimate) -> Iterator[str]:
    step_layout, ranks, layout = run.step_layout, run.ranks, run.config.loader.layout
    filled, total = step_layout.filled_rows, step_layout.total_rows
    empty = total - filled
    shorter = ", or shorter rows" if isinstance(layout, Packed) else ""
    if filled < ranks:
        yield (
            f"a step has {filled:,.0f} rows for {ranks:,} ranks, so {ranks - filled:,.0f} ranks are idle. "
            f"Use fewer ranks, or a larger loader.global_batch{shorter}."
        )
    elif empty > _NOTABLE * total:
        yield (
            f"the rows of a step do not divide evenly: {filled:,.0f} are padded to {total:,.0f} for {ranks:,} ranks, "
            f"so {empty / total:.0%} are empty. {_better_division(run)}"
        )


def _better_division(run: RunEstimate) -> str:
    loader, ranks = run.config.loader, run.ranks
    layout, seq_len, batch = loader.layout, loader.seq_len, loader.global_batch
    if isinstance(layout, Packed):
        positions = {
            length: lay_out_step(run.batches, replace(layout, row_length=length), seq_len, ranks).positions
            for length in (seq_len * times for times in (1, 2, 3, 4, 6))
        }
        best = min(positions, key=lambda length: positions[length])
        saved = 1 - positions[best] / run.step_layout.positions
        if saved > _NOTABLE:
            return f"loader.layout.row_length={best} would take {saved:.0%} fewer positions."
    if isinstance(layout, Padded):
        below, above = batch // ranks * ranks, -(-batch // ranks) * ranks
        return f"loader.global_batch={below} or {above} would divide evenly."
    return "Another number of ranks or sequences may divide better."
