"""`ponder VERB`: what is typed, handed to the verb's file; mistakes as one line."""

import argparse
import os
import sys
from collections.abc import Sequence

from ponder import __version__
from ponder.base import source
from ponder.base.cores import numpy_on_one_thread
from ponder.base.errors import RankLost, UserError, disk_in_words, handed_over, unknown
from ponder.commands import VERBS

LONGEST = 2000
"""Characters of an error."""


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
                print(f"ponder {__version__}, commit {source.commit() or 'unknown'}")
            elif words[0] not in VERBS:
                raise unknown("verb", words[0], VERBS)
            else:
                if words[0] == "solve":
                    numpy_on_one_thread()
                VERBS[words[0]].main(words[1:])
    except UserError as error:
        if not handed_over(error):
            print(f"ponder: {_shortened(str(error))}", file=sys.stderr)
        if isinstance(error, RankLost):
            sys.stderr.flush()
            os._exit(error.code)  # the threads that talked to the lost rank may abort an orderly end
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
