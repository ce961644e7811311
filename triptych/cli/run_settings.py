"""Settings of a run besides the values of its weights, as the `plan` commands show them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triptych.training.config import RunConfig


def run_settings(config: "RunConfig") -> dict[str, Any]:
    """Batch, lengths, mixture and schedule of a run, as JSON."""
    from triptych.plan.lengths import task_shares

    return {
        "global_batch": config.loader.global_batch,
        "seq_len": config.loader.seq_len,
        "num_steps": config.num_steps,
        "task_shares": task_shares(config.loader),
        "warmup_steps": config.warmup_steps,
        "min_lr_ratio": config.optimizer.min_lr_ratio,
        "z_loss_weight": config.z_loss_weight,
        "clip": config.clip,
        "per_module": config.transfer.per_module,
    }


def mixture_text(settings: dict[str, Any]) -> str:
    """Shares of the tasks in the sequences: 33.3% text, 33.3% image-text, 33.3% audio-text."""
    return ", ".join(f"{100 * share:.3g}% {task}" for task, share in settings["task_shares"].items() if share)


def schedule_text(settings: dict[str, Any]) -> str:
    """Learning-rate floor, z-loss and clipping."""
    clip = "no gradient clipping" if settings["clip"] is None else f"gradient clipping {settings['clip']:.4g}"
    return (
        f"learning rate falls to {settings['min_lr_ratio']:.4g} of its peak, z-loss weight "
        f"{settings['z_loss_weight']:g}, {clip}"
    )


def family_settings(config: "RunConfig") -> dict[str, Any]:
    """What all runs of a model family share, as JSON; batch, steps and warm-up differ between them."""
    own = ("global_batch", "num_steps", "warmup_steps", "clip")
    return {name: value for name, value in run_settings(config).items() if name not in own}


def family_text(config: "RunConfig") -> str:
    """What all runs of a model family share, in two lines."""
    settings, warmup = run_settings(config), config.optimizer.warmup_steps
    modules = "the same for all modules"
    if settings["per_module"] != "none":
        modules = f"multiplied per module by the table {settings['per_module']!r}"
    if config.transfer.warmup_mode == "share":
        assert config.transfer.base_steps is not None
        warmup_text = f"{warmup / config.transfer.base_steps:.3g} of the run"
    else:
        warmup_text = f"{warmup:,} steps, at most a quarter of the run"
    return (
        f"all runs: sequences of up to {settings['seq_len']:,} positions, {mixture_text(settings)}; "
        f"hyperparameters {modules}\n"
        f"          warm-up {warmup_text}, {schedule_text(settings)}"
    )
