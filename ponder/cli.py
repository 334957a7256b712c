"""`ponder VERB`: a dict from verb to the file that holds it, imported when it is called: `--help` answers at once."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from ponder import __version__
from ponder.base.errors import UserError, disk_in_words, handed_over, unknown

LONGEST = 2000
"""Characters of an error."""


class Verb(NamedTuple):
    module: str
    about: str

    @property
    def main(self) -> Callable[[Sequence[str]], None]:
        main: Callable[[Sequence[str]], None] = import_module(f"ponder.{self.module}").main
        return main


VERBS = {
    "quickstart": Verb("commands.quickstart", "train 4x4 Sudoku in a few minutes and watch it solve one"),
    "solve": Verb("commands.solve", "solve puzzles with a trained model: text, JSON, pictures"),
    "zoo": Verb("commands.zoo", "list the trained models; with a name, show its card"),
    "domains": Verb("commands.domains", "list the domains, their splits and their presets"),
    "domain": Verb("commands.domain", "start a domain of your own, and check it"),
    "presets": Verb("commands.presets", "list the presets and the models; with a name, show what it resolves to"),
    "data": Verb("commands.data", "build, show and verify datasets"),
    "train": Verb("commands.train", "train a preset; resumes where the run folder left off"),
    "eval": Verb("commands.eval_", "score a checkpoint at every ACT step; a table, a figure and records"),
    "diff": Verb("commands.diff", "two evaluated runs: settings that differ, and the paired difference in score"),
    "cost": Verb("commands.cost", "parameters, layer applications, FLOPs and memory of a model"),
    "policies": Verb("commands.policies", "accuracy against compute for every halting policy"),
    "search": Verb("commands.search", "noisy restarts in parallel until the checker accepts"),
    "trace": Verb("commands.trace", "look inside: residual, stretch and trajectories of the state, step by step"),
    "eval-llm": Verb("commands.eval_llm", "put a domain's examples to a language model"),
    "study": Verb("commands.study", "the paper's experiments as one-diff variants: list, show, run, status, report"),
    "import": Verb("commands.import_", "convert a published HRM, TRM or URM checkpoint"),
    "push": Verb("commands.push", "put a model on the Hugging Face Hub"),
    "pull": Verb("commands.pull", "fetch a model from the Hub into your zoo"),
    "serve": Verb("commands.serve", "the solvers over HTTP, with a web page and MCP tools"),
    "mcp": Verb("commands.mcp", "the solvers as tools for language models, over stdio"),
    "export": Verb("commands.export", "write one ACT step of a model as an ONNX graph"),
}


def usage() -> str:
    lines = [f"ponder {__version__}: recursive reasoning models, from training to solvers", "", "ponder VERB ...", ""]
    lines += [f"  {name:<12} {verb.about}" for name, verb in VERBS.items()]
    return "\n".join([*lines, "", "`ponder VERB --help` tells more; --domain-file FILE brings a domain of your own."])


def _with_domain_files(words: Sequence[str]) -> list[str]:
    """Every verb takes --domain-file FILE: what is left of the words once those are known."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--domain-file", action="append", default=[])
    if not any(word.partition("=")[0] == "--domain-file" for word in words):
        return list(words)
    known, rest = parser.parse_known_args(words)
    from ponder.domains.registry import use_file

    for path in known.domain_file:
        use_file(path)
    return rest


def _shortened(text: str) -> str:
    """What somebody gave may be long, what is said about it is not."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with disk_in_words():
            words = _with_domain_files(words)
            if not words or words[0] in ("-h", "--help", "help"):
                print(usage(), flush=True)
            elif words[0] == "--version":
                print(__version__)
            elif words[0] not in VERBS:
                raise unknown("verb", words[0], VERBS)
            else:
                VERBS[words[0]].main(words[1:])
    except UserError as error:
        if not handed_over(error):
            print(f"ponder: {_shortened(str(error))}", file=sys.stderr)
        return error.code
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        print("ponder: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if not handed_over(error):
            raise
        return 1
    return 0
