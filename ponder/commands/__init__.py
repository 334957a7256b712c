"""One file per verb: arguments and printing, nothing else. Imported when it is called: `--help` answers at once."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple


class Verb(NamedTuple):
    module: str
    about: str

    @property
    def main(self) -> Callable[[Sequence[str]], None]:
        main: Callable[[Sequence[str]], None] = import_module(f"ponder.commands.{self.module}").main
        return main


VERBS = {
    "quickstart": Verb("quickstart", "train 4x4 Sudoku in a few minutes and watch it solve one"),
    "solve": Verb("solve", "solve puzzles with a trained model: text, JSON, pictures"),
    "zoo": Verb("zoo", "list the trained models; with a name, show its card"),
    "domains": Verb("domains", "list the domains, their splits and their presets"),
    "domain": Verb("domain", "start a domain of your own, and check it"),
    "presets": Verb("presets", "list the presets and the models; with a name, show what it resolves to"),
    "data": Verb("data", "build, show and verify datasets"),
    "train": Verb("train", "train a preset; resumes where the run folder left off"),
    "runs": Verb("runs", "the runs in a folder: preset, model, update, best, age, state"),
    "watch": Verb("watch", "the live view of a run that trains in another terminal"),
    "eval": Verb("eval_", "score a checkpoint at every ACT step; a table, a figure and records"),
    "diff": Verb("diff", "two evaluated runs: settings that differ, and the paired difference in score"),
    "cost": Verb("cost", "parameters, layer applications, FLOPs and memory of a model"),
    "policies": Verb("policies", "accuracy against compute for every halting policy"),
    "search": Verb("search", "several tries at each puzzle until the checker accepts"),
    "trace": Verb("trace", "look inside: residual, stretch and trajectories of the state, step by step"),
    "eval-llm": Verb("eval_llm", "put a domain's examples to a language model"),
    "arc-submit": Verb("arc_submit", "an ARC challenges file in, fine-tuned on, a submission out"),
    "study": Verb("study", "the paper's experiments as one-diff variants: list, show, run, status, report"),
    "import": Verb("import_", "convert a published HRM, TRM or URM checkpoint"),
    "push": Verb("push", "put a model on the Hugging Face Hub"),
    "pull": Verb("pull", "fetch a model from the Hub into your zoo"),
    "serve": Verb("serve", "the solvers over HTTP, with a web page and MCP tools"),
    "site": Verb("site", "the web page as static files: the models run in the browser"),
    "mcp": Verb("mcp", "the solvers as tools for language models, over stdio"),
    "export": Verb("export", "write one ACT step of a model as an ONNX graph"),
    "doctor": Verb("doctor", "what this machine has, and what to install for what"),
    "completion": Verb("completion", "completion of verbs, presets, models and overrides for bash or zsh"),
}
