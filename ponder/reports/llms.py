"""What a report reads of stored `ponder eval-llm` results."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from ponder.base.errors import UserError
from ponder.studies.result import Kept, KeptShare


class LlmPasses(Kept):
    all_test_inputs: dict[str, KeptShare]


class LlmSplit(Kept):
    n: int
    complete: bool
    exact: KeptShare | None = None
    valid: KeptShare | None = None
    passes: LlmPasses | None = None
    tasks: int | None = None

    def share(self, metric: str) -> tuple[float, int] | None:
        """The metric, and how many examples or tasks it is of."""
        if metric.startswith("pass@"):
            found = self.passes.all_test_inputs.get(metric) if self.passes else None
            return None if found is None else (found.value, self.tasks or self.n)
        found = getattr(self, metric) if metric in ("exact", "valid") else None
        return None if found is None else (found.value, self.n)


class LlmResult(Kept):
    """What is read of an llm.json."""

    model: str
    data_hash: str
    splits: dict[str, LlmSplit]


def read_llms(folders: Sequence[Path]) -> dict[str, dict[str, LlmResult]]:
    """Stored `ponder eval-llm` results: model -> data hash -> llm.json."""
    found: dict[str, dict[str, LlmResult]] = {}
    for path in sorted(p for folder in folders for p in folder.glob("*/llm.json")):
        try:
            result = LlmResult.model_validate_json(path.read_bytes())
        except ValidationError:
            raise UserError(f"{path} is damaged: delete it, or run `ponder eval-llm` again") from None
        if any(split.complete for split in result.splits.values()):  # one that failed says nothing about the model
            found.setdefault(result.model, {})[result.data_hash] = result
    return found
