"""Models to the Hugging Face Hub and back: a folder of weights, configuration, card and README, each byte hashed."""

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ponder.base import files, hub
from ponder.base.errors import UserError
from ponder.domains.contract import Progress, silent
from ponder.inference.weights import HUB, TRAVELS, hub_address, hub_folder, open_weights, user_zoo, zoo_folders
from ponder.zoo.cards import CARD, read_card, share_words, write_card
from ponder.zoo.making import WEIGHTS, check_name, pack, put

README = "README.md"


def push(
    model: str,
    repo: str,
    private: bool = False,
    limits: str = "",
    data_dir: Path = Path("data"),
    progress: Progress = silent,
) -> str:
    """Put a zoo model, or a run with a fresh card, on the Hub; the commit that holds it now."""
    from huggingface_hub import HfApi

    hub_address(repo)
    if "@" in repo or repo.startswith(HUB):
        raise UserError(f"{repo!r} should be OWNER/NAME: a push makes a new revision")
    if not hub.online():
        raise UserError("the Hub cannot be reached: push when it can")
    with tempfile.TemporaryDirectory() as folder:
        aside = Path(folder)
        source = zoo_folders().get(model, Path(model))
        if (source / CARD).is_file():
            for name in TRAVELS:
                shutil.copyfile(source / name, aside / name)
        else:
            pack(source, repo.rpartition("/")[2], limits, data_dir, aside, progress)
        card = read_card(aside)
        card.pop("origin", None)  # where this copy of it came from
        card["files"] = {name: files.sha256(aside / name) for name in TRAVELS if name != CARD}
        write_card(aside, card)
        files.write(aside / README, readme(card, repo))
        open_weights(aside)  # what cannot be opened is not sent
        try:
            api = HfApi()
            api.create_repo(repo, private=private, exist_ok=True)
            said = f"ponder push: {card['name']}"
            done = api.upload_folder(
                repo_id=repo, folder_path=aside, commit_message=said, allow_patterns=[*TRAVELS, README]
            )
        except Exception as error:  # the client's HTTP library has its own errors, and has been exchanged before
            do = "log in with `hf auth login`, or set HF_TOKEN, and see that the owner is you"
            raise UserError(f"{repo} could not be pushed ({hub.reason(error)}): {do}") from None
    return str(done.oid)


def pull(address: str, name: str | None = None) -> Path:
    """A model on the Hub as one of the user's zoo; the newest of its revision, or where the Hub is out of reach the one
    that was fetched last."""
    repo, revision = hub_address(address)
    name = name or repo.rpartition("/")[2]
    zoo = user_zoo()
    check_name(name, zoo)
    if (zoo / name).exists() and _origin(zoo / name) != repo:
        raise UserError(f"{zoo / name} did not come from {repo}: choose another --name")
    newest = hub.online()
    if not newest:
        print(f"ponder: the Hub cannot be reached: {repo} as it was fetched last", file=sys.stderr)
    folder = hub_folder(address, newest)
    open_weights(f"{HUB}{repo}@{revision}")
    with tempfile.TemporaryDirectory() as aside:
        for each in TRAVELS:
            shutil.copyfile(folder / each, Path(aside) / each)
        card = {**_plain(read_card(Path(aside))), "name": name, "origin": {"repo": repo, "commit": folder.name}}
        write_card(Path(aside), card)
        put(Path(aside), zoo / name)
    return zoo / name


def _plain(value: Any) -> Any:
    """A stranger's words without what would tell a terminal to do something."""
    if isinstance(value, str):
        return "".join(character for character in value if character.isprintable())
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _origin(folder: Path) -> str | None:
    origin = read_card(folder).get("origin")
    return origin.get("repo") if isinstance(origin, dict) else None


def readme(card: Mapping[str, Any], repo: str) -> str:
    """The page of a model: metadata that the Hub reads, how to use it, results with intervals, how it came to be."""
    recipe, about = card["recipe"], card["data"]
    params = ", ".join(f"{key} {value}" for key, value in about["params"].items() if value is not None)
    results = [
        {
            "task": {"type": "puzzle-solving", "name": card["domain"]},
            "dataset": {"type": card["domain"], "name": f"{card['domain']} ({params})", "split": split},
            "metrics": [
                {"type": "accuracy", "name": kind, "value": score[kind]["value"]}
                for kind in ("exact", "valid", "solved")
                if score[kind]
            ],
        }
        for split, score in card["accuracy"].items()
    ]
    meta = {
        "library_name": "ponder",
        "tags": ["ponder", "recursive-reasoning", card["domain"]],
        "model-index": [{"name": card["name"], "results": results}],
    }
    rows = [
        f"| {split} | {' | '.join(share_words(score[k]) if score[k] else '–' for k in ('exact', 'valid', 'solved'))} "
        f"| {score['n']:,} |"
        for split, score in card["accuracy"].items()
    ]
    return f"""---
{yaml.safe_dump(meta, sort_keys=False, allow_unicode=True)}---
# {card["name"]}

{card.get("title", card["domain"])}. {card["parameters"]:,} parameters, trained with ponder.

## Use

```
ponder solve {HUB}{repo} --random       # {HUB}{repo}@COMMIT takes one revision for ever
ponder pull {repo}                      # into your zoo: `ponder zoo`, `ponder serve`
```

```python
from ponder import Solver

print(Solver("{HUB}{repo}").solve(puzzle))
```

Weights are safetensors, all else is JSON: opening it runs no code. `{CARD}` has the sha256 of `{WEIGHTS}` and of
`config.json`, which are compared.

## Results

| split | exact (95% interval) | valid | solved by the Solver | n |
|---|---|---|---|---:|
{chr(10).join(rows)}

{card["protocol"]}.

## Recipe

- data: {params}; hash {about["hash"]}
- training: `{card["command"]}`: {recipe["updates"]} updates in {recipe["seconds"]:.0f} s on {recipe["cores"]} cores
- limits: {card["limits"]}
"""
