"""`triptych eval`: scores of a model, reports and comparisons of them, and what tokenizers preserve."""

from triptych.cli import (
    eval_compare,
    eval_elbo,
    eval_paper,
    eval_report,
    eval_scenes,
    eval_suites,
    eval_tokenizers,
)
from triptych.cli.command import Command
from triptych.cli.eval_scenes import EXAM_MEASURES as EXAM_MEASURES

# In the order of the overview.
_MODULES = (eval_scenes, eval_suites, eval_paper, eval_elbo, eval_report, eval_compare, eval_tokenizers)
COMMANDS: dict[str, Command] = {name: command for module in _MODULES for name, command in module.COMMANDS.items()}
