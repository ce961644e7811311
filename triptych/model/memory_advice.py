"""What to tell a user whose run does not fit in memory."""

from triptych.model.memory import Memory

_MORE_RANKS = "more ranks to shard it over (parallel.shard=none)"


def memory_advice(needed: Memory) -> str:
    """The end of an out-of-memory message: the total, the largest item, and the settings that reduce it."""
    name = max(needed.items, key=lambda item: needed.items[item])
    inputs, settings = needed.inputs, []
    if name == "activations" and not inputs.checkpoint_activations:
        settings.append("parallel.checkpoint_activations=true")
    if name == "activations" and inputs.rows > 1:
        rows = inputs.rows // 2
        grouped = f"loader.layout.max_tokens={rows * inputs.row_length} if grouped"
        settings.append(f"loader.layout.micro_batch_rows={rows} ({grouped})")
    if name == "gathered" and not inputs.reshard_after_forward:
        settings.append("parallel.reshard_after_forward=true")
    if name == "ema":
        settings.append("ema_decay=none")
    if name == "head":
        settings.append("model.softmax_scope=modality (a different model, with a smaller softmax)")
    if name in ("activations", "gathered", "head") and inputs.compute_bytes == 4:
        settings.append("parallel.precision=bfloat16")
    if name in ("weights", "gradients", "optimizer", "ema"):
        settings.append(_MORE_RANKS)
    if not settings:
        smaller = f"rows shorter than {inputs.row_length:,} positions" if name == "activations" else "a narrower model"
        settings.append(f"{smaller} (every setting that reduces it is already in use)")
    *first, last = settings
    options = f"{', '.join(first)} or {last}" if first else last
    return f"{_gb(needed.total)}, most of it {name} ({_gb(needed.items[name])}); try {options}."


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
